"""A client of the daemon: one channel, a fresh credential on every call, errors in plain words."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from pyhetsched.errors import RpcError, UnreachableError, UntrustedError
from pyhetsched.rpc import identity
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.rpc.identity import METADATA_KEY, Credentials
from pyhetsched.rpc.munge import Munge

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")

DEFAULT_ADDRESS = "unix:/run/hetsched/hetschedd.sock"
_MAX_MESSAGE = 64 * 1024 * 1024


def default_address() -> str:
    """Return ``$HETSCHED_ADDRESS``, else the daemon's unix socket."""
    return os.environ.get("HETSCHED_ADDRESS", DEFAULT_ADDRESS)


class DaemonClient:
    """Calls the daemon at ``address`` (``unix:/path`` or ``host:port``).

    Methods raise `UnreachableError` when nothing answers within ``deadline_s``, `UntrustedError` when a
    credential is refused, and `RpcError` for all else that the daemon reports.
    """

    def __init__(self, address: str | None = None, deadline_s: float = 10.0,
                 credentials: Credentials | None = None) -> None:  # fmt: skip
        import grpc

        self._grpc = grpc
        self.address = address or default_address()
        self._deadline_s = deadline_s
        self._credentials = credentials or Munge()
        # The calls are made by their path with grpc's bare channel: the generated stubs add nothing here, and
        # a proxy from the user's environment must never see them.
        self._channel = grpc.insecure_channel(
            self.address,
            options=[("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", _MAX_MESSAGE)],
        )

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> DaemonClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, request: Message, reply_type: type[M]) -> M:
        """Call ``method`` (``Placement/Explain``) and return its reply."""
        path, metadata = self._prepare(method, request)
        stub = self._channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=reply_type.FromString
        )
        try:
            reply: M = stub(request, timeout=self._deadline_s, metadata=metadata)
        except self._grpc.RpcError as error:
            raise self._translate(error) from error
        return reply

    def stream(self, method: str, request: Message, reply_type: type[M]) -> Iterator[M]:
        """Call ``method`` and yield its replies until the daemon ends the stream or the caller stops."""
        path, metadata = self._prepare(method, request)
        stub = self._channel.unary_stream(
            path, request_serializer=type(request).SerializeToString, response_deserializer=reply_type.FromString
        )
        try:
            yield from stub(request, metadata=metadata)
        except self._grpc.RpcError as error:
            raise self._translate(error) from error

    def _prepare(self, method: str, request: Message) -> tuple[str, tuple[tuple[str, str | bytes], ...]]:
        path = f"/hetsched.v1.{method}"
        payload = identity.request_payload(path, request.SerializeToString())
        return path, ((METADATA_KEY, self._credentials.encode(payload)),)

    def _translate(self, error: Any) -> RpcError:
        code, text = error.code(), error.details() or ""
        status = self._grpc.StatusCode
        if code in (status.UNAVAILABLE, status.DEADLINE_EXCEEDED):
            reason = _reason(text) or code.name.lower()
            return UnreachableError(f"hetschedd does not answer at {self.address}: {reason}")
        if code is status.UNAUTHENTICATED:
            return UntrustedError(text)
        return RpcError(text or code.name.lower())


def _reason(text: str) -> str:
    """Return the system's words in what gRPC says of a failed connection."""
    return text.rpartition(": ")[2] if text.startswith("failed to connect to all addresses") else text


class NodeClient:
    """The calls of a compute node, each answer verified to be the daemon's.

    ``trusted`` are the uids whose word is taken: root's and SlurmUser's.
    """

    def __init__(self, client: DaemonClient, credentials: Credentials, trusted: Collection[int]) -> None:
        self._client = client
        self._credentials = credentials
        self._trusted = trusted

    def prepare(self, request: pb.PrepareRequest) -> pb.PreparePlan:
        """Return what to do for a job that starts on this node."""
        return self._signed("Prepare", request, pb.PreparePlan)

    def report(self, request: pb.ReportRequest) -> pb.Ack:
        """Tell the daemon what became of slices."""
        return self._signed("Report", request, pb.Ack)

    def release(self, request: pb.ReleaseRequest) -> pb.ReleasePlan:
        """Return what the daemon's journal holds for a job that ended on this node."""
        return self._signed("Release", request, pb.ReleasePlan)

    def reconcile(self, request: pb.ReconcileRequest) -> pb.ReconcilePlan:
        """Compare the node with the daemon's journal; return what to destroy and what is foreign."""
        return self._signed("Reconcile", request, pb.ReconcilePlan)

    def _signed(self, method: str, request: Any, body_type: type[M]) -> M:
        request.nonce = identity.new_nonce()
        signed = self._client.call(f"Node/{method}", request, pb.Signed)
        identity.verify_reply(self._credentials, signed.munge, request.nonce, signed.body, self._trusted)
        return body_type.FromString(signed.body)
