"""Who calls over gRPC, and what they may see."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import pwd
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from pyhetsched.config import Config
from pyhetsched.daemon.journal import user_name
from pyhetsched.errors import ConfigError, RpcError, UntrustedError
from pyhetsched.rpc.identity import METADATA_KEY, Credentials, check_request
from pyhetsched.rpc.munge import Credential

log = logging.getLogger(__name__)

# Health and reflection tell nothing about jobs, and monitoring must not need a credential.
_OPEN_SERVICES = ("/grpc.health.", "/grpc.reflection.")
_NOBODY = -1
# A job description over the hook socket is no longer; what is, takes the interpreter away from submits.
_LONGEST_REQUEST = 65536


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls; ``privileged`` callers may see and do all, others see their own jobs."""

    uid: int
    name: str
    privileged: bool
    is_root: bool

    def may_see(self, uid: int) -> bool:
        """Whether this caller may see what belongs to ``uid``."""
        return self.privileged or self.uid == uid


_caller: contextvars.ContextVar[Caller] = contextvars.ContextVar("caller")


def caller() -> Caller:
    """Return who made the call that is being served."""
    return _caller.get()


def uid_of(name: str) -> int:
    """Return the uid of the user ``name``; raises `ConfigError` where there is none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise ConfigError(f"there is no user {name!r} on this machine") from error


class Authenticator(grpc.ServerInterceptor):
    """Checks the munge credential of every call against the exact bytes of its request, and bounds who takes a thread.

    The credential is looked at before the request is waited for. On the wire a unary request is a stream of one
    message, so that each handler is served as one that takes a stream: a caller who never sends holds a thread
    only within the `Quota` of its user.
    """

    def __init__(self, credentials: Credentials, config: Config) -> None:
        self._credentials = credentials
        self._quota = Quota(config.daemon.threads)
        self.set_config(config)

    def set_config(self, config: Config) -> None:
        """Take the operators from ``config``; raises `ConfigError` for one that does not exist."""
        self._slurm_uid = uid_of(config.slurm.user)
        self._operators = frozenset(uid_of(name) for name in config.access.operators)

    def identify(self, uid: int) -> Caller:
        """Return the caller with this uid and its rights."""
        privileged = self._is_system(uid) or uid in self._operators
        return Caller(uid, user_name(uid), privileged, uid == 0)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Wrap the handler of a call so that it runs only for a proven caller."""
        handler = continuation(details)
        if handler is None:
            return None
        if details.method.startswith(_OPEN_SERVICES):
            return self._open(handler)
        credential = next((value for key, value in details.invocation_metadata if key == METADATA_KEY), "")
        if handler.unary_unary:
            return grpc.stream_unary_rpc_method_handler(
                self._unary(handler, details.method, credential), None, handler.response_serializer
            )
        return grpc.stream_stream_rpc_method_handler(
            self._stream(handler, details.method, credential), None, handler.response_serializer
        )

    def _is_system(self, uid: int) -> bool:
        return uid in (0, self._slurm_uid, os.geteuid())

    def _unary(self, handler: Any, method: str, credential: str) -> Callable[..., Any]:
        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            found = self._prove(method, credential, context)
            with self._place(found.uid, context):
                return handler.unary_unary(self._admit(handler, method, found, requests, context), context)

        return serve

    def _stream(self, handler: Any, method: str, credential: str) -> Callable[..., Any]:
        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            found = self._prove(method, credential, context)
            with self._place(found.uid, context):
                yield from handler.unary_stream(self._admit(handler, method, found, requests, context), context)

        return serve

    def _open(self, handler: Any) -> Any:
        """Wrap a handler that needs no credential: nobody is asked for one, so all share one quota."""

        def unary(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            with self._place(_NOBODY, context):
                return handler.unary_unary(handler.request_deserializer(_one(requests, context)), context)

        def stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._place(_NOBODY, context):
                if handler.request_streaming:
                    yield from handler.stream_stream(map(handler.request_deserializer, requests), context)
                else:
                    yield from handler.unary_stream(handler.request_deserializer(_one(requests, context)), context)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, None, handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(unary, None, handler.response_serializer)

    @contextlib.contextmanager
    def _place(self, uid: int, context: grpc.ServicerContext) -> Iterator[None]:
        """Hold a thread for a user, within its quota; root, SlurmUser and the daemon itself have none."""
        if self._is_system(uid):
            yield
            return
        if not self._quota.take(uid):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once; try again when one has ended")
        try:
            yield
        finally:
            self._quota.give(uid)

    def _prove(self, method: str, credential: str, context: grpc.ServicerContext) -> Credential:
        """Return whose credential this is, before the request is there."""
        if not credential:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, f"a munge credential is missing in metadata {METADATA_KEY}")
        try:
            return self._credentials.decode(credential)
        except UntrustedError as error:
            log.warning("%s: refused from %s: %s", method, context.peer(), error)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except RpcError as error:
            log.error("%s: %s", method, error)
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        raise AssertionError("abort does not return")

    def _admit(
        self, handler: Any, method: str, found: Credential, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Any:
        """Return the request, once it is known to be the one that the caller has signed."""
        raw = _one(requests, context)
        who = self.identify(found.uid)
        if len(raw) > _LONGEST_REQUEST and not who.privileged:
            text = f"the request has {len(raw)} bytes; at most {_LONGEST_REQUEST} are taken from users"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        try:
            check_request(found, method, raw)
        except UntrustedError as error:
            log.warning("%s: refused from %s: %s", method, context.peer(), error)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        _caller.set(who)
        try:
            return handler.request_deserializer(raw)
        except DecodeError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be read")


class Quota:
    """How many calls of users may be at work at once: a quarter of the threads for one, half of them for all.

    The rest is for compute nodes. Safe between threads.
    """

    def __init__(self, threads: int) -> None:
        self._one, self._all = max(1, threads // 4), max(1, threads // 2)
        self._lock = threading.Lock()
        self._taken: Counter[int] = Counter()

    def take(self, uid: int) -> bool:
        """Take a place for a call of ``uid``; False where there is none."""
        with self._lock:
            free = self._taken[uid] < self._one and self._taken.total() < self._all
            self._taken[uid] += free
            return free

    def give(self, uid: int) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[uid] -= 1
            if not self._taken[uid]:
                del self._taken[uid]


def _one(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    """Return the one message of a unary request."""
    raw = next(requests, None)
    if raw is None:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is missing")
    return raw or b""
