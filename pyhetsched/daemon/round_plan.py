"""One round: what the policy wants for every waiting job, from a snapshot. Pure.

The same function answers live, in shadow, for ``hetsched rounds --would`` and for comparison with the simulator: both
hand a `ClusterState` to the same registry, running jobs staying where they are.
"""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pyhetsched.clock import Clock
from pyhetsched.daemon.round_reach import Reach, Reaches, types_of_view
from pyhetsched.daemon.round_worth import Appraiser, Workload, Worth
from pyhetsched.errors import ConfigError
from pyhetsched.model import Candidate, ClusterView, JobAsk
from pyhetsched.placement.rounds import start_order
from pyhetsched.policies.contract import NO_TYPE, Allocation, ClusterState, GpuType
from pyhetsched.policies.registry import OptionValue, SolverCache, allocate
from pyhetsched.slurm.admin_comment import decode
from pyhetsched.slurm.features import FeatureError, add_features, is_special, parse_features
from pyhetsched.slurm.gpu_jobs import PENDING, RUNNING, GpuJob
from pyhetsched.throughput.estimator import Ground

log = logging.getLogger(__name__)

#: Shards of a seven-slice GPU; whole GPUs and slices are counted in these where both are in a round.
SHARDS = 31
#: Jobs that cannot start whatever we do, by Slurm's reason.
_CANNOT_START = ("Held", "Dependency", "BeginTime", "Limit", "MaxJobs", "Reservation", "BadConstraints")
_LAST_RESORT = "fifo"
# A rate is evidence up to this error bar, and a difference from this ratio on.
_MOST_SIGMA = 0.6
_LEAST_GAIN = 1.05
# A type that the policy wants, but on which the job is this much slower than on its best, is not preferred: the
# preference holds for as long as that type is free, and nobody moves a job afterwards.
_LEAST_SPEED = 0.5


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """Which policy, its options, and the seconds it may take."""

    policy: str = "min-jct"
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    budget_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a round wants for one waiting job of ours.

    ``rank`` counts from 1 among ``RoundPlan.wishes``; ``wanted`` is a gres type or ""; ``prefer`` the expression for
    ``--prefer``, "" for none; ``why`` says in one sentence why a type is preferred or not. ``row`` is the policy's.
    """

    job: GpuJob
    rank: int
    wanted: str
    prefer: str
    why: str
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class RoundPlan:
    """The whole answer; wishes are in order, most urgent first."""

    wishes: tuple[Wish, ...]
    policy: str
    rung: str
    reasons: tuple[str, ...]
    solve_ms: float
    pending: int
    running: int
    types: tuple[GpuType, ...] = ()
    unit: int = 1
    worth: Worth | None = None
    reaches: tuple[Reach, ...] = ()
    classes: Mapping[int, str] = field(default_factory=dict)

    def candidates(self, wish: Wish) -> tuple[Candidate, ...]:
        """Return the types a job could run on, the score of each being the seconds it would take there."""
        if self.worth is None:
            return ()
        rates, sigma, ground = (table[wish.row] for table in (self.worth.rates, self.worth.sigma, self.worth.ground))
        reach = self.reaches[wish.row]
        found = []
        for j, gpu_type in enumerate(self.types):
            admissible = gpu_type.name in reach.types and float(rates[j]) > 0
            seconds = float(self.worth.work[wish.row] / rates[j]) if rates[j] > 0 else 0.0
            bar = "" if ground[j] == Ground.KNOWN else f", give or take {100 * (math.exp(sigma[j]) - 1):.0f} %"
            reason = f"{Ground(ground[j]).name.lower()}{bar}" if admissible else "cannot run there"
            found.append(Candidate(gpu_type.name, admissible, gpu_type.name == wish.wanted, seconds, reason))
        return tuple(sorted(found, key=lambda item: (not item.admissible, item.score)))


@dataclass(frozen=True, slots=True)
class _Row:
    job: GpuJob
    reach: Reach
    column: int
    ask: JobAsk | None


def plan(
    jobs: Sequence[GpuJob], view: ClusterView, appraiser: Appraiser, classes: Mapping[int, str],
    settings: RoundSettings, clock: Clock, cache: SolverCache | None = None,
) -> RoundPlan:  # fmt: skip
    """Return what ``settings.policy`` wants for the waiting ones of ``jobs``.

    ``appraiser`` knows the types of ``types_of_view(view)``; ``classes`` are the classes that jobs named at submit.
    Raises `ConfigError` for an unknown policy or option, nothing else: where the policy fails, a simpler one answers.
    """
    types = types_of_view(view)
    rows = _rows(jobs, view, types)
    waiting = sum(row.column == NO_TYPE for row in rows)
    running = len({row.job.job_id for row in rows if row.column != NO_TYPE})
    if not waiting:
        return RoundPlan((), settings.policy, "nothing to do", (), 0.0, 0, running, types)
    loads = [_load(row.job, classes) for row in rows]
    worth = appraiser.appraise(loads)
    unit = SHARDS if any(row.job.shards for row in rows) else 1
    state = _state(rows, types, view, worth, unit, clock.now_s())
    answer, reasons = _solve(state, settings, clock, cache)
    told = answer.diagnostics
    found = RoundPlan(
        (), told.policy, told.rung, (*reasons, *told.reasons), told.solve_ms, waiting, running, state.types,
        unit, worth, tuple(row.reach for row in rows), classes,
    )  # fmt: skip
    return replace(found, wishes=tuple(_wishes(rows, answer, state, worth)))


def could_start(job: GpuJob) -> bool:
    """Whether a waiting job could start if there were room."""
    return not any(word in job.reason for word in _CANNOT_START)


def ours(job: GpuJob, ask: JobAsk | None) -> bool:
    """Whether a job may be steered: known from its submit, not opted out, and a job of its own."""
    known = ask is not None and (ask.kind == "slices" or (ask.kind == "whole" and ask.gpus_per_node > 0))
    return known and not job.het


def _rows(jobs: Sequence[GpuJob], view: ClusterView, types: Sequence[GpuType]) -> list[_Row]:
    reaches = Reaches(view)
    column_of = {gpu_type.name: column for column, gpu_type in enumerate(types)}
    rows = []
    for job in sorted(jobs, key=lambda job: (job.submit_s, job.job_id)):
        found = decode(job.admin_comment)
        ask = found[1] if found else None
        if job.state == RUNNING:
            # A job on several types is a row for each: all that it holds is held.
            for name, gpus in reaches.held(job):
                if name in column_of:
                    part = replace(job, gpus=gpus)
                    rows.append(_Row(part, Reach(frozenset({name})), column_of[name], ask))
        elif job.state == PENDING and could_start(job) and len(job.by_type) < 2:
            reach = reaches.of(job, ask)
            if reach.types:
                rows.append(_Row(job, reach, NO_TYPE, ask))
    return rows


def _load(job: GpuJob, classes: Mapping[int, str]) -> Workload:
    return Workload(job.user, job.name, max(job.gpus, 1), classes.get(job.job_id, ""), job.limit_s)


def _state(
    rows: Sequence[_Row], types: Sequence[GpuType], view: ClusterView, worth: Worth, unit: int, now_s: float
) -> ClusterState:
    column = np.array([row.column for row in rows], dtype=np.int64)
    reach = np.array([[t.name in row.reach.types for t in types] for row in rows]).reshape(-1, len(types))
    per_gpu = _shards_per_gpu(view)
    gang = np.array([_gang(row, unit, per_gpu) for row in rows], dtype=np.int64)
    running = column != NO_TYPE
    # What runs on nodes that are being drained holds GPUs that are offered to nobody.
    held = np.bincount(column[running], weights=gang[running], minlength=len(types))
    counts = np.maximum([t.count * unit for t in types], held).astype(np.int64)
    rates = np.where(reach, worth.rates, 0.0)
    left = np.array([_left_s(row.job, worth, m, row.column) for m, row in enumerate(rows)])
    remaining = np.where(running, left * worth.rates[np.arange(len(rows)), np.maximum(column, 0)], worth.work)
    age_s = np.array([max(now_s - row.job.submit_s, 0.0) for row in rows])
    ran_s = np.array([row.job.run_s for row in rows])
    return ClusterState.from_arrays(
        tuple(replace(t, count=int(count)) for t, count in zip(types, counts, strict=True)),
        rates,
        gang,
        np.maximum(remaining, 1e-9),
        job_ids=[row.job.job_id for row in rows],
        total=worth.work,
        age_s=age_s,
        waited_s=np.maximum(age_s - ran_s, 0.0),
        sigma=worth.sigma,
        running_on=column,
        movable=~running,
        accounts=tuple((row.job.account,) for row in rows),
        now_s=now_s,
    )


def _gang(row: _Row, unit: int, per_gpu: Mapping[str, int]) -> int:
    """Return the size of a job in GPUs, or in 31sts of one."""
    if row.job.gpus:
        return row.job.gpus * unit
    most = max((per_gpu.get(name, 0) for name in row.reach.types), default=0) or SHARDS
    return max(1, round(row.job.shards * SHARDS / most))


def _shards_per_gpu(view: ClusterView) -> dict[str, int]:
    return {group.gres_type: group.shards_per_gpu for node in view.nodes for group in node.gpus if group.mig_enabled}


def _left_s(job: GpuJob, worth: Worth, row: int, column: int) -> float:
    """Return the seconds a running job may still take: what is expected, a tenth of that at least, within its limit."""
    if column == NO_TYPE:
        return 0.0
    expected_s = float(worth.work[row] / max(worth.rates[row, column], 1e-12))
    left_s = max(expected_s - job.run_s, 0.1 * expected_s)
    return max(min(left_s, job.limit_s - job.run_s), 1.0) if job.limit_s else left_s


def _solve(
    state: ClusterState, settings: RoundSettings, clock: Clock, cache: SolverCache | None
) -> tuple[Allocation, tuple[str, ...]]:
    try:
        return allocate(settings.policy, state, settings.options, clock, settings.budget_s, cache), ()
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug in a policy costs its order, not the round
        log.exception("policy %s failed; %s answers", settings.policy, _LAST_RESORT)
        reason = f"{settings.policy}: {type(error).__name__}: {error}"
        return allocate(_LAST_RESORT, state, {}, clock, settings.budget_s), (reason,)


def _wishes(rows: Sequence[_Row], answer: Allocation, state: ClusterState, worth: Worth) -> Collection[Wish]:
    if answer.order is not None and answer.wanted is not None:
        order, wanted = answer.order, answer.wanted
    else:
        order, wanted = start_order(answer.time_shares(), state.usable)
    mine = [row.column == NO_TYPE and ours(row.job, row.ask) for row in rows]
    # Those that the policy leaves out come behind, in order of arrival.
    ranked = [m for m in dict.fromkeys([*order.tolist(), *range(len(rows))]) if mine[m]]
    found: list[Wish] = []
    for m, column in _settled(ranked, wanted.tolist(), rows, state):
        row = rows[m]
        prefer, why = _preference(row, column, state, worth, m)
        name = state.types[column].name if column != NO_TYPE else ""
        found.append(Wish(row.job, len(found) + 1, name, prefer, why, m))
    return found


def _settled(
    ranked: Sequence[int], wanted: Sequence[int], rows: Sequence[_Row], state: ClusterState
) -> list[tuple[int, int]]:
    """Return (row, column) in order, jobs that are alike having changed places until they stand as they did.

    To a policy it is all one which of two equal jobs goes first or where: the older one does, and each keeps the type
    that it prefers already. Else every round would move half the queue for nothing.
    """
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, m in enumerate(ranked):
        key = (state.throughput[m].tobytes(), float(state.remaining[m]), int(state.gang[m]), rows[m].job.features)
        alike[key].append(place)
    names = {gpu_type.name: column for column, gpu_type in enumerate(state.types)}
    settled = [(m, wanted[m]) for m in ranked]
    for places in alike.values():
        columns = [wanted[ranked[place]] for place in places]
        members = sorted(ranked[place] for place in places)
        kept = [_take(columns, names.get(_last_name(rows[m].job.prefer), NO_TYPE)) for m in members]
        for place, m, column in zip(places, members, kept, strict=True):
            settled[place] = (m, columns.pop(0) if column is None else column)
    return settled


def _take(columns: list[int], column: int) -> int | None:
    if column == NO_TYPE or column not in columns:
        return None
    columns.remove(column)
    return column


def _last_name(expression: str) -> str:
    return re.split(r"[&|,()\[\]]", expression)[-1]


def _preference(row: _Row, column: int, state: ClusterState, worth: Worth, m: int) -> tuple[str, str]:
    """Return the expression a job should prefer ("" for none) and why."""
    if column == NO_TYPE or not row.job.gpus:
        return "", "no type is wanted for it" if row.job.gpus else "slices are only put in order"
    usable = state.usable[m]
    if usable.sum() < 2:
        return "", f"only {state.types[column].name} can serve it"
    rates = np.where(usable, worth.rates[m], 0.0)
    firm = usable & (worth.ground[m] < Ground.ASSUMED) & (worth.sigma[m] <= _MOST_SIGMA)
    if not firm[column] or firm.sum() < 2:
        return "", "how fast it is on which type is not known"
    others = np.where(firm, rates, 0.0)
    others[column] = 0.0
    best, name = float(np.where(firm, rates, 0.0).max()), state.types[column].name
    if rates[column] < _LEAST_SPEED * best:
        return "", f"{name} would suit the others, but is under half as fast for it"
    ratio = float(rates[column] / max(others.max(), 1e-12))
    if 1 / _LEAST_GAIN < ratio < _LEAST_GAIN:
        return "", "its types are equally fast for it"
    text = _expression(row, name)
    if not text:
        return "", f"no feature of its nodes tells {name} apart within its --constraint"
    if ratio >= _LEAST_GAIN:
        return text, f"{name} is {ratio:.2g} times as fast for it as the next best"
    return text, f"{name} is {rates[column] / best:.2g} times as fast for it as the best, which others need more"


def _expression(row: _Row, name: str) -> str:
    """Return a job's own constraint narrowed to one type, for Slurm tries ``--prefer`` in place of it."""
    if name not in row.reach.telling:
        return ""
    try:
        if is_special(parse_features(row.job.features)):
            return ""
    except FeatureError:
        return ""
    return add_features(row.job.features, [name])
