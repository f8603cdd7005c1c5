"""Throughputs that nobody knows at first: estimated, measured as jobs run, and probed where it pays."""

from __future__ import annotations

import numpy as np

from pyhetsched.policies.contract import Floats, Ints
from pyhetsched.simulator.trace import Trace
from pyhetsched.throughput.estimator import Estimator, JobClass


class Learned:
    """Beliefs that start from nothing but the classes of jobs (what they run, on how many GPUs)."""

    def __init__(self, trace: Trace, estimator: Estimator | None = None, probe_above: float = 0.2) -> None:
        self._types = trace.types
        self._estimator = estimator or Estimator(trace.types)
        self._classes = [JobClass(kind, gang) for kind, gang in zip(trace.job_class, trace.gang.tolist(), strict=True)]
        self._seen: set[tuple[JobClass, int]] = set()
        self._probe_above = probe_above
        # A job that does not fit a type's memory fails at once: that much a user or the first try tells.
        self._fits = trace.throughput > 0

    def rates(self, rows: Ints) -> tuple[Floats, Floats]:
        """Return estimated rates and error bars."""
        estimates = self._estimator.estimate([self._classes[row] for row in rows.tolist()])
        return np.where(self._fits[rows], estimates.rates, 0.0), estimates.sigma

    def observe(self, row: int, column: int, steps_per_s: float) -> None:
        """Take a measurement; repetitions in the same class and type tell nothing new in a simulation."""
        key = (self._classes[row], column)
        if key not in self._seen:
            self._seen.add(key)
            self._estimator.observe(self._classes[row], self._types[column], steps_per_s)

    def probes(self, rows: Ints) -> list[tuple[int, int]]:
        """Return uncertain (row, type) pairs worth a round: one a class and type, smallest gangs first."""
        _, sigma = self.rates(rows)
        wanted: dict[tuple[JobClass, int], tuple[float, int, int]] = {}
        count: dict[JobClass, int] = {}
        for index, row in enumerate(rows.tolist()):
            kind = self._classes[row]
            count[kind] = count.get(kind, 0) + 1
            for column in np.flatnonzero(self._fits[row] & (sigma[index] > self._probe_above)).tolist():
                if (kind, column) not in self._seen:
                    wanted.setdefault((kind, column), (float(sigma[index, column]), row, column))
        ranked = sorted(wanted.items(), key=lambda item: (item[0][0].gang, -count[item[0][0]], -item[1][0], item[1][1]))
        return [(row, column) for _, (_, row, column) in ranked]
