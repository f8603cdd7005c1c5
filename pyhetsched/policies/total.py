"""Policies that add up over jobs: total throughput, throughput per dollar, least power.

They share one linear program: maximise sum over m, j of worth[m, j] X[m, j] with thr(m, X) >= floor_m.
Floors that cannot all be met are lowered by one common factor, the largest that can; the answer's
notes say so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pyhetsched.policies import interior, levels, linear, packed
from pyhetsched.policies.contract import Allocation, ClusterState, Floats
from pyhetsched.policies.demands import AffineDemand
from pyhetsched.policies.groups import Groups, group_jobs
from pyhetsched.policies.interior import ShareAnswer, ShareProblem
from pyhetsched.policies.max_min import HIGHS, INTERIOR
from pyhetsched.policies.reference import equal_shares, isolated_shares, throughput_of
from pyhetsched.policies.registry import Context, empty, policy

_GIVE = 1e-7
_IMPOSSIBLE = 1 - 1e-9
_NO_POWER = "power of some GPU type is not known: every GPU counts 1 W"


@dataclass(frozen=True, slots=True)
class ThroughputOptions:
    """Options of ``max-throughput``.

    ``normalise``: unit of a job's rate: ``best`` (its rate on its best type, so that the sum counts jobs
    running at full speed), ``equal`` (its rate on an equal split) or ``none`` (plain steps/s, as in
    Gavel, where models with short steps take all). ``floor``: part of its isolated rate that every
    job gets in any case, 0 to 1. ``packed``: let pairs of jobs share GPUs.
    """

    normalise: Literal["best", "equal", "none"] = "best"
    floor: float = 0.0
    packed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor must be between 0 and 1, not {self.floor}")


@dataclass(frozen=True, slots=True)
class CostOptions:
    """Options of ``min-cost``.

    ``normalise``: unit of a job's rate, as for ``max-throughput`` (Gavel: ``none``).
    """

    normalise: Literal["best", "equal", "none"] = "none"


@dataclass(frozen=True, slots=True)
class EnergyOptions:
    """Options of ``energy-floor``.

    ``floor``: part of its isolated rate that every job gets, above 0 and at most 1. ``packed``: let
    pairs of jobs share GPUs.
    """

    floor: float = 1.0
    packed: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.floor <= 1:
            raise ValueError(f"floor must be above 0 and at most 1, not {self.floor}")


def rate_unit(state: ClusterState, normalise: str) -> Floats:
    """Return [M] the rate that counts as 1 for each job."""
    rates = np.where(state.usable, state.throughput, 0.0)
    if normalise == "best":
        unit = rates.max(axis=1, initial=0.0)
    elif normalise == "equal":
        unit = throughput_of(equal_shares(state), rates)
    else:
        unit = np.ones(state.n_jobs)
    return np.where(unit > 0, unit, 1.0)


@policy(
    "max-throughput",
    summary="most work done in total, in units that make jobs comparable",
    options=ThroughputOptions,
    rung=INTERIOR,
    aliases={
        "max_sum_throughput_perf": {"normalise": "none"},
        "max_sum_throughput_packed": {"normalise": "none", "packed": True},
    },
)
def max_throughput(state: ClusterState, options: ThroughputOptions, context: Context) -> Allocation:
    """Maximise sum over m of w_m thr(m, X) / unit_m; that sum is the objective."""
    unit = state.weight / rate_unit(state, options.normalise)
    floor = options.floor * _isolated_rate(state)
    if options.packed and state.pairs is not None:
        return packed.maximise(state, unit, floor * (1 - _GIVE), context, "max-throughput")
    return _most(state, state.throughput * unit[:, None], floor, context, fastest_first=True)


@max_throughput.rung(HIGHS)
def max_throughput_highs(state: ClusterState, options: ThroughputOptions, context: Context) -> Allocation:
    """Solve the same linear program by simplex, without pairs."""
    unit = state.weight / rate_unit(state, options.normalise)
    floor = options.floor * _isolated_rate(state)
    return _most(state, state.throughput * unit[:, None], floor, context, simplex=True, fastest_first=True)


@policy(
    "min-cost",
    summary="most work per dollar",
    options=CostOptions,
    rung=INTERIOR,
    aliases={"max_sum_throughput_normalized_by_cost_perf": {}},
    fall_to=("max-throughput", "isolated", "fifo"),
)
def min_cost(state: ClusterState, options: CostOptions, context: Context) -> Allocation:
    """Maximise sum over m, j of T[m, j] X[m, j] / (unit_m cost_j); that sum is the objective (Gavel, 4.2)."""
    return _most(state, _per_dollar(state, options), np.zeros(state.n_jobs), context)


@min_cost.rung(HIGHS)
def min_cost_highs(state: ClusterState, options: CostOptions, context: Context) -> Allocation:
    """Solve the same linear program by simplex."""
    return _most(state, _per_dollar(state, options), np.zeros(state.n_jobs), context, simplex=True)


@policy(
    "min-cost-slo",
    summary="most work per dollar among the allocations that meet the deadlines",
    options=CostOptions,
    rung=INTERIOR,
    aliases={"max_sum_throughput_normalized_by_cost_perf_SLOs": {}},
    fall_to=("min-cost", "isolated", "fifo"),
)
def min_cost_slo(state: ClusterState, options: CostOptions, context: Context) -> Allocation:
    """As ``min-cost``, with thr(m, X) >= R_m / deadline_m; what no allocation can meet is left out."""
    return _within_deadlines(state, options, context, simplex=False)


@min_cost_slo.rung(HIGHS)
def min_cost_slo_highs(state: ClusterState, options: CostOptions, context: Context) -> Allocation:
    """Solve the same linear program by simplex."""
    return _within_deadlines(state, options, context, simplex=True)


def _within_deadlines(
    state: ClusterState, options: CostOptions, context: Context, simplex: bool
) -> Allocation:
    dated = np.isfinite(state.deadline_s)
    left_s = np.where(dated, np.maximum(state.deadline_s, 0.0), 1.0)
    floor = np.where(dated & (left_s > 0), state.remaining / np.where(left_s > 0, left_s, 1.0), 0.0)
    best = np.where(state.usable, state.throughput, 0.0).max(axis=1, initial=0.0)
    late = dated & ((floor > best * _IMPOSSIBLE) | (left_s <= 0))
    worth = _per_dollar(state, options)
    answer = _most(state, worth, np.where(late, 0.0, floor), context, simplex)
    return _noted(answer, f"{int(late.sum())} deadlines can no longer be met and were dropped", late.any())


def _noted(answer: Allocation, note: str, applies: object) -> Allocation:
    if not applies:
        return answer
    notes = (*answer.diagnostics.notes, note)
    return replace(answer, diagnostics=replace(answer.diagnostics, notes=notes))


@policy(
    "energy-floor",
    summary="least power that still gives every job its floor (GOGH)",
    options=EnergyOptions,
    rung=INTERIOR,
)
def energy_floor(state: ClusterState, options: EnergyOptions, context: Context) -> Allocation:
    """Minimise sum of (busy - idle) watts of the GPUs in use with thr(m, X) >= floor * isolated rate.

    The objective is that power in watts. Without power figures every GPU counts 1 W.
    """
    watts, known = _watts(state)
    floor = options.floor * _isolated_rate(state)
    if options.packed and state.pairs is not None:
        answer = _least_power_packed(state, watts, floor, context)
    else:
        answer = _most(state, -watts * state.gang.astype(np.float64)[:, None], floor, context)
    return _noted(replace(answer, objective=-answer.objective), _NO_POWER, not known)


@energy_floor.rung(HIGHS)
def energy_floor_highs(state: ClusterState, options: EnergyOptions, context: Context) -> Allocation:
    """Solve the same linear program by simplex, without pairs."""
    watts, known = _watts(state)
    worth = -watts * state.gang.astype(np.float64)[:, None]
    answer = _most(state, worth, options.floor * _isolated_rate(state), context, simplex=True)
    return _noted(replace(answer, objective=-answer.objective), _NO_POWER, not known)


def _watts(state: ClusterState) -> tuple[Floats, bool]:
    """Return [J] watts that one busy GPU adds, and whether they are known for every type."""
    watts = np.array([t.busy_w - t.idle_w for t in state.types])
    known = bool((watts > 0).all())
    return (watts if known else np.ones_like(watts)), known


def _isolated_rate(state: ClusterState) -> Floats:
    return throughput_of(isolated_shares(state), np.where(state.usable, state.throughput, 0.0))


def _per_dollar(state: ClusterState, options: CostOptions) -> Floats:
    usd = np.array([t.usd_per_gpu_h for t in state.types])
    usd = np.where(usd > 0, usd, 1.0)
    unit = state.weight / rate_unit(state, options.normalise)
    result: Floats = state.throughput * unit[:, None] / usd[None, :]
    return result


def _most(
    state: ClusterState, worth: Floats, floor: Floats, context: Context, simplex: bool = False,
    fastest_first: bool = False,
) -> Allocation:  # fmt: skip
    """Maximise sum of worth[m, j] X[m, j] with thr(m, X) >= floor_m, lowering all floors if need be.

    Without floors, equal jobs are served one after the other (`Groups.deal`).
    """
    groups = group_jobs(state, floor, *worth.T)
    if not groups.n_groups:
        return empty(state)
    at = groups.first
    need = floor[at]
    notes: tuple[str, ...] = ()
    if need.any():
        need, part = _servable(state, groups, need, context, simplex)
        if part < 1:
            notes = (f"all floors were lowered to {part:.4g} of what was asked",)
    answer = (_simplex if simplex else fill_rest)(state, groups, worth[at], need, context)
    told = levels.tell(state, groups, answer, answer.value, HIGHS if simplex else INTERIOR)
    if not need.any():
        told = replace(told, shares=groups.deal(state, answer.shares, fastest_first))
    return replace(told, diagnostics=replace(told.diagnostics, notes=notes))


def _servable(
    state: ClusterState, groups: Groups, need: Floats, context: Context, simplex: bool
) -> tuple[Floats, float]:
    """Return the floors, lowered by the largest common factor that can be served, and that factor."""
    rising = need > 0
    slope = np.where(rising, need, 0.0)
    raise_level = levels.raise_level_highs if simplex else levels.raise_level
    top = raise_level(state, groups, AffineDemand(np.zeros_like(need), slope), context)
    if top.value >= 1 + _GIVE:
        return need, 1.0
    part = 1.0 if top.value >= 1 - 10 * _GIVE else top.value
    return need * (min(top.value, 1.0) * (1 - _GIVE)), part


def fill_rest(
    state: ClusterState, groups: Groups, worth: Floats, need: Floats, context: Context
) -> ShareAnswer:
    """Maximise the sum of size * worth[g, j] X[g, j] with thr >= need [G], by the interior-point method."""
    problem = ShareProblem(
        throughput=groups.throughput,
        size=groups.size,
        gang=groups.gang,
        counts=state.counts,
        demand=AffineDemand(need, np.zeros_like(need)),
        reward=worth,
        raise_theta=False,
        time=np.ones(groups.n_groups),
    )
    return interior.solve(problem, tick=context.left_s)


def _simplex(
    state: ClusterState, groups: Groups, worth: Floats, need: Floats, context: Context
) -> ShareAnswer:
    program, cells = levels.share_program(state, groups, worth * groups.size[:, None])
    rows = program.rows(need, linear.INF)
    program.put(rows[cells.group], cells.column, groups.throughput[cells.group, cells.type])
    found = linear.solve(program, context)
    shares = np.zeros_like(groups.throughput)
    shares[cells.group, cells.type] = np.maximum(found.x[cells.column], 0.0)
    zero = np.zeros(groups.n_groups)
    return ShareAnswer(
        shares, found.value, found.value, zero, zero, np.zeros(state.n_types), zero, found.iterations
    )


def _least_power_packed(
    state: ClusterState, watts: Floats, floor: Floats, context: Context
) -> Allocation:
    groups = group_jobs(state, floor, state.job_class)
    if not groups.n_groups:
        return empty(state)
    program = packed.PackedProgram(state, groups)
    cols = program.cols
    part = np.where(cols.partner >= 0, 0.5, 1.0) * groups.gang[cols.group]
    program.program.cost[0] = -watts[cols.type] * part
    need = program.program.rows(floor[groups.first] * groups.size * (1 - _GIVE), linear.INF)
    program.program.put(need[cols.group], cols.number, cols.rate)
    found = linear.solve(program.program, context)
    values = np.maximum(found.x[cols.number], 0.0)
    return program.allocation(values, found.value, 0.0, found)
