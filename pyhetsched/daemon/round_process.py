"""The process that makes rounds: looks at all jobs, asks the policy, makes the few updates, and says what it did.

Ten thousand jobs take a second to look at, and a policy may take its whole budget; in another process, behind the
daemon on the processor, no submit feels either.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from pyhetsched.clock import Clock, RealClock
from pyhetsched.config import Config, PolicyConfig
from pyhetsched.daemon.modes import ModeTable
from pyhetsched.daemon.round_changes import Applied, Change, Picture, changes, withdrawals
from pyhetsched.daemon.round_plan import RoundPlan, RoundSettings, Wish, plan
from pyhetsched.daemon.round_record import RoundSummary, decision_of, summary_of
from pyhetsched.daemon.round_tables import Tables
from pyhetsched.daemon.round_worth import Appraiser, PastRuns
from pyhetsched.errors import ConfigError, HetschedError, SlurmError, StoreError
from pyhetsched.model import Candidate, ClusterView, Decision, Mode
from pyhetsched.policies.registry import SolverCache
from pyhetsched.slurm.admin_comment import decode
from pyhetsched.slurm.direct import DirectSlurm
from pyhetsched.slurm.gateway import Gateway
from pyhetsched.slurm.gpu_jobs import COMPLETED, PENDING, RUNNING, GpuJob
from pyhetsched.store.database import Database
from pyhetsched.store.runs import RoundStore, Run, RunStore

log = logging.getLogger(__name__)

_MOST_RUNS = 50_000
_FORGET_EVERY_S = 3600.0
_CLASS = re.compile(r"(?:^|\s)class=([A-Za-z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """What the serving side hands over; ``kind`` is ``round``, ``would`` (change nothing) or ``withdraw``."""

    kind: str
    view: ClusterView
    modes: ModeTable
    policy: PolicyConfig
    keep_days: int = 365
    limit: int = 100


@dataclass(frozen=True, slots=True)
class WouldRow:
    """What a policy would do with one waiting job now."""

    wish: Wish
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class RoundReply:
    """What was done, as records, or (``would``) the rows; ``invalid`` says what is wrong with the policy's name."""

    summary: RoundSummary | None = None
    decisions: tuple[Decision, ...] = ()
    rows: tuple[WouldRow, ...] = ()
    invalid: str = ""
    failed: str = ""


@dataclass(slots=True)
class _Memory:
    """What rounds have set on jobs that still exist, and in shadow have said they would."""

    applied: dict[int, Applied] = field(default_factory=dict)
    told: dict[int, Applied] = field(default_factory=dict)
    recalled: bool = False

    def forget(self, alive: Collection[int]) -> None:
        for memory in (self.applied, self.told):
            for job_id in [job_id for job_id in memory if job_id not in alive]:
                del memory[job_id]


class RoundWorker:
    """Answers `RoundRequest`s one after another."""

    def __init__(self, gateway: Gateway, database: Database, clock: Clock) -> None:
        self._gateway = gateway
        self._clock = clock
        self._runs, self._rounds = RunStore(database), RoundStore(database)
        self._past = PastRuns(self._runs.recent(_MOST_RUNS))
        self._recorded: set[tuple[int, float]] = set()
        self._class_of: dict[str, str] = {}
        self._memory = _Memory()
        self._tables = Tables()
        self._caches: dict[str, SolverCache] = {}
        self._forgot_s = float("-inf")

    def answer(self, request: RoundRequest) -> RoundReply:
        """Return the reply; a Slurm or database that fails is told, not raised."""
        started_s = self._clock.monotonic_s()
        try:
            jobs = self._gateway.gpu_jobs()
            notes = self._learn(jobs, request)
            self._recall(jobs)
            if request.kind == "withdraw":
                return self._withdraw(jobs)
            found = self._plan(jobs, request, notes)
            if request.kind == "would":
                summary = summary_of(found, request.policy.mode, self._clock.now_s(), started_s, self._clock, notes)
                rows = tuple(WouldRow(wish, found.candidates(wish)) for wish in found.wishes[: request.limit])
                return RoundReply(summary, rows=rows)
            return self._carry_out(found, request, notes, started_s)
        except ConfigError as error:
            return RoundReply(invalid=str(error))
        except HetschedError as error:
            return RoundReply(failed=str(error))

    def _plan(self, jobs: Sequence[GpuJob], request: RoundRequest, notes: list[str]) -> RoundPlan:
        view, policy = request.view, request.policy
        models = {group.gres_type: group.model_key or "" for node in view.nodes for group in node.gpus}
        types = sorted(models)
        tables, said = self._tables.of(types, policy.throughputs)
        notes.extend(said)
        settings = RoundSettings(policy.name, policy.options, policy.budget_s)
        cache = self._caches.setdefault(f"{policy.name} {policy.options}", SolverCache())
        appraiser = Appraiser(types, models, tables, self._past)
        return plan(jobs, view, appraiser, self._classes(jobs), settings, self._clock, cache)

    def _carry_out(self, found: RoundPlan, request: RoundRequest, notes: list[str], started_s: float) -> RoundReply:
        factors = self._factors(notes)
        picture = Picture(self._memory.applied, self._memory.told, factors)
        mode = Mode(request.policy.mode)
        wanted = changes(found, mode, request.modes, picture, request.policy.order_points)
        done = self._apply(wanted)
        decisions = tuple(decision_of(change, found, self._clock.now_s()) for change in done)
        now_s = self._clock.now_s()
        summary = summary_of(found, mode.value, now_s, started_s, self._clock, notes, done, len(wanted) - len(done))
        return RoundReply(summary, decisions)

    def _withdraw(self, jobs: Sequence[GpuJob]) -> RoundReply:
        picture = Picture(self._memory.applied, self._memory.told, self._factors([]))
        done = self._apply(withdrawals(jobs, picture))
        self._memory.told.clear()
        return RoundReply(decisions=tuple(decision_of(change, None, self._clock.now_s()) for change in done))

    def _apply(self, wanted: Sequence[Change]) -> list[Change]:
        """Make the updates; return those that Slurm took. In shadow all are only remembered."""
        done = []
        for change in wanted:
            job = change.job
            if change.wish is not None and change.mode is not Mode.ENFORCE:
                self._memory.told[job.job_id] = change.after
                done.append(change)
                continue
            try:
                self._update(change)
            except SlurmError as error:
                # It has started or ended since we looked; of an array, some elements have.
                if not (job.array and "no longer pending" in str(error)):
                    log.info("job %d: not changed: %s", job.job_id, error)
                    continue
            self._memory.applied[job.job_id] = change.after
            done.append(change)
        return done

    def _update(self, change: Change) -> None:
        if change.prefer is None:
            self._gateway.order_by(change.job.job_id, change.site_factor or 0)
            return
        fields = {"Prefer": change.prefer}
        if change.site_factor is not None:
            fields["SiteFactor"] = str(change.site_factor)
        self._gateway.update(change.job.job_id, fields)

    def _factors(self, notes: list[str]) -> Mapping[int, int] | None:
        try:
            return self._gateway.site_factors()
        except SlurmError as error:
            notes.append(f"the order is left as it is: {error}")
            return None

    def _classes(self, jobs: Sequence[GpuJob]) -> dict[int, str]:
        """Return the class that each job named at submit, for those that named one."""
        ids = {job.job_id: found[0] for job in jobs if (found := decode(job.admin_comment)) is not None}
        unknown = sorted(set(ids.values()) - self._class_of.keys())
        for decision_id, asked in self._rounds.asked(unknown).items():
            said = _CLASS.search(asked)
            self._class_of[decision_id] = said[1] if said else ""
        alive = set(ids.values())
        self._class_of = {key: value for key, value in self._class_of.items() if key in alive}
        return {job_id: name for job_id, key in ids.items() if (name := self._class_of.get(key, ""))}

    def _recall(self, jobs: Sequence[GpuJob]) -> None:
        """After a start of the daemon: learn from the records what rounds have set on jobs that still wait."""
        alive = {job.job_id for job in jobs if job.state in (PENDING, RUNNING)}
        if not self._memory.recalled:
            for job_id, detail in self._rounds.last_set(alive).items():
                factor, restarts = detail.get("site_factor", 0), detail.get("restarts", 0)
                self._memory.applied[job_id] = Applied(str(detail.get("prefer", "")), int(factor), int(restarts))
            self._memory.recalled = True
        self._memory.forget(alive)

    def _learn(self, jobs: Sequence[GpuJob], request: RoundRequest) -> list[str]:
        """Record the runs that have ended well since the last look."""
        type_of = {node.name: node.gpus[0].gres_type for node in request.view.nodes if len(node.gpus) == 1}
        new = [run for job in jobs if (run := run_of(job, type_of)) and (run.job_id, run.start_s) not in self._recorded]
        try:
            self._runs.add(new)
            self._forget(request.keep_days)
        except StoreError as error:
            # Slurm shows ended jobs for some minutes: the next round finds them again.
            return [f"past runs are not recorded: {error}"]
        for run in new:
            self._recorded.add((run.job_id, run.start_s))
            self._past.add(run)
        if len(self._recorded) > 4 * _MOST_RUNS:
            self._recorded = {(run.job_id, run.start_s) for run in new}
        return []

    def _forget(self, keep_days: int) -> None:
        if self._clock.monotonic_s() - self._forgot_s > _FORGET_EVERY_S:
            self._forgot_s = self._clock.monotonic_s()
            self._runs.forget_before(self._clock.now_s() - keep_days * 86400.0)


def run_of(job: GpuJob, type_of: Mapping[str, str]) -> Run | None:
    """Return what a job that has ended well teaches: nothing if it ran on slices or on several types."""
    if job.state != COMPLETED or not job.gpus or job.run_s <= 0:
        return None
    first = job.nodes.partition(",")[0]
    gres_type = job.gres_type or type_of.get(first, "")
    if not gres_type or (not job.gres_type and job.node_count > 1):
        return None
    return Run(job.job_id, job.start_s, job.user, job.name, gres_type, job.gpus, job.run_s, job.end_s)


def round_process(connection: Connection, config: Config) -> None:
    """Answer requests until the connection ends."""
    import signal

    from pyhetsched.daemon.logs import set_up

    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(10)
    set_up(config.daemon.log_level)
    worker: RoundWorker | None = None
    while True:
        try:
            request: RoundRequest = connection.recv()
        except (EOFError, OSError):
            return
        try:
            worker = worker or _worker(config)
            reply = worker.answer(request)
        except HetschedError as error:
            reply = RoundReply(failed=str(error))
        except Exception as error:  # noqa: BLE001 - the next round may go well, and the daemon must hear of this one
            log.exception("a round failed")
            reply = RoundReply(failed=f"{type(error).__name__}: {error}")
        connection.send(reply)


def _worker(config: Config) -> RoundWorker:
    gateway = DirectSlurm(config.slurm.conf, config.slurm.command_timeout_s)
    return RoundWorker(gateway, Database(config.store_url), RealClock())
