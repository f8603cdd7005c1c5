"""Time as an argument: a real clock, and one that a test or a simulation moves."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the rest of hetsched may know of time; all values are seconds."""

    def now_s(self) -> float:
        """Return the wall-clock time as seconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return a time that never steps back, for measuring intervals."""
        ...

    def sleep_s(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...


class RealClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        """Return the wall-clock time as seconds since the epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return a time that never steps back."""
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        time.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is moved; sleeping moves it."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._monotonic_s = start_s

    def now_s(self) -> float:
        """Return the time that was set."""
        return self._now_s

    def monotonic_s(self) -> float:
        """Return the sum of all forward moves."""
        return self._monotonic_s

    def sleep_s(self, seconds: float) -> None:
        """Move the clock forward at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by ``seconds`` (not negative)."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s; use step_wall for a wall clock that steps back")
        self._now_s += seconds
        self._monotonic_s += seconds

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock (either way) without touching the monotonic one."""
        self._now_s += seconds
