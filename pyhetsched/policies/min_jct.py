"""Least average job completion time: who goes first, and on which type, from the work that is left.

Our own construction. Two regimes:

* **Queue** (more GPUs asked for than there are, by more than ``light``): each type j is seen as one machine
  that works off areas a_mj = g_m p_mj / N_j, with p_mj = remaining / T_mj. Putting job m at position k from the
  end of type j's list costs k a_mj (it makes k jobs wait) + (a_mj + p_mj) / 2 (its own mean busy time plus half its run
  time). The cheapest matching of jobs to positions is an assignment problem (for single-GPU jobs
  this is the classic exact method for R||sum C_j: Horn 1973, Bruno, Coffman and Sethi 1974; AlloX, EuroSys'20, uses it
  too). Lists run smallest area first. Solved anew whenever jobs come or go, with running jobs free to move, this also
  gains what preemption allows.
* **Light** (and jobs may be moved later): everybody can run; then the most relative speed, sum over jobs of
  T_mj / max_j T_mj, with a small bonus p_m^-short_first for jobs that will soon give their devices back.

Running jobs that nobody may move (ClusterState.movable) stay; those who come to their type wait for their areas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from pyhetsched.policies.contract import NO_TYPE, Allocation, ClusterState, Diagnostics, Floats, Ints
from pyhetsched.policies.reference import isolated_shares, throughput_of
from pyhetsched.policies.registry import Context, policy

# Stands for "cannot run here" in an assignment problem; larger than any sum of real costs, in s.
_NEVER = 1e15

# Sweeps of the best responses; fewer for many jobs, so that 20,000 jobs on 8 types take about a second.
_MOST_SWEEPS, _LEAST_SWEEPS, _SWEEP_CELLS = 80, 25, 2_000_000


@dataclass(frozen=True, slots=True)
class MinJctOptions:
    """Options of ``min-jct``.

    ``light``: GPUs asked for / GPUs there are, up to which devices are matched and not queued for, if jobs may be
    moved. ``short_first``: exponent of the bonus for short jobs among those that run. ``rho_limit``: bound on a
    job's finish-time ratio (JCT / time on its 1/M part of the cluster): jobs about to miss it go first; none: no
    bound. ``exact_jobs``: largest queue that is matched exactly (a third of it where the last call's answer is
    at hand to start from).
    """

    light: float = 1.3
    short_first: float = 0.12
    rho_limit: float | None = None
    exact_jobs: int = 400

    def __post_init__(self) -> None:
        if self.light < 0 or self.exact_jobs < 0:
            raise ValueError("light and exact_jobs must not be negative")
        if self.rho_limit is not None and self.rho_limit <= 0:
            raise ValueError("rho_limit must be more than 0, or none")


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """The jobs that can be placed: rows of the state, run times [m, J] (inf where not usable), gangs, weights.

    ``pinned`` are rows of running jobs that must stay; they hold ``held`` [J] devices, and the areas they still have
    to work off make everybody behind them wait ``backlog_s`` [J].
    """

    rows: Ints
    run_s: Floats
    gang: Floats
    weight: Floats
    counts: Floats
    pinned: Ints
    held: Floats
    backlog_s: Floats

    @property
    def best_s(self) -> Floats:
        shortest: Floats = self.run_s.min(axis=1)
        return shortest

    @property
    def area_s(self) -> Floats:
        area: Floats = self.run_s * self.gang[:, None] / np.maximum(self.counts, 1.0)
        return area


@policy(
    "min-jct",
    summary="least average completion time: shortest remaining work first, each job on the type that suits all best",
    options=MinJctOptions,
    rung="plan",
    fall_to=("fifo",),
)
def min_jct(state: ClusterState, options: MinJctOptions, context: Context) -> Allocation:
    """Return an order over all jobs and the type each should run on; the objective is the planned mean JCT left, s.

    Shares are 1 for the jobs that fit when the order is walked now. Up to ``exact_jobs`` queued jobs of equal
    weight are matched exactly, more (or weighted ones) by best responses.
    """
    work = _work(state)
    if not len(work.rows):
        nobody = np.empty(0, dtype=np.int64)
        return _answer(state, work, nobody, np.empty(0), "nothing to do")
    urgent = _urgency(state, work, options.rho_limit)
    # Where jobs stay on the type they start on, a slow idle device is a trap: then always weigh the wait against it.
    if state.movable is None and work.gang.sum() <= options.light * work.counts.sum():
        solver, (column, rank) = "matching", _light(work, options.short_first, urgent)
    else:
        solver, column = _queue(state, work, options.exact_jobs, context)
        rank = work.area_s[np.arange(len(column)), column] / work.weight
        rank = np.where(np.isfinite(urgent), -1.0 / (1.0 + np.maximum(urgent, 0.0)), rank)
    return _answer(state, work, column, rank, solver)


def _work(state: ClusterState) -> _Work:
    stays = np.zeros(state.n_jobs, dtype=bool) if state.movable is None else ~state.movable & (state.running_on >= 0)
    rows = np.flatnonzero(state.usable.any(axis=1) & (state.remaining > 0) & ~stays)
    rates = np.where(state.usable, state.throughput, 0.0)
    with np.errstate(divide="ignore"):
        run_s = np.where(rates > 0, state.remaining[:, None] / rates, np.inf)
    pinned = np.flatnonzero(stays)
    on, gang = state.running_on[pinned], state.gang.astype(np.float64)
    left_s = np.where(np.isfinite(run_s[pinned, on]), run_s[pinned, on], 0.0) * gang[pinned]
    backlog_s = np.bincount(on, weights=left_s, minlength=state.n_types) / np.maximum(state.counts, 1.0)
    held = np.bincount(on, weights=gang[pinned], minlength=state.n_types).astype(np.float64)
    weight = np.maximum(state.weight[rows], 1e-12)
    return _Work(rows, run_s[rows], gang[rows], weight, state.counts, pinned, held, backlog_s)


def _queue(state: ClusterState, work: _Work, exact_jobs: int, context: Context) -> tuple[str, Ints]:
    """Return the method and the type [m] of each job; types of the last call are where the next one starts."""
    ids = state.job_ids[work.rows]
    known: dict[int, int] = context.cache.entries.get("min-jct", {})
    start = None
    if known:
        shortest = work.area_s.argmin(axis=1).tolist()
        guess = [known.get(job_id, short) for job_id, short in zip(ids.tolist(), shortest, strict=True)]
        start = np.array(guess, dtype=np.int64)
        wrong = (start >= state.n_types) | np.isinf(work.run_s[np.arange(len(start)), start % state.n_types])
        start[wrong] = work.area_s[wrong].argmin(axis=1)
    same_weight = bool((work.weight == work.weight[0]).all())
    if same_weight and len(work.rows) <= (exact_jobs // 3 if known else exact_jobs):
        solver, column = "positions", assign_positions(work.run_s, work.gang, work.counts, work.backlog_s)
    else:
        solver, column = "best response", best_response(work, start)
    context.cache.entries["min-jct"] = dict(zip(ids.tolist(), column.tolist(), strict=True))
    return solver, column


def _urgency(state: ClusterState, work: _Work, limit: float | None) -> Floats:
    """Return [m]: seconds a job can still wait and keep ``limit``, if that is less than its own run time; else inf.

    rho = (age + time left) / (isolated time used + remaining / isolated rate), as in Gavel's finish-time fairness.
    """
    if limit is None:
        return np.full(len(work.rows), np.inf)
    rows = work.rows
    rate = throughput_of(isolated_shares(state)[rows], np.where(state.usable[rows], state.throughput[rows], 0.0))
    isolated_s = state.isolated_used_s[rows] + state.remaining[rows] / np.maximum(rate, 1e-12)
    slack_s = limit * isolated_s - state.age_s[rows] - work.best_s
    late: Floats = np.where(slack_s < 0.1 * work.best_s, slack_s, np.inf)
    return late


def assign_positions(run_s: Floats, gang: Floats, counts: Floats, backlog_s: Floats | None = None) -> Ints:
    """Return the type [m] of each job in the cheapest matching of jobs to (type, position from the end).

    ``run_s`` [m, J] s, inf where a job cannot run; ``gang`` [m]; ``counts`` [J]; ``backlog_s`` [J] wait that every job
    on a type has before it (none: 0). With single-GPU jobs the machines of a
    type are counted exactly: the job at position k makes floor(k / N_j) others wait its whole run time.
    """
    n_jobs, n_types = run_s.shape
    restricted = bool(np.isinf(run_s).any())
    positions = np.arange(n_jobs if restricted or n_jobs < 50 else min(n_jobs, int(0.7 * n_jobs) + 2))
    run = np.minimum(run_s, _NEVER)[:, :, None]
    if (gang == 1).all():
        layers = 1.0 + np.floor(positions[None, :] / np.maximum(counts, 1.0)[:, None])
        cost = run * layers[None, :, :]
    else:
        area = run * (gang[:, None] / np.maximum(counts, 1.0)[None, :])[:, :, None]
        cost = (positions + 0.5)[None, None, :] * area + run / 2.0
    if backlog_s is not None:
        cost = cost + backlog_s[None, :, None]
    _, picked = linear_sum_assignment(np.minimum(cost, _NEVER).reshape(n_jobs, -1))
    column: Ints = np.asarray(picked, dtype=np.int64) // len(positions)
    return column


def best_response(work: _Work, start: Ints | None = None) -> Ints:
    """Return the type [m] of each job after jobs have moved, a fifth of them at a time, to where they cost all least.

    Weighted jobs in Smith's order (area / weight). The cost of job m on type j is w_m (areas before it +
    (a_mj + p_mj) / 2) + a_mj (weights behind it). ``start`` [m] is a first guess. Usually within 0.2 % of
    :func:`assign_positions`; O(J * m log m) a sweep, and a good guess needs few of them.
    """
    area, run = np.minimum(work.area_s, _NEVER), np.minimum(work.run_s, _NEVER)
    ratio = area / work.weight[:, None]
    column: Ints = area.argmin(axis=1) if start is None else start
    everyone = np.arange(len(column))
    # Who moves first is drawn: if all moved at once, they would chase each other between the same two types.
    stream = np.random.default_rng(0)
    best, best_total = column, np.inf
    for _ in range(max(_LEAST_SWEEPS, min(_MOST_SWEEPS, _SWEEP_CELLS // area.size))):
        cost = _insertion_cost(area, ratio, run, work.weight, column) + work.weight[:, None] * work.backlog_s
        # Each pair of jobs is counted twice, once by each: half of it, plus half of what is a job's own.
        now = cost[everyone, column]
        total = float((now + work.weight * (area + run)[everyone, column] / 2.0).sum())
        if total < best_total:
            best, best_total = column.copy(), total
        movers = np.flatnonzero(now - cost.min(axis=1) > 1e-6 * now)
        if not len(movers):
            break
        movers = stream.permutation(movers)[: max(1, len(movers) // 5)]
        column = column.copy()
        column[movers] = cost[movers].argmin(axis=1)
    return best


def _insertion_cost(area: Floats, ratio: Floats, run: Floats, weight: Floats, column: Ints) -> Floats:
    cost = np.empty_like(area)
    for j in range(area.shape[1]):
        here = np.flatnonzero(column == j)
        here = here[np.argsort(ratio[here, j], kind="stable")]
        before = np.concatenate([[0.0], np.cumsum(area[here, j])])
        behind = np.concatenate([np.cumsum(weight[here][::-1])[::-1], [0.0]])
        at = np.searchsorted(ratio[here, j], ratio[:, j], side="left")
        others = behind[at] - np.where(column == j, weight, 0.0)
        cost[:, j] = weight * (before[at] + (area[:, j] + run[:, j]) / 2.0) + area[:, j] * others
    return cost


def _light(work: _Work, short_first: float, urgent: Floats) -> tuple[Ints, Floats]:
    """Match jobs to devices by relative speed; return the type of each job and its rank (small first)."""
    best_s = work.best_s
    value = best_s[:, None] / work.run_s * best_s[:, None] ** -short_first * work.weight[:, None]
    value = np.where(np.isfinite(urgent)[:, None], value * 10.0, value)
    free = np.maximum(work.counts - work.held, 0.0)
    devices = int(free.sum())
    if (work.gang == 1).all() and len(work.rows) * devices <= 4_000_000:
        owner = np.repeat(np.arange(len(free)), free.astype(np.int64))
        jobs, picked = linear_sum_assignment(value[:, owner], maximize=True)
        column = np.full(len(work.rows), NO_TYPE, dtype=np.int64)
        real = value[jobs, owner[picked]] > 0
        column[jobs[real]] = owner[picked[real]]
    else:
        column = match_gangs(value, work.gang, free)
    waiting = column == NO_TYPE
    column[waiting] = value[waiting].argmax(axis=1)
    return column, best_s + np.where(waiting, 2.0 * best_s.max(), 0.0)


def match_gangs(value: Floats, gang: Floats, counts: Floats) -> Ints:
    """Return the type [m] of each job, -1 for those left out: those who lose most by their second choice choose first.

    ``value`` [m, J] of a job on a type (0: cannot run there). Regret is counted per GPU and worked out
    anew whenever a type can no longer take some gang size.
    """
    column = np.full(len(gang), NO_TYPE, dtype=np.int64)
    left = counts.copy()
    open_jobs = np.arange(len(gang))
    while len(open_jobs):
        fits = (gang[open_jobs, None] <= left[None, :]) & (value[open_jobs] > 0)
        open_jobs, fits = open_jobs[fits.any(axis=1)], fits[fits.any(axis=1)]
        if not len(open_jobs):
            break
        offer = np.where(fits, value[open_jobs], 0.0)
        choice = offer.argmax(axis=1)
        ranked = np.sort(offer, axis=1)
        second = ranked[:, -2] if offer.shape[1] > 1 else np.zeros(len(offer))
        order = np.lexsort((-ranked[:, -1] / gang[open_jobs], -(ranked[:, -1] - second) / gang[open_jobs]))
        taken = np.zeros(len(open_jobs), dtype=bool)
        for index in order.tolist():
            job, wish = open_jobs[index], choice[index]
            if gang[job] > left[wish]:
                break
            column[job] = wish
            left[wish] -= gang[job]
            taken[index] = True
        open_jobs = open_jobs[~taken]
    return column


def _answer(state: ClusterState, work: _Work, column: Ints, rank: Floats, solver: str) -> Allocation:
    queue = np.argsort(rank, kind="stable")
    shares = np.zeros((state.n_jobs, state.n_types))
    shares[work.pinned, state.running_on[work.pinned]] = 1.0
    left = np.maximum(work.counts - work.held, 0.0).tolist()
    room = sum(left)
    for m, j, size in zip(queue.tolist(), column[queue].tolist(), work.gang[queue].tolist(), strict=True):
        if room <= 0:
            break
        if size <= left[j]:
            left[j] -= size
            room -= size
            shares[work.rows[m], j] = 1.0
    area, run = work.area_s, work.run_s
    total = 0.0
    for j in range(state.n_types):
        line = queue[column[queue] == j]
        ends = work.backlog_s[j] + np.cumsum(area[line, j]) - area[line, j] / 2.0 + run[line, j] / 2.0
        total += float(work.weight[line] @ ends)
    wanted = np.full(state.n_jobs, NO_TYPE, dtype=np.int64)
    wanted[work.rows] = column
    wanted[work.pinned] = state.running_on[work.pinned]
    return Allocation(
        shares,
        total / max(float(work.weight.sum()), 1e-12),
        order=np.concatenate([work.pinned, work.rows[queue]]),
        wanted=wanted,
        backfill=True,
        diagnostics=Diagnostics(solver=solver, variables=int(run.size), rows=len(work.rows)),
    )
