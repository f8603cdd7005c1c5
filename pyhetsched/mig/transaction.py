"""The life of a slice as a state machine, and what to do about it after a crash: values in, values out.

::

    reserved -> creating -> ready -> running -> destroying -> gone
        |           |         |         |           ^
        |           +---------+---------+-----------+
        +-----------+---------+---------+--> failed      (nothing of it is on the GPU)
        +--> gone                                        (given up before anything was touched)

Each state is journalled before the act that it announces: *creating* before the GPU instance is made,
*destroying* before it is destroyed. *ready* and *gone* are written after reading back. So whatever dies
between two steps, the journal says what may be on the GPU, and `recover` compares it with what is there.

Invariants that `recover` keeps, whatever the journal and the GPU look like:

* an instance is destroyed only if an entry of the journal claims it (place, profile, and id and UUID as far
  as they were recorded) and no entry of a live job does;
* an instance that no entry claims is reported and left alone;
* applying the steps and recovering again yields nothing but the same reports.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyhetsched.errors import MigError
from pyhetsched.instances import MigInstance, Reservation, ReservationState

RESERVED, CREATING, READY, RUNNING, DESTROYING, GONE, FAILED = ReservationState

LEGAL: Mapping[ReservationState, frozenset[ReservationState]] = {
    RESERVED: frozenset({CREATING, FAILED, GONE}),
    CREATING: frozenset({READY, DESTROYING, FAILED}),
    READY: frozenset({RUNNING, DESTROYING, FAILED}),
    RUNNING: frozenset({DESTROYING, FAILED}),
    DESTROYING: frozenset({DESTROYING, GONE}),
    GONE: frozenset(),
    FAILED: frozenset(),
}


def advance(reservation: Reservation, to: ReservationState, now_s: float, **changes: Any) -> Reservation:
    """Return the reservation in its next state, with ``changes`` to other fields.

    Raises `MigError` when the step is not legal: a caller that skips a state has a bug.
    """
    if to not in LEGAL[reservation.state]:
        legal = ", ".join(sorted(state.value for state in LEGAL[reservation.state])) or "none"
        raise MigError(
            f"reservation {reservation.id} is {reservation.state.value}; {to.value} cannot follow ({legal})"
        )
    return replace(reservation, state=to, changed_s=now_s, **changes)


class StepKind(enum.Enum):
    """What a step of recovery does."""

    FINISH = "finish"
    DESTROY = "destroy"
    MARK_GONE = "mark-gone"
    MARK_FAILED = "mark-failed"
    REPORT_FOREIGN = "report-foreign"


class Unfinished(enum.Enum):
    """What becomes of a slice of a live job that is still being created.

    FINISH: whoever asks goes on with this very creation (a prolog that runs again). UNDO: nobody can be at
    work on it (its GPU's lock is held, or the node has booted). LEAVE: somebody may be at work (the daemon).
    """

    FINISH = "finish"
    UNDO = "undo"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of recovery; ``reservation`` is None for a foreign instance, ``instance`` where none is there."""

    kind: StepKind
    gpu_index: int
    reservation: Reservation | None = None
    instance: MigInstance | None = None
    note: str = ""


def owned(reservation: Reservation, instance: MigInstance, lagging: bool = False) -> bool:
    """Return whether an instance on the reservation's GPU is the one that the reservation made.

    The place and the profile must agree, and the GPU instance id and the MIG UUID as far as both are known.
    While it was being created only the place is known; it was seen free before *creating* was journalled. A
    ``lagging`` journal (the daemon's, which learns of acts afterwards) may say *reserved* of a slice that the
    node already makes. A UUID alone proves nothing: the driver can give a new instance an old UUID.
    """
    if not reservation.state.holds_space or (reservation.state is RESERVED and not lagging):
        return False
    if (instance.profile, instance.start, instance.size) != (
        reservation.profile,
        reservation.start,
        reservation.size,
    ):
        return False
    if reservation.gi_id is not None and reservation.gi_id != instance.gi_id:
        return False
    return not (reservation.mig_uuid and instance.mig_uuid and reservation.mig_uuid != instance.mig_uuid)


def recover(
    entries: Iterable[Reservation],
    instances: Mapping[int, Sequence[MigInstance]],
    live_jobs: frozenset[int],
    unfinished: Unfinished = Unfinished.UNDO,
    lagging: bool = False,
) -> tuple[Step, ...]:
    """Return the steps that make one node's journal and its GPUs agree.

    ``instances`` holds what NVML shows by GPU index; a GPU that could not be asked is left out, and nothing
    is concluded about it. ``live_jobs`` are the jobs that Slurm still has on the node (none after a boot).
    ``lagging`` says that the journal learns of acts afterwards, as the daemon's does: see `owned`.
    """
    open_entries = [e for e in entries if e.state.holds_space and e.gpu_index in instances]
    alive = [e for e in open_entries if e.job_id in live_jobs and e.state is not DESTROYING]
    dead = [e for e in open_entries if e not in alive]
    claimed: set[tuple[int, int]] = set()
    steps: list[Step] = []
    for entry in alive + dead:
        instance = _instance_of(entry, instances[entry.gpu_index], claimed, lagging)
        if instance is not None:
            claimed.add((entry.gpu_index, instance.gi_id))
        step = _live_step(entry, instance, unfinished) if entry in alive else _dead_step(entry, instance)
        if step is not None:
            steps.append(step)
    steps += [
        Step(StepKind.REPORT_FOREIGN, index, None, instance, "no journal entry claims it")
        for index, shown in sorted(instances.items())
        for instance in shown
        if (index, instance.gi_id) not in claimed
    ]
    return tuple(steps)


def _instance_of(
    entry: Reservation, shown: Sequence[MigInstance], claimed: set[tuple[int, int]], lagging: bool
) -> MigInstance | None:
    for instance in shown:
        if (entry.gpu_index, instance.gi_id) not in claimed and owned(entry, instance, lagging):
            return instance
    return None


def _live_step(entry: Reservation, instance: MigInstance | None, unfinished: Unfinished) -> Step | None:
    if entry.state is RESERVED:
        return None
    if entry.state in (READY, RUNNING):
        # A live job's instance is never touched, not even one that has lost its compute instance.
        if instance is not None:
            return None
        return Step(
            StepKind.MARK_FAILED, entry.gpu_index, entry, None, "its instance is not on the GPU any more"
        )
    return _unfinished_step(entry, instance, unfinished)


def _unfinished_step(entry: Reservation, instance: MigInstance | None, unfinished: Unfinished) -> Step | None:
    if unfinished is Unfinished.LEAVE:
        return None
    if instance is None:
        return Step(
            StepKind.MARK_FAILED, entry.gpu_index, entry, None, "its creation was announced, not begun"
        )
    if unfinished is Unfinished.FINISH and instance.ci_id is not None and instance.mig_uuid:
        return Step(StepKind.FINISH, entry.gpu_index, entry, instance, "it is complete")
    return Step(StepKind.DESTROY, entry.gpu_index, entry, instance, "its creation was broken off")


def _dead_step(entry: Reservation, instance: MigInstance | None) -> Step:
    if instance is not None:
        return Step(StepKind.DESTROY, entry.gpu_index, entry, instance, f"job {entry.job_id} is over")
    note = f"job {entry.job_id} is over and nothing of it is on the GPU"
    return Step(StepKind.MARK_GONE, entry.gpu_index, entry, None, note)


def settle(reservation: Reservation, step: Step, now_s: float) -> Reservation:
    """Return the reservation once ``step`` has been done; legal from every state in which the step arises."""
    if step.kind is StepKind.FINISH and step.instance is not None:
        made = step.instance
        return advance(reservation, READY, now_s, gi_id=made.gi_id, ci_id=made.ci_id, mig_uuid=made.mig_uuid)
    if step.kind is StepKind.MARK_FAILED:
        return advance(reservation, FAILED, now_s, note=step.note)
    if reservation.state is RESERVED:
        return advance(reservation, GONE, now_s, note=step.note)
    if reservation.state is not DESTROYING:
        reservation = advance(reservation, DESTROYING, now_s)
    return advance(reservation, GONE, now_s, note=step.note)
