"""A hetschedd of one thread whose answers a test lays down: what the plugin and hetsched-hook meet in their tests."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from pyhetsched.rpc.gen import hook_pb2 as pb

Answer = Callable[[pb.HookRequest], pb.HookReply | bytes | None]


def frame(reply: pb.HookReply) -> bytes:
    """A reply as it goes over the socket: 4 bytes of length, big endian, then the message."""
    body = reply.SerializeToString()
    return struct.pack(">I", len(body)) + body


def unchanged(request: pb.HookRequest) -> pb.HookReply:
    """The answer of a daemon that lets everything pass."""
    reply = pb.HookReply(version=1)
    match request.WhichOneof("what"):
        case "submit":
            reply.submit.verdict = pb.UNCHANGED
        case "modify":
            reply.modify.verdict = pb.UNCHANGED
        case "allocate":
            reply.allocate.action = pb.AllocateReply.PROCEED
        case "finish":
            reply.finish.SetInParent()
        case _:
            reply.ping.daemon_version = "stand-in"
    return reply


def rewritten(changes: dict[str, str], message: str = "", drop: tuple[str, ...] = ()) -> pb.HookReply:
    """The answer that sets fields, named as in hook.proto."""
    reply = pb.HookReply(version=1)
    reply.submit.verdict = pb.REWRITTEN
    reply.submit.user_message = message
    reply.submit.drop_environment.extend(drop)
    for field, value in changes.items():
        reply.submit.changes.add(field=pb.Field.Value(field), value=value)
    return reply


def refused(message: str) -> pb.HookReply:
    """The answer that turns a submit down."""
    reply = pb.HookReply(version=1)
    reply.submit.verdict = pb.REFUSED
    reply.submit.user_message = message
    return reply


class StandInDaemon:
    """Listens on ``path`` while used as a context; ``answer`` may be exchanged at any time.

    An answer is a reply, the very bytes to send, or None: then nothing is sent and the caller is kept waiting
    until it goes away. All requests are kept in ``requests``.
    """

    def __init__(self, path: Path, answer: Answer = unchanged) -> None:
        self.path = path
        self.answer = answer
        self.requests: list[pb.HookRequest] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._run, name="stand-in-daemon", daemon=True)

    def __enter__(self) -> StandInDaemon:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        os.chmod(self.path, 0o666)
        self._listener.listen(64)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.path.unlink(missing_ok=True)

    def of_kind(self, kind: str) -> list[pb.HookRequest]:
        """The requests so far that ask this: submit, modify, allocate, finish or ping."""
        return [request for request in self.requests if request.WhichOneof("what") == kind]

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            header = connection.recv(4, socket.MSG_WAITALL)
            if len(header) < 4:
                return
            body = connection.recv(struct.unpack(">I", header)[0], socket.MSG_WAITALL)
            request = pb.HookRequest.FromString(body)
            self.requests.append(request)
            answer = self.answer(request)
            if answer is None:
                connection.recv(1)
            else:
                connection.sendall(answer if isinstance(answer, bytes) else frame(answer))
