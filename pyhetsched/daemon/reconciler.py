"""Comparing journal, node and Slurm, after anything may have died between any two steps."""

from __future__ import annotations

import logging

from pyhetsched.daemon.allocator import Allocator
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.journal import Journal
from pyhetsched.errors import SlurmError
from pyhetsched.model import MigInstance, Reservation, ReservationState
from pyhetsched.rpc import convert
from pyhetsched.rpc.gen import services_pb2 as pb

log = logging.getLogger(__name__)


class Reconciler:
    """Decides, instance by instance, what on a node is a job's, what is left over and what is not ours."""

    def __init__(self, book: Book, allocator: Allocator, journal: Journal) -> None:
        self._book = book
        self._allocator = allocator
        self._journal = journal

    def reconcile(self, request: pb.ReconcileRequest) -> pb.ReconcilePlan:
        """Return what the node is to destroy and what is foreign, and close what no longer exists.

        Only instances that the journal knows are ever named for destruction.
        """
        node = request.node
        # A GPU that could not be looked at is left out, and nothing is concluded about it.
        known = [gpu for gpu in map(convert.gpu_report, request.inventory.gpus) if gpu.mig_mode != "unknown"]
        instances = {gpu.index: gpu.instances for gpu in known}
        ours = [r for r in self._book.on_node(node) if request.booted or r.gpu_index in instances]
        dead = ours if request.booted else [r for r in ours if not self._alive(r)]
        there = {(index, item.start, item.size) for index, found in instances.items() for item in found}
        plan = pb.ReconcilePlan()
        gone: list[Reservation] = []
        for item in dead:
            if (item.gpu_index, item.start, item.size) in there:
                plan.destroy.append(_slice(item))
            else:
                gone.append(item)
        # A job that the node has on record may have got its slice after the inventory was taken.
        on_record = frozenset(request.running_job_ids)
        gone += [r for r in ours if r not in dead and r.job_id not in on_record and self._vanished(r, there)]
        self._book.close(gone, "not there any more when the node was compared")
        self._note_foreign(node, instances, ours, plan)
        self._tell(node, request.booted, gone, plan)
        return plan

    def _alive(self, item: Reservation) -> bool:
        try:
            return self._allocator.serves(item)
        except SlurmError as error:
            # Without Slurm's word nothing is taken from a job.
            log.warning("job %d: cannot be looked up, its slices are kept: %s", item.job_id, error)
            return True

    def _vanished(self, item: Reservation, there: set[tuple[int, int, int]]) -> bool:
        made = item.state in (ReservationState.READY, ReservationState.RUNNING, ReservationState.DESTROYING)
        return made and (item.gpu_index, item.start, item.size) not in there

    def _note_foreign(self, node: str, instances: dict[int, tuple[MigInstance, ...]], ours: list[Reservation],
                      plan: pb.ReconcilePlan) -> None:  # fmt: skip
        known = {(r.gpu_index, r.start, r.size) for r in ours}
        foreign: dict[int, tuple[MigInstance, ...]] = {}
        for index, found in instances.items():
            strange = tuple(item for item in found if (index, item.start, item.size) not in known)
            if strange:
                foreign[index] = strange
            for item in strange:
                plan.foreign.append(pb.Slice(profile=item.profile, start=item.start, size=item.size,
                                             uuid=item.mig_uuid, state="foreign", gi_id=item.gi_id))  # fmt: skip
        self._book.set_foreign(node, foreign)

    def _tell(self, node: str, booted: bool, gone: list[Reservation], plan: pb.ReconcilePlan) -> None:
        if gone or plan.destroy or plan.foreign:
            left, foreign = len(plan.destroy), len(plan.foreign)
            text = f"{len(gone)} reservations closed, {left} instances left over, {foreign} foreign"
            self._journal.event("reconcile", "booted" if booted else "compared", text, node=node)
            plan.notes.append(text)


def _slice(item: Reservation) -> pb.Slice:
    return pb.Slice(
        profile=item.profile, start=item.start, size=item.size, uuid=item.mig_uuid, job_id=item.job_id,
        state=item.state.value, gi_id=item.gi_id or 0,
    )  # fmt: skip
