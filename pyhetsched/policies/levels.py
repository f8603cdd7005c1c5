"""Raise a common level: the one linear program behind max-min, makespan and finish-time fairness."""

from __future__ import annotations

import numpy as np

from pyhetsched.errors import SolverError
from pyhetsched.policies import interior, linear
from pyhetsched.policies.contract import Allocation, ClusterState, Diagnostics, Floats
from pyhetsched.policies.demands import Demand
from pyhetsched.policies.groups import Groups
from pyhetsched.policies.interior import ShareAnswer, ShareProblem
from pyhetsched.policies.registry import Context

_NEWTON_STEPS = 40


def raise_level(
    state: ClusterState, groups: Groups, demand: Demand, context: Context, tolerance: float = 1e-8
) -> ShareAnswer:
    """Return the highest common theta with thr >= demand(theta), by the interior-point method."""
    problem = ShareProblem(
        throughput=groups.throughput,
        size=groups.size,
        gang=groups.gang,
        counts=state.counts,
        demand=demand,
        time=np.ones(groups.n_groups),
    )
    return interior.solve(problem, tolerance, tick=context.left_s)


def raise_level_highs(state: ClusterState, groups: Groups, demand: Demand, context: Context) -> ShareAnswer:
    """Return the same by simplex; a curved demand is replaced by its tangent until the two agree.

    Tangents lie below a convex demand, so theta comes down from above and Newton's convergence holds.
    """
    best = groups.throughput.max(axis=1)
    unit = ceiling(groups, demand)
    scaled = demand.scaled(best, unit)
    rates = groups.throughput / best[:, None]
    theta, steps = 1.0, 0
    for _ in range(_NEWTON_STEPS):
        level, slope, curve = scaled.at(theta)
        program, cells = share_program(state, groups)
        top = program.columns([1.0], lower=-linear.INF)
        need = program.rows(level - slope * theta, linear.INF)
        program.put(need[cells.group], cells.column, rates[cells.group, cells.type])
        program.put(need, top, -slope)
        found = linear.solve(program, context)
        steps += found.iterations
        shares = np.zeros_like(rates)
        shares[cells.group, cells.type] = np.maximum(found.x[cells.column], 0.0)
        got = np.einsum("gj,gj->g", shares, rates)
        reached, upper = float(scaled.level(got).min()), float(found.x[top[0]])
        if not curve.any() or abs(upper - reached) <= 1e-9 * abs(upper):
            return ShareAnswer(
                shares=shares,
                value=reached * unit,
                bound=upper * unit,
                lam=np.abs(found.duals[need]),
                row=np.abs(found.duals[: groups.n_groups]),
                price=np.abs(found.duals[groups.n_groups : groups.n_groups + state.n_types]),
                slack=got - scaled.at(reached)[0],
                iterations=steps,
            )
        theta = upper
    raise SolverError(f"tangents did not settle in {_NEWTON_STEPS} steps")


def ceiling(groups: Groups, demand: Demand) -> float:
    """Return the level at which some job alone would need more than all of its best type.

    1 if that is no positive number; SolverError if nothing rises with the level.
    """
    top = float(demand.level(groups.throughput.max(axis=1)).min())
    if not np.isfinite(top):
        raise SolverError("no demand rises with theta")
    return top if top > 0 else 1.0


class Cells:
    """The (group, type) places of a share program that can be used, with their column numbers."""

    def __init__(self, groups: Groups, program: linear.LinearProgram, cost: Floats | None) -> None:
        self.group, self.type = np.nonzero(groups.throughput > 0)
        values = np.zeros(len(self.group)) if cost is None else cost[self.group, self.type]
        self.column = program.columns(values)


def share_program(
    state: ClusterState, groups: Groups, cost: Floats | None = None
) -> tuple[linear.LinearProgram, Cells]:
    """Return a program with time rows and capacity rows, one column per usable place (per member)."""
    program = linear.LinearProgram()
    cells = Cells(groups, program, cost)
    time = program.rows(-linear.INF, np.ones(groups.n_groups))
    program.put(time[cells.group], cells.column, 1.0)
    capacity = program.rows(-linear.INF, state.counts)
    program.put(capacity[cells.type], cells.column, (groups.size * groups.gang)[cells.group])
    return program, cells


def tell(
    state: ClusterState, groups: Groups, answer: ShareAnswer, objective: float, solver: str
) -> Allocation:
    """Return the allocation for all jobs, with the certificate in the diagnostics."""
    return Allocation(
        groups.expand(state, answer.shares),
        objective,
        diagnostics=Diagnostics(
            solver=f"{solver}, {answer.iterations} iterations",
            gap=answer.gap,
            variables=groups.throughput.size,
            rows=2 * groups.n_groups + state.n_types,
        ),
    )
