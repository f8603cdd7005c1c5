"""The hook socket: what slurmctld's plugin and prologs ask, answered from memory where slurmctld waits."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from google.protobuf.message import DecodeError

from pyhetsched import __version__
from pyhetsched.daemon.allocator import Action, Allocator
from pyhetsched.daemon.auth import Caller
from pyhetsched.daemon.submitter import Submitter
from pyhetsched.daemon.tracker import Tracker
from pyhetsched.errors import HetschedError
from pyhetsched.model import Mode, Verdict
from pyhetsched.rpc import convert
from pyhetsched.rpc.gen import hook_pb2 as pb

log = logging.getLogger(__name__)

MAX_FRAME = 65536
_READ_S = 5.0
_SLOW_S = 0.03
_ACCEPTORS = 8
_PAUSE_S = 0.05
_COMPLAIN_S = 10.0
_ACTIONS = {
    Action.PROCEED: pb.AllocateReply.PROCEED,
    Action.GAVE_BACK: pb.AllocateReply.GAVE_BACK,
    Action.KILL: pb.AllocateReply.KILL,
}


class Hooks:
    """Answers the messages of ``hook.proto``."""

    def __init__(
        self, submitter: Submitter, allocator: Allocator, tracker: Tracker, enabled: Callable[[], Mode],
        identify: Callable[[int], Caller],
    ) -> None:  # fmt: skip
        self._submitter = submitter
        self._allocator = allocator
        self._tracker = tracker
        self._enabled = enabled
        self._identify = identify

    def answer(self, request: pb.HookRequest) -> pb.HookReply:
        """Return the reply to ``request``; whatever goes wrong becomes an error that the hook passes over."""
        what = request.WhichOneof("what")
        try:
            if what == "submit":
                return pb.HookReply(version=1, submit=self._submit(request.submit))
            if what == "modify":
                return pb.HookReply(version=1, modify=self._modify(request.modify))
            if what == "allocate":
                return pb.HookReply(version=1, allocate=self._allocate(request.allocate))
            if what == "finish":
                self._tracker.finished(request.finish.job_id, request.finish.restart_count)
                return pb.HookReply(version=1, finish=pb.FinishReply())
            if what == "ping":
                return pb.HookReply(version=1, ping=pb.PingReply(daemon_version=__version__))
        except HetschedError as error:
            log.error("hook %s: %s", what, error)
            return pb.HookReply(version=1, error=str(error))
        except Exception:  # noqa: BLE001 - a bug of ours must not keep the hook waiting for its deadline
            log.exception("hook %s failed", what)
            return pb.HookReply(version=1, error="the daemon failed; see its log")
        return pb.HookReply(version=1, error="unknown request; the hook is newer than the daemon")

    def _submit(self, message: pb.SubmitRequest) -> pb.SubmitReply:
        outcome, decision_id = self._submitter.submit(convert.submit_request(message))
        return convert.submit_reply(outcome, decision_id)

    def _modify(self, message: pb.ModifyRequest) -> pb.ModifyReply:
        ask = self._tracker.ask_of_text(message.job_id)
        fields = convert.submit_request(message.fields)
        privileged = self._identify(message.uid).privileged
        verdict, text = self._submitter.modify(fields, convert.touched_fields(message), ask, privileged)
        if verdict is Verdict.REFUSED:
            self._tracker.refused_change(message.job_id, message.uid, text)
        return pb.ModifyReply(verdict=convert.verdict(verdict), user_message=text)

    def _allocate(self, message: pb.AllocateRequest) -> pb.AllocateReply:
        if self._enabled() is Mode.OFF:
            return pb.AllocateReply(action=pb.AllocateReply.PROCEED)
        if not self._allocator.concerns(message.node_list):
            # Nothing to reserve, but explain must know the job: learned after the answer.
            self._tracker.learn_later(message.job_id)
            return pb.AllocateReply(action=pb.AllocateReply.PROCEED)
        answer = self._allocator.allocate(message.job_id)
        return pb.AllocateReply(action=_ACTIONS[answer.action], message=answer.message)


class HookServer:
    """Serves `Hooks` on a unix socket, a few threads accepting, to ``allowed`` uids only (SO_PEERCRED)."""

    def __init__(self, path: str, hooks: Hooks, allowed: Collection[int]) -> None:
        self._path = path
        self._hooks = hooks
        self._allowed = frozenset(allowed)
        self._stopping = False
        self._complained_s = float("-inf")
        Path(path).unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Bound under a mask, so that at no instant anybody else can connect.
        mask = os.umask(0o177)
        try:
            self._socket.bind(path)
        finally:
            os.umask(mask)
        self._socket.listen(128)

    def run(self) -> None:
        """Accept connections until `stop`."""
        threads = [threading.Thread(target=self._accept, name="hook", daemon=True) for _ in range(_ACCEPTORS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Stop accepting, and take the socket away."""
        self._stopping = True
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        Path(self._path).unlink(missing_ok=True)

    def _accept(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                # Out of descriptors or memory is over some time, and then submits must be answered again.
                if not self._stopping:
                    self._complain(error)
                    time.sleep(_PAUSE_S)
                continue
            try:
                self._serve(connection)
            except Exception:  # noqa: BLE001 - such as "can't start new thread": the next hook must be heard
                log.exception("hook socket: a hook could not be served")
                connection.close()

    def _complain(self, error: OSError) -> None:
        """Log, but not so often that it fills the disk."""
        now_s = time.monotonic()
        if now_s - self._complained_s > _COMPLAIN_S:
            self._complained_s = now_s
            log.error("hook socket: accept failed: %s", error)

    def _serve(self, connection: socket.socket) -> None:
        request = self._read(connection)
        if request is None:
            connection.close()
        elif request.WhichOneof("what") == "allocate":
            # PrologSlurmctld may wait for seconds, and slurmctld does not wait for it: never before a submit.
            threading.Thread(target=self._reply, args=(connection, request), name="allocate", daemon=True).start()
        else:
            self._reply(connection, request)

    def _read(self, connection: socket.socket) -> pb.HookRequest | None:
        """Return the request of a peer that may ask, None where there is none."""
        connection.settimeout(_READ_S)
        try:
            _pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid in self._allowed:
                return pb.HookRequest.FromString(_read_frame(connection))
            log.warning("hook socket: uid %d is not allowed to ask", uid)
        except (DecodeError, ValueError) as error:
            log.warning("hook socket: malformed request: %s", error)
        except OSError as error:
            log.info("hook socket: the hook went away: %s", error)
        return None

    def _reply(self, connection: socket.socket, request: pb.HookRequest) -> None:
        with connection:
            started_s = time.monotonic()
            body = self._hooks.answer(request).SerializeToString()
            try:
                connection.sendall(struct.pack(">I", len(body)) + body)
            except OSError as error:
                log.info("hook socket: the hook went away: %s", error)
            self._watch_time(request.WhichOneof("what"), time.monotonic() - started_s)

    def _watch_time(self, what: str | None, took_s: float) -> None:
        """slurmctld waits while a submit or a change is answered; a slow answer is worth a line in the log."""
        if what in ("submit", "modify") and took_s > _SLOW_S:
            log.warning("answering %s took %.0f ms (%.0f ms of it on the processor)", what, took_s * 1e3,
                        time.thread_time() * 1e3)  # fmt: skip


def _read_frame(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">I", _read_exactly(connection, 4))
    if length > MAX_FRAME:
        raise ValueError(f"frame of {length} bytes; at most {MAX_FRAME} are allowed")
    return _read_exactly(connection, length)


def _read_exactly(connection: socket.socket, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        part = connection.recv(length)
        if not part:
            raise ValueError("the request ends in the middle of a frame")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
