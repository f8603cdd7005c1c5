"""Space sharing in the linear programs: pairs of jobs on the same GPUs.

Gavel (OSDI'20, section 4.4 and the artifact's job-type compression) has a row for each pair of jobs. Here
a column stands for "jobs of group g share GPUs of type j with SOME job of class c", in total time over
the group: G * C * J columns instead of M^2 * J. What class a gives to class b must equal what b gives
to a. The totals are then dealt out to pairs of jobs (:func:`deal`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyhetsched.errors import SolverError
from pyhetsched.policies import linear
from pyhetsched.policies.contract import Allocation, ClusterState, Diagnostics, Floats, Ints, PairShares
from pyhetsched.policies.demands import AffineDemand, Demand, FinishDemand
from pyhetsched.policies.groups import Groups, group_jobs
from pyhetsched.policies.levels import ceiling
from pyhetsched.policies.registry import Context, empty

_TANGENTS = 40
_WARM_GROUPS = 100


@dataclass(frozen=True, slots=True, eq=False)
class PackedColumns:
    """The columns of a packed program: for each, its group, partner class (-1: alone), type and rate.

    Column values are time totals over the group's members. ``number`` is its number in the program.
    """

    group: Ints
    partner: Ints
    type: Ints
    rate: Floats
    number: Ints


def useful_pairs(state: ClusterState, groups: Groups) -> tuple[Floats, Ints]:
    """Return rates [J, C, C] with 0 where sharing gains nothing, and the number of jobs of each class [C].

    A pair whose rates, each over the job's rate alone, sum to 1 or less is dominated by taking turns.
    """
    table = state.pairs
    if table is None:
        raise SolverError("the state has no pair table")
    n_classes = len(table.classes)
    alone = np.zeros((state.n_types, n_classes))
    classes = state.job_class[groups.first]
    known = classes >= 0
    alone[:, classes[known]] = groups.throughput[known].T
    safe = np.where(alone > 0, alone, np.inf)
    gain = table.rates / safe[:, :, None] + table.rates.transpose(0, 2, 1) / safe[:, None, :]
    fits = (table.rates > 0) & (table.rates.transpose(0, 2, 1) > 0)
    jobs = np.bincount(state.job_class[groups.rows][state.job_class[groups.rows] >= 0], minlength=n_classes)
    lone = np.eye(n_classes, dtype=bool) & (jobs < 2)[:, None]
    return np.where(fits & (gain > 1 + 1e-9) & ~lone[None], table.rates, 0.0), jobs


class PackedProgram:
    """A linear program over :class:`PackedColumns` with time, capacity and balance rows."""

    def __init__(self, state: ClusterState, groups: Groups) -> None:
        self.state, self.groups = state, groups
        self.classes = state.job_class[groups.first]
        self.program = linear.LinearProgram()
        self.cols = self._columns()
        self._time_and_capacity()
        self._balance()

    def _columns(self) -> PackedColumns:
        groups = self.groups
        rates, jobs = useful_pairs(self.state, groups)
        single_g, single_j = np.nonzero(groups.throughput > 0)
        gang_of = np.zeros(len(jobs))
        gang_of[self.classes[self.classes >= 0]] = groups.gang[self.classes >= 0]
        mine = np.where(self.classes >= 0, self.classes, 0)
        per_group = rates[:, mine, :].transpose(1, 2, 0)  # [G, C, J]
        open_ = (per_group > 0) & (groups.throughput > 0)[:, None, :] & (jobs > 0)[None, :, None]
        open_ &= (self.classes >= 0)[:, None, None] & (gang_of[None, :] == groups.gang[:, None])[:, :, None]
        pair_g, pair_c, pair_j = np.nonzero(open_)
        group = np.concatenate([single_g, pair_g])
        kind = np.concatenate([single_j, pair_j])
        partner = np.concatenate([np.full(len(single_g), -1), pair_c])
        rate = np.concatenate([groups.throughput[single_g, single_j], per_group[pair_g, pair_c, pair_j]])
        return PackedColumns(group, partner, kind, rate, self.program.columns(np.zeros(len(group))))

    def _time_and_capacity(self) -> None:
        cols, groups, program = self.cols, self.groups, self.program
        time = program.rows(-linear.INF, groups.size)
        program.put(time[cols.group], cols.number, 1.0)
        capacity = program.rows(-linear.INF, self.state.counts)
        # Each of the two partners carries half of the GPUs they share.
        part = np.where(cols.partner >= 0, 0.5, 1.0) * groups.gang[cols.group]
        program.put(capacity[cols.type], cols.number, part)

    def _balance(self) -> None:
        cols, program = self.cols, self.program
        mine = self.classes[cols.group]
        across = np.flatnonzero((cols.partner >= 0) & (cols.partner != mine))
        low = np.minimum(mine, cols.partner)[across]
        high = np.maximum(mine, cols.partner)[across]
        sign = np.where(mine[across] < cols.partner[across], 1.0, -1.0)
        n_classes = int(self.classes.max(initial=0)) + int(cols.partner.max(initial=0)) + 2
        key = (low * n_classes + high) * self.state.n_types + cols.type[across]
        kinds, row_of = np.unique(key, return_inverse=True)
        if len(kinds):
            rows = program.rows(np.zeros(len(kinds)), 0.0)
            program.put(rows[row_of], cols.number[across], sign)
        self._no_self_pairs(mine)

    def _no_self_pairs(self, mine: Ints) -> None:
        """A job must not be its own partner: within a class it gives at most half of the class's total."""
        cols, program = self.cols, self.program
        within = np.flatnonzero((cols.partner >= 0) & (cols.partner == mine))
        if not (self.groups.size[cols.group[within]] < 2).any():
            return
        key = mine[within] * self.state.n_types + cols.type[within]
        kinds, which = np.unique(key, return_inverse=True)
        totals = program.columns(np.zeros(len(kinds)))
        rows = program.rows(np.zeros(len(kinds)), 0.0)
        program.put(rows[which], cols.number[within], 1.0)
        program.put(rows, totals, -1.0)
        single = np.flatnonzero(self.groups.size[cols.group[within]] < 2)
        limits = program.rows(-linear.INF, np.zeros(len(single)))
        program.put(limits, cols.number[within[single]], 1.0)
        program.put(limits, totals[which[single]], -0.5)

    def rates(self, values: Floats) -> Floats:
        """Return [G] steps/s per member at column totals ``values``."""
        cols = self.cols
        total = np.bincount(cols.group, cols.rate * values, minlength=self.groups.n_groups)
        result: Floats = total / self.groups.size
        return result

    def allocation(self, values: Floats, objective: float, gap: float, told: linear.LinearAnswer) -> Allocation:
        """Return the allocation of all jobs from column totals."""
        state, groups, cols = self.state, self.groups, self.cols
        alone = cols.partner < 0
        shares = np.zeros((groups.n_groups, state.n_types))
        shares[cols.group[alone], cols.type[alone]] = values[alone] / groups.size[cols.group[alone]]
        full = groups.expand(state, shares)
        pairs = deal(state, groups, cols, values)
        time = full.sum(axis=1)
        np.add.at(time, pairs.a, pairs.shares.sum(axis=1))
        np.add.at(time, pairs.b, pairs.shares.sum(axis=1))
        over = max(float(time.max(initial=0.0)), 1.0)  # rounding of the last digits
        return Allocation(
            full / over,
            objective,
            pairs=PairShares(pairs.a, pairs.b, pairs.shares / over),
            diagnostics=Diagnostics(
                solver=f"HiGHS, {told.iterations} iterations",
                gap=gap,
                variables=told.n_columns,
                rows=told.n_rows,
            ),
        )


def deal(state: ClusterState, groups: Groups, cols: PackedColumns, values: Floats) -> PairShares:
    """Return pairs of jobs whose shared time adds up to the columns' totals, using few pairs.

    Both classes are laid end to end on a line, each job as long as the time it gives; where two jobs lie
    opposite each other they are partners. Within one class the line is folded: opposite is
    half its length away, so that no job, being shorter, meets itself.
    """
    mine = state.job_class[groups.first]
    members = np.argsort(groups.group_of, kind="stable")
    starts = np.concatenate([[0], np.cumsum(groups.size).astype(np.int64)])
    lines: dict[tuple[int, int, int], tuple[list[Ints], list[Floats]]] = {}
    for k in np.flatnonzero((cols.partner >= 0) & (values > 1e-12)):
        g = int(cols.group[k])
        rows = groups.rows[members[starts[g] : starts[g + 1]]]
        jobs, lengths = lines.setdefault((int(mine[g]), int(cols.partner[k]), int(cols.type[k])), ([], []))
        jobs.append(rows)
        lengths.append(np.full(len(rows), values[k] / groups.size[g]))
    found: dict[tuple[int, int], Floats] = {}
    for (a, b, kind), (jobs, lengths) in lines.items():
        if a > b or (b, a, kind) not in lines:
            continue
        other = lines[(b, a, kind)]
        left = _line(jobs, lengths)
        meeting = _fold(*left) if a == b else _meet(*left, *_line(*other))
        for first, second, length in zip(*meeting, strict=True):
            pair = (min(first, second), max(first, second))
            found.setdefault(pair, np.zeros(state.n_types))[kind] += length
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return PairShares(none, none, np.zeros((0, state.n_types)))
    ends = np.array(list(found), dtype=np.int64)
    return PairShares(ends[:, 0], ends[:, 1], np.array(list(found.values())))


def _line(jobs: list[Ints], lengths: list[Floats]) -> tuple[Ints, Floats]:
    return np.concatenate(jobs), np.cumsum(np.concatenate(lengths))


def _meet(jobs_a: Ints, ends_a: Floats, jobs_b: Ints, ends_b: Floats) -> tuple[list[int], list[int], list[float]]:
    length = min(float(ends_a[-1]), float(ends_b[-1]))
    cuts = np.unique(np.concatenate([[0.0], ends_a, ends_b]).clip(0.0, length))
    middle = (cuts[1:] + cuts[:-1]) / 2
    at_a = np.searchsorted(ends_a, middle).clip(0, len(jobs_a) - 1)
    at_b = np.searchsorted(ends_b, middle).clip(0, len(jobs_b) - 1)
    return _long_enough(jobs_a[at_a], jobs_b[at_b], np.diff(cuts))


def _fold(jobs: Ints, ends: Floats) -> tuple[list[int], list[int], list[float]]:
    half = float(ends[-1]) / 2
    cuts = np.unique(np.concatenate([[0.0, half], ends, ends - half]).clip(0.0, half))
    middle = (cuts[1:] + cuts[:-1]) / 2
    near = np.searchsorted(ends, middle).clip(0, len(jobs) - 1)
    far = np.searchsorted(ends, middle + half).clip(0, len(jobs) - 1)
    return _long_enough(jobs[near], jobs[far], np.diff(cuts))


def _long_enough(a: Ints, b: Ints, length: Floats) -> tuple[list[int], list[int], list[float]]:
    keep = (length > 1e-12) & (a != b)
    return a[keep].tolist(), b[keep].tolist(), length[keep].tolist()


def raise_level(state: ClusterState, slope: Floats, context: Context, key: str) -> Allocation:
    """Maximise theta with thr(m) >= slope_m theta, pairs allowed; theta is the objective."""
    groups = group_jobs(state, slope, state.job_class)
    if not groups.n_groups:
        return empty(state)
    per_group = slope[groups.first]
    return _raise(state, groups, AffineDemand(np.zeros_like(per_group), per_group), context, key)


def finish_time(state: ClusterState, ideal: Floats, context: Context) -> Allocation:
    """Minimise the largest finish-time ratio, pairs allowed; it is the objective."""
    from dataclasses import replace

    remaining = np.maximum(state.remaining, 1e-9)
    groups = group_jobs(state, remaining, state.age_s, ideal, state.job_class)
    if not groups.n_groups:
        return empty(state)
    at = groups.first
    demand = FinishDemand(remaining[at], state.age_s[at], ideal[at])
    answer = _raise(state, groups, demand, context, "finish-time")
    return replace(answer, objective=1.0 / answer.objective)


def maximise(state: ClusterState, worth: Floats, floor: Floats, context: Context, key: str) -> Allocation:
    """Maximise sum over m of worth_m thr(m) with thr(m) >= floor_m, pairs allowed."""
    groups = group_jobs(state, worth, floor, state.job_class)
    if not groups.n_groups:
        return empty(state)
    packed = PackedProgram(state, groups)
    cols, program = packed.cols, packed.program
    program.cost[0] = worth[groups.first][cols.group] * cols.rate
    need = program.rows(floor[groups.first] * groups.size, linear.INF)
    program.put(need[cols.group], cols.number, cols.rate)
    found = linear.solve(program, context, _labels(packed, key), _method(packed))
    values = np.maximum(found.x[cols.number], 0.0)
    return packed.allocation(values, found.value, 0.0, found)


def _raise(state: ClusterState, groups: Groups, demand: Demand, context: Context, key: str) -> Allocation:
    """Raise theta by tangents of the demand (one step if it is a straight line)."""
    # No job runs faster than alone on its best type, so levels above the ceiling are out of reach.
    best = groups.throughput.max(axis=1)
    unit = ceiling(groups, demand)
    scaled = demand.scaled(best, unit)
    theta = 1.0
    for _ in range(_TANGENTS):
        level, slope, curve = scaled.at(theta)
        packed = PackedProgram(state, groups)
        cols, program = packed.cols, packed.program
        top = program.columns([1.0], lower=-linear.INF)
        need = program.rows(level - slope * theta, linear.INF)
        program.put(need[cols.group], cols.number, (cols.rate / (best * groups.size)[cols.group]))
        program.put(need, top, -slope)
        found = linear.solve(program, context, _labels(packed, key), _method(packed))
        values = np.maximum(found.x[cols.number], 0.0)
        reached, upper = float(scaled.level(packed.rates(values) / best).min()), float(found.x[top[0]])
        if not curve.any() or abs(upper - reached) <= 1e-8 * abs(upper):
            gap = max(upper - reached, 0.0) / max(abs(reached), 1e-300)
            return packed.allocation(values, reached * unit, gap, found)
        theta = upper
    raise SolverError(f"tangents did not settle in {_TANGENTS} steps")


def _method(packed: PackedProgram) -> str:
    """Simplex starts warm but is slow on thousands of distinct jobs; interior point is the other way round."""
    return "ipm" if packed.groups.n_groups > _WARM_GROUPS else "choose"


def _labels(packed: PackedProgram, key: str) -> linear.Labels | None:
    """Return names by which the next round finds the same columns, unless there are too many groups."""
    groups, cols, program = packed.groups, packed.cols, packed.program
    if groups.n_groups > _WARM_GROUPS:
        return None
    names = [
        (int(c), float(g), row.tobytes())
        for c, g, row in zip(packed.classes, groups.gang, groups.throughput, strict=True)
    ]
    if len(set(names)) != len(names):
        names = [(*name, i) for i, name in enumerate(names)]  # type: ignore[misc]
    columns: list[object] = [
        (names[g], int(c), int(j)) for g, c, j in zip(cols.group, cols.partner, cols.type, strict=True)
    ]
    columns += [("more", i) for i in range(program.n_columns - len(columns))]
    rows: list[object] = [("time", name) for name in names]
    rows += [("row", i) for i in range(program.n_rows - 2 * len(names))]
    rows += [("need", name) for name in names]
    return linear.Labels(f"packed {key}", columns, rows)
