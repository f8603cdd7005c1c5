"""What the scheduler believes a job is worth on each type, while the machine knows the truth."""

from __future__ import annotations

from typing import Protocol

from pyhetsched.policies.contract import Floats, Ints
from pyhetsched.simulator.trace import Trace


class Beliefs(Protocol):
    """Throughputs as the policies are told them."""

    def rates(self, rows: Ints) -> tuple[Floats, Floats]:
        """Return believed rates [M, J], steps/s, and their relative error bars [M, J] for these trace rows."""
        ...

    def observe(self, row: int, column: int, steps_per_s: float) -> None:
        """Learn that a job has run at this rate on this type."""
        ...

    def probes(self, rows: Ints) -> list[tuple[int, int]]:
        """Return (row, type) pairs that should run for a round only to be measured, best first."""
        ...


class Known:
    """Every throughput is known exactly."""

    def __init__(self, trace: Trace) -> None:
        self._rates = trace.throughput
        self._sigma = trace.throughput * 0.0

    def rates(self, rows: Ints) -> tuple[Floats, Floats]:
        """Return the true rates, without error."""
        return self._rates[rows], self._sigma[rows]

    def observe(self, row: int, column: int, steps_per_s: float) -> None:
        """Learn nothing: all is known."""

    def probes(self, rows: Ints) -> list[tuple[int, int]]:
        """Return nothing: all is known."""
        return []
