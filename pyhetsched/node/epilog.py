"""The epilog: destroys exactly what was made for a job, and tells the daemon.

The local journal suffices, so it works with the daemon away; it can run twice, or not at all (then the next
prolog on the GPU, or the next boot, does its work). It never fails: Slurm drains a node whose epilog does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyhetsched.errors import DataError, MigError, RpcError
from pyhetsched.instances import Reservation, ReservationState
from pyhetsched.mig.transaction import DESTROYING
from pyhetsched.node import environment
from pyhetsched.node.hook import Hook, HookJob, report_of
from pyhetsched.node.journal import JobRecord, SliceRecord
from pyhetsched.node.rpc import deliver, flush
from pyhetsched.node.slices import Unmade

if TYPE_CHECKING:
    from pyhetsched.rpc.gen import services_pb2 as pb

log = logging.getLogger("hetsched.node")

#: How long an instance may stay in use after its job: processes of the job may still be dying.
IN_USE_WAIT_S = 15.0


def run(job: HookJob, hook: Hook, wait_s: float = IN_USE_WAIT_S) -> bool:
    """Undo what the prolog did for a job; return whether nothing of it is left."""
    environment.remove(hook.paths, job.job_id)
    record = _record(job, hook)
    if record is None:
        flush(hook.rpc, hook.journal)
        return True
    done = unmake(record, job.node, hook, wait_s)
    flush(hook.rpc, hook.journal)
    return done


def unmake(record: JobRecord, node: str, hook: Hook, wait_s: float) -> bool:
    """Destroy the slices of a record and report; return whether all are gone."""
    nvml_s = 0.0
    try:
        with hook.open_driver() as driver:
            try:
                unmade = hook.engine(driver).unmake(record, wait_s)
            finally:
                nvml_s = driver.nvml_s
    except (MigError, OSError) as error:
        log.error("job %d: its slices stay for now: %s", record.job_id, error)
        unmade = Unmade(record, {r.id: str(error) for r in record.reservations})
    deliver(hook.rpc, hook.journal, _report(unmade, node, nvml_s))
    return unmade.done


def _report(unmade: Unmade, node: str, nvml_s: float) -> pb.ReportRequest:
    report = report_of(unmade.record, node, nvml_s)
    for item in report.slices:
        why = unmade.blocked.get(item.reservation_id, "")
        if why:
            log.error("job %d: a slice stays, held by %s", unmade.record.job_id, why)
            item.state = DESTROYING.value
            item.error = why
            item.holder = why if why.startswith("pid ") else ""
    return report


def _record(job: HookJob, hook: Hook) -> JobRecord | None:
    try:
        return hook.journal.load(job.job_id)
    except DataError as error:
        log.error("job %d: %s; asking the daemon what was made", job.job_id, error)
    return _record_of_daemon(job, hook)


def _record_of_daemon(job: HookJob, hook: Hook) -> JobRecord | None:
    """Return the record as the daemon's journal has it, for a job whose own record is damaged."""
    from pyhetsched.rpc.gen import services_pb2 as pb

    try:
        plan = hook.rpc.release(pb.ReleaseRequest(node=job.node, job_id=job.job_id))
    except RpcError as error:
        log.error("job %d: the daemon cannot say either: %s", job.job_id, error)
        return None
    slices = tuple(
        SliceRecord(_reservation(item, job)) for item in plan.reservations if item.node == job.node
    )
    if not slices:
        return None
    return JobRecord(job.job_id, job.uid, job.restart_count, hook.boot_id, slices)


def _reservation(item: pb.Reservation, job: HookJob) -> Reservation:
    state = ReservationState(item.state)
    if state is ReservationState.RESERVED:  # the node may have been at work on it
        state = ReservationState.CREATING
    return Reservation(
        id=item.id, job_id=job.job_id, restart_count=item.restart_count, uid=job.uid, node=item.node,
        gpu_index=item.gpu_index, profile=item.profile, start=item.start, size=item.size, state=state,
        mig_uuid=item.mig_uuid, gi_id=item.gi_id if item.mig_uuid else None,
        ci_id=item.ci_id if item.mig_uuid else None,
    )  # fmt: skip
