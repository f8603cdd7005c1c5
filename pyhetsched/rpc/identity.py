"""Who calls, and who answers: the payloads that munge credentials carry.

A request's credential binds the method and the exact bytes of the request to the caller's uid. A signed
reply's credential binds the bytes of the reply and the caller's nonce to the uid of the daemon, so that
nothing an impostor says on the daemon's port while it is away is ever acted on.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from typing import Protocol

from pyhetsched.errors import UntrustedError
from pyhetsched.rpc.munge import Credential

METADATA_KEY = "hetsched-munge"
NONCE_BYTES = 16


class Credentials(Protocol):
    """Something that makes and reads credentials, as `pyhetsched.rpc.munge.Munge` does."""

    def encode(self, payload: bytes) -> str:
        """Return a credential on ``payload``."""
        ...

    def decode(self, credential: str) -> Credential:
        """Return what ``credential`` says."""
        ...


def new_nonce() -> bytes:
    """Return a nonce that nobody can guess."""
    return secrets.token_bytes(NONCE_BYTES)


def request_payload(method: str, request: bytes) -> bytes:
    """Return what a caller of ``method`` signs; ``request`` is the serialised message."""
    return f"hetsched/1 {method} {hashlib.sha256(request).hexdigest()}".encode()


def reply_payload(nonce: bytes, body: bytes) -> bytes:
    """Return what the daemon signs when it answers a request with ``nonce``."""
    return f"hetsched/1 reply {hashlib.sha256(nonce + body).hexdigest()}".encode()


def verify_request(credentials: Credentials, credential: str, method: str, request: bytes) -> Credential:
    """Return the caller; raises `UntrustedError` if the credential is not on this very request."""
    caller = credentials.decode(credential)
    check_request(caller, method, request)
    return caller


def check_request(caller: Credential, method: str, request: bytes) -> None:
    """Raise `UntrustedError` unless the credential that ``caller`` says is on this very request."""
    if not hmac.compare_digest(caller.payload, request_payload(method, request)):
        raise UntrustedError(f"the credential was made for another request than {method}")


def verify_reply(
    credentials: Credentials, credential: str, nonce: bytes, body: bytes, trusted: Collection[int]
) -> None:
    """Raise `UntrustedError` unless one of the ``trusted`` uids answered this very request with ``body``."""
    answerer = credentials.decode(credential)
    if answerer.uid not in trusted:
        raise UntrustedError(f"uid {answerer.uid} answered in place of the daemon; trusted are {sorted(trusted)}")
    if not hmac.compare_digest(answerer.payload, reply_payload(nonce, body)):
        raise UntrustedError("the answer is not to this request")
