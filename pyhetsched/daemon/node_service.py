"""What compute nodes ask and report; only root may, and every answer is signed."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import grpc

from pyhetsched.clock import Clock
from pyhetsched.daemon.allocator import Action, Allocator, is_on
from pyhetsched.daemon.auth import caller
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.giveback import GiveBack
from pyhetsched.daemon.journal import Journal, user_name
from pyhetsched.daemon.pools import Pools
from pyhetsched.daemon.reconciler import Reconciler
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.errors import HetschedError, MigError, SlurmError, StoreError
from pyhetsched.model import Mode, Reservation, ReservationState
from pyhetsched.rpc import convert, identity
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.rpc.gen import services_pb2_grpc
from pyhetsched.store.reservations import NodeReport

log = logging.getLogger(__name__)


class NodeService(services_pb2_grpc.NodeServicer):
    """Prepare, Report, Release and Reconcile, each safe to repeat."""

    def __init__(self, book: Book, allocator: Allocator, giveback: GiveBack, watcher: Watcher, reconciler: Reconciler,
                 journal: Journal, credentials: identity.Credentials, enabled: Callable[[], Mode],
                 clock: Clock) -> None:  # fmt: skip
        self._book = book
        self._allocator = allocator
        self._giveback = giveback
        self._watcher = watcher
        self._reconciler = reconciler
        self._journal = journal
        self._credentials = credentials
        self._enabled = enabled
        self._clock = clock
        self.pools: Pools | None = None
        # Called when slices are gone and the node's Epilog is about to end.
        self.before_release: Callable[[], None] = _nothing

    def Prepare(self, request: pb.PrepareRequest, context: grpc.ServicerContext) -> pb.Signed:
        """Say which slices a job must get on a node before it starts there."""
        return self._serve(request, context, self._prepare)

    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.Signed:
        """Take in what became of slices."""
        return self._serve(request, context, self._report)

    def Release(self, request: pb.ReleaseRequest, context: grpc.ServicerContext) -> pb.Signed:
        """Say what the journal holds for a job that has ended on a node."""
        return self._serve(request, context, self._release)

    def Reconcile(self, request: pb.ReconcileRequest, context: grpc.ServicerContext) -> pb.Signed:
        """Compare a node's GPUs with the journal."""
        return self._serve(request, context, self._reconcile)

    def _serve(self, request: Any, context: grpc.ServicerContext, function: Callable[[Any], Any]) -> pb.Signed:
        if not caller().is_root:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "only root of a compute node may call this")
        if len(request.nonce) < identity.NONCE_BYTES:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the nonce is too short")
        try:
            body = function(request).SerializeToString()
            return pb.Signed(body=body, munge=self._credentials.encode(identity.reply_payload(request.nonce, body)))
        except (SlurmError, StoreError) as error:
            # Nothing is wrong with the request: the node keeps it and asks again.
            log.warning("node %s: %s: %s", request.node, function.__name__.lstrip("_"), error)
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except HetschedError as error:
            log.error("node %s: %s: %s", request.node, function.__name__.lstrip("_"), error)
            context.abort(grpc.StatusCode.INTERNAL, str(error))
        raise AssertionError("abort does not return")

    def _prepare(self, request: pb.PrepareRequest) -> pb.PreparePlan:
        if self._enabled() is Mode.OFF:
            return pb.PreparePlan(action=pb.PreparePlan.NOTHING, job_id=request.job_id)
        job = self._allocator.load(request.job_id)
        if job is None or not is_on(job, request.node):
            # Requeued or cancelled while its prolog began: whatever still starts must see no GPU.
            text = "Slurm does not have the job on this node any more"
            return pb.PreparePlan(action=pb.PreparePlan.BLOCK, job_id=request.job_id, message=text)
        # PrologSlurmctld has reserved already, unless the daemon was away then: now is not too late.
        answer = self._allocator.allocate(request.job_id)
        if answer.action is not Action.PROCEED:
            if answer.action is Action.KILL:
                self._allocator.cancel(job.job_id)
            return pb.PreparePlan(action=pb.PreparePlan.GIVE_BACK, job_id=job.job_id, message=answer.message)
        needs = self._allocator.needs(job, self._allocator.ask_of(job.job_id), request.node)
        held, ask = job.on(request.node), self._allocator.ask_of(job.job_id)
        if needs.empty and not held.shards and not held.gpus and ask is not None and ask.kind == "slices":
            # So it is for some seconds after slurmctld has restarted; the node asks again.
            raise SlurmError("scontrol show job", f"does not say yet which GPU job {job.job_id} has")
        if needs.empty and held.shards:
            text = "the node says that its GPU is in MIG mode, which is not known here yet"
            answer = self._allocator.give_back(job, request.node, text)
            if answer.action is Action.KILL:
                self._allocator.cancel(job.job_id)
            return pb.PreparePlan(action=pb.PreparePlan.GIVE_BACK, job_id=job.job_id, message=text)
        if needs.empty:
            return pb.PreparePlan(action=pb.PreparePlan.NOTHING, job_id=job.job_id)
        if needs.mismatch:
            return pb.PreparePlan(action=pb.PreparePlan.BLOCK, job_id=job.job_id, message=needs.mismatch)
        mine = [r for r in self._book.of_job(job.job_id, request.node) if r.restart_count == job.restart_count]
        return pb.PreparePlan(
            action=pb.PreparePlan.CREATE, job_id=job.job_id, uid=job.uid, user=job.user,
            slices=[self._slice_plan(item) for item in mine], slices_per_task=needs.slices_per_task,
            flex=needs.flex,
        )  # fmt: skip

    def _slice_plan(self, item: Reservation) -> pb.SlicePlan:
        model = self._watcher.mig_gpus(item.node).get(item.gpu_index)
        if model is None:
            raise MigError(f"GPU {item.gpu_index} of {item.node} is not in MIG mode any more")
        profile = model.profile(item.profile)
        return pb.SlicePlan(
            reservation_id=item.id, gpu_index=item.gpu_index, profile=item.profile, start=item.start, size=item.size,
            gi_profile_const=profile.gi_profile_const or 0, gi_profile_id=profile.gi_profile_id or 0,
        )  # fmt: skip

    def _report(self, request: pb.ReportRequest) -> pb.Ack:
        changed: list[Reservation] = []
        for item in request.slices:
            known = self._book.get(item.reservation_id)
            if known is None or known.node != request.node:
                log.info("node %s reports on %s, which is not open", request.node, item.reservation_id)
                continue
            state = ReservationState(item.state)
            if known.state is ReservationState.DESTROYING and state.holds_space and state is not known.state:
                log.info("node %s: a late report on %s: %s", request.node, item.reservation_id, item.state)
                continue
            changed.append(dataclasses.replace(
                known, state=ReservationState.RUNNING if state is ReservationState.READY else state,
                mig_uuid=item.mig_uuid or known.mig_uuid, note=item.error or item.holder or known.note,
                gi_id=item.gi_id if item.mig_uuid else known.gi_id, ci_id=item.ci_id if item.mig_uuid else known.ci_id,
            ))  # fmt: skip
        self._book.update(changed)
        if changed:
            self._record(request, changed)
        if any(item.state is ReservationState.GONE for item in changed):
            self._allocator.holdings.released(request.job_id, request.node)
            self.before_release()
        if request.HasField("inventory"):
            self._take_inventory(request.node, request.inventory)
        if request.modes_error and self.pools is not None:
            self.pools.failed(request.node, request.modes_error)
        if request.job_must_go_back:
            self._send_back(request)
        return pb.Ack()

    def _record(self, request: pb.ReportRequest, changed: list[Reservation]) -> None:
        state = changed[0].state
        uuids = ", ".join(f"{r.profile} {r.mig_uuid}".strip() for r in changed)
        nvml_s = sum(item.nvml_s for item in request.slices)
        kind = "release" if state in (ReservationState.GONE, ReservationState.DESTROYING) else "prepare"
        outcome = "ready" if state is ReservationState.RUNNING else state.value
        self._journal.event(
            kind, outcome, request.message or changed[0].note, job_id=changed[0].job_id, uid=changed[0].uid,
            node=request.node, detail={"slices": uuids, "nvml_s": round(nvml_s, 4)},
        )  # fmt: skip
        if outcome == "ready":
            self._giveback.ran(changed[0].job_id)
        if state is ReservationState.GONE:
            self._giveback.lift(request.node)

    def _send_back(self, request: pb.ReportRequest) -> None:
        job = self._allocator.load(request.job_id)
        if job is None or not is_on(job, request.node):
            return
        answer = self._allocator.give_back(job, request.node, request.message or "its slices could not be made")
        if answer.action is Action.KILL:
            self._allocator.cancel(job.job_id)

    def _release(self, request: pb.ReleaseRequest) -> pb.ReleasePlan:
        mine = self._book.of_job(request.job_id, request.node)
        return pb.ReleasePlan(reservations=[convert.reservation_message(r, user_name(r.uid)) for r in mine])

    def _reconcile(self, request: pb.ReconcileRequest) -> pb.ReconcilePlan:
        self._take_inventory(request.node, request.inventory)
        try:
            plan = self._reconciler.reconcile(request)
            if self.pools is not None and self._enabled() is Mode.ENFORCE:
                plan.modes.extend(self.pools.changes(request.node))
                _add_foreign(plan, self.pools.take_foreign(request.node))
            return plan
        finally:
            self._giveback.lift(request.node)

    def _take_inventory(self, node: str, inventory: pb.GpuInventory) -> None:
        gpus = tuple(convert.gpu_report(gpu) for gpu in inventory.gpus)
        there = {(gpu.index, item.start, item.gi_id) for gpu in gpus for item in gpu.instances}
        foreign = {gpu.index: self._book.foreign(node, gpu.index) for gpu in gpus}
        left = {i: tuple(f for f in items if (i, f.start, f.gi_id) in there) for i, items in foreign.items()}
        if left != foreign:
            self._book.set_foreign(node, left)
        self._watcher.note_report(
            NodeReport(node, self._clock.now_s(), inventory.boot_id, inventory.driver_version, gpus)
        )


def _add_foreign(plan: pb.ReconcilePlan, wanted: list[pb.Foreign]) -> None:
    """Name the instances that operators want destroyed among those that the node has just shown as foreign."""
    for item in plan.foreign:
        if any((item.profile, item.start) == (named.profile, named.start) for named in wanted):
            plan.destroy.append(item)


def _nothing() -> None:
    """Do nothing."""
