"""Credentials of munge, through libmunge.

A credential proves to anyone with the cluster's key which uid made it, on which payload, within its time to
live; munged refuses to decode the same credential twice.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from dataclasses import dataclass

from pyhetsched.errors import RpcError, UnreachableError, UntrustedError

_OPT_SOCKET = 8  # enum munge_opt in munge.h
_SUCCESS = 0


@dataclass(frozen=True, slots=True)
class Credential:
    """What a decoded credential says."""

    payload: bytes
    uid: int
    gid: int


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        lib = ctypes.CDLL("libmunge.so.2")
    except OSError as error:
        raise RpcError("libmunge.so.2 is not installed; install Debian's libmunge2 (or munge-libs)") from error
    lib.munge_ctx_create.restype = ctypes.c_void_p
    lib.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    lib.munge_ctx_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    lib.munge_strerror.restype = ctypes.c_char_p
    lib.munge_encode.argtypes = [
        ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int,
    ]  # fmt: skip
    lib.munge_decode.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int),
        ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint),
    ]  # fmt: skip
    return lib


_libc = ctypes.CDLL(None)
_libc.free.argtypes = [ctypes.c_void_p]


class Munge:
    """Makes and reads credentials; safe to share between threads.

    ``socket`` is munged's, where it is not the default one. Raises `RpcError` when libmunge is missing.
    """

    def __init__(self, socket: str | None = None) -> None:
        self._lib = _library()
        self._socket = socket
        self._local = threading.local()

    def encode(self, payload: bytes) -> str:
        """Return a credential of this process on ``payload``; raises `UnreachableError` when munged is away."""
        out = ctypes.c_void_p()
        code = self._lib.munge_encode(ctypes.byref(out), self._context(), payload, len(payload))
        try:
            if code != _SUCCESS:
                raise UnreachableError(f"munge cannot make a credential: {self._text(code)}; is munged running here?")
            return ctypes.string_at(out.value or 0).decode("ascii")
        finally:
            _libc.free(out)

    def decode(self, credential: str) -> Credential:
        """Return what ``credential`` says; raises `UntrustedError` when it is forged, expired or replayed."""
        out, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint(), ctypes.c_uint()
        code = self._lib.munge_decode(
            credential.encode("ascii", "replace"), self._context(),
            ctypes.byref(out), ctypes.byref(length), ctypes.byref(uid), ctypes.byref(gid),
        )  # fmt: skip
        try:
            if code != _SUCCESS:
                raise UntrustedError(f"munge refuses the credential: {self._text(code)}")
            payload = ctypes.string_at(out.value, length.value) if out.value else b""
            return Credential(payload, uid.value, gid.value)
        finally:
            _libc.free(out)

    def _text(self, code: int) -> str:
        text: bytes = self._lib.munge_strerror(code)
        return text.decode()

    def _context(self) -> int | None:
        # A munge context is not safe to share between threads, so each thread has its own.
        if self._socket is None:
            return None
        context: int | None = getattr(self._local, "context", None)
        if context is None:
            context = self._lib.munge_ctx_create()
            self._lib.munge_ctx_set(context, _OPT_SOCKET, self._socket.encode())
            self._local.context = context
        return context
