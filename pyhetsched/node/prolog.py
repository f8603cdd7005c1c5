"""The prolog: gets the plan for a job, makes its slices, and says what its tasks may see.

It runs as root before any of the job's processes, several at once on one node. A job is never started on a
GPU in MIG mode without a verified answer of the daemon: while there is none its tasks are *blocked* (they see
no GPU), and in the end it goes back to the queue. The exit status is 0 in all of these cases, since Slurm
drains a node whose prolog fails.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pyhetsched.errors import DataError, MigError, NotNowError, NvmlCallError, RpcError
from pyhetsched.instances import Reservation
from pyhetsched.mig.nvml import preload
from pyhetsched.mig.nvml_codes import ABSENT
from pyhetsched.mig.transaction import RESERVED
from pyhetsched.node import environment, inventory
from pyhetsched.node.hook import Hook, HookJob, report_of
from pyhetsched.node.journal import JobRecord, SliceRecord
from pyhetsched.node.rpc import NodeRpc, deliver, flush, patiently
from pyhetsched.node.slices import SliceEngine, SliceFailure

if TYPE_CHECKING:
    from pyhetsched.rpc.gen import services_pb2 as pb

log = logging.getLogger("hetsched.node")

_UNDO_WAIT_S = 5.0


def run(job: HookJob, hook: Hook) -> None:
    """Do all that a job needs before it starts; it starts ready, blocked or not at all."""
    if not _concerned(job, hook):
        environment.remove(hook.paths, job.job_id)
        return
    environment.write_blocked(hook.paths, job.job_id)
    # Loaded while the daemon thinks: its answer is nearly always to create.
    threading.Thread(target=preload, daemon=True).start()
    try:
        plan = patiently(lambda: _ask(job, hook.rpc), hook.clock, hook.patience_s)
        _check(plan, job)
    except (RpcError, DataError) as error:
        hook.give_back(job.job_id, f"its slices are not known: {error}")
        return
    _follow(plan, job, hook)


def _concerned(job: HookJob, hook: Hook) -> bool:
    """Whether one of the job's GPUs is in MIG mode, as the last inventory says, else as NVML does.

    A job whose GPUs Slurm does not tell may have any: it is the daemon that then looks.
    """
    in_mig_mode = inventory.read_mig_gpus(hook.paths)
    if in_mig_mode is None:
        try:
            with hook.open_driver() as driver:
                modes = {index: driver.mig_mode(index) for index in driver.indexes}
            # The boot's look at the GPUs was broken off: those that were in MIG mode should be again.
            inventory.write_mig_gpus(hook.paths, modes, inventory.remembered_mig_gpus(hook.paths))
        except NvmlCallError as error:
            log.warning("job %d: the GPUs cannot be looked at: %s", job.job_id, error)
            return error.code not in ABSENT
        in_mig_mode = inventory.read_mig_gpus(hook.paths) or frozenset()
    return not in_mig_mode.isdisjoint(job.gpus) if job.gpus else bool(in_mig_mode)


def _ask(job: HookJob, rpc: NodeRpc) -> pb.PreparePlan:
    from pyhetsched.rpc.gen import services_pb2 as pb

    return rpc.prepare(
        pb.PrepareRequest(
            node=job.node, job_id=job.job_id, restart_count=job.restart_count, uid=job.uid,
            gpu_indexes=",".join(map(str, job.gpus)),
        )
    )  # fmt: skip


def _check(plan: pb.PreparePlan, job: HookJob) -> None:
    """Raise `DataError` if the plan is not for this job, or touches a GPU that Slurm did not give it."""
    if plan.action != plan.CREATE:
        return
    if (plan.job_id, plan.uid) != (job.job_id, job.uid):
        raise DataError(
            f"the plan is for job {plan.job_id} of uid {plan.uid}, not for this one of uid {job.uid}"
        )
    if not plan.slices:
        raise DataError("the plan is to create slices, but names none")
    for planned in plan.slices:
        if job.gpus and planned.gpu_index not in job.gpus:
            raise DataError(f"the plan wants a slice on GPU {planned.gpu_index}; Slurm gave GPUs {job.gpus}")
        if not planned.reservation_id or planned.size < 1:
            raise DataError(f"the plan has a slice without reservation or size: {planned.profile}")


def _follow(plan: pb.PreparePlan, job: HookJob, hook: Hook) -> None:
    if plan.action == plan.NOTHING:
        environment.remove(hook.paths, job.job_id)
    elif plan.action == plan.CREATE:
        _create(plan, job, hook)
    elif plan.action == plan.BLOCK:
        log.warning("job %d: runs without a GPU: %s", job.job_id, plan.message)
        environment.write_blocked(hook.paths, job.job_id, plan.message)
    elif plan.action == plan.GIVE_BACK:
        log.warning("job %d: given back by the daemon: %s", job.job_id, plan.message)
    else:
        hook.give_back(job.job_id, f"the daemon's plan (action {plan.action}) is not known to this version")


def _create(plan: pb.PreparePlan, job: HookJob, hook: Hook) -> None:
    record = _record(plan, job, hook)
    nvml_s = 0.0
    try:
        with hook.open_driver() as driver:
            try:
                engine = hook.engine(driver)
                record = _make(record, engine, hook)
                environment.write_ready(hook.paths, record)
            finally:
                nvml_s = driver.nvml_s
    except SliceFailure as error:
        _fail(error.record, str(error), nvml_s, job, hook)
    except (MigError, NotNowError, DataError, OSError) as error:
        _fail(record, str(error), nvml_s, job, hook)
    else:
        report = report_of(record, job.node, nvml_s)
        report.message = engine.isolation.note
        deliver(hook.rpc, hook.journal, report)
        flush(hook.rpc, hook.journal)


def _record(plan: pb.PreparePlan, job: HookJob, hook: Hook) -> JobRecord:
    now_s = hook.clock.now_s()
    slices = tuple(
        SliceRecord(
            Reservation(
                id=planned.reservation_id, job_id=job.job_id, restart_count=job.restart_count, uid=job.uid,
                node=job.node, gpu_index=planned.gpu_index, profile=planned.profile, start=planned.start,
                size=planned.size, state=RESERVED, changed_s=now_s,
            ),
            gi_profile_id=planned.gi_profile_id,
        )
        for planned in plan.slices
    )  # fmt: skip
    return JobRecord(job.job_id, job.uid, job.restart_count, hook.boot_id, slices, plan.slices_per_task, plan.flex)


def _make(record: JobRecord, engine: SliceEngine, hook: Hook) -> JobRecord:
    """Make the slices, or finish what an earlier run of this prolog began."""
    try:
        earlier = hook.journal.load(record.job_id)
    except DataError as error:
        log.error("job %d: %s", record.job_id, error)
        earlier = None
    if earlier is not None:
        planned = {reservation.id for reservation in record.reservations}
        same = planned == {reservation.id for reservation in earlier.reservations}
        finished = engine.finish(earlier) if same and earlier.boot_id == hook.boot_id else None
        if finished is not None:
            return finished
        unmade = engine.unmake(earlier, _UNDO_WAIT_S)
        if not unmade.done:
            why = "; ".join(unmade.blocked.values())
            raise MigError(f"an earlier run of the job left slices that cannot be removed: {why}")
    return engine.make(record)


def _fail(record: JobRecord, why: str, nvml_s: float, job: HookJob, hook: Hook) -> None:
    """Give the job back: the daemon does it, which can choose another node, else Slurm itself is asked."""
    report = report_of(record, job.node, nvml_s, why)
    report.job_must_go_back = True
    report.message = why
    if not deliver(hook.rpc, hook.journal, report):
        hook.give_back(job.job_id, why)
