"""Max-min fairness over effective throughput (Gavel, OSDI'20, section 4.1; "LAS")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyhetsched.policies import levels, packed
from pyhetsched.policies.contract import Allocation, ClusterState, Floats, changed
from pyhetsched.policies.demands import AffineDemand
from pyhetsched.policies.groups import Groups, group_jobs
from pyhetsched.policies.reference import equal_shares, throughput_of
from pyhetsched.policies.registry import Context, empty, policy

INTERIOR = "interior point"
HIGHS = "HiGHS simplex"


@dataclass(frozen=True, slots=True)
class MaxMinOptions:
    """Options of ``max-min``.

    ``aware``: look at the throughputs; without it all types count as equally fast (Gavel's
    heterogeneity-agnostic variant). ``merge``: treat identical jobs as one. ``packed``: let pairs of
    jobs share GPUs where the state has a pair table.
    """

    aware: bool = True
    merge: bool = True
    packed: bool = False


def unaware(state: ClusterState) -> ClusterState:
    """Return the state with every rate that is not 0 set to 1."""
    return changed(state, throughput=np.where(state.throughput > 0, 1.0, 0.0))


def reference_rates(state: ClusterState) -> Floats:
    """Return [M] each job's rate on the type that is fastest on the whole (its own best one if it cannot run there).

    Gavel's agnostic variants take this rate for every type.
    """
    rates = np.where(state.usable, state.throughput, 0.0)
    best = rates.max(axis=1, initial=0.0)
    merit = (rates / np.where(best > 0, best, 1.0)[:, None]).sum(axis=0)
    chosen = rates[:, int(merit.argmax())] if state.n_jobs else best
    return np.where(chosen > 0, chosen, np.where(best > 0, best, 1.0))


def fair_slope(state: ClusterState) -> Floats:
    """Return [M] w_m * thr(m, X_eq) / g_m: the rate a job needs for each unit of the max-min objective."""
    equal = throughput_of(equal_shares(state), state.throughput)
    return np.where(equal > 0, state.weight * equal / state.gang, 1.0)


def fair_demand(state: ClusterState, groups: Groups) -> AffineDemand:
    """Return the demand whose theta is min over m of g_m thr(m, X) / (w_m thr(m, X_eq))."""
    slope = fair_slope(state)[groups.first]
    return AffineDemand(np.zeros_like(slope), slope)


@policy(
    "max-min",
    summary="raise the smallest weighted share of what a job would get from an equal split (LAS)",
    options=MaxMinOptions,
    rung=INTERIOR,
    aliases={
        "max_min_fairness_perf": {},
        "max_min_fairness": {"aware": False},
        "max_min_fairness_packed": {"packed": True},
    },
)
def max_min(state: ClusterState, options: MaxMinOptions, context: Context) -> Allocation:
    """Maximise min over m of g_m thr(m, X) / (w_m thr(m, X_eq)); that minimum is the objective."""
    if options.packed and state.pairs is not None:
        return packed.raise_level(state, fair_slope(state), context, "max-min")
    view = state if options.aware else unaware(state)
    groups = group_jobs(view, view.weight, merge=options.merge)
    if not groups.n_groups:
        return empty(state)
    answer = levels.raise_level(view, groups, fair_demand(view, groups), context)
    return levels.tell(view, groups, answer, answer.value, INTERIOR)


@max_min.rung(HIGHS)
def max_min_highs(state: ClusterState, options: MaxMinOptions, context: Context) -> Allocation:
    """Solve the same linear program by simplex, without pairs."""
    view = state if options.aware else unaware(state)
    groups = group_jobs(view, view.weight, merge=options.merge)
    if not groups.n_groups:
        return empty(state)
    answer = levels.raise_level_highs(view, groups, fair_demand(view, groups), context)
    return levels.tell(view, groups, answer, answer.value, HIGHS)
