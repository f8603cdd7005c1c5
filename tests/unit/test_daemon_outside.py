"""What the world does to the daemon's own process: descriptors run out, a second daemon starts."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from pyhetsched.daemon.alone import stay_alone
from pyhetsched.daemon.hook_server import HookServer, Reply
from pyhetsched.errors import ConfigError
from pyhetsched.rpc.gen import hook_pb2 as pb


class _Hooks:
    def reply(self, body: bytes, kept: bool) -> Reply:
        return Reply(pb.HookReply(version=1, ping=pb.PingReply(daemon_version="0")).SerializeToString())


class _Failing:
    """A listening socket whose next accepts fail."""

    def __init__(self, real: socket.socket, failures: int) -> None:
        self._real = real
        self.left = failures

    def accept(self) -> Any:
        if self.left > 0:
            self.left -= 1
            raise OSError(24, "Too many open files")
        return self._real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_hooks_are_answered_again_once_descriptors_are_free(tmp_path: Path) -> None:
    hooks: Any = _Hooks()
    server = HookServer(f"{tmp_path}/hook.sock", hooks, {os.geteuid()})
    failing: Any = _Failing(server._socket, 40)
    server._socket = failing
    threading.Thread(target=server.run, daemon=True).start()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(f"{tmp_path}/hook.sock")
        body = pb.HookRequest(version=1, ping=pb.PingRequest()).SerializeToString()
        client.sendall(len(body).to_bytes(4, "big") + body)
        assert client.recv(4)
    assert failing.left == 0
    server.stop()


def _ping() -> bytes:
    body = pb.HookRequest(version=1, ping=pb.PingRequest()).SerializeToString()
    return len(body).to_bytes(4, "big") + body


def test_a_connection_is_kept_for_further_questions_until_the_daemon_stops(tmp_path: Path) -> None:
    hooks: Any = _Hooks()
    server = HookServer(f"{tmp_path}/hook.sock", hooks, {os.geteuid()})
    threading.Thread(target=server.run, daemon=True).start()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(f"{tmp_path}/hook.sock")
        for _ in range(3):
            client.sendall(_ping())
            assert client.recv(1000)
        client.sendall(_ping() + _ping())
        got = b""
        while len(got) < 2 * 10:
            got += client.recv(1000)
        client.sendall(_ping()[:3])
        client.sendall(_ping()[3:])
        assert client.recv(1000)
        server.stop()
        assert client.recv(1000) == b""


def test_many_who_keep_their_connection_leave_threads_for_others(tmp_path: Path) -> None:
    hooks: Any = _Hooks()
    server = HookServer(f"{tmp_path}/hook.sock", hooks, {os.geteuid()})
    threading.Thread(target=server.run, daemon=True).start()
    clients = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for client in clients:
        client.settimeout(30)
        client.connect(f"{tmp_path}/hook.sock")
        client.sendall(_ping())
        assert client.recv(1000)
    for client in clients:
        client.close()
    server.stop()


class _News(_Hooks):
    def reply(self, body: bytes, kept: bool) -> Reply:
        request = pb.HookRequest.FromString(body)
        return Reply() if request.WhichOneof("what") == "used" else super().reply(body, kept)


def test_news_never_cost_the_request_behind_them_its_answer(tmp_path: Path) -> None:
    hooks: Any = _News()
    server = HookServer(f"{tmp_path}/hook.sock", hooks, {os.geteuid()})
    threading.Thread(target=server.run, daemon=True).start()
    news = pb.HookRequest(version=1, used=pb.UsedRequest(decision_ids=["a"])).SerializeToString()
    clients = [socket.socket(socket.AF_UNIX) for _ in range(12)]  # more than are kept
    for client in clients:
        client.settimeout(30)
        client.connect(f"{tmp_path}/hook.sock")
        client.sendall(len(news).to_bytes(4, "big") + news + _ping())
        assert client.recv(1000)
    for client in clients:
        client.close()
    server.stop()


def test_a_second_daemon_does_not_take_the_socket_of_the_first(tmp_path: Path) -> None:
    lock = stay_alone(f"{tmp_path}/hook.sock")
    with pytest.raises(ConfigError, match="another hetschedd serves"):
        stay_alone(f"{tmp_path}/hook.sock")
    os.close(lock)  # as the end of its process does
    os.close(stay_alone(f"{tmp_path}/hook.sock"))
    with pytest.raises(ConfigError, match="cannot be opened"):
        stay_alone(f"{tmp_path}/nowhere/hook.sock")
