"""Who may call the daemon, and that nobody takes all of its threads: over real gRPC on a unix socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pyhetsched.config import parse
from pyhetsched.daemon.auth import Authenticator, Quota, caller
from pyhetsched.errors import UntrustedError
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.rpc.gen import services_pb2_grpc
from pyhetsched.rpc.identity import METADATA_KEY, request_payload
from pyhetsched.rpc.munge import Credential

THREADS = 8
STATUS = "/hetsched.v1.Control/Status"
WATCH = "/hetsched.v1.Placement/WatchDecisions"
OPEN_CALLS = (
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
ALICE, BOB = 900_001, 900_002  # nobody's uids on any machine


class Seal:
    """Credentials that anybody can read: ``uid:payload``."""

    def decode(self, credential: str) -> Credential:
        """Return who made it, on what."""
        uid, _, payload = credential.partition(":")
        if not uid.isdigit():
            raise UntrustedError("munge refuses the credential: Invalid credential")
        return Credential(bytes.fromhex(payload), int(uid), int(uid))

    def encode(self, payload: bytes) -> str:
        """The daemon's own."""
        return f"0:{payload.hex()}"


def signed(uid: int, method: str, body: bytes = b"") -> tuple[tuple[str, str], ...]:
    """The metadata of a call by ``uid``."""
    return ((METADATA_KEY, f"{uid}:{request_payload(method, body).hex()}"),)


class Control(services_pb2_grpc.ControlServicer):
    """Tells the caller's name."""

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:
        """Who called."""
        return pb.StatusReply(version=str(caller().uid))


class Placement(services_pb2_grpc.PlacementServicer):
    """Watches for ever."""

    def WatchDecisions(self, request: pb.ListDecisionsRequest, context: grpc.ServicerContext) -> Iterator[pb.Decision]:
        """One decision, then nothing until the caller goes away."""
        gone = threading.Event()
        context.add_callback(gone.set)
        yield pb.Decision(uid=caller().uid)
        gone.wait()


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[grpc.Channel]:
    """A channel to a server with the daemon's interceptor and few threads."""
    config = parse(f'[slurm]\nuser = "root"\n[daemon]\nthreads = {THREADS}\n')
    server = grpc.server(ThreadPoolExecutor(THREADS), interceptors=[Authenticator(Seal(), config)])
    add: Any = services_pb2_grpc
    add.add_ControlServicer_to_server(Control(), server)
    add.add_PlacementServicer_to_server(Placement(), server)
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(experimental_non_blocking=False), server)
    reflection.enable_server_reflection(["hetsched.v1.Control"], server)
    address = f"unix:{tmp_path}/grpc.sock"
    server.add_insecure_port(address)
    server.start()
    with grpc.insecure_channel(address) as opened:
        yield opened
    server.stop(None).wait()


def status(channel: grpc.Channel, uid: int) -> str:
    """Ask as ``uid``; raises RpcError when there is no answer in time."""
    ask = channel.unary_unary(STATUS, response_deserializer=pb.StatusReply.FromString)
    return str(ask(b"", metadata=signed(uid, STATUS), timeout=10).version)


def hold(channel: grpc.Channel, method: str, metadata: Any, count: int) -> threading.Event:
    """Make calls that never send their request; the event ends them."""
    end = threading.Event()

    def never() -> Iterator[bytes]:
        end.wait()
        yield b""

    for _ in range(count):
        channel.stream_stream(method)(never(), metadata=metadata)
    return end


@pytest.mark.parametrize("method", [STATUS, WATCH, *OPEN_CALLS])
def test_callers_who_never_send_do_not_take_all_threads(channel: grpc.Channel, method: str) -> None:
    end = hold(channel, method, signed(ALICE, method), 3 * THREADS)
    assert status(channel, 0) == "0"
    assert status(channel, BOB) == str(BOB)
    end.set()


def test_watchers_do_not_take_all_threads(channel: grpc.Channel) -> None:
    watch = channel.unary_stream(WATCH, response_deserializer=pb.Decision.FromString)
    calls = [watch(b"", metadata=signed(ALICE, WATCH)) for _ in range(3 * THREADS)]
    assert status(channel, 0) == "0"
    refused = 0
    for call in calls:
        try:
            assert next(call).uid == ALICE
        except grpc.RpcError as error:
            refused += error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    assert refused == 3 * THREADS - THREADS // 4
    for call in calls:
        call.cancel()


def test_without_a_credential_nobody_is_waited_for(channel: grpc.Channel) -> None:
    end = hold(channel, STATUS, (), 3 * THREADS)
    assert status(channel, BOB) == str(BOB)
    end.set()


@pytest.mark.parametrize(
    ("body", "metadata", "code"),
    [
        (b"", (), grpc.StatusCode.UNAUTHENTICATED),
        (b"", ((METADATA_KEY, "forged"),), grpc.StatusCode.UNAUTHENTICATED),
        (b"", signed(ALICE, WATCH), grpc.StatusCode.UNAUTHENTICATED),
        (b"x", signed(ALICE, STATUS), grpc.StatusCode.UNAUTHENTICATED),
        (b"\xff", signed(ALICE, STATUS, b"\xff"), grpc.StatusCode.INVALID_ARGUMENT),
        (b"\n" * 70_000, signed(ALICE, STATUS, b"\n" * 70_000), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_is_not_proven_or_not_sound_is_refused(
    channel: grpc.Channel, body: bytes, metadata: Any, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(STATUS)(body, metadata=metadata, timeout=10)
    assert error.value.code() is code  # type: ignore[attr-defined]


def test_health_is_told_to_everybody(channel: grpc.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
    request = health_pb2.HealthCheckRequest()
    assert stub.Check(request, timeout=10).status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(request)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_a_place_is_free_again_when_its_call_has_ended() -> None:
    quota = Quota(8)
    assert [quota.take(ALICE) for _ in range(3)] == [True, True, False]
    assert [quota.take(BOB) for _ in range(3)] == [True, True, False]
    assert not quota.take(0)
    quota.give(ALICE)
    assert quota.take(ALICE)
