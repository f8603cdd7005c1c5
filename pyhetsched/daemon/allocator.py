"""What happens when Slurm has given GPUs to a job: reserve its slices, or give the job back."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyhetsched.clock import Clock
from pyhetsched.config import AllocationConfig
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.giveback import GiveBack
from pyhetsched.daemon.holdings import RUNNING, Holdings
from pyhetsched.daemon.journal import Journal, new_id
from pyhetsched.daemon.pool_demand import wants_several
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.errors import HetschedError, NotNowError, SlurmError, StoreError
from pyhetsched.mig.needs import GpuNeed, NodeNeeds, node_needs
from pyhetsched.model import JobAsk, Reservation, ReservationState
from pyhetsched.slurm.admin_comment import decode
from pyhetsched.slurm.allocation import AllocatedJob
from pyhetsched.slurm.features import FeatureError, parse_features, satisfies
from pyhetsched.slurm.gateway import Gateway
from pyhetsched.slurm.hosts import expand
from pyhetsched.store.decisions import DecisionStore, KnownJob

log = logging.getLogger(__name__)


class Action(enum.Enum):
    """What PrologSlurmctld or a node's Prolog is to do."""

    PROCEED = "proceed"
    GAVE_BACK = "gave back"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Answer:
    """The action, and why."""

    action: Action
    message: str = ""


@dataclass(frozen=True, slots=True)
class _Lost:
    node: str
    reason: str


class Allocator:
    """Reserves slices for jobs that Slurm has allocated; safe to call from many threads."""

    def __init__(self, gateway: Gateway, book: Book, watcher: Watcher, giveback: GiveBack, store: DecisionStore,
                 journal: Journal, config: AllocationConfig, clock: Clock) -> None:  # fmt: skip
        self._gateway = gateway
        self._book = book
        self._watcher = watcher
        self._giveback = giveback
        self._store = store
        self._journal = journal
        self._clock = clock
        self.config = config
        self._job_locks: dict[int, threading.Lock] = {}
        self._guard = threading.Lock()
        self.given_back = 0
        self.holdings = Holdings()
        self.on_start: Callable[[str], None] = lambda decision_id: None
        self.on_seen: Callable[[str], object] = lambda decision_id: None
        self._asks: dict[int, tuple[str, JobAsk | None]] = {}

    def concerns(self, node_list: str) -> bool:
        """Return whether Slurm offers slices on any of these nodes: only then is there anything to reserve.

        Raises `SlurmError` while it is not known.
        """
        self._watcher.require(expand(node_list))
        return any(self._watcher.offered(node) for node in expand(node_list))

    def allocate(self, job_id: int) -> Answer:
        """Reserve what the job needs on all its nodes, once; raises `SlurmError` when Slurm cannot be asked."""
        with self._lock_of(job_id):
            job = self.load(job_id)
            if job is None:
                return Answer(Action.PROCEED, "Slurm does not know this job any more")
            self._watcher.require(item.node for item in job.nodes)
            ask = self.learn(job)
            try:
                return self._allocate(job, ask)
            finally:
                self.on_start(self._asks.get(job_id, ("", None))[0])

    def _allocate(self, job: AllocatedJob, ask: JobAsk | None) -> Answer:
        lost = self._mode_lost(job) or self._mode_wrong(job, ask)
        if lost is not None:
            return self.give_back(job, lost.node, lost.reason)
        needs = {item.node: self.needs(job, ask, item.node) for item in job.nodes}
        self._report_mismatches(job, needs)
        wanted = [(node, gpu) for node, need in needs.items() for gpu in need.gpus]
        if not wanted:
            return Answer(Action.PROCEED)
        if self._has_reservations(job, wanted):
            return Answer(Action.PROCEED, "already reserved")
        return self._reserve(job, ask, wanted)

    def load(self, job_id: int) -> AllocatedJob | None:
        """Return the job as Slurm has it now, None where it knows it no more."""
        return next((job for job in self._gateway.jobs(str(job_id)) if job.job_id == job_id), None)

    def learn(self, job: AllocatedJob) -> JobAsk | None:
        """Remember which decision a job came from; return what it may have, None if we never saw its submit."""
        found = decode(job.admin_comment)
        decision_id, ask = found if found else ("", None)
        self._asks[job.job_id] = (decision_id, ask)
        self.on_seen(decision_id)
        self.holdings.note(job)
        try:
            self._store.remember_job(KnownJob(
                job.job_id, decision_id, job.uid, job.user, job.id_text, job.name[:256], job.array_job_id,
                self._clock.now_s(),
            ))  # fmt: skip
        except HetschedError as error:
            log.warning("job %d: %s", job.job_id, error)
        return ask

    def learn_pending(self, asks: Mapping[int, tuple[str, JobAsk]]) -> None:
        """Remember what waiting jobs may have, so that a change by their owner can be judged."""
        self._asks.update(asks)

    def serves(self, item: Reservation) -> bool:
        """Return whether Slurm runs, on the reservation's node, the very run of the job it was made for.

        Raises `SlurmError` when Slurm cannot be asked.
        """
        job = self.load(item.job_id)
        return job is not None and job.restart_count == item.restart_count and is_on(job, item.node)

    def ask_of(self, job_id: int) -> JobAsk | None:
        """Return the ask of a job that was allocated since the daemon started."""
        return self._asks.get(job_id, ("", None))[1]

    def forget(self, job_id: int, restart_count: int = 0) -> None:
        """Forget a job whose run number ``restart_count`` has ended."""
        self.holdings.ended(job_id, restart_count)
        self._asks.pop(job_id, None)

    def cancel(self, job_id: int) -> None:
        """End an interactive job whose slices cannot be had; a Slurm that refuses is logged."""
        try:
            self._gateway.cancel(job_id)
        except SlurmError as error:
            log.warning("job %d: cannot be cancelled: %s", job_id, error)

    def needs(self, job: AllocatedJob, ask: JobAsk | None, node: str) -> NodeNeeds:
        """Return what the job needs on one of its nodes."""
        held = job.on(node)
        return node_needs(ask, held.gpus, held.shards, self._watcher.mig_gpus(node))

    def give_back(self, job: AllocatedJob, node: str, reason: str, away: bool = True) -> Answer:
        """Send the job back to the queue (or end it, where it is interactive) and record why.

        It is kept ``away`` from the node, unless another would do no better.
        """
        try:
            self._book.close((r for r in self._book.of_job(job.job_id) if r.state is ReservationState.RESERVED), reason)
        except StoreError as error:
            log.warning("job %d: its reservations are closed once it is seen to be gone: %s", job.job_id, error)
        if not job.batch:
            self._journal.job("give-back", job, "failed", f"{reason}; srun and salloc cannot be requeued", node=node)
            return Answer(Action.KILL, f"{reason}; try again, or submit it with sbatch, which waits for a place")
        elsewhere = self._nodes_for(job) if away else ()
        done = self._giveback.give_back(job, node, elsewhere)
        self.given_back += 1
        self._journal.job("give-back", job, "given-back", f"{reason}; {done}", node=node,
                          detail={"times": self._giveback.times(job.job_id)})  # fmt: skip
        return Answer(Action.GAVE_BACK, reason)

    def _reserve(self, job: AllocatedJob, ask: JobAsk | None, wanted: list[tuple[str, GpuNeed]]) -> Answer:
        deadline_s = self._clock.monotonic_s() + (0.0 if job.batch else self.config.interactive_wait_s)
        while True:
            try:
                made = self._book.reserve(new_id(), job.job_id, job.restart_count, job.uid, wanted)
            except NotNowError as error:
                reason, node = str(error.args[0]), str(error.args[1])
                if self._drop_dead(node):
                    continue
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return self.give_back(job, node, reason)
                with self._book.changed:
                    self._book.changed.wait(min(left_s, 1.0))
            except StoreError as error:
                # What is not journalled is not cut; the job waits in the queue, longer each time.
                return self.give_back(job, wanted[0][0], f"nothing can be reserved: {error}", away=False)
            else:
                self._record(job, ask, made)
                return Answer(Action.PROCEED)

    def _record(self, job: AllocatedJob, ask: JobAsk | None, made: list[Reservation]) -> None:
        became = ", ".join(f"{r.profile}@{r.start} on {r.node} GPU {r.gpu_index}" for r in made)
        asked = describe(ask) if ask else "whole GPU"
        self._journal.job("allocate", job, "reserved", asked=asked, became=became, node=job.node_list,
                          policy="the start that keeps most profiles placeable")  # fmt: skip

    def _has_reservations(self, job: AllocatedJob, wanted: list[tuple[str, GpuNeed]]) -> bool:
        """Whether this very allocation is reserved already (the hook may ask twice, and so may the node)."""
        mine = [r for r in self._book.of_job(job.job_id) if r.restart_count == job.restart_count]
        have = sorted((r.node, r.gpu_index, r.profile) for r in mine)
        want = sorted((node, need.gpu_index, profile.name) for node, need in wanted for profile in need.profiles)
        if mine and have != want:
            self._book.close((r for r in mine if r.state is ReservationState.RESERVED), "allocated anew elsewhere")
        return bool(mine) and have == want

    def _drop_dead(self, node: str) -> bool:
        """Close reservations on ``node`` of jobs that Slurm no longer runs there; return whether there were any.

        Slurm keeps a GPU's shards until the node's Epilog has ended, so a job that is not there any more has
        no process on its slice; what it left behind, the node destroys before it makes anything new.
        """
        dead: list[Reservation] = []
        for item in self._book.on_node(node):
            try:
                if not self.serves(item):
                    dead.append(item)
            except SlurmError as error:
                log.warning("job %d: cannot be looked up: %s", item.job_id, error)
        if dead:
            self._book.close(dead, "the job is gone; its node had not reported so")
            jobs = ", ".join(str(job_id) for job_id in sorted({r.job_id for r in dead}))
            self._journal.event("reconcile", "gone", f"reservations of ended jobs dropped: {jobs}", node=node)
        return bool(dead)

    def _mode_lost(self, job: AllocatedJob) -> _Lost | None:
        """Return where the job holds shards of a GPU that is not in MIG mode (any more), None if nowhere.

        On such a GPU every job that holds shards would see all of it.
        """
        for item in job.nodes:
            offered, there = self._watcher.offered(item.node), self._watcher.mig_gpus(item.node)
            for index in item.shards:
                if index in offered and index not in there:
                    return _Lost(item.node, f"GPU {index} of {item.node} has lost MIG mode")
        return None

    def _mode_wrong(self, job: AllocatedJob, ask: JobAsk | None) -> _Lost | None:
        """Return where a node is not in the MIG mode that a job on whole GPUs needs, None if nowhere."""
        if ask is None or not (ask.cut_whole or wants_several(ask)):
            return None
        for item in job.nodes:
            offered, there = self._watcher.offered(item.node), self._watcher.mig_gpus(item.node)
            if ask.cut_whole and any(index in offered and index not in there for index in item.gpus):
                return _Lost(item.node, f"{item.node} is not in MIG mode")
            in_pool = item.node in self._watcher.pool_nodes
            if not ask.cut_whole and in_pool and sum(index in there for index in item.gpus) > 1:
                return _Lost(item.node, f"{item.node} is in MIG mode, and waits to be taken out of it")
        return None

    def _report_mismatches(self, job: AllocatedJob, needs: dict[str, NodeNeeds]) -> None:
        for node, need in needs.items():
            if need.mismatch:
                log.warning("job %d: nothing is cut for it on %s: %s", job.job_id, node, need.mismatch)
                self._journal.job("allocate", job, "refused", f"{need.mismatch}; it sees no GPU", node=node)

    def _nodes_for(self, job: AllocatedJob) -> set[str]:
        """The nodes that could serve the job: usable, in its partition, as it constrains, with a model in MIG mode."""
        ask = self.ask_of(job.job_id)
        try:
            constraint = parse_features(job.features)
        except FeatureError:
            return set()
        known = {feature for node in self._watcher.view.nodes for feature in node.features}
        partitions = set(job.partition.split(","))
        keys = set(ask.model_keys) if ask else set()
        return {
            node.name
            for node in self._watcher.view.nodes
            if node.usable and partitions & node.partitions and satisfies(constraint, node.features, known)
            and any(not keys or model.key in keys for model in self._watcher.mig_gpus(node.name).values())
        }  # fmt: skip

    def _lock_of(self, job_id: int) -> threading.Lock:
        with self._guard:
            if len(self._job_locks) > 10_000:
                self._job_locks = {key: lock for key, lock in self._job_locks.items() if lock.locked()}
            return self._job_locks.setdefault(job_id, threading.Lock())


def is_on(job: AllocatedJob, node: str) -> bool:
    """Return whether a job is starting or running on ``node``."""
    return job.state in RUNNING and node in expand(job.node_list)


def describe(ask: JobAsk) -> str:
    """Return an ask as one line."""
    if ask.kind != "slices":
        return f"{ask.gpus_per_node or 1} whole GPU" + ("s" if ask.gpus_per_node > 1 else "")
    text = " and ".join(f"{item.count} x {item.profile}" for item in ask.slices)
    return text + (" per task" if ask.per_task else "")
