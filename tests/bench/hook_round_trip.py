"""The round trip of the hook socket as the plugin makes it: a connection, a request, an answer."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from pyhetsched.rpc.gen import hook_pb2 as pb

HOOK_SOCKET = "/run/hetsched/hook.sock"
COUNT, WARM_UP = 2000, 200
PAUSE_S = 0.002


def requests() -> list[bytes]:
    """Requests as the plugin sends them: a whole GPU, slices, a need, one that is refused."""
    common: dict[str, Any] = {"uid": 2001, "batch": True, "min_nodes": 1, "max_nodes": 1, "num_tasks": 1}
    common["submit_host"] = "login1"
    found = [
        pb.SubmitRequest(tres_per_node="gres/gpu:1", **common),
        pb.SubmitRequest(tres_per_node="gres/gpu:1g.10gb:1", **common),
        pb.SubmitRequest(tres_per_node="gres/gpu:a100_3g.40gb:2", time_limit_min=60, account="physics", **common),
        pb.SubmitRequest(script_lines=["min-vram=40G"], **common),
        pb.SubmitRequest(tres_per_node="gres/gpu:a100:2", **common),
    ]
    return [_frame(pb.HookRequest(version=1, submit=item)) for item in found]


def _frame(request: pb.HookRequest) -> bytes:
    body = request.SerializeToString()
    return struct.pack(">I", len(body)) + body


def ask(frame: bytes) -> pb.HookReply:
    """Connect, ask, read the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(HOOK_SOCKET)
        connection.sendall(frame)
        (length,) = struct.unpack(">I", _exactly(connection, 4))
        return pb.HookReply.FromString(_exactly(connection, length))


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionError("hetschedd closed the connection half-way")
        data += part
    return data


def measure() -> list[float]:
    """The seconds of each of `COUNT` round trips, one after the other with a short pause between."""
    frames = requests()
    times_s = []
    for number in range(WARM_UP + COUNT):
        time.sleep(PAUSE_S)
        before_s = time.perf_counter()
        reply = ask(frames[number % len(frames)])
        took_s = time.perf_counter() - before_s
        if reply.WhichOneof("what") != "submit":
            raise ConnectionError(f"hetschedd did not decide: {reply}")
        if number >= WARM_UP:
            times_s.append(took_s)
    return times_s
