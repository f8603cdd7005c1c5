"""The hook socket: what slurmctld's plugin and prologs ask, answered from memory where slurmctld waits."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from pyhetsched import __version__
from pyhetsched.clock import Clock
from pyhetsched.daemon.allocator import Action, Allocator
from pyhetsched.daemon.auth import Caller
from pyhetsched.daemon.repeated_submits import Again, RepeatedSubmits
from pyhetsched.daemon.submitter import Submitter
from pyhetsched.daemon.tracker import Tracker
from pyhetsched.errors import HetschedError
from pyhetsched.model import Mode, Verdict
from pyhetsched.rpc import convert
from pyhetsched.rpc.gen import hook_pb2 as pb

log = logging.getLogger(__name__)

MAX_FRAME = 65536
_HEADER = 4
_READ_TIMEOUT = struct.pack("ll", 5, 0)  # struct timeval
_SLOW_S = 0.03
_ACCEPTORS = 8
_MOST_KEPT = 4
_PAUSE_S = 0.05
_COMPLAIN_S = 10.0
_ACTIONS = {
    Action.PROCEED: pb.AllocateReply.PROCEED,
    Action.GAVE_BACK: pb.AllocateReply.GAVE_BACK,
    Action.KILL: pb.AllocateReply.KILL,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What to send (b"": nothing), and what to do once it is sent, for slurmctld waits for it."""

    body: bytes = b""
    after: Callable[[], object] | None = None


class Hooks:
    """Answers the messages of ``hook.proto``."""

    def __init__(
        self, submitter: Submitter, allocator: Allocator, tracker: Tracker, enabled: Callable[[], Mode],
        identify: Callable[[int], Caller], clock: Clock,
    ) -> None:  # fmt: skip
        self._submitter = submitter
        self.repeated = RepeatedSubmits(submitter, clock)
        self._allocator = allocator
        self._tracker = tracker
        self._enabled = enabled
        self._identify = identify

    def reply(self, body: bytes, kept: bool = False) -> Reply | None:
        """Return the reply to the request ``body``, None for an allocation, which may take long: see `answer`.

        ``kept`` is whether its connection is one that the plugin keeps. Raises `DecodeError` for what is no request.
        """
        again = self._again(body, kept)
        if again is not None:
            return Reply(again.reply, lambda: self.repeated.note(again))
        request = pb.HookRequest.FromString(body)
        what = request.WhichOneof("what")
        if what == "allocate":
            return None
        if what == "used":
            return Reply(after=lambda: self.repeated.used(request.used.decision_ids))
        return Reply(self.answer(request, body).SerializeToString())

    def answer(self, request: pb.HookRequest, body: bytes = b"") -> pb.HookReply:
        """Return the reply to ``request``; whatever goes wrong becomes an error that the hook passes over."""
        what = request.WhichOneof("what")
        try:
            if what == "submit":
                return self._submit(request.submit, body)
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

    def _again(self, body: bytes, kept: bool) -> Again | None:
        try:
            return self.repeated.again(body, kept)
        except Exception:  # noqa: BLE001 - then it is decided as if it were the first of its kind
            log.exception("a repeated submit could not be answered as before")
            return None

    def _submit(self, message: pb.SubmitRequest, body: bytes) -> pb.HookReply:
        circumstances = self._submitter.circumstances()
        submitted = self._submitter.submit(convert.submit_request(message))
        decision_id = submitted.decision.id if submitted.decision else ""
        reply = pb.HookReply(version=1, submit=convert.submit_reply(submitted.outcome, decision_id))
        if body:
            self.repeated.keep(body, circumstances, submitted, reply.SerializeToString())
        return reply

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


class _Peer:
    """A connection, what has come of further requests, and what is to be done once nobody waits."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.kept = False
        self._unread = bytearray()
        self._later: list[Callable[[], object]] = []

    @property
    def has_more(self) -> bool:
        """Whether some of the next request is here."""
        return bool(self._unread)

    def read_frame(self) -> bytes:
        """Return the next request without its length, b"" where the peer has closed before it.

        Raises `ValueError` for what is no frame, `OSError` where the rest does not come in time.
        """
        unread = self._unread
        while len(unread) < _HEADER or len(unread) < _HEADER + _length(unread):
            try:
                part = self.connection.recv(_HEADER + MAX_FRAME)
            except BlockingIOError:
                if self.kept and not unread:
                    continue
                raise
            if not part:
                if unread:
                    raise ValueError("the request ends in the middle of a frame")
                return b""
            unread += part
        end = _HEADER + _length(unread)
        body = bytes(unread[_HEADER:end])
        del unread[:end]
        return body

    def do_later(self, what: Callable[[], object] | None, wait: bool) -> None:
        """Do it now, or with ``wait`` after the next answer if a request is here already."""
        if what is not None:
            self._later.append(what)
        if not (wait and self._unread):
            self.do_rest()

    def do_rest(self) -> None:
        """Do all that was put off."""
        later, self._later = self._later, []
        for do in later:
            do()


class HookServer:
    """Serves `Hooks` on a unix socket, a few threads accepting, to ``allowed`` uids only (SO_PEERCRED)."""

    def __init__(self, path: str, hooks: Hooks, allowed: Collection[int]) -> None:
        self._path = path
        self._hooks = hooks
        self._allowed = frozenset(allowed)
        self._stopping = False
        self._complained_s = float("-inf")
        self._keepable = threading.BoundedSemaphore(_MOST_KEPT)
        self._kept: set[socket.socket] = set()
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
        for connection in list(self._kept):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
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
        """Answer a peer that may ask. The plugin asks again and again; a few such connections are kept."""
        peer = _Peer(connection)
        if not self._may_ask(connection):
            connection.close()
            return
        try:
            body = self._read(peer)
            while body:
                if not self._answer(peer, body):
                    return
                body = self._read_next(peer)
            connection.close()
        finally:
            peer.do_rest()

    def _may_ask(self, connection: socket.socket) -> bool:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, _READ_TIMEOUT)
        _pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in self._allowed:
            log.warning("hook socket: uid %d is not allowed to ask", uid)
        return uid in self._allowed

    def _read_next(self, peer: _Peer) -> bytes:
        """Wait for a peer's next question, if it is here already or that leaves enough threads for others."""
        if peer.has_more:
            return self._read(peer)
        if not self._keepable.acquire(blocking=False):
            return b""
        self._kept.add(peer.connection)
        peer.kept = True
        try:
            # What was added after `stop` looked is closed here.
            return b"" if self._stopping else self._read(peer)
        finally:
            self._kept.discard(peer.connection)
            self._keepable.release()

    def _read(self, peer: _Peer) -> bytes:
        """Return the next request, b"" where there is none; on a kept connection however long it takes to begin."""
        try:
            return peer.read_frame()
        except ValueError as error:
            log.warning("hook socket: malformed request: %s", error)
        except OSError as error:
            log.info("hook socket: the hook went away: %s", error)
        return b""

    def _answer(self, peer: _Peer, body: bytes) -> bool:
        """Answer; return False once the connection is another thread's or closed."""
        started_s, connection = time.monotonic(), peer.connection
        try:
            reply = self._hooks.reply(body, peer.kept)
            if reply is None:
                # PrologSlurmctld may wait for seconds, and slurmctld does not wait for it: never before a submit.
                threading.Thread(target=self._allocate, args=(connection, body), name="allocate", daemon=True).start()
                return False
            if reply.body:
                connection.sendall(struct.pack(">I", len(reply.body)) + reply.body)
                self._watch_time(body, time.monotonic() - started_s)
            peer.do_later(reply.after, wait=not reply.body)
            return True
        except DecodeError as error:
            log.warning("hook socket: malformed request: %s", error)
        except OSError as error:
            log.info("hook socket: the hook went away: %s", error)
        connection.close()
        return False

    def _allocate(self, connection: socket.socket, body: bytes) -> None:
        with connection:
            reply = self._hooks.answer(pb.HookRequest.FromString(body)).SerializeToString()
            try:
                connection.sendall(struct.pack(">I", len(reply)) + reply)
            except OSError as error:
                log.info("hook socket: the hook went away: %s", error)

    def _watch_time(self, body: bytes, took_s: float) -> None:
        """slurmctld waits while a submit or a change is answered; a slow answer is worth a line in the log."""
        if took_s > _SLOW_S:
            log.warning("answering %s took %.0f ms (%.0f ms of it on the processor)",
                        pb.HookRequest.FromString(body).WhichOneof("what"), took_s * 1e3,
                        time.thread_time() * 1e3)  # fmt: skip


def _length(data: bytearray) -> int:
    (length,) = struct.unpack_from(">I", data)
    if not 0 < length <= MAX_FRAME:
        raise ValueError(f"frame of {length} bytes; at most {MAX_FRAME} are allowed")
    return int(length)
