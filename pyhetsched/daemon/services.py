"""The gRPC services for people and tools: WouldRun, Explain, decisions, the map, status and modes."""

from __future__ import annotations

import logging
import pwd
import queue
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from pyhetsched import __version__
from pyhetsched.clock import Clock
from pyhetsched.daemon.allocator import Allocator
from pyhetsched.daemon.auth import caller
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.explain import Explainer
from pyhetsched.daemon.gpu_map import GpuMap
from pyhetsched.daemon.journal import Journal, user_name
from pyhetsched.daemon.modes import UNSET, Modes
from pyhetsched.daemon.pools import Pools
from pyhetsched.daemon.submitter import Submitter
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.errors import HetschedError, NeverError, RequestError
from pyhetsched.model import Decision, Verdict
from pyhetsched.rpc import convert
from pyhetsched.rpc.gen import hook_pb2, services_pb2_grpc
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.store.decisions import DecisionStore
from pyhetsched.store.reservations import ReservationStore

log = logging.getLogger(__name__)
T = TypeVar("T")

_DEFAULT_LIMIT = 100
_MOST_DECISIONS = 10_000
_MOST_JOBS = 1000
_WATCH_WAIT_S = 1.0


def guarded(function: Callable[[Any, Any, grpc.ServicerContext], T]) -> Callable[[Any, Any, grpc.ServicerContext], T]:
    """Turn hetsched's errors into gRPC's; their text is written for the user."""

    def serve(self: Any, request: Any, context: grpc.ServicerContext) -> T:
        try:
            return function(self, request, context)
        except (RequestError, NeverError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except HetschedError as error:
            log.error("%s: %s", function.__qualname__, error)
            context.abort(grpc.StatusCode.INTERNAL, str(error))
        raise AssertionError("abort does not return")

    return serve


class SubmitService(services_pb2_grpc.SubmitServicer):
    """What would be done with a request."""

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter

    @guarded
    def WouldRun(self, request: hook_pb2.SubmitRequest, context: grpc.ServicerContext) -> pb.WouldRunReply:
        """Decide on a request as if it were submitted by the caller; nothing is kept."""
        me = caller()
        if not me.privileged or not request.user_name:
            request.uid, request.user_name = me.uid, me.name
        outcome, decision = self._submitter.would_run(convert.submit_request(request))
        return pb.WouldRunReply(
            reply=convert.submit_reply(outcome, decision.id), decision=convert.decision_message(decision)
        )


class PlacementService(services_pb2_grpc.PlacementServicer):
    """Decisions and why."""

    def __init__(self, explainer: Explainer, store: DecisionStore, journal: Journal) -> None:
        self._explainer = explainer
        self._store = store
        self._journal = journal

    @guarded
    def Explain(self, request: pb.ExplainRequest, context: grpc.ServicerContext) -> pb.ExplainReply:
        """Tell all that was decided about a job."""
        self._journal.recorder.flush(0.5)
        reply = self._explainer.explain(request.job_id.strip(), caller())
        if reply is None:
            context.abort(
                grpc.StatusCode.NOT_FOUND, f"nothing is known of job {request.job_id!r}, or it is not yours"
            )
        return reply

    @guarded
    def ListDecisions(self, request: pb.ListDecisionsRequest, context: grpc.ServicerContext) -> pb.ListDecisionsReply:
        """Tell the newest decisions that match."""
        if len(request.job_ids) > _MOST_JOBS or max(request.job_ids, default=0) >= 1 << 63:
            raise RequestError(f"{len(request.job_ids)} job ids; write at most {_MOST_JOBS}, as squeue shows them")
        self._journal.recorder.flush(0.5)
        me = caller()
        found = self._store.recent(
            min(request.limit or _DEFAULT_LIMIT, _MOST_DECISIONS), tuple(request.job_ids), request.user, request.kind,
            request.since_s, None if me.privileged else me.uid,
        )  # fmt: skip
        return pb.ListDecisionsReply(decisions=map(convert.decision_message, found))

    def WatchDecisions(self, request: pb.ListDecisionsRequest, context: grpc.ServicerContext) -> Iterator[pb.Decision]:
        """Tell decisions as they are made, until the caller goes away."""
        me = caller()
        seen: queue.Queue[Decision] = queue.Queue(maxsize=_MOST_DECISIONS)
        listeners = self._journal.recorder.listeners
        listener = _Listener(seen)
        listeners.append(listener)
        try:
            while context.is_active():
                try:
                    decision = seen.get(timeout=_WATCH_WAIT_S)
                except queue.Empty:
                    continue
                if me.may_see(decision.uid) and _matches(request, decision):
                    yield convert.decision_message(decision)
        finally:
            listeners.remove(listener)


class MigService(services_pb2_grpc.MigServicer):
    """The GPUs, their slices and who holds them."""

    def __init__(self, gpu_map: GpuMap, book: Book, store: ReservationStore, pools: Pools) -> None:
        self._map = gpu_map
        self._pools = pools
        self._book = book
        self._store = store

    @guarded
    def Map(self, request: pb.MapRequest, context: grpc.ServicerContext) -> pb.MapReply:
        """Tell what is on every GPU; who holds a slice is told to those who may see that job."""
        return self._map.build(request.nodes, caller())

    @guarded
    def ListReservations(self, request: pb.ListReservationsRequest, context: grpc.ServicerContext) -> Any:
        """Tell the open reservations, or (``all``) those that were closed too."""
        me = caller()
        found = self._store.recent() if request.all else self._book.open()
        return pb.ListReservationsReply(reservations=[
            convert.reservation_message(r, user_name(r.uid)) for r in found if me.may_see(r.uid)
        ])  # fmt: skip

    @guarded
    def Apply(self, request: pb.ApplyRequest, context: grpc.ServicerContext) -> pb.ApplyReply:
        """Order mode changes and the end of foreign instances; for root, SlurmUser and operators."""
        me = caller()
        if not me.privileged:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{me.name} is no operator; ask one to apply layouts")
        return self._pools.apply(request, me.uid)


class ControlService(services_pb2_grpc.ControlServicer):
    """Status and modes."""

    def __init__(self, watcher: Watcher, book: Book, modes: Modes, submitter: Submitter, allocator: Allocator,
                 journal: Journal, clock: Clock) -> None:  # fmt: skip
        self._watcher = watcher
        self._book = book
        self._modes = modes
        self._submitter = submitter
        self._allocator = allocator
        self._journal = journal
        self._started_s = clock.now_s()
        self.pools: Pools | None = None

    @guarded
    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:
        """Tell how the daemon is."""
        counts, view = self._submitter.counts, self._watcher.view
        reply = pb.StatusReply(
            version=__version__, mode=self._modes.default.value, started_s=self._started_s,
            slurm_reachable=not self._watcher.failing, slurm_version=self._watcher.slurm_version,
            nodes=len(view.nodes), gpus=sum(group.count for node in view.nodes for group in node.gpus),
            slices=sum(1 for r in self._book.open() if r.mig_uuid), reservations_open=len(self._book.open()),
            submits=sum(counts.values()), rewritten=counts[Verdict.REWRITTEN], refused=counts[Verdict.REFUSED],
            given_back=self._allocator.given_back, records_lost=self._journal.recorder.lost,
            warnings=list(self._warnings()), snapshot_age_s=self._watcher.age_s() if view.as_of_s else 0.0,
        )  # fmt: skip
        for scope, mode in sorted(self._modes.scopes().items()):
            kind, _, name = scope.partition("=")
            reply.scopes.add(kind=kind, name=name, mode=mode)
        return reply

    @guarded
    def SetMode(self, request: pb.SetModeRequest, context: grpc.ServicerContext) -> pb.StatusReply:
        """Set a mode; for root, SlurmUser and operators."""
        me = caller()
        if not me.privileged:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{me.name} is no operator; ask one to set the mode")
        if request.mode != UNSET:
            self._check_scope(request.scope.kind, request.scope.name)
        self._modes.set(request.mode, request.scope.kind, request.scope.name)
        scope = f"{request.scope.kind} {request.scope.name}" if request.scope.kind else "the whole cluster"
        self._journal.event("mode", request.mode, _mode_set(scope, request.mode), uid=me.uid)
        return self.Status(pb.StatusRequest(), context)

    def _check_scope(self, kind: str, name: str) -> None:
        """Refuse a partition or user that does not exist; which accounts there are only slurmdbd knows."""
        partitions = [partition.name for partition in self._watcher.view.partitions]
        if kind == "partition" and partitions and name not in partitions:
            raise RequestError(f"there is no partition {name!r}; there are {', '.join(partitions)}")
        if kind == "user":
            try:
                pwd.getpwnam(name)
            except KeyError as error:
                raise RequestError(f"there is no user {name!r} on this machine") from error

    def _warnings(self) -> Iterator[str]:
        if self._modes.disabled():
            yield f"{self._modes.config.disabled_file} exists: nothing is rewritten or cut, whatever the mode"
        if self._watcher.failing:
            yield f"slurmctld: {self._watcher.failing}"
        if self._journal.recorder.failing:
            yield f"database: {self._journal.recorder.failing}"
        if self._journal.recorder.lost:
            yield f"{self._journal.recorder.lost} decisions could not be recorded"
        if self.pools is not None:
            yield from self.pools.warnings()
        for node in self._watcher.view.nodes:
            for group in node.gpus:
                if group.model_key is None:
                    yield (f"node {node.name}: gres type {group.gres_type!r} means no known GPU model; write "
                           f'[gpus.{group.gres_type}] model = "..." in hetsched.toml')  # fmt: skip


def _mode_set(scope: str, mode: str) -> str:
    return f"mode of {scope} unset" if mode == UNSET else f"mode of {scope} set to {mode}"


class _Listener:
    def __init__(self, seen: queue.Queue[Decision]) -> None:
        self._seen = seen

    def __call__(self, decision: Decision) -> None:
        # A watcher that does not keep up misses records rather than holding up the daemon.
        if not self._seen.full():
            self._seen.put_nowait(decision)


def _matches(request: pb.ListDecisionsRequest, decision: Decision) -> bool:
    return (
        (not request.job_ids or decision.job_id in request.job_ids)
        and (not request.user or decision.user == request.user)
        and (not request.kind or decision.kind == request.kind)
    )
