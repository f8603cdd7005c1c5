"""Themis: an auction of GPUs among the jobs that are treated worst (Mahajan et al., NSDI'20).

rho = T_shared / T_ideal, T_shared = age + R / rate with what is offered, T_ideal = time on a 1/M part of
the cluster's GPUs, of the job's best type. The worst (1 - f) part of the jobs bid; winners maximise
the product of the values 1 / rho; what they leave goes to the others, worst rho first.
Deviations: every GPU is up for auction at every call (a call is the end of all leases), a bundle is one
gang on one type, and there are no hidden payments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyhetsched.policies import linear
from pyhetsched.policies.contract import NO_TYPE, Allocation, ClusterState, Diagnostics, Floats, Ints
from pyhetsched.policies.registry import Context, policy

_NOTHING = 1e3  # a job left without GPUs counts as if its rho were so many times the worst one
_MIP_GAP = 1e-3


@dataclass(frozen=True, slots=True)
class ThemisOptions:
    """Options of ``themis``.

    ``fairness``: f, between 0 (all jobs bid) and 1 (exclusive; only the worst job bids).
    """

    fairness: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.fairness < 1:
            raise ValueError(f"fairness must be at least 0 and below 1, not {self.fairness}")


def finish_ratios(state: ClusterState) -> Floats:
    """Return rho [M, J] of each job if it gets its gang of type j from now on (inf: cannot run there)."""
    rates = np.where(state.usable, state.throughput, 0.0)
    part = np.minimum(state.counts.sum() / max(state.n_jobs, 1) / state.gang, 1.0)
    best = np.maximum(rates.max(axis=1, initial=0.0), 1e-300)
    ideal_s = np.maximum(state.total, 1e-9) / (best * part)
    rest_s = np.where(rates > 0, state.remaining[:, None] / np.where(rates > 0, rates, 1.0), np.inf)
    result: Floats = (state.age_s[:, None] + rest_s) / ideal_s[:, None]
    return result


@policy(
    "themis",
    summary="GPUs are auctioned among the jobs with the worst finish-time ratio",
    options=ThemisOptions,
    rung="auction",
    fall_to=("finish-time", "isolated", "fifo"),
)
def themis(state: ClusterState, options: ThemisOptions, context: Context) -> Allocation:
    """Maximise the product of 1 / rho over the bidders; the objective is the largest rho of those that run."""
    rho = finish_ratios(state)
    bidders = _bidders(state, rho, options)
    wanted = np.full(state.n_jobs, NO_TYPE, dtype=np.int64)
    told = Diagnostics(solver="walk")
    if len(bidders):
        winners, told = _auction(state, rho, bidders, context)
        wanted[bidders] = winners
    return _hand_out_rest(state, rho, wanted, told)


@themis.rung("worst first")
def worst_first(state: ClusterState, options: ThemisOptions, context: Context) -> Allocation:
    """Give GPUs to the largest rho first, each job the best type that is free."""
    wanted = np.full(state.n_jobs, NO_TYPE, dtype=np.int64)
    return _hand_out_rest(state, finish_ratios(state), wanted, Diagnostics(solver="walk"))


def _bidders(state: ClusterState, rho: Floats, options: ThemisOptions) -> Ints:
    now = rho.min(axis=1, initial=np.inf)
    able = np.flatnonzero(np.isfinite(now))
    count = max(1, int(np.ceil((1 - options.fairness) * len(able)))) if len(able) else 0
    return able[np.argsort(-now[able], kind="stable")][:count]


def _auction(
    state: ClusterState, rho: Floats, bidders: Ints, context: Context
) -> tuple[Ints, Diagnostics]:
    """Return the type each bidder wins (-1: none), by a program over (bidder, type)."""
    program = linear.LinearProgram()
    who, kind = np.nonzero(np.isfinite(rho[bidders]))
    worst = float(rho[bidders][who, kind].max())
    gain = np.log(_NOTHING * worst / np.maximum(rho[bidders][who, kind], 1e-300))
    gangs = bool((state.gang[bidders] > 1).any())  # without gangs the program's vertices are whole
    columns = program.columns(gain, upper=1.0, whole=gangs)
    once = program.rows(-linear.INF, np.ones(len(bidders)))
    program.put(once[who], columns, 1.0)
    capacity = program.rows(-linear.INF, state.counts)
    program.put(capacity[kind], columns, state.gang[bidders][who].astype(np.float64))
    found = linear.solve(program, context, mip_gap=_MIP_GAP)
    won = found.x[columns] > 0.5
    winners = np.full(len(bidders), NO_TYPE, dtype=np.int64)
    winners[who[won]] = kind[won]
    told = Diagnostics(
        solver=f"HiGHS, {found.iterations} iterations", variables=found.n_columns, rows=found.n_rows
    )
    return winners, told


def _hand_out_rest(
    state: ClusterState, rho: Floats, wanted: Ints, told: Diagnostics
) -> Allocation:
    has = wanted >= 0
    free = state.counts - np.bincount(wanted[has], state.gang[has], minlength=state.n_types)
    now = rho.min(axis=1, initial=np.inf)
    worst_first_order = np.argsort(np.where(np.isfinite(now), -now, np.inf), kind="stable")
    for row in worst_first_order:
        if not free.any():
            break
        if wanted[row] != NO_TYPE or not np.isfinite(now[row]):
            continue
        offered = np.where(free >= state.gang[row], rho[row], np.inf)
        column = int(offered.argmin())
        if np.isfinite(offered[column]):
            wanted[row] = column
            free[column] -= state.gang[row]
    order = worst_first_order[wanted[worst_first_order] >= 0]
    shares = np.zeros((state.n_jobs, state.n_types))
    shares[order, wanted[order]] = 1.0
    objective = float(rho[order, wanted[order]].max(initial=0.0))
    return Allocation(shares, objective, order=order, wanted=wanted, diagnostics=told)
