"""What to do with devices that an order leaves idle: newcomers, waiting jobs, and moves to a faster type.

Everything is measured in relative speed, T[m, j] / max_j T[m, j]: the part of its best speed at which a job
runs. A job that waits counts as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pyhetsched.placement.rounds import Gangs
from pyhetsched.policies.contract import NO_TYPE, Floats


def relative_speed(throughput: Floats) -> Floats:
    """Return [M, J]: rate on each type divided by the job's best rate (0 where it runs nowhere)."""
    best = throughput.max(axis=1, keepdims=True, initial=0.0)
    speed: Floats = throughput / np.where(best > 0, best, 1.0)
    return speed


class Board:
    """Jobs on types while idle devices are being handed out; changed in place, read with :meth:`gangs`."""

    def __init__(self, gangs: Gangs, speed: Floats, gang: Sequence[int], counts: Sequence[int]) -> None:
        self._speed = speed.tolist()
        self._gang = [int(size) for size in gang]
        self._left = [int(count) for count in counts]
        self._held: dict[int, int] = {}
        for row, column in zip(gangs.rows.tolist(), gangs.columns.tolist(), strict=True):
            self._hold(row, column)

    def _hold(self, row: int, column: int) -> None:
        before = self._held.get(row, NO_TYPE)
        if before != NO_TYPE:
            self._left[before] += self._gang[row]
        self._held[row] = column
        self._left[column] -= self._gang[row]

    def idle(self) -> int:
        """Return the number of devices that nobody holds."""
        return sum(self._left)

    def gangs(self) -> Gangs:
        """Return the jobs and the types they hold."""
        return Gangs(
            np.array(list(self._held), dtype=np.int64), np.array(list(self._held.values()), dtype=np.int64)
        )

    def admit(self, waiting: Iterable[int]) -> None:
        """Start waiting jobs, in the given order, where relative speed gains most.

        A job may take idle devices, or those of one job that can move to idle devices of another type if
        the two together gain by it.
        """
        for row in waiting:
            if row in self._held:
                continue
            if not self.idle():
                return
            place = self._best_place(row)
            if place is None:
                continue
            column, mover, refuge = place
            if mover is not None:
                self._hold(mover, refuge)
            self._hold(row, column)

    def _best_place(self, row: int) -> tuple[int, int | None, int] | None:
        size, best = self._gang[row], 0.0
        found: tuple[int, int | None, int] | None = None
        for column, speed in enumerate(self._speed[row]):
            if speed <= best:
                continue
            if self._left[column] >= size:
                best, found = speed, (column, None, NO_TYPE)
                continue
            cost, mover, refuge = self._cheapest_move(column, size - self._left[column])
            if mover is not None and speed - cost > best:
                best, found = speed - cost, (column, mover, refuge)
        return found

    def _cheapest_move(self, column: int, needed: int) -> tuple[float, int | None, int]:
        """Return (loss of relative speed, job, type) of the cheapest move that frees ``needed`` devices."""
        cost, mover, refuge = float("inf"), None, NO_TYPE
        open_types = [k for k, left in enumerate(self._left) if left > 0 and k != column]
        for row, held in self._held.items():
            size = self._gang[row]
            if held != column or size < needed:
                continue
            for other in open_types:
                speed = self._speed[row][other]
                if speed > 0 and self._left[other] >= size and self._speed[row][column] - speed < cost:
                    cost, mover, refuge = self._speed[row][column] - speed, row, other
        return cost, mover, refuge

    def upgrade(self) -> None:
        """Move jobs to idle devices of a faster type, largest gain first, until nobody gains."""
        while self.idle():
            best, move = 1e-9, None
            for row, held in self._held.items():
                for column, left in enumerate(self._left):
                    gain = self._speed[row][column] - self._speed[row][held]
                    if left >= self._gang[row] and gain > best:
                        best, move = gain, (row, column)
            if move is None:
                return
            self._hold(*move)
