"""Water filling and hierarchical fairness over Slurm accounts (Gavel, OSDI'20, section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pyhetsched.errors import SolverError
from pyhetsched.policies.contract import Allocation, ClusterState, Diagnostics, Floats, Ints
from pyhetsched.policies.filling import Tub, serve_caps
from pyhetsched.policies.groups import Groups, group_jobs
from pyhetsched.policies.max_min import INTERIOR, fair_slope, unaware
from pyhetsched.policies.reference import equal_shares, throughput_of
from pyhetsched.policies.registry import Context, empty, policy

_EDGE = 1e-6


@dataclass(frozen=True, slots=True)
class WaterFillingOptions:
    """Options of ``water-filling``.

    ``aware``: look at the throughputs. ``max_levels``: after so many levels the rest keep what the
    last one gave them.
    """

    aware: bool = True
    max_levels: int = 200


@policy(
    "water-filling",
    summary="max-min, then raise those who can still rise, and so on (leximin)",
    options=WaterFillingOptions,
    rung=INTERIOR,
    aliases={
        "max_min_fairness_water_filling_perf": {},
        "max_min_fairness_water_filling": {"aware": False},
    },
    fall_to=("max-min", "isolated", "fifo"),
)
def water_filling(state: ClusterState, options: WaterFillingOptions, context: Context) -> Allocation:
    """Maximise the sorted vector of g_m thr(m, X) / (w_m thr(m, X_eq)), smallest first.

    The objective is the first level, the one of max-min. Levels are exact to 1e-6 relative each.
    """
    view = state if options.aware else unaware(state)
    groups = group_jobs(view, view.weight)
    if not groups.n_groups:
        return empty(state)
    slope = fair_slope(view)[groups.first]
    tub = Tub.empty(view, groups)
    levels: list[float] = []
    notes: list[str] = []
    while tub.active.any() and len(levels) < options.max_levels:
        try:
            levels.append(_next_level(tub, slope, context))
        except SolverError as error:
            if not levels:
                raise
            notes.append(f"stopped after {len(levels)} levels: {error}")
            break
    return _tell(state, groups, tub, levels, notes)


def _next_level(tub: Tub, slope: Floats, context: Context) -> float:
    """Fill up to the next level that capacity sets, or to the top; return it."""
    tub.held = np.where(tub.active, 0.0, tub.held)  # levels are counted from the bottom
    caps = tub.best[tub.active] / slope[tub.active]
    first_cap = float(caps.min())
    lowest = float((tub.active & (tub.best / slope <= first_cap * (1 + _EDGE))).sum())
    before, kept = tub.held.copy(), (tub.active.copy(), tub.capped.copy())
    theta = tub.rise(slope, context)
    if theta < first_cap * (1 - _EDGE) or lowest == kept[0].sum():
        return theta
    # The level is that of a job's own best: serve all such caps in one go.
    tub.held, (tub.active, tub.capped) = before, kept
    serve_caps(tub, slope, context)
    return theta


def _tell(
    state: ClusterState, groups: Groups, tub: Tub, levels: list[float], notes: list[str]
) -> Allocation:
    return Allocation(
        groups.expand(state, tub.shares),
        levels[0] if levels else 0.0,
        diagnostics=Diagnostics(
            solver=f"{INTERIOR}, {len(levels)} levels, {tub.solves} programs",
            variables=groups.throughput.size,
            rows=2 * groups.n_groups + state.n_types,
            notes=tuple(notes),
        ),
    )


@dataclass(frozen=True, slots=True)
class HierarchicalOptions:
    """Options of ``hierarchical``.

    ``within``: how an account splits its share among its own jobs: ``fairness`` by job weight, or
    ``fifo``, all to its oldest job that can still rise. ``aware``: look at the throughputs.
    ``max_levels``: after so many levels the rest keep what the last one gave them.
    """

    within: Literal["fairness", "fifo"] = "fairness"
    aware: bool = True
    max_levels: int = 200


@policy(
    "hierarchical",
    summary="shares of Slurm accounts first (by weight, down the tree), then of jobs within them",
    options=HierarchicalOptions,
    rung=INTERIOR,
    aliases={
        "hierarchical_fifo": {"within": "fifo"},
        "max_min_fairness_hierarchical": {},
    },
    fall_to=("water-filling", "max-min", "isolated", "fifo"),
)
def hierarchical(state: ClusterState, options: HierarchicalOptions, context: Context) -> Allocation:
    """Fill accounts in proportion to their weights; what a stuck job leaves goes to its account first.

    The objective is the smallest g_m thr(m, X) / (thr(m, X_eq) * share of m) of the first level.
    """
    view = state if options.aware else unaware(state)
    tree = AccountTree(view)
    apart = options.within == "fifo"
    order = np.arange(state.n_jobs, dtype=np.int64) if apart else np.zeros(state.n_jobs, dtype=np.int64)
    groups = group_jobs(view, view.weight, tree.leaf, order)
    if not groups.n_groups:
        return empty(state)
    equal = throughput_of(equal_shares(view), view.throughput)[groups.first]
    unit = np.where(equal > 0, equal, 1.0) / groups.gang
    tub = Tub.empty(view, groups)
    levels: list[float] = []
    notes: list[str] = []
    while tub.active.any():
        if len(levels) >= options.max_levels:
            notes.append(f"stopped after {len(levels)} levels, as max_levels says")
            break
        part = tree.parts(groups, view.weight, tub.active, options.within)
        try:
            levels.append(tub.rise(unit * part, context))
        except SolverError as error:
            if not levels:
                raise
            notes.append(f"stopped after {len(levels)} levels: {error}")
            break
    return _tell(state, groups, tub, levels, notes)


class AccountTree:
    """Slurm's account tree as the jobs' account paths show it, with the weights the state gives.

    ``leaf`` [M]: number of each job's account. An account that the state gives no weight has 1.
    """

    def __init__(self, state: ClusterState) -> None:
        paths = state.accounts or ((),) * state.n_jobs
        self.weights = state.account_weights
        self.accounts = sorted(set(paths))
        number = {path: index for index, path in enumerate(self.accounts)}
        self.leaf: Ints = np.array([number[path] for path in paths], dtype=np.int64)

    def parts(self, groups: Groups, weight: Floats, active: np.ndarray, within: str) -> Floats:
        """Return [G] the part of the whole that each member of an active group is due; 0 if not active.

        Weight that no active job claims goes to the sisters, at every node of the tree.
        """
        leaf = self.leaf[groups.first]
        job_weight = weight[groups.first]
        if within == "fifo":
            claims = np.zeros(groups.n_groups)
            live = np.flatnonzero(active)
            _, oldest = np.unique(leaf[live], return_index=True)
            claims[live[oldest]] = 1.0
        else:
            claims = np.where(active, job_weight, 0.0)
        per_account = np.bincount(leaf, claims * groups.size, minlength=len(self.accounts))
        due = self._account_parts(per_account > 0)
        safe = np.where(per_account > 0, per_account, 1.0)
        # Scaled so that jobs due equal parts have part 1.
        n_claims = float((claims > 0) @ groups.size)
        result: Floats = due[leaf] * claims / safe[leaf] * n_claims
        return result

    def _account_parts(self, live: np.ndarray) -> Floats:
        due = np.zeros(len(self.accounts))
        alive = [path for path, is_live in zip(self.accounts, live, strict=True) if is_live]
        nodes = {path[:depth] for path in alive for depth in range(len(path) + 1)}
        for index, path in enumerate(self.accounts):
            if not live[index]:
                continue
            part = 1.0
            for depth in range(1, len(path) + 1):
                # Jobs charged to the parent itself stand beside its sub-accounts with weight 1.
                own = 1.0 if path[: depth - 1] in alive else 0.0
                sisters = [n for n in nodes if len(n) == depth and n[:-1] == path[: depth - 1]]
                total = own + sum(self.weights.get(sister, 1.0) for sister in sisters)
                part *= self.weights.get(path[:depth], 1.0) / total
            sub_accounts = [n for n in nodes if len(n) == len(path) + 1 and n[:-1] == path]
            if sub_accounts:
                part /= 1.0 + sum(self.weights.get(n, 1.0) for n in sub_accounts)
            due[index] = part
        return due
