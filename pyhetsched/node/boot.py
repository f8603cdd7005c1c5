"""Reconciling a node: after a boot, before slurmd starts, and again whenever the daemon or an operator asks.

Instances do not outlive a boot, reservations must not pretend to. What is ours and nobody's any more is
destroyed; what somebody else made is reported and left alone, unless the site wants it destroyed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyhetsched.errors import HetschedError, MigError, RpcError
from pyhetsched.instances import GpuReport, MigInstance
from pyhetsched.mig.nvml import NvmlDriver
from pyhetsched.mig.transaction import CREATING, DESTROYING
from pyhetsched.node import inventory
from pyhetsched.node.hook import Hook, report_of
from pyhetsched.node.journal import JobRecord
from pyhetsched.node.paths import write_atomically
from pyhetsched.node.rpc import deliver, flush, patiently
from pyhetsched.node.slices import SliceEngine

if TYPE_CHECKING:
    from pyhetsched.rpc.gen import services_pb2 as pb

log = logging.getLogger("hetsched.node")


_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reconcile did: ``reached`` tells whether the daemon took part, ``notes`` are for people.

    ``modes`` are changes of MIG mode that the daemon orders; `pyhetsched.node.modes` makes them.
    """

    reached: bool
    destroyed: int
    foreign: int
    notes: tuple[str, ...] = ()
    modes: tuple[pb.ModeChange, ...] = ()


def has_booted(hook: Hook) -> bool:
    """Return whether the records in the state directory are of an earlier boot than this one."""
    try:
        return hook.paths.boot.read_text(encoding="ascii").strip() != hook.boot_id
    except FileNotFoundError:
        return True


def run(node: str, hook: Hook, booted: bool, destroy_foreign: bool = False) -> Outcome:
    """Make the journal, the GPUs and the daemon agree.

    ``booted`` says that no job can be running here; `has_booted` tells. Where the daemon cannot be reached,
    the local journal is acted upon, and a flag asks the next call for the rest.
    """
    try:
        with hook.open_driver() as driver:
            return _reconcile(node, hook, driver, booted, destroy_foreign)
    except MigError as error:
        # What was known of the GPUs stays; where nothing is known, each prolog looks for itself.
        log.warning("node %s: no NVML: %s", node, error)
        return Outcome(False, 0, 0, (f"NVML cannot be used here: {error}",))


def _reconcile(node: str, hook: Hook, driver: NvmlDriver, booted: bool, destroy_foreign: bool) -> Outcome:
    engine = hook.engine(driver)
    notes = _look_at_modes(hook, driver, booted)
    notes += _clean(node, hook, engine, booted)
    if booted:
        for left in hook.paths.run.glob("job-*.env"):
            left.unlink(missing_ok=True)
        write_atomically(hook.paths.boot, hook.boot_id + "\n")
    else:
        _drop_environments(hook, engine)
    try:
        gpus, plan = _compare(node, hook, driver, booted)
    except RpcError as error:
        write_atomically(hook.paths.pending, "", 0o644, durable=False)
        return Outcome(False, 0, 0, (*notes, f"the daemon was not reached: {error}"))
    hook.paths.pending.unlink(missing_ok=True)
    destroyed = _destroy(plan, gpus, engine, booted and destroy_foreign)
    if destroyed:
        after = pb_report(node, driver, hook)
        deliver(hook.rpc, hook.journal, after)
    flush(hook.rpc, hook.journal)
    notes += [
        *plan.notes,
        *(f"foreign: {s.profile} at {s.start} ({s.uuid or s.gi_id})" for s in plan.foreign),
    ]
    return Outcome(True, destroyed, len(plan.foreign), tuple(notes), tuple(plan.modes))


def _look_at_modes(hook: Hook, driver: NvmlDriver, booted: bool) -> list[str]:
    """Note which GPUs are in MIG mode; after a boot switch it on again where the boot has lost it.

    Hopper and later lose the mode with the driver and need no reset for it. What a boot that was broken off
    has not done is done now: until then those GPUs are listed, so that no job gets one of them whole.
    """
    modes = {index: driver.mig_mode(index) for index in driver.indexes}
    notes = []
    if booted or not hook.paths.booted.exists():
        wanted = inventory.remembered_mig_gpus(hook.paths)
        inventory.write_mig_gpus(hook.paths, modes, wanted)
        notes = _restore_modes(driver, modes, wanted)
        inventory.write_mig_gpus(hook.paths, modes, wanted)
        if all(modes.get(index) in ("on", "pending-off") for index in wanted):
            write_atomically(hook.paths.booted, "", 0o644, durable=False)
    else:
        inventory.write_mig_gpus(hook.paths, modes)
    return notes


def _restore_modes(driver: NvmlDriver, modes: dict[int, str], wanted: Iterable[int]) -> list[str]:
    notes = []
    for index in sorted(wanted):
        if modes.get(index) != "off":
            continue
        try:
            if driver.resetless(index):
                modes[index] = driver.set_mig_mode(index, True)
        except MigError as error:
            log.error("GPU %d: MIG mode cannot be switched on again: %s", index, error)
        result = "has lost MIG mode" if modes[index] == "off" else f"MIG mode is {modes[index]} again"
        notes.append(f"GPU {index}: {result}")
    return notes


def _drop_environments(hook: Hook, engine: SliceEngine) -> None:
    """Forget what was laid down for the tasks of jobs whose epilog never ran and that have nothing else here."""
    for path in hook.paths.run.glob("job-*.env"):
        number = path.stem.removeprefix("job-")
        if number.isdigit() and not hook.paths.record(int(number)).exists() and engine.job_is_over(int(number)):
            path.unlink(missing_ok=True)


def _compare(
    node: str, hook: Hook, driver: NvmlDriver, booted: bool
) -> tuple[tuple[GpuReport, ...], pb.ReconcilePlan]:
    """Return the GPUs as the daemon was told of them, and its plan.

    An instance that went while the daemon was being asked would look like a stranger's: then once more.
    """
    gpus = driver.gpus()
    for _ in range(_LOOKS):
        plan = patiently(partial(_ask, node, hook, driver, gpus, booted), hook.clock, hook.patience_s)
        now = driver.gpus() if plan.foreign else gpus
        if now == gpus:
            break
        gpus = now
    return gpus, plan


def _clean(node: str, hook: Hook, engine: SliceEngine, booted: bool) -> list[str]:
    """Undo what the local journal shows to be nobody's, and tell the daemon now or later."""
    records, damaged = hook.journal.records()
    notes = list(damaged)
    for record in records:
        try:
            over = _over(record, engine, booted)
            if over is None:
                continue
            unmade = engine.unmake(over, 0.0)
        except (HetschedError, OSError) as error:
            notes.append(f"job {record.job_id}: {error}")
            continue
        deliver(hook.rpc, hook.journal, report_of(unmade.record, node, 0.0))
        notes += [f"job {record.job_id}: a slice stays, held by {why}" for why in unmade.blocked.values()]
    return notes


def _over(record: JobRecord, engine: SliceEngine, booted: bool) -> JobRecord | None:
    states = {reservation.state for reservation in record.reservations}
    if booted or states <= {DESTROYING} or not any(state.holds_space for state in states):
        return record
    return engine.broken_off(record) if CREATING in states else engine.left_behind(record)


def _ask(
    node: str, hook: Hook, driver: NvmlDriver, gpus: tuple[GpuReport, ...], booted: bool
) -> pb.ReconcilePlan:
    from pyhetsched.rpc.gen import services_pb2 as pb

    records = hook.journal.records()[0]
    return hook.rpc.reconcile(
        pb.ReconcileRequest(
            node=node, inventory=inventory.inventory(driver, gpus, hook.boot_id), booted=booted,
            running_job_ids=[r.job_id for r in records if any(s.state is not DESTROYING for s in r.reservations)],
        )
    )  # fmt: skip


def _destroy(
    plan: pb.ReconcilePlan, gpus: tuple[GpuReport, ...], engine: SliceEngine, destroy_foreign: bool
) -> int:
    destroyed = 0
    for named in (*plan.destroy, *(plan.foreign if destroy_foreign else ())):
        place = _locate(named, gpus)
        if place is None:
            log.warning(
                "%s at %d is named for destruction, but cannot be told apart here", named.profile, named.start
            )
            continue
        try:
            destroyed += engine.destroy_unclaimed(*place)
        except HetschedError as error:
            log.warning("%s at %d stays for now: %s", named.profile, named.start, error)
    return destroyed


def _locate(named: pb.Slice, gpus: tuple[GpuReport, ...]) -> tuple[int, MigInstance] | None:
    """Return the one instance that the daemon means: by its UUID, else by its place if only one GPU fits."""
    found = [
        (gpu.index, shown)
        for gpu in gpus
        for shown in gpu.instances
        if (shown.profile, shown.start, shown.size) == (named.profile, named.start, named.size)
        and (not named.uuid or (named.uuid, named.gi_id) == (shown.mig_uuid, shown.gi_id))
    ]
    return found[0] if len(found) == 1 else None


def pb_report(node: str, driver: NvmlDriver, hook: Hook) -> pb.ReportRequest:
    """Return a report that carries nothing but the node as it is now."""
    from pyhetsched.rpc.gen import services_pb2 as pb

    return pb.ReportRequest(node=node, inventory=inventory.inventory(driver, driver.gpus(), hook.boot_id))


def sweep(node: str, hook: Hook) -> tuple[str, ...]:
    """Try again to destroy what earlier epilogs could not; return what still stays."""
    with hook.open_driver() as driver:
        notes = _clean(node, hook, hook.engine(driver), booted=False)
    flush(hook.rpc, hook.journal)
    return tuple(notes)
