"""Making and unmaking the slices of one job: the transaction, executed on this node's GPUs.

The pure rules are in `pyhetsched.mig.transaction`; here they meet NVML, the journal and the locks. All acts
on a GPU happen under its lock, which is held only while NVML is at work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pyhetsched.clock import Clock
from pyhetsched.errors import DataError, MigError, NotNowError, NvmlCallError
from pyhetsched.instances import MigInstance, Reservation, ReservationState
from pyhetsched.mig.nvml import NvmlDriver
from pyhetsched.mig.nvml_codes import IN_USE
from pyhetsched.mig.transaction import (
    CREATING,
    DESTROYING,
    FAILED,
    READY,
    Step,
    StepKind,
    Unfinished,
    advance,
    owned,
    recover,
    settle,
)
from pyhetsched.node import processes
from pyhetsched.node.giveback import is_over
from pyhetsched.node.isolation import Isolation
from pyhetsched.node.journal import JobRecord, Journal, SliceRecord
from pyhetsched.node.paths import NodePaths, gpu_locks

log = logging.getLogger("hetsched.node")

LOCK_WAIT_S = 40.0  # longer than an NVML call that stalls for 30 s
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class SliceFailure(MigError):
    """Slices could not be made; what had been made is undone as far as NVML lets it.

    ``record`` is what remains: reservations *failed* or *gone*, or *destroying* where the undoing is not done.
    """

    def __init__(self, text: str, record: JobRecord) -> None:
        super().__init__(text)
        self.record = record


@dataclass(frozen=True, slots=True)
class Unmade:
    """The record after an attempt to destroy; ``blocked`` says by reservation id why a slice is still there."""

    record: JobRecord
    blocked: dict[str, str]
    in_use: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing of the job is left on any GPU."""
        return not self.blocked


class SliceEngine:
    """Makes and unmakes slices on the GPUs of one node, in one NVML session."""

    def __init__(
        self,
        driver: NvmlDriver,
        paths: NodePaths,
        journal: Journal,
        clock: Clock,
        isolation: Isolation,
        boot_id: str,
        job_is_over: Callable[[int], bool] = is_over,
    ) -> None:
        self._driver = driver
        self._paths = paths
        self._journal = journal
        self._clock = clock
        self.isolation = isolation
        self._boot_id = boot_id
        self.job_is_over = job_is_over

    # Making

    def make(self, record: JobRecord) -> JobRecord:
        """Create every slice of ``record`` (all *reserved*) and return it *ready*, journalled and restricted.

        Raises `SliceFailure` when a slice cannot be made, and `NotNowError` when the lock cannot be had.
        """
        for item in record.slices:
            self._driver.learn_name(item.reservation.gpu_index, item.gi_profile_id, item.reservation.profile)
        with gpu_locks(self._paths, record.gpu_indexes, self._clock, LOCK_WAIT_S):
            try:
                record = record.map(self._located)
                self._clear_the_way(record)
                self._check_free(record)
            except MigError as error:
                raise SliceFailure(str(error), record.map(self._failed(str(error)))) from error
            record = record.map(self._moved(CREATING))
            self._journal.save(record)
            return self._create_all(record)

    def finish(self, record: JobRecord) -> JobRecord | None:
        """Return a record that an earlier run of the same prolog left, *ready*; None if it is not complete."""
        with gpu_locks(self._paths, record.gpu_indexes, self._clock, LOCK_WAIT_S):
            shown = {index: self._driver.instances(index) for index in record.gpu_indexes}
            live = frozenset({record.job_id})
            steps = recover(record.reservations, shown, live, Unfinished.FINISH)
            if any(step.kind not in (StepKind.FINISH, StepKind.REPORT_FOREIGN) for step in steps):
                return None
            record = self._settled(record, steps)
            if any(reservation.state is not READY for reservation in record.reservations):
                return None
            self._restrict(record)
            self._journal.save(record)
            return record

    def _create_all(self, record: JobRecord) -> JobRecord:
        done = record
        try:
            for at, item in enumerate(record.slices):
                done = _with_slice(done, at, self._create(item))
            self._restrict(done)
        except MigError as error:
            raise SliceFailure(str(error), self._roll_back(done, str(error))) from error
        self._journal.save(done)
        return done

    def _create(self, item: SliceRecord) -> SliceRecord:
        wanted = item.reservation
        made = self._driver.create_slice(wanted.gpu_index, item.gi_profile_id, wanted.start, wanted.size)
        log.info(
            "job %d: GPU %d: %s at %d is %s",
            wanted.job_id,
            wanted.gpu_index,
            made.profile,
            made.start,
            made.mig_uuid,
        )
        return item.with_reservation(
            advance(
                wanted, READY, self._clock.now_s(), gi_id=made.gi_id, ci_id=made.ci_id, mig_uuid=made.mig_uuid
            )
        )

    def _restrict(self, record: JobRecord) -> None:
        for made in record.reservations:
            if made.gi_id is not None and made.ci_id is not None:
                self.isolation.restrict(
                    record.job_id, record.uid, self._driver.minor(made.gpu_index), made.gi_id, made.ci_id
                )

    def _roll_back(self, record: JobRecord, why: str) -> JobRecord:
        log.warning("job %d: %s; undoing", record.job_id, why)
        record = record.map(self._moved(DESTROYING, note=why))
        self._journal.save(record)
        unmade = self._destroy_locked(record)
        self._keep(unmade.record)
        return unmade.record

    def _located(self, item: SliceRecord) -> SliceRecord:
        return replace(item, gpu_uuid=self._driver.uuid(item.reservation.gpu_index))

    def _check_free(self, record: JobRecord) -> None:
        for index in sorted(record.gpu_indexes):
            for shown in self._driver.instances(index):
                for wanted in record.reservations:
                    if wanted.gpu_index == index and _overlap(wanted, shown):
                        raise MigError(
                            f"GPU {index}: {wanted.profile} at {wanted.start} has no room: {shown.profile} at "
                            f"{shown.start} (instance {shown.gi_id}) is there and is not this job's"
                        )

    def _clear_the_way(self, record: JobRecord) -> None:
        """Destroy what is left of jobs that are over, where the daemon has given their place to this one."""
        for other in self._journal.records()[0]:
            if other.job_id == record.job_id or not self._in_the_way(other, record):
                continue
            if not all(r.state is DESTROYING for r in other.reservations) and not self.job_is_over(
                other.job_id
            ):
                log.warning(
                    "job %d: its place overlaps that of job %d, which Slurm still has",
                    record.job_id,
                    other.job_id,
                )
                continue
            log.warning(
                "job %d: job %d is over and left slices here; removing them", record.job_id, other.job_id
            )
            unmade = self._destroy_locked(self._destroying(other), only=record.gpu_indexes)
            self._keep(unmade.record)

    def _in_the_way(self, other: JobRecord, record: JobRecord) -> bool:
        return any(
            theirs.gpu_index == ours.gpu_index and (theirs.state is DESTROYING or _overlap(theirs, ours))
            for theirs in other.reservations
            if theirs.state.holds_space
            for ours in record.reservations
        )

    def broken_off(self, record: JobRecord) -> JobRecord | None:
        """Return the record if its creation was broken off by a crash, None while a prolog is at work on it.

        A prolog holds the lock from *creating* to *ready*, so *creating* with the lock free means that it died.
        """
        with gpu_locks(self._paths, record.gpu_indexes, self._clock, LOCK_WAIT_S):
            now = self._journal.load(record.job_id)
            if now is None or all(reservation.state is not CREATING for reservation in now.reservations):
                return None
            return self._destroying(now)

    def left_behind(self, record: JobRecord) -> JobRecord | None:
        """Return the record, *destroying*, if Slurm says that its job is over: its epilog did not come to an end.

        None while the job is not over, and where a later run of the job has taken the record's place.
        """
        if not self.job_is_over(record.job_id):
            return None
        with gpu_locks(self._paths, record.gpu_indexes, self._clock, LOCK_WAIT_S):
            now = self._journal.load(record.job_id)
            return self._destroying(now) if now == record else None

    def destroy_unclaimed(self, index: int, instance: MigInstance) -> bool:
        """Destroy an instance that no record claims; return whether it is gone. Nothing is forced."""
        with gpu_locks(self._paths, [index], self._clock, LOCK_WAIT_S):
            entries = [r for record in self._journal.records()[0] for r in record.reservations]
            if any(entry.gpu_index == index and owned(entry, instance) for entry in entries):
                return False
            if self._driver.find(index, instance.gi_id) != instance:
                return False
            try:
                self._do(Step(StepKind.DESTROY, index, None, instance))
            except MigError as error:
                log.warning("GPU %d: instance %d stays: %s", index, instance.gi_id, error)
                return False
            return True

    # Unmaking

    def unmake(self, record: JobRecord, wait_s: float) -> Unmade:
        """Destroy every slice of ``record``, trying again for ``wait_s`` while one is in use.

        What cannot be destroyed stays journalled as *destroying*; whoever calls next tries again.
        """
        deadline_s = self._clock.monotonic_s() + wait_s
        pause_s = _FIRST_PAUSE_S
        while True:
            unmade = self._destroy(record)
            record = unmade.record
            if unmade.done or not unmade.in_use or self._clock.monotonic_s() + pause_s > deadline_s:
                break
            self._clock.sleep_s(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return unmade

    def _superseded(self, record: JobRecord) -> bool:
        """Whether the journal holds another run of the job by now: its slices can look just like the record's."""
        try:
            now = self._journal.load(record.job_id)
        except DataError:
            return False
        mine = {reservation.id for reservation in record.reservations}
        return now is not None and {reservation.id for reservation in now.reservations} != mine

    def _destroying(self, record: JobRecord) -> JobRecord:
        moved = record.map(self._moved(DESTROYING))
        if moved != record:
            self._journal.save(moved)
        return moved

    def _destroy(self, record: JobRecord) -> Unmade:
        try:
            with gpu_locks(self._paths, record.gpu_indexes, self._clock, LOCK_WAIT_S):
                if self._superseded(record):
                    gone = record.map(self._moved(DESTROYING)).map(self._gone("a later run of the job is here"))
                    return Unmade(gone, {})
                unmade = self._destroy_locked(self._destroying(record))
                self._keep(unmade.record)
                return unmade
        except NotNowError as error:
            return Unmade(record, {r.id: str(error) for r in record.reservations if r.state.holds_space})

    def _destroy_locked(self, record: JobRecord, only: Iterable[int] | None = None) -> Unmade:
        """Destroy the slices that are *destroying*; the locks of their GPUs must be held."""
        if record.boot_id != self._boot_id:
            # Instances do not outlive a boot, so whatever is there now was made by somebody else.
            return Unmade(
                record.map(self._moved(DESTROYING)).map(self._gone("the node has booted since")), {}
            )
        indexes = set(record.gpu_indexes if only is None else record.gpu_indexes & set(only))
        shown, blocked = self._shown(record, indexes)
        mine = {reservation.id for reservation in record.reservations}
        in_use = False
        for step in recover(
            (*self._others(record.job_id), *record.reservations), shown, self._live_jobs(record)
        ):
            if step.reservation is None or step.reservation.id not in mine:
                continue
            try:
                self._do(step)
                record = self._settled(record, (step,))
            except MigError as error:
                in_use = in_use or (isinstance(error, NvmlCallError) and error.code == IN_USE)
                blocked[step.reservation.id] = self._explain(step, error)
        return Unmade(record, blocked, in_use)

    def _shown(
        self, record: JobRecord, indexes: Iterable[int]
    ) -> tuple[dict[int, tuple[MigInstance, ...]], dict[str, str]]:
        """Return the instances of each GPU, and why nothing can be said of the slices on the others."""
        shown: dict[int, tuple[MigInstance, ...]] = {}
        blocked: dict[str, str] = {}
        uuids = {item.reservation.gpu_index: item.gpu_uuid for item in record.slices}
        for item in record.slices:
            if item.gi_profile_id:
                self._driver.learn_name(
                    item.reservation.gpu_index, item.gi_profile_id, item.reservation.profile
                )
        for index in indexes:
            try:
                if uuids[index] and self._driver.uuid(index) != uuids[index]:
                    raise MigError(f"GPU {index} is not the one that it was ({uuids[index]})")
                shown[index] = self._driver.instances(index)
            except MigError as error:
                blocked |= {
                    r.id: str(error)
                    for r in record.reservations
                    if r.gpu_index == index and r.state.holds_space
                }
        return shown, blocked

    def _do(self, step: Step) -> None:
        if step.kind is not StepKind.DESTROY or step.instance is None:
            return
        gone = step.instance
        # Which device nodes it had can only be read while it is there.
        capabilities = self.isolation.capabilities(
            self._driver.minor(step.gpu_index), gone.gi_id, gone.ci_id
        )
        self._driver.destroy_slice(step.gpu_index, gone.gi_id)
        self.isolation.lift(capabilities)

    def _explain(self, step: Step, error: MigError) -> str:
        if not (isinstance(error, NvmlCallError) and error.code == IN_USE and step.instance is not None):
            return str(error)
        try:
            holders = self._driver.holders(step.gpu_index, step.instance.gi_id)
        except MigError:
            holders = ()
        return (
            processes.describe(holders)
            or "a client that NVML does not list (a monitoring daemon may hold it)"
        )

    def _others(self, job_id: int) -> list[Reservation]:
        return [
            r for other in self._journal.records()[0] if other.job_id != job_id for r in other.reservations
        ]

    def _live_jobs(self, record: JobRecord) -> frozenset[int]:
        return frozenset(r.job_id for r in self._others(record.job_id) if r.state is not DESTROYING)

    # Records

    def _keep(self, record: JobRecord) -> None:
        if any(reservation.state.holds_space for reservation in record.reservations):
            self._journal.save(record)
        else:
            self.isolation.forget(record.job_id)
            self._journal.remove(record.job_id)

    def _settled(self, record: JobRecord, steps: Iterable[Step]) -> JobRecord:
        by_id = {step.reservation.id: step for step in steps if step.reservation is not None}

        def settle_one(item: SliceRecord) -> SliceRecord:
            step = by_id.get(item.reservation.id)
            if step is None:
                return item
            return item.with_reservation(settle(item.reservation, step, self._clock.now_s()))

        return record.map(settle_one)

    def _moved(self, state: ReservationState, **changes: str) -> Callable[[SliceRecord], SliceRecord]:
        def move(item: SliceRecord) -> SliceRecord:
            reservation = item.reservation
            if reservation.state is state or not reservation.state.holds_space:
                return item
            return item.with_reservation(advance(reservation, state, self._clock.now_s(), **changes))

        return move

    def _gone(self, note: str) -> Callable[[SliceRecord], SliceRecord]:
        def move(item: SliceRecord) -> SliceRecord:
            if item.reservation.state is not DESTROYING:
                return item
            step = Step(StepKind.MARK_GONE, item.reservation.gpu_index, item.reservation, None, note)
            return item.with_reservation(settle(item.reservation, step, self._clock.now_s()))

        return move

    def _failed(self, why: str) -> Callable[[SliceRecord], SliceRecord]:
        def fail(item: SliceRecord) -> SliceRecord:
            return item.with_reservation(advance(item.reservation, FAILED, self._clock.now_s(), note=why))

        return fail


def _overlap(one: Reservation, other: Reservation | MigInstance) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size


def _with_slice(record: JobRecord, at: int, item: SliceRecord) -> JobRecord:
    return replace(record, slices=(*record.slices[:at], item, *record.slices[at + 1 :]))
