"""What a simulated run leaves behind, and the figures made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pyhetsched.policies.contract import Floats, Ints
from pyhetsched.simulator.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The cluster over time, one sample a step: [S] times, jobs running and waiting, [S, J] devices busy."""

    time_s: Floats
    running: Ints
    waiting: Ints
    busy: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One finished simulation.

    ``finish_s`` [n] is nan for jobs that had not ended when the run did, ``failed`` those that never can;
    ``start_s`` [n] first time on a device; ``busy_gpu_s`` [J]; ``solve_ms`` wall time of each call
    of the policy; ``rungs`` how often each rung of its ladder answered; ``kept`` of ``chances``
    (job, round) pairs held the same devices again; ``preemptions`` how often a running job lost its devices.
    """

    trace: Trace
    policy: str
    rules: str
    type_names: tuple[str, ...]
    counts: tuple[int, ...]
    prices: tuple[float, ...]
    finish_s: Floats
    start_s: Floats
    end_s: float
    busy_gpu_s: Floats
    series: Series
    solve_ms: Sequence[float]
    rungs: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    chances: int = 0
    preemptions: int = 0
    window: tuple[int, int] | None = None
    wall_s: float = 0.0
    failed: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def rows(self) -> Ints:
        """Return the rows of the jobs that figures are about: the window, and of it those that ended."""
        first, last = self.window or (0, len(self.trace))
        rows = np.arange(first, min(last, len(self.trace)))
        return rows[np.isfinite(self.finish_s[rows])]

    def jct_s(self) -> Floats:
        """Return finish minus arrival, s, of :meth:`rows`."""
        rows = self.rows()
        seconds: Floats = self.finish_s[rows] - self.trace.arrival_s[rows]
        return seconds

    def isolated_s(self) -> Floats:
        """Return T_isolated, s, of :meth:`rows`; see :func:`isolated_times_s`."""
        return isolated_times_s(self.trace, self.finish_s, self.counts, self.rows())

    def rho(self) -> Floats:
        """Return finish-time fairness, JCT / T_isolated (Themis, NSDI'20; Gavel, OSDI'20 section 4.2)."""
        ratio: Floats = self.jct_s() / self.isolated_s()
        return ratio


def isolated_times_s(trace: Trace, finish_s: Floats, counts: Sequence[int], rows: Ints) -> Floats:
    """Return the time each job would have needed on its 1/N(t) part of every type, s.

    x_mj = N_j / (N(t) g_m), row sum at most 1, N(t) jobs in the system in that very run. With
    S_m = sum_j T_mj N_j and G = sum_j N_j the rate is S_m / max(N(t) g_m, G), so one integral per gang size serves
    all its jobs. After the run the last N(t) holds on.
    """
    ended = np.isfinite(finish_s)
    times = np.concatenate([trace.arrival_s, finish_s[ended]])
    steps = np.concatenate([np.ones(len(trace), dtype=np.int64), -np.ones(int(ended.sum()), dtype=np.int64)])
    order = np.argsort(times, kind="stable")
    times, in_system = times[order], np.maximum(np.cumsum(steps[order]), 1)
    total = float(sum(counts))
    speed = trace.throughput @ np.asarray(counts, dtype=np.float64)
    needed = np.empty(len(rows))
    for size in np.unique(trace.gang[rows]):
        rate = 1.0 / np.maximum(in_system * size, total)
        grown = np.concatenate([[0.0], np.cumsum(np.diff(times) * rate[:-1])])
        mine = np.flatnonzero(trace.gang[rows] == size)
        job = rows[mine]
        goal = np.interp(trace.arrival_s[job], times, grown) + trace.total_steps[job] / speed[job]
        inside = np.interp(goal, grown, times)
        beyond = times[-1] + (goal - grown[-1]) / rate[-1]
        needed[mine] = np.where(goal <= grown[-1], inside, beyond) - trace.arrival_s[job]
    return needed


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else float("nan")


def summary(run: Run) -> dict[str, float | int | str | dict[str, float]]:
    """Return the figures of a run; hours, USD and ratios as the names say.

    utilisation: GPU time spent on jobs / GPU time there was until the end of the run; rho as in :meth:`Run.rho`.
    """
    jct_h = run.jct_s() / 3600.0
    rho = run.rho() if len(jct_h) else np.empty(0)
    there_s = np.asarray(run.counts, dtype=np.float64) * max(run.end_s, 1e-9)
    cost = float((run.busy_gpu_s / 3600.0) @ np.asarray(run.prices))
    solve = np.asarray(run.solve_ms, dtype=np.float64)
    return {
        "policy": run.policy,
        "rules": run.rules,
        "jobs": len(jct_h),
        "unfinished": int((~np.isfinite(run.finish_s)).sum()),
        "avg_jct_h": float(jct_h.mean()) if len(jct_h) else float("nan"),
        "p50_jct_h": _percentile(jct_h, 50),
        "p95_jct_h": _percentile(jct_h, 95),
        "p99_jct_h": _percentile(jct_h, 99),
        "max_jct_h": float(jct_h.max()) if len(jct_h) else float("nan"),
        "makespan_h": run.end_s / 3600.0,
        "utilisation": float(run.busy_gpu_s.sum() / there_s.sum()),
        "utilisation_by_type": {
            name: float(busy / there) for name, busy, there in zip(run.type_names, run.busy_gpu_s, there_s, strict=True)
        },
        "cost_usd": cost,
        "avg_rho": float(rho.mean()) if len(rho) else float("nan"),
        "p95_rho": _percentile(rho, 95),
        "max_rho": float(rho.max()) if len(rho) else float("nan"),
        "share_rho_over_1": float((rho > 1.0).mean()) if len(rho) else float("nan"),
        "kept_devices_share": run.kept / run.chances if run.chances else float("nan"),
        "preemptions": run.preemptions,
        "solves": len(solve),
        "solve_ms_median": _percentile(solve, 50),
        "solve_ms_max": float(solve.max()) if len(solve) else float("nan"),
        "rungs": {name: float(times) for name, times in run.rungs.items()},
        "wall_s": run.wall_s,
    }
