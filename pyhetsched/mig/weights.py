"""Shard weights: one number per profile, so that Slurm's sum over a GPU admits exactly what MIG can host.

Slurm counts ``gres/shard`` per GPU and admits a job while the sum fits. For a geometry the weights are
*exact* when "sum of weights <= shards per GPU" holds for precisely those multisets of instances that some
legal layout can host. They are found, not typed in: the smallest number of shards for which integer weights
exist such that every largest feasible multiset fits and every smallest infeasible one does not, with the
whole-GPU instance taking all shards and the other weights as large as possible (then a full layout such as
4g + 3g also fills the count). Variants that differ in
media engines or graphics weigh as their kind; that only one ``+me`` instance can exist is beyond a sum.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from pyhetsched.errors import LayoutError
from pyhetsched.mig.geometry import Counts, Geometry, Space, space_of

MOST_SHARDS = 128


@dataclass(frozen=True, slots=True)
class ShardWeights:
    """``shards_per_gpu``, and the weight of each shape of the geometry in its order."""

    shards_per_gpu: int
    by_shape: tuple[int, ...]


@functools.lru_cache(maxsize=64)
def exact_weights(geometry: Geometry) -> ShardWeights:
    """The exact weights of a geometry; raises :class:`LayoutError` if no sum of weights can be exact."""
    space = space_of(geometry)
    feasible = space.multisets(0)
    largest = [m for m in feasible if not any(_plus(m, k) in feasible for k in range(len(m)))]
    refused = _smallest_infeasible(space, feasible)
    for shards in range(1, MOST_SHARDS + 1):
        weights = _solve(shards, largest, refused, _whole(space))
        if weights is not None:
            return ShardWeights(shards, tuple(weights[kind] for kind in space.kind_of))
    raise LayoutError(f"no shard weights up to {MOST_SHARDS} per GPU count this geometry exactly: {geometry}")


def _plus(counts: Counts, kind: int) -> Counts:
    return (*counts[:kind], counts[kind] + 1, *counts[kind + 1 :])


def _minus(counts: Counts, kind: int) -> Counts:
    return (*counts[:kind], counts[kind] - 1, *counts[kind + 1 :])


def _smallest_infeasible(space: Space, feasible: frozenset[Counts]) -> list[Counts]:
    """Infeasible multisets all of whose sub-multisets are feasible."""
    beyond = {_plus(m, k) for m in feasible for k in range(len(space.kinds))} - feasible
    return [m for m in beyond if all(_minus(m, k) in feasible for k, n in enumerate(m) if n)]


def _whole(space: Space) -> int | None:
    """The kind that fills the GPU, if there is one."""
    for place, shape in enumerate(space.kinds):
        if space.geometry.shapes[shape].compute == space.geometry.compute:
            return place
    return None


Bounds = list[tuple[int, int]]


def _solve(shards: int, largest: list[Counts], refused: list[Counts], whole: int | None) -> list[int] | None:
    """Weights for one number of shards, or None: bounds are tightened to a fixpoint, then one is split."""
    kinds = len(largest[0])
    bounds: Bounds = [(1, shards)] * kinds
    if whole is not None:
        bounds[whole] = (shards, shards)
    return _descend(bounds, shards, largest, refused)


def _descend(bounds: Bounds, shards: int, largest: list[Counts], refused: list[Counts]) -> list[int] | None:
    tight = _tighten(list(bounds), shards, largest, refused)
    if tight is None:
        return None
    for kind, (low, high) in enumerate(tight):
        if low < high:
            for value in range(high, low - 1, -1):
                found = _descend([*tight[:kind], (value, value), *tight[kind + 1 :]], shards, largest, refused)
                if found is not None:
                    return found
            return None
    return [low for low, _ in tight]


def _tighten(bounds: Bounds, shards: int, largest: list[Counts], refused: list[Counts]) -> Bounds | None:
    changed = True
    while changed:
        changed = False
        for rows, fits in ((largest, True), (refused, False)):
            for counts in rows:
                for kind, n in enumerate(counts):
                    if not n:
                        continue
                    low, high = bounds[kind]
                    if fits:
                        others = sum(c * bounds[k][0] for k, c in enumerate(counts)) - n * low
                        high = min(high, (shards - others) // n)
                    else:
                        others = sum(c * bounds[k][1] for k, c in enumerate(counts)) - n * high
                        low = max(low, -((others - shards - 1) // n))
                    if low > high:
                        return None
                    if (low, high) != bounds[kind]:
                        bounds[kind] = (low, high)
                        changed = True
    return bounds
