"""Put waiting jobs beside running ones on the same GPUs: a maximum-weight matching.

The idea is Tesserae's (abstract only); the weights are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from pyhetsched.policies.contract import ClusterState, Floats, Ints


@dataclass(frozen=True, slots=True)
class Packed:
    """``guest`` (row) shares the GPUs of ``host`` (row); ``gain`` = summed packed / isolated rates, more than 1."""

    host: int
    guest: int
    gain: float


def pair_gain(state: ClusterState, host: int, guest: int, column: int) -> float:
    """Return the sum of packed / isolated rate of two jobs on one type, 0 if they cannot share."""
    if state.pairs is None or state.gang[host] != state.gang[guest]:
        return 0.0
    one, two = int(state.job_class[host]), int(state.job_class[guest])
    alone = state.throughput[host, column], state.throughput[guest, column]
    if one < 0 or two < 0 or min(alone) <= 0:
        return 0.0
    together = state.pairs.rates[column, one, two], state.pairs.rates[column, two, one]
    if min(together) <= 0:
        return 0.0
    return float(together[0] / alone[0] + together[1] / alone[1])


def pack(
    state: ClusterState, hosts: Sequence[tuple[int, int]], guests: Sequence[int], threshold: float = 1.0
) -> tuple[Packed, ...]:
    """Match waiting jobs (``guests``, rows) to running ones (``hosts``: row, type), at most one guest a host.

    Pairs whose gain is not above ``threshold`` are left out; the summed gain above it is the largest there is.
    """
    if not hosts or not guests:
        return ()
    gain: Floats = np.array([[pair_gain(state, h, g, column) for g in guests] for h, column in hosts])
    weight = np.maximum(gain - threshold, 0.0)
    rows, columns = linear_sum_assignment(weight, maximize=True)
    chosen: Ints = np.flatnonzero(weight[rows, columns] > 0)
    return tuple(
        Packed(hosts[rows[k]][0], guests[columns[k]], float(gain[rows[k], columns[k]])) for k in chosen.tolist()
    )
