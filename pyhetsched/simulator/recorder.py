"""Collects what happens in a simulated run."""

from __future__ import annotations

import numpy as np

from pyhetsched.policies.contract import Diagnostics, Floats, Ints
from pyhetsched.simulator.cluster import SimCluster
from pyhetsched.simulator.result import Run, Series
from pyhetsched.simulator.trace import Trace


class Recorder:
    """Grows while a machine runs; :meth:`run` gives the finished record."""

    def __init__(self, n_jobs: int, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._finish_s = np.full(n_jobs, np.nan)
        self._start_s = np.full(n_jobs, np.nan)
        self._busy_gpu_s = np.zeros(len(cluster.types))
        self._solve_ms: list[float] = []
        self._rungs: dict[str, int] = {}
        self._samples: list[tuple[float, int, int]] = []
        self._busy: list[Floats] = []
        self._kept = self._chances = self._preempted = 0

    def solved(self, told: Diagnostics) -> None:
        """Note one call of the policy."""
        self._solve_ms.append(told.solve_ms)
        rung = f"{told.policy}/{told.rung}"
        self._rungs[rung] = self._rungs.get(rung, 0) + 1

    def started(self, rows: Ints, now_s: float) -> None:
        """Note the first time of jobs on devices."""
        new = rows[np.isnan(self._start_s[rows])]
        self._start_s[new] = now_s

    def worked(self, rows: Ints, columns: Ints, gpu_s: Floats, now_s: float) -> None:
        """Note GPU time given to jobs."""
        self.started(rows, now_s)
        np.add.at(self._busy_gpu_s, columns, gpu_s)

    def finished(self, rows: Ints, at_s: Floats) -> None:
        """Note the end of jobs."""
        self._finish_s[rows] = at_s

    def moved(self, kept: int, chances: int, preempted: int) -> None:
        """Note how many jobs kept their devices, of how many that could, and how many stopped without being done."""
        self._kept += kept
        self._chances += chances
        self._preempted += preempted

    def sample(self, now_s: float, running: int, waiting: int, busy: Floats) -> None:
        """Note the state of the cluster at one moment; ``busy`` [J] devices in use."""
        self._samples.append((now_s, running, waiting))
        self._busy.append(busy)

    def run(
        self, trace: Trace, policy: str, rules: str, end_s: float, window: tuple[int, int] | None, wall_s: float
    ) -> Run:
        """Return the record of the finished run."""
        samples = np.array(self._samples, dtype=np.float64).reshape(-1, 3)
        busy = np.array(self._busy, dtype=np.float64).reshape(-1, len(self._cluster.types))
        series = Series(samples[:, 0], samples[:, 1].astype(np.int64), samples[:, 2].astype(np.int64), busy)
        return Run(
            trace=trace,
            policy=policy,
            rules=rules,
            type_names=self._cluster.names,
            counts=self._cluster.counts,
            prices=tuple(gpu_type.usd_per_gpu_h for gpu_type in self._cluster.types),
            finish_s=self._finish_s,
            start_s=self._start_s,
            end_s=float(end_s),
            busy_gpu_s=self._busy_gpu_s,
            series=series,
            solve_ms=tuple(self._solve_ms),
            rungs=dict(self._rungs),
            kept=self._kept,
            chances=self._chances,
            preemptions=self._preempted,
            window=window,
            wall_s=wall_s,
        )
