"""Demands: how many steps/s each job must get for the cluster to stand at level theta.

Every fairness LP here has the form "raise theta while thr(m, X) >= d_m(theta) for all jobs". The
policies differ in d_m alone, which is increasing and convex in theta. Shapes are [G]: one entry per
group of identical jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pyhetsched.policies.contract import Floats


class Demand(Protocol):
    """An increasing convex demand of each group, with its inverse."""

    def at(self, theta: float) -> tuple[Floats, Floats, Floats]:
        """Return d(theta) and its first and second derivative, each [G]."""
        ...

    def level(self, rates: Floats) -> Floats:
        """Return [G] the theta that each rate affords (inf: any)."""
        ...

    def limit(self) -> float:
        """Return the theta that no rate whatever can reach (inf: none)."""
        ...

    def scaled(self, rate: Floats, theta: float) -> Demand:
        """Return the same demand in units of ``rate`` (per group) and of ``theta``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AffineDemand:
    """d_m(theta) = floor_m + slope_m * theta, with slope_m >= 0.

    Max-min fairness: floor 0, slope w_m * thr(m, X_eq) / g_m. Makespan: floor 0, slope R_m and theta
    is one over the makespan.
    """

    floor: Floats
    slope: Floats

    def at(self, theta: float) -> tuple[Floats, Floats, Floats]:
        """Return the demand, its slope and zero."""
        return self.floor + self.slope * theta, self.slope, np.zeros_like(self.slope)

    def level(self, rates: Floats) -> Floats:
        """Return (rate - floor) / slope; inf where the slope is 0."""
        rising = self.slope > 0
        return np.where(rising, (rates - self.floor) / np.where(rising, self.slope, 1.0), np.inf)

    def limit(self) -> float:
        """Return inf."""
        return float("inf")

    def scaled(self, rate: Floats, theta: float) -> AffineDemand:
        """Return floor / rate + (slope * theta / rate) * theta'."""
        return AffineDemand(self.floor / rate, self.slope * theta / rate)


@dataclass(frozen=True, slots=True, eq=False)
class FinishDemand:
    """Finish-time fairness (Gavel, section 4.2, after Themis): theta = 1 / rho.

    rho_m = (age_m + R_m / thr) / ideal_m, so thr >= R_m theta / (ideal_m - age_m theta).
    ``remaining`` R_m in steps, ``age`` and ``ideal`` in seconds.
    """

    remaining: Floats
    age: Floats
    ideal: Floats

    def at(self, theta: float) -> tuple[Floats, Floats, Floats]:
        """Return R theta / (I - t theta) and its derivatives; theta must stay below :meth:`limit`."""
        room = self.ideal - self.age * theta
        first = self.remaining * self.ideal / room**2
        return self.remaining * theta / room, first, 2.0 * first * self.age / room

    def level(self, rates: Floats) -> Floats:
        """Return 1 / rho at these rates (0 where the rate is 0)."""
        safe = np.where(rates > 0, rates, 1.0)
        return np.where(rates > 0, self.ideal / (self.age + self.remaining / safe), 0.0)

    def limit(self) -> float:
        """Return the smallest ideal / age."""
        aged = self.age > 0
        return float(np.min(self.ideal[aged] / self.age[aged])) if aged.any() else float("inf")

    def scaled(self, rate: Floats, theta: float) -> FinishDemand:
        """Return the demand with R in units of rate * seconds / theta and age in units of 1 / theta."""
        return FinishDemand(self.remaining * theta / rate, self.age * theta, self.ideal)
