"""AlloX: shortest mean completion time for jobs that differ by type (Le et al., EuroSys'20).

The k-th job from the end of a device's queue delays k jobs, itself included; so putting job i there
costs k * R_i / T[i, j]. A minimum-cost matching of jobs to (type, k) is optimal without preemption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pyhetsched.errors import SolverError
from pyhetsched.policies.contract import NO_TYPE, Allocation, ClusterState, Diagnostics, Floats, Ints
from pyhetsched.policies.registry import Context, policy

_MATCHING_LIMIT = 4_000_000


@dataclass(frozen=True, slots=True)
class AlloxOptions:
    """Options of ``allox``.

    ``devices``: plan the queues of ``all`` devices, or only of those that are ``free`` now (Gavel's
    variant). Jobs that run are never moved.
    """

    devices: Literal["all", "free"] = "free"


@policy(
    "allox",
    summary="minimum-cost matching of single-GPU jobs to places in the types' queues; no preemption",
    options=AlloxOptions,
    rung="matching",
    fall_to=("fifo",),
)
def allox(state: ClusterState, options: AlloxOptions, context: Context) -> Allocation:
    """Match waiting jobs to queue places; those first in a queue start now. Objective: mean delay in s.

    SolverError (and so the next rung) with gangs or with too many jobs for a dense matching.
    """
    if state.n_jobs and int(state.gang.max()) > 1:
        raise SolverError("the matching is for single-GPU jobs")
    free, wanted = _running(state)
    waiting = np.flatnonzero((wanted == NO_TYPE) & state.usable.any(axis=1))
    columns = free if options.devices == "free" else state.counts
    if not len(waiting) or not free.any():
        return _answer(state, wanted, np.zeros(0), 0.0)
    kinds, places = _places(columns.astype(np.int64), len(waiting))
    if len(kinds) * len(waiting) > _MATCHING_LIMIT:
        raise SolverError(f"a matching of {len(waiting)} jobs to {len(kinds)} places is too large")
    context.left_s()
    from scipy.optimize import linear_sum_assignment  # takes long to import

    time_s = _time_s(state)[waiting][:, kinds]
    cost = time_s * places[None, :]
    finite = cost[np.isfinite(cost)]
    cost = np.where(np.isfinite(cost), cost, 1e3 * float(finite.max(initial=1.0)))
    rows, chosen = linear_sum_assignment(cost)
    mean_s = float(cost[rows, chosen].sum()) / len(waiting)
    _start_first(waiting[rows], kinds[chosen], places[chosen], free, wanted)
    return _answer(state, wanted, waiting, mean_s)


@allox.rung("shortest first")
def shortest_first(state: ClusterState, options: AlloxOptions, context: Context) -> Allocation:
    """Start waiting jobs in order of GPU time left on their best type, each on its fastest free type."""
    free, wanted = _running(state)
    time_s = _time_s(state)
    best = time_s.min(axis=1, initial=np.inf)
    work = best * state.gang
    for row in np.argsort(work, kind="stable"):
        if wanted[row] != NO_TYPE or not np.isfinite(work[row]):
            continue
        fits = free >= state.gang[row]
        if not free.any():
            break
        offered = np.where(fits, time_s[row], np.inf)
        column = int(offered.argmin())
        if np.isfinite(offered[column]):
            wanted[row] = column
            free[column] -= state.gang[row]
    return _answer(state, wanted, np.zeros(0), float("nan"))


def _time_s(state: ClusterState) -> Floats:
    """Return [M, J] seconds that each job still needs on each type (inf: cannot run there)."""
    rates = np.where(state.usable, state.throughput, 1.0)
    return np.where(state.usable, np.maximum(state.remaining, 1e-9)[:, None] / rates, np.inf)


def _running(state: ClusterState) -> tuple[Floats, Ints]:
    """Return the devices not held by running jobs, and the type each running job keeps."""
    wanted = np.where(state.running_on >= 0, state.running_on, NO_TYPE)
    held = np.bincount(wanted[wanted >= 0], state.gang[wanted >= 0], minlength=state.n_types)
    return np.maximum(state.counts - held, 0.0), wanted


def _places(counts: Ints, n_jobs: int) -> tuple[Ints, Ints]:
    """Return type and k of every place that an optimal matching can use.

    Devices of a type fill evenly, so k never exceeds ceil(jobs / devices).
    """
    kinds, places = [], []
    for kind, count in enumerate(counts):
        if count <= 0:
            continue
        depth = -(-n_jobs // int(count))
        kinds.append(np.full(depth * int(count), kind))
        places.append(np.repeat(np.arange(1, depth + 1), int(count)))
    return np.concatenate(kinds).astype(np.int64), np.concatenate(places).astype(np.int64)


def _start_first(rows: Ints, kinds: Ints, places: Ints, free: Floats, wanted: Ints) -> None:
    """Start, on each type, the jobs with the highest k: they are first in their queues."""
    for at in np.argsort(-places, kind="stable"):
        kind = kinds[at]
        if free[kind] >= 1:
            wanted[rows[at]] = kind
            free[kind] -= 1


def _answer(state: ClusterState, wanted: Ints, waiting: Floats | Ints, objective: float) -> Allocation:
    order = np.flatnonzero(wanted >= 0)
    shares = np.zeros((state.n_jobs, state.n_types))
    shares[order, wanted[order]] = 1.0
    told = Diagnostics(solver="matching" if len(waiting) else "walk")
    return Allocation(shares, objective, order=order, wanted=wanted, diagnostics=told)
