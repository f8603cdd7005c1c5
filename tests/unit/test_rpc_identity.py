"""Credentials bind who, what and to whom; anything else is refused. munge itself is tested on the cluster."""

from __future__ import annotations

import base64

import pytest

from pyhetsched.errors import UntrustedError
from pyhetsched.rpc import identity
from pyhetsched.rpc.munge import Credential


class Seal:
    """Credentials of one uid, readable by all, as munge's are by all who have the cluster's key."""

    def __init__(self, uid: int) -> None:
        self.uid = uid

    def encode(self, payload: bytes) -> str:
        return f"{self.uid}:{base64.b64encode(payload).decode()}"

    def decode(self, credential: str) -> Credential:
        uid, _, payload = credential.partition(":")
        if not uid.isdigit():
            raise UntrustedError("munge refuses the credential: Invalid credential")
        return Credential(base64.b64decode(payload), int(uid), int(uid))


METHOD = "/hetsched.v1.Placement/Explain"


def test_a_request_is_its_makers() -> None:
    credential = Seal(1001).encode(identity.request_payload(METHOD, b"request"))
    assert identity.verify_request(Seal(0), credential, METHOD, b"request").uid == 1001


@pytest.mark.parametrize(
    ("method", "request_bytes"),
    [(METHOD, b"another request"), ("/hetsched.v1.Control/SetMode", b"request")],
)
def test_a_credential_for_another_request_is_refused(method: str, request_bytes: bytes) -> None:
    credential = Seal(0).encode(identity.request_payload(METHOD, b"request"))
    with pytest.raises(UntrustedError, match="made for another request"):
        identity.verify_request(Seal(0), credential, method, request_bytes)


def test_an_answer_of_the_daemon_is_believed() -> None:
    nonce = identity.new_nonce()
    credential = Seal(64030).encode(identity.reply_payload(nonce, b"plan"))
    identity.verify_reply(Seal(0), credential, nonce, b"plan", {0, 64030})


@pytest.mark.parametrize("uid", [1001, 65534])
def test_an_impostor_on_the_port_is_not_believed(uid: int) -> None:
    nonce = identity.new_nonce()
    credential = Seal(uid).encode(identity.reply_payload(nonce, b"plan"))
    with pytest.raises(UntrustedError, match=f"uid {uid} answered in place of the daemon"):
        identity.verify_reply(Seal(0), credential, nonce, b"plan", {0, 64030})


def test_an_answer_to_another_request_or_with_another_body_is_not_believed() -> None:
    nonce = identity.new_nonce()
    credential = Seal(0).encode(identity.reply_payload(nonce, b"plan"))
    with pytest.raises(UntrustedError, match="not to this request"):
        identity.verify_reply(Seal(0), credential, identity.new_nonce(), b"plan", {0})
    with pytest.raises(UntrustedError, match="not to this request"):
        identity.verify_reply(Seal(0), credential, nonce, b"another plan", {0})


def test_a_request_cannot_be_replayed_as_an_answer() -> None:
    nonce = identity.new_nonce()
    credential = Seal(0).encode(identity.request_payload(METHOD, nonce + b"plan"))
    with pytest.raises(UntrustedError):
        identity.verify_reply(Seal(0), credential, nonce, b"plan", {0})
