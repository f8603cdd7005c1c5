"""How the hooks reach the daemon: bounded patience, and a spool for reports that find nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from pyhetsched.clock import Clock
from pyhetsched.errors import ConfigError, HetschedError, RpcError, UnreachableError

if TYPE_CHECKING:
    from pyhetsched.node.journal import Journal
    from pyhetsched.node.settings import NodeSettings
    from pyhetsched.rpc.gen import services_pb2 as pb

T = TypeVar("T")
log = logging.getLogger("hetsched.node")

_RETRY_S = 0.25


class NodeRpc(Protocol):
    """The four calls of a node; answers are verified to be the daemon's before they are returned.

    Each raises `UnreachableError`, `UntrustedError` or `RpcError`.
    """

    def prepare(self, request: pb.PrepareRequest) -> pb.PreparePlan:
        """Return what to do for a job that starts here."""
        ...

    def report(self, request: pb.ReportRequest) -> pb.Ack:
        """Tell the daemon what became of slices."""
        ...

    def release(self, request: pb.ReleaseRequest) -> pb.ReleasePlan:
        """Return what the daemon's journal holds for a job on this node."""
        ...

    def reconcile(self, request: pb.ReconcileRequest) -> pb.ReconcilePlan:
        """Compare the node with the daemon's journal."""
        ...


def connect(settings: NodeSettings) -> NodeRpc:
    """Return a client of the daemon that ``settings`` name; nothing is sent yet."""
    from pyhetsched.node.quickstart import load_grpc
    from pyhetsched.rpc.client import DaemonClient, NodeClient
    from pyhetsched.rpc.munge import Munge

    load_grpc()
    munge = Munge()
    client = DaemonClient(settings.address, settings.deadline_s, munge)
    return NodeClient(client, munge, trusted_uids(settings.trusted_users))


def trusted_uids(names: tuple[str, ...]) -> frozenset[int]:
    """Return the uids of user names; a name that this node does not know is passed over.

    Raises `ConfigError` when none is known.
    """
    import pwd

    uids = set()
    for name in names:
        try:
            uids.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            log.warning("node.trusted_users: this machine knows no user %s", name)
    if not uids:
        raise ConfigError(f"node.trusted_users: none of {', '.join(names)} is a user of this machine")
    return frozenset(uids)


def patiently(ask: Callable[[], T], clock: Clock, patience_s: float) -> T:
    """Return what ``ask`` returns, trying again while the daemon does not answer, for ``patience_s``.

    A daemon that has just been killed is back within seconds; one that refuses is believed at once.
    """
    deadline_s = clock.monotonic_s() + patience_s
    while True:
        try:
            return ask()
        except UnreachableError:
            if clock.monotonic_s() + _RETRY_S >= deadline_s:
                raise
            clock.sleep_s(_RETRY_S)


def deliver(rpc: NodeRpc, journal: Journal, report: pb.ReportRequest) -> bool:
    """Send a report, or keep it for later; return whether the daemon has it."""
    try:
        rpc.report(report)
        return True
    except RpcError as error:
        log.warning("job %d: the daemon could not be told, will try again later: %s", report.job_id, error)
        # Told late, "the job must go back" would hit a later run of the job: the prolog sees to it itself.
        report.nonce, report.job_must_go_back = b"", False
        journal.spool(report.SerializeToString())
        return False


def flush(rpc: NodeRpc, journal: Journal) -> None:
    """Send what waits in the spool, until the daemon stops answering."""
    from pyhetsched.rpc.gen import services_pb2 as pb

    for path, data in journal.spooled():
        try:
            rpc.report(pb.ReportRequest.FromString(data))
        except UnreachableError:
            return
        except HetschedError as error:
            log.warning("a report kept in %s was refused and is dropped: %s", path, error)
        except ValueError as error:  # protobuf's DecodeError
            log.warning("%s is damaged and is dropped: %s", path, error)
        path.unlink(missing_ok=True)
