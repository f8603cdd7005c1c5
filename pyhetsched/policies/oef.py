"""OEF: overall efficient and fair shares of different GPU types (cooperative and non-cooperative).

A user is a job. W_l is its speed-up vector: rate per GPU on each type over that on its slowest type, so
W_l . x is the worth of a bundle x of devices in units of its slowest GPU. A gang of g GPUs with
shares X holds x = g X. Weight k counts as k identical users (per unit of weight).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyhetsched.errors import SolverError
from pyhetsched.policies import levels, linear
from pyhetsched.policies.contract import Allocation, ClusterState, Diagnostics, Floats, Ints
from pyhetsched.policies.demands import AffineDemand
from pyhetsched.policies.groups import Groups, group_jobs
from pyhetsched.policies.max_min import HIGHS, INTERIOR
from pyhetsched.policies.registry import Context, empty, policy

_ALL_ROWS = 60
_ENVY = 1e-7
_ROUNDS = 60
_WORST_KEPT = 3


@dataclass(frozen=True, slots=True)
class OefOptions:
    """Options of ``oef-coop`` and ``oef-noncoop``.

    ``per_gpu``: a gang of g GPUs counts as g users, so that large gangs are due more devices.
    """

    per_gpu: bool = False


def speedups(rates: Floats) -> Floats:
    """Return W [G, J]: rates over the smallest positive rate of the row."""
    slowest = np.where(rates > 0, rates, np.inf).min(axis=1)
    result: Floats = rates / slowest[:, None]
    return result


def _users(state: ClusterState, options: OefOptions) -> tuple[Groups, Floats]:
    groups = group_jobs(state, state.weight)
    weight = state.weight[groups.first]
    return groups, weight * groups.gang if options.per_gpu else weight


@policy(
    "oef-noncoop",
    summary="same worth for every job, as much as possible: lying about speed-ups does not pay",
    options=OefOptions,
    rung=INTERIOR,
)
def oef_noncoop(state: ClusterState, options: OefOptions, context: Context) -> Allocation:
    """Maximise the total of W_l . x_l with all of them equal (per weight); the objective is that total.

    Strategy-proof, but a job may get less than an equal split would give it (no sharing incentive).
    """
    groups, weight = _users(state, options)
    if not groups.n_groups:
        return empty(state)
    slowest = np.where(groups.throughput > 0, groups.throughput, np.inf).min(axis=1)
    slope = weight * slowest / groups.gang
    demand = AffineDemand(np.zeros_like(slope), slope)
    answer = levels.raise_level(state, groups, demand, context)
    # Equal means equal: nobody keeps what it was given beyond the common level.
    reached = demand.level(np.einsum("gj,gj->g", answer.shares, groups.throughput))
    shares = answer.shares * np.minimum(answer.value / reached, 1.0)[:, None]
    objective = answer.value * float(weight @ groups.size)
    return Allocation(
        groups.expand(state, shares),
        objective,
        diagnostics=Diagnostics(
            solver=f"{INTERIOR}, {answer.iterations} iterations",
            gap=answer.gap,
            variables=groups.throughput.size,
            rows=2 * groups.n_groups + state.n_types,
        ),
    )


@policy(
    "oef-coop",
    summary="most worth in total such that no job would rather have another's bundle",
    options=OefOptions,
    rung=HIGHS,
)
def oef_coop(state: ClusterState, options: OefOptions, context: Context) -> Allocation:
    """Maximise the total of W_l . x_l with W_l . x_l >= W_l . x_i for all l, i (per weight); objective: the total.

    The rows are n (n - 1); beyond a few dozen groups only those that turn out violated are added.
    """
    groups, weight = _users(state, options)
    if not groups.n_groups:
        return empty(state)
    shares, total, told = envy_free(state, groups, weight, context)
    return Allocation(
        groups.expand(state, shares),
        total,
        diagnostics=Diagnostics(
            solver=f"HiGHS, {told.iterations} iterations",
            gap=0.0,
            variables=told.n_columns,
            rows=told.n_rows,
        ),
    )


def envy_free(
    state: ClusterState, groups: Groups, weight: Floats, context: Context, limit_time: bool = True
) -> tuple[Floats, float, linear.LinearAnswer]:
    """Return shares [G, J], the total worth and the last program's answer.

    ``limit_time`` False: a user may hold more devices than its gang (OEF's own setting).
    """
    w = speedups(groups.throughput)
    viewer, seen = _first_rows(w)
    for _ in range(_ROUNDS):
        shares, found = _solve(state, groups, w, weight, (viewer, seen), context, limit_time)
        bundles = shares * groups.gang[:, None] / weight[:, None]
        worth = w @ bundles.T  # [viewer, seen]
        envy = worth - np.diag(worth)[:, None]
        scale = np.maximum(np.diag(worth), 1e-12)[:, None]
        envious, at = _worst(envy / scale)
        if not len(envious):
            return shares, found.value, found
        viewer, seen = np.concatenate([viewer, envious]), np.concatenate([seen, at])
    raise SolverError(f"still envious after {_ROUNDS} rounds of new rows")


def _first_rows(w: Floats) -> tuple[Ints, Ints]:
    """Return all ordered pairs if they are few, else each group and its neighbours by speed-up."""
    n = len(w)
    if n <= _ALL_ROWS:
        viewer, seen = np.nonzero(~np.eye(n, dtype=bool))
        return viewer, seen
    order = np.argsort(w.max(axis=1), kind="stable")
    near, far = order[:-1], order[1:]
    return np.concatenate([near, far]), np.concatenate([far, near])


def _worst(envy: Floats) -> tuple[Ints, Ints]:
    """Return (viewer, seen) of the worst few violations of every envious group."""
    kept = min(_WORST_KEPT, envy.shape[1])
    at = np.argpartition(-envy, kept - 1, axis=1)[:, :kept]
    viewer = np.repeat(np.arange(len(envy)), kept)
    flat = at.ravel()
    bad = envy[viewer, flat] > _ENVY
    return viewer[bad], flat[bad]


def _solve(
    state: ClusterState,
    groups: Groups,
    w: Floats,
    weight: Floats,
    rows: tuple[Ints, Ints],
    context: Context,
    limit_time: bool,
) -> tuple[Floats, linear.LinearAnswer]:
    cost = w * (groups.gang * groups.size)[:, None]
    program, cells = levels.share_program(state, groups, cost)
    if not limit_time:
        program.row_upper[0] = np.full(groups.n_groups, linear.INF)
    viewer, seen = rows
    if len(viewer):
        column = np.full(w.shape, -1)
        column[cells.group, cells.type] = cells.column
        envy = program.rows(np.zeros(len(viewer)), linear.INF)
        per_weight = groups.gang / weight
        for j in range(state.n_types):
            for who, sign in ((viewer, 1.0), (seen, -1.0)):
                has = column[who, j] >= 0
                value = sign * w[viewer, j] * per_weight[who]
                program.put(envy[has], column[who, j][has], value[has])
    labels = linear.Labels(
        "oef-coop",
        list(range(program.n_columns)),
        [*range(program.n_rows - len(viewer)), *zip(viewer.tolist(), seen.tolist(), strict=True)],
    )
    found = linear.solve(program, context, labels)
    shares = np.zeros_like(w)
    shares[cells.group, cells.type] = np.maximum(found.x[cells.column], 0.0)
    return shares, found
