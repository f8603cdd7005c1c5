"""Finish-time fairness (Gavel, OSDI'20, section 4.2, after Themis, NSDI'20)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pyhetsched.policies import levels, packed
from pyhetsched.policies.contract import Allocation, ClusterState, Floats, changed
from pyhetsched.policies.demands import FinishDemand
from pyhetsched.policies.groups import Groups, group_jobs
from pyhetsched.policies.max_min import HIGHS, INTERIOR, reference_rates, unaware
from pyhetsched.policies.reference import isolated_shares, throughput_of
from pyhetsched.policies.registry import Context, empty, policy
from pyhetsched.policies.total import fill_rest

_GIVE = 1e-6


@dataclass(frozen=True, slots=True)
class FinishTimeOptions:
    """Options of ``finish-time``.

    ``aware``: look at the throughputs (else the rate on the fastest type stands for each). ``packed``:
    let pairs of jobs share GPUs where the state has a pair table. ``rest``: who gets what the worst ratio leaves
    open: ``central`` all a little, ``throughput`` those that use it best, ``shortest`` those with the
    least work left.
    """

    aware: bool = True
    packed: bool = False
    rest: Literal["central", "throughput", "shortest"] = "throughput"


def ideal_s(state: ClusterState) -> Floats:
    """Return [M] D_m + R_m / thr(m, X_iso): the time the job takes on its 1/M part of the cluster."""
    alone = throughput_of(isolated_shares(state), np.where(state.usable, state.throughput, 0.0))
    rest = np.where(alone > 0, state.remaining / np.where(alone > 0, alone, 1.0), 0.0)
    return np.maximum(state.isolated_used_s + rest, 1e-9)


def _view(state: ClusterState, options: FinishTimeOptions) -> tuple[ClusterState, Groups, FinishDemand]:
    view = state
    if not options.aware:
        reference = reference_rates(state)
        # Progress already made counts in the same unit as the work that is left.
        shares = isolated_shares(state)
        rates = np.where(state.usable, state.throughput, 0.0)
        seen = throughput_of(shares, rates) / (throughput_of(shares, np.sign(rates)) * reference + 1e-300)
        view = changed(
            unaware(state), remaining=state.remaining / reference, isolated_used_s=state.isolated_used_s * seen
        )
    ideal = ideal_s(view)
    remaining = np.maximum(view.remaining, 1e-9)
    groups = group_jobs(view, remaining, view.age_s, ideal)
    at = groups.first
    return view, groups, FinishDemand(remaining[at], view.age_s[at], ideal[at])


@policy(
    "finish-time",
    summary="keep the worst ratio of a job's finish time to that on its own 1/M of the cluster small",
    options=FinishTimeOptions,
    rung=INTERIOR,
    aliases={
        "ftf": {},
        "finish_time_fairness_perf": {},
        "finish_time_fairness": {"aware": False},
        "finish_time_fairness_packed": {"packed": True},
    },
)
def finish_time(state: ClusterState, options: FinishTimeOptions, context: Context) -> Allocation:
    """Minimise max over m of rho_m = (t_m + R_m / thr(m, X)) / (D_m + R_m / thr(m, X_iso)).

    The objective is that maximum.
    """
    if options.packed and state.pairs is not None:
        return packed.finish_time(state, ideal_s(state), context)
    view, groups, demand = _view(state, options)
    if not groups.n_groups:
        return empty(state)
    answer = levels.raise_level(view, groups, demand, context)
    told = levels.tell(view, groups, answer, 1.0 / answer.value, INTERIOR)
    if options.rest == "central":
        return told
    best = groups.throughput.max(axis=1)
    unit = demand.remaining if options.rest == "shortest" else best
    floor = demand.at(answer.value * (1 - _GIVE))[0]
    rest = fill_rest(view, groups, groups.throughput / unit[:, None], floor, context)
    return replace(told, shares=groups.expand(view, rest.shares))


@finish_time.rung(HIGHS)
def finish_time_highs(state: ClusterState, options: FinishTimeOptions, context: Context) -> Allocation:
    """Solve by simplex on tangents, without pairs."""
    view, groups, demand = _view(state, options)
    if not groups.n_groups:
        return empty(state)
    answer = levels.raise_level_highs(view, groups, demand, context)
    return levels.tell(view, groups, answer, 1.0 / answer.value, HIGHS)
