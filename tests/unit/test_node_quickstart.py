"""gRPC without its asyncio half: blocking calls work, and nobody else notices."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from pyhetsched.rpc.gen import services_pb2 as pb

CALLER = """
import sys
from pyhetsched.node.quickstart import load_grpc
load_grpc()
import grpc
assert "ssl" not in sys.modules, "asyncio was loaded"
from pyhetsched.rpc.client import DaemonClient
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.errors import UnreachableError


class Credentials:
    def encode(self, payload):
        return "me"

    def decode(self, credential):
        raise AssertionError


with DaemonClient(sys.argv[1], 10.0, Credentials()) as client:
    plan = client.call("Node/Prepare", pb.PrepareRequest(node="n0", job_id=7), pb.PreparePlan)
    assert plan.message == "n0 7", plan
try:
    with DaemonClient("unix:/nonexistent", 0.5, Credentials()) as client:
        client.call("Node/Prepare", pb.PrepareRequest(), pb.PreparePlan)
except UnreachableError as error:
    print("unreachable:", error)
import asyncio
assert asyncio.run(asyncio.sleep(0, "real")) == "real"
print("done")
"""


class Handler(grpc.GenericRpcHandler):
    """Answers Node/Prepare with what it was asked."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        assert details.method == "/hetsched.v1.Node/Prepare"
        return grpc.unary_unary_rpc_method_handler(
            lambda request, _: pb.PreparePlan(message=f"{request.node} {request.job_id}"),
            request_deserializer=pb.PrepareRequest.FromString,
            response_serializer=pb.PreparePlan.SerializeToString,
        )


@pytest.fixture
def address(tmp_path: Path) -> object:
    server = grpc.server(ThreadPoolExecutor(2), handlers=(Handler(),))
    where = f"unix:{tmp_path}/daemon.sock"
    server.add_insecure_port(where)
    server.start()
    yield where
    server.stop(0).wait()


def test_blocking_calls_work_and_asyncio_is_the_real_one_afterwards(address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CALLER, address], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    assert "unreachable: hetschedd does not answer at unix:/nonexistent" in done.stdout


def test_where_grpc_is_loaded_nothing_is_touched() -> None:
    from pyhetsched.node.quickstart import load_grpc

    before = dict(sys.modules)
    load_grpc()
    assert dict(sys.modules) == before
