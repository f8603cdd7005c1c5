"""Relabel a new plan so that it moves as few jobs as possible.

After Tesserae (abstract only; the costs are ours): who runs is decided first, on logical devices; then logical
devices are matched to physical ones. The cost of putting logical GPU v on physical GPU u is the sum over the
jobs that are on one of the two only of 1 / (2 g), so that moving a whole gang of g GPUs costs 1. GPUs
are matched within a pair of nodes, then nodes with nodes, both as assignment problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

# A plan of one GPU type: plan[node][gpu] = ids of the jobs on that GPU.
Plan = Sequence[Sequence[frozenset[int]]]


def gpu_cost(old: frozenset[int], new: frozenset[int], gang: Mapping[int, int]) -> float:
    """Return the cost of a GPU going from the jobs ``old`` to the jobs ``new``."""
    return sum(1.0 / (2.0 * gang[job]) for job in old ^ new)


def match_gpus(
    old: Sequence[frozenset[int]], new: Sequence[frozenset[int]], gang: Mapping[int, int]
) -> tuple[float, tuple[int, ...]]:
    """Return (cost, order) of the cheapest match in one node: physical GPU u gets logical GPU order[u]."""
    cost = np.array([[gpu_cost(before, after, gang) for after in new] for before in old])
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].sum()), tuple(int(column) for column in columns)


def relabel(old: Plan, new: Plan, gang: Mapping[int, int]) -> list[list[frozenset[int]]]:
    """Return the plan ``new`` with nodes and GPUs put where they change least against ``old``.

    Both plans have the same nodes with the same numbers of GPUs; only nodes of equal size are exchanged.
    """
    pairs = {
        (u, v): match_gpus(before, after, gang)
        for u, before in enumerate(old)
        for v, after in enumerate(new)
        if len(before) == len(after)
    }
    cost = np.full((len(old), len(new)), 1e9)
    for (u, v), (value, _) in pairs.items():
        cost[u, v] = value
    rows, columns = linear_sum_assignment(cost)
    order = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    return [[new[order[u]][gpu] for gpu in pairs[u, order[u]][1]] for u in range(len(old))]


def migrations(old: Plan, new: Plan) -> int:
    """Return the number of jobs, in both plans, whose set of GPUs changed."""
    before, after = _where(old), _where(new)
    return sum(1 for job, places in after.items() if job in before and before[job] != places)


def _where(plan: Plan) -> dict[int, set[tuple[int, int]]]:
    where: dict[int, set[tuple[int, int]]] = {}
    for node, gpus in enumerate(plan):
        for gpu, jobs in enumerate(gpus):
            for job in jobs:
                where.setdefault(job, set()).add((node, gpu))
    return where
