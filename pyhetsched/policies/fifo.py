"""First come, first served, with or without an eye on which type is fastest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyhetsched.policies.contract import NO_TYPE, Allocation, ClusterState, Diagnostics
from pyhetsched.policies.registry import Context, policy


@dataclass(frozen=True, slots=True)
class FifoOptions:
    """Options of ``fifo``.

    ``aware``: take the fastest free type (else the type with most free GPUs). ``skip``: a job that does
    not fit now lets smaller ones pass; without it the queue stops at the first job that does not fit.
    ``move``: running jobs are placed anew with the others, in order of arrival (Gavel's fifo_perf).
    """

    aware: bool = True
    skip: bool = False
    move: bool = False


@policy(
    "fifo",
    summary="in order of arrival; each job on its fastest free type; running jobs stay",
    options=FifoOptions,
    rung="walk",
    aliases={"fifo_perf": {"move": True}, "fifo_fixed": {"aware": False}, "fifo_agnostic": {"aware": False}},
    fall_to=(),
)
def fifo(state: ClusterState, options: FifoOptions, context: Context) -> Allocation:
    """Return whole shares (0 or 1) for the jobs that run now; the objective is their number.

    Jobs that run keep their type unless ``move`` is set; the others follow in row order.
    """
    free = state.counts.copy()
    wanted = np.full(state.n_jobs, NO_TYPE, dtype=np.int64)
    for row in np.flatnonzero(state.running_on >= 0) if not options.move else ():
        column = state.running_on[row]
        if free[column] >= state.gang[row]:
            wanted[row] = column
            free[column] -= state.gang[row]
    for row in np.flatnonzero(wanted < 0):
        if not state.usable[row].any():
            continue
        column = _choose(state, int(row), free, options.aware)
        if column != NO_TYPE:
            wanted[row] = column
            free[column] -= state.gang[row]
        elif not options.skip:
            break
        if not free.any():
            break
    order = np.flatnonzero(wanted >= 0)
    shares = np.zeros((state.n_jobs, state.n_types))
    shares[order, wanted[order]] = 1.0
    return Allocation(
        shares, float(len(order)), order=order, wanted=wanted, diagnostics=Diagnostics(solver="walk")
    )


def _choose(state: ClusterState, row: int, free: np.ndarray, aware: bool) -> int:
    fits = state.usable[row] & (free >= state.gang[row])
    if not fits.any():
        return NO_TYPE
    merit = state.throughput[row] if aware else free
    return int(np.argmax(np.where(fits, merit, -1.0)))
