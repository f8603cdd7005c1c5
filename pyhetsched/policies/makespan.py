"""Minimum makespan (Gavel, OSDI'20, section 4.2, policy "min_total_duration"), in one linear program.

Gavel bisects the makespan. With Y = X * makespan the problem is linear; equivalently theta = 1 / makespan
is the highest level with thr(m, X) >= R_m theta.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pyhetsched.policies import levels, packed
from pyhetsched.policies.contract import Allocation, ClusterState
from pyhetsched.policies.demands import AffineDemand
from pyhetsched.policies.groups import Groups, group_jobs
from pyhetsched.policies.interior import ShareAnswer
from pyhetsched.policies.max_min import HIGHS, INTERIOR, reference_rates, unaware
from pyhetsched.policies.registry import Context, empty, policy


@dataclass(frozen=True, slots=True)
class MakespanOptions:
    """Options of ``makespan``.

    ``aware``: look at the throughputs (else the rate on the fastest type stands for each). ``packed``:
    let pairs of jobs share GPUs where the state has a pair table.
    """

    aware: bool = True
    packed: bool = False


def _view(state: ClusterState, options: MakespanOptions) -> tuple[ClusterState, Groups, AffineDemand]:
    view = state
    remaining = np.maximum(state.remaining, 1e-9)
    if not options.aware:
        view = unaware(state)
        remaining = remaining / reference_rates(state)  # without types, work is time
    groups = group_jobs(view, remaining)
    need = remaining[groups.first]
    return view, groups, AffineDemand(np.zeros_like(need), need)


def _tell(view: ClusterState, groups: Groups, answer: ShareAnswer, solver: str) -> Allocation:
    return levels.tell(view, groups, answer, 1.0 / answer.value, solver)


@policy(
    "makespan",
    summary="finish the last of the present jobs as early as possible",
    options=MakespanOptions,
    rung=INTERIOR,
    aliases={
        "min_total_duration_perf": {},
        "min_total_duration": {"aware": False},
        "min_total_duration_packed": {"packed": True},
    },
)
def makespan(state: ClusterState, options: MakespanOptions, context: Context) -> Allocation:
    """Minimise T with thr(m, X) >= R_m / T for all jobs; the objective is T in seconds."""
    if options.packed and state.pairs is not None:
        answer = packed.raise_level(state, np.maximum(state.remaining, 1e-9), context, "makespan")
        return replace(answer, objective=1.0 / answer.objective)
    view, groups, demand = _view(state, options)
    if not groups.n_groups:
        return empty(state)
    return _tell(view, groups, levels.raise_level(view, groups, demand, context), INTERIOR)


@makespan.rung(HIGHS)
def makespan_highs(state: ClusterState, options: MakespanOptions, context: Context) -> Allocation:
    """Solve the same linear program by simplex, without pairs."""
    view, groups, demand = _view(state, options)
    if not groups.n_groups:
        return empty(state)
    return _tell(view, groups, levels.raise_level_highs(view, groups, demand, context), HIGHS)
