"""Who calls over gRPC, and what they may see."""

from __future__ import annotations

import contextvars
import logging
import os
import pwd
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from pyhetsched.config import Config
from pyhetsched.daemon.journal import user_name
from pyhetsched.errors import ConfigError, RpcError, UntrustedError
from pyhetsched.rpc.identity import METADATA_KEY, Credentials, verify_request

log = logging.getLogger(__name__)

# Health and reflection tell nothing about jobs, and monitoring must not need a credential.
_OPEN_SERVICES = ("/grpc.health.", "/grpc.reflection.")


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
        raise ConfigError(f"there is no user {name!r} here; write an existing one in hetsched.toml") from error


class Authenticator(grpc.ServerInterceptor):
    """Checks the munge credential of every call against the exact bytes of its request."""

    def __init__(self, credentials: Credentials, config: Config) -> None:
        self._credentials = credentials
        self.set_config(config)

    def set_config(self, config: Config) -> None:
        """Take the operators from ``config``; raises `ConfigError` for one that does not exist."""
        self._slurm_uid = uid_of(config.slurm.user)
        self._operators = frozenset(uid_of(name) for name in config.access.operators)

    def identify(self, uid: int) -> Caller:
        """Return the caller with this uid and its rights."""
        privileged = uid in (0, self._slurm_uid, os.geteuid()) or uid in self._operators
        return Caller(uid, user_name(uid), privileged, uid == 0)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Wrap the handler of a call so that it runs only for a proven caller."""
        handler = continuation(details)
        if handler is None or details.method.startswith(_OPEN_SERVICES):
            return handler
        credential = next((value for key, value in details.invocation_metadata if key == METADATA_KEY), "")
        parse = handler.request_deserializer

        def with_bytes(raw: bytes) -> tuple[bytes, Any]:
            return raw, parse(raw)

        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, details.method, credential), with_bytes, handler.response_serializer
            )
        return grpc.unary_stream_rpc_method_handler(
            self._stream(handler.unary_stream, details.method, credential), with_bytes, handler.response_serializer
        )

    def _unary(self, behaviour: Callable[..., Any], method: str, credential: str) -> Callable[..., Any]:
        def serve(request: tuple[bytes, Any], context: grpc.ServicerContext) -> Any:
            self._admit(method, credential, request[0], context)
            return behaviour(request[1], context)

        return serve

    def _stream(self, behaviour: Callable[..., Any], method: str, credential: str) -> Callable[..., Any]:
        def serve(request: tuple[bytes, Any], context: grpc.ServicerContext) -> Iterator[Any]:
            self._admit(method, credential, request[0], context)
            yield from behaviour(request[1], context)

        return serve

    def _admit(self, method: str, credential: str, raw: bytes, context: grpc.ServicerContext) -> None:
        if not credential:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, f"a munge credential is missing in metadata {METADATA_KEY}")
        try:
            found = verify_request(self._credentials, credential, method, raw)
        except UntrustedError as error:
            log.warning("%s: refused from %s: %s", method, context.peer(), error)
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except RpcError as error:
            log.error("%s: %s", method, error)
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        _caller.set(self.identify(found.uid))
