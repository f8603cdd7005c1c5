"""Who runs in the coming round, from shares of time or from an order.

Shares are turned into rounds as Gavel does (OSDI'20, section 5; constants as in its repository):
a job's priority on a type is the share it should have divided by the part it has received.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyhetsched.policies.contract import NO_TYPE, Floats, Ints

# Priority per unit of share of a job that has received nothing yet: above any real ratio.
NOTHING_RECEIVED = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class Gangs:
    """Jobs that run in a round: ``rows`` of the state and the ``columns`` (types) they hold. Shapes [K]."""

    rows: Ints
    columns: Ints

    def by_row(self, n_jobs: int) -> Ints:
        """Return [M]: the type each job holds, -1 for none."""
        held = np.full(n_jobs, NO_TYPE, dtype=np.int64)
        held[self.rows] = self.columns
        return held


def share_priority(shares: Floats, received_s: Floats, handed_out_s: Floats, usable: np.ndarray) -> Floats:
    """Return the priority [M, J] = X / f, with f = time a job got on a type / time handed out on it.

    ``received_s`` [M, J] and ``handed_out_s`` [J] count from the last time the shares changed. Where
    f = 0 the priority is X * 1e9; where X = 0 or the job cannot run it is 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = np.where(handed_out_s > 0, received_s / handed_out_s, 0.0)
        ratio = np.where(fraction > 0, shares / fraction, shares * NOTHING_RECEIVED)
    priority: Floats = np.where(usable & (shares > 0), ratio, 0.0)
    return priority


def choose_by_priority(
    priority: Floats,
    deficit_s: Floats,
    shares: Floats,
    usable: np.ndarray,
    gang: Ints,
    counts: Sequence[int],
    type_order: Sequence[int] | None = None,
) -> Gangs:
    """Fill every type with the jobs of highest (priority, deficit, share) that fit and are not placed yet.

    Types are filled in ``type_order`` (default: column order); ties go to the earlier row. Jobs with
    priority 0 fill devices that nobody else asked for.
    """
    placed = np.zeros(len(gang), dtype=bool)
    rows: list[int] = []
    columns: list[int] = []
    for column in type_order if type_order is not None else range(len(counts)):
        left = int(counts[column])
        ranking = np.lexsort((-shares[:, column], -deficit_s[:, column], -priority[:, column]))
        ranking = ranking[usable[ranking, column] & ~placed[ranking]]
        for row, size in zip(ranking.tolist(), gang[ranking].tolist(), strict=True):
            if size > left:
                continue
            left -= size
            placed[row] = True
            rows.append(row)
            columns.append(column)
            if left == 0:
                break
    return Gangs(np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64))


def choose_by_order(
    order: Sequence[int], wanted: Sequence[int], usable: np.ndarray, gang: Sequence[int], counts: Sequence[int]
) -> Gangs:
    """Walk the jobs of ``order`` (most urgent first) and start those whose wanted type has room.

    A job that does not fit lets those behind it pass. ``wanted`` [M] as in Allocation; where it is -1
    the job takes the usable type with most free devices.
    """
    left = [int(count) for count in counts]
    rows: list[int] = []
    columns: list[int] = []
    free = sum(left)
    for row in order:
        if free <= 0:
            break
        column = wanted[row]
        if column == NO_TYPE:
            column = int(np.argmax(np.where(usable[row], left, -1)))
        if gang[row] > left[column] or not usable[row, column]:
            continue
        left[column] -= gang[row]
        free -= gang[row]
        rows.append(row)
        columns.append(column)
    return Gangs(np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64))


def start_order(shares: Floats, usable: np.ndarray) -> tuple[Ints, Ints]:
    """Return (order, wanted) of jobs that cannot be preempted, from the shares a policy gives them.

    What has run is left alone, so a share can only say who starts first and where: jobs in descending order of their
    largest share (earlier rows first among equals), each on the type of that share.
    """
    reach = np.where(usable, shares, -1.0)
    wanted: Ints = np.where(usable.any(axis=1), reach.argmax(axis=1), NO_TYPE).astype(np.int64)
    order: Ints = np.argsort(-shares.max(axis=1, initial=0.0), kind="stable").astype(np.int64)
    return order[wanted[order] != NO_TYPE], wanted
