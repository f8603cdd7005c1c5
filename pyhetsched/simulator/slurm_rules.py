"""A simulated Slurm: jobs arrive at any time, run until they end, and are preempted only if they opted in.

Between two plans jobs start as Slurm's backfill would start them: in the order of the last plan, on the type
it wants, newcomers behind those that were there, and idle devices to whoever can use them. A plan is made every
``plan_s`` while jobs wait (live, a round is 30 s; a simulated month needs no more than one every few minutes). Restarts
cost ``restart_s``, starts ``prolog_s``, slices ``slice_s`` on top.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pyhetsched.errors import DataError
from pyhetsched.mig.profiles import GpuModel
from pyhetsched.placement.rounds import start_order
from pyhetsched.policies.contract import NO_TYPE, Allocation, ClusterState, GpuType, Ints
from pyhetsched.policies.registry import OptionValue, SolverCache, allocate
from pyhetsched.simulator.beliefs import Beliefs, Known
from pyhetsched.simulator.cluster import SimCluster
from pyhetsched.simulator.pools import Pool, SlicedGpus, WholeGpus
from pyhetsched.simulator.recorder import Recorder
from pyhetsched.simulator.result import Run
from pyhetsched.simulator.trace import Trace

# Slices are counted in the shards of a seven-slice GPU on every type, so that one number serves all types.
SHARDS = 31


@dataclass(frozen=True, slots=True)
class SlurmRules:
    """Times in s, and ``depth``: how many waiting jobs a pass looks at (Slurm's bf_max_job_test)."""

    plan_s: float = 300.0
    prolog_s: float = 5.0
    slice_s: float = 3.0
    restart_s: float = 60.0
    depth: int = 200
    round_s: float = 360.0


def simulate_slurm(
    trace: Trace,
    cluster: SimCluster,
    policy: str,
    options: Mapping[str, OptionValue] | None = None,
    window: tuple[int, int] | None = None,
    rules: SlurmRules | None = None,
    beliefs: Beliefs | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Run ``policy`` on ``trace`` under Slurm's rules; arguments as of ``simulate_gavel``."""
    machine = _Slurm(trace.on_types(cluster.names), cluster, policy, dict(options or {}), rules or SlurmRules())
    machine.beliefs = beliefs or machine.beliefs
    return machine.run(window, progress)


class _Slurm:
    """State of one run; rows are rows of the trace, columns types of the cluster."""

    def __init__(
        self, trace: Trace, cluster: SimCluster, policy: str, options: dict[str, OptionValue], rules: SlurmRules
    ) -> None:
        n_jobs = len(trace)
        self.trace, self.cluster, self.policy, self.options, self.rules = trace, cluster, policy, options, rules
        self.beliefs: Beliefs = Known(trace)
        self.pools: list[Pool] = [
            SlicedGpus(gpu_type.count, model) if model else WholeGpus([len(s.devices) for s in servers])
            for gpu_type, model, servers in zip(cluster.types, _models(cluster), cluster.servers, strict=True)
        ]
        self.policy_types = tuple(
            GpuType(t.name, t.count * SHARDS, t.usd_per_gpu_h / SHARDS) if model else t
            for t, model in zip(cluster.types, _models(cluster), strict=True)
        )
        self.needs = np.repeat(trace.gang[:, None], len(self.pools), axis=1)
        self.size, self.usable = self._shapes()
        self.remaining = trace.total_steps.copy()
        self.on = np.full(n_jobs, NO_TYPE, dtype=np.int64)
        self.since_s = np.zeros(n_jobs)
        self.overhead_s = np.zeros(n_jobs)
        self.run_s = np.zeros(n_jobs)
        self.starts = np.zeros(n_jobs, dtype=np.int64)
        self.held: dict[int, object] = {}
        self.waiting: dict[int, None] = {}
        self.wanted = np.full(n_jobs, NO_TYPE, dtype=np.int64)
        self.backfill = True
        self.events: list[tuple[float, int, int]] = []
        self.account_gpus: dict[str, int] = {}
        self.now_s = self.planned_s = self.sampled_s = 0.0
        self.changed = False
        self.cache = SolverCache()
        self.record = Recorder(n_jobs, cluster)

    def _shapes(self) -> tuple[Ints, np.ndarray]:
        """Return size [n] in the unit of the policy and usable [n, J] after partitions, limits and geometry."""
        trace, names = self.trace, self.cluster.names
        size = trace.gang.copy()
        usable = trace.throughput > 0
        profile_of = np.array(trace.profile, dtype=object)
        for column, pool in enumerate(self.pools):
            if not isinstance(pool, SlicedGpus):
                usable[:, column] &= (profile_of == "") & (trace.gang <= pool.total)
                continue
            usable[:, column] &= profile_of != ""
            for profile in set(trace.profile) - {""}:
                members, weight = profile_of == profile, pool.weight(profile)
                if weight is None:
                    usable[members, column] = False
                    continue
                self.needs[members, column] = weight
                size[members] = round(weight * SHARDS / pool.shards_per_gpu)
        for name in set(trace.partition):
            allowed = np.array([t in self.cluster.partition(name).types for t in names])
            members = np.array([partition == name for partition in trace.partition])
            usable[members] &= allowed
        lost = ~usable.any(axis=1)
        if lost.any():
            row = int(lost.argmax())
            raise DataError(
                f"{trace.source}: job {int(trace.job_ids[row])} (partition {trace.partition[row] or 'default'}, "
                f"{trace.profile[row] or str(int(trace.gang[row])) + ' GPUs'}) can run nowhere on this cluster"
            )
        return size, usable

    def run(self, window: tuple[int, int] | None, progress: Callable[[int, int], None] | None) -> Run:
        """Play events until the jobs of the window (default: all) are done."""
        started = time.perf_counter()
        first, last = window or (0, len(self.trace))
        last = min(last, len(self.trace))
        left, arrived, n_jobs = last - first, 0, len(self.trace)
        arrival = self.trace.arrival_s.tolist()
        while left > 0:
            next_arrival = arrival[arrived] if arrived < n_jobs else float("inf")
            next_event = self.events[0][0] if self.events else float("inf")
            next_plan = self.planned_s + self.rules.plan_s if self.waiting and self.changed else float("inf")
            self.now_s = max(self.now_s, min(next_arrival, next_event, next_plan))
            if self.now_s == float("inf"):
                raise DataError(f"{self.trace.source}: {len(self.waiting)} jobs wait for what the limits never allow")
            while arrived < n_jobs and arrival[arrived] <= self.now_s:
                self.waiting[arrived] = None
                arrived += 1
                self.changed = True
            for row in self._ended():
                left -= first <= row < last
                if progress is not None:
                    progress(last - first - left, last - first)
            self._start_waiting()
            if self.now_s >= self.sampled_s + self.rules.plan_s:
                self._sample()
            if self.waiting and self.changed and self.now_s >= self.planned_s + self.rules.plan_s:
                self._plan()
        wall_s = time.perf_counter() - started
        return self.record.run(self.trace, self.policy, "slurm", self.now_s, window, wall_s)

    def _ended(self) -> list[int]:
        ended = []
        while self.events and self.events[0][0] <= self.now_s:
            at_s, row, start = heapq.heappop(self.events)
            if start != self.starts[row] or self.on[row] == NO_TYPE:
                continue
            column = int(self.on[row])
            self._stop(row, at_s)
            self.record.finished(np.array([row]), np.array([at_s]))
            self.beliefs.observe(row, column, float(self.trace.throughput[row, column]))
            self.changed = True
            ended.append(row)
        return ended

    def _stop(self, row: int, at_s: float) -> None:
        """Take a job off its devices and account for what it did."""
        column = int(self.on[row])
        ran_s = at_s - self.since_s[row]
        self.run_s[row] += ran_s
        worked_s = max(ran_s - self.overhead_s[row], 0.0)
        self.remaining[row] = max(self.remaining[row] - worked_s * self.trace.throughput[row, column], 0.0)
        self.pools[column].give_back(self.held.pop(row))
        self.on[row] = NO_TYPE
        self._count(row, -1)
        gpus = self._gpus(row, column)
        self.record.worked(np.array([row]), np.array([column]), np.array([ran_s * gpus]), self.since_s[row])

    def _gpus(self, row: int, column: int) -> float:
        pool = self.pools[column]
        if isinstance(pool, SlicedGpus):
            return (pool.weight(self.trace.profile[row]) or 0) / pool.shards_per_gpu
        return float(self.trace.gang[row])

    def _count(self, row: int, sign: int) -> None:
        if self.cluster.gpu_limits:
            for account in self.trace.account[row]:
                self.account_gpus[account] = self.account_gpus.get(account, 0) + sign * int(self.trace.gang[row])

    def _held_back(self, row: int) -> bool:
        """Tell whether an account limit keeps a job waiting."""
        gang = int(self.trace.gang[row])
        return any(
            self.account_gpus.get(account, 0) + gang > self.cluster.gpu_limits[account]
            for account in self.trace.account[row]
            if account in self.cluster.gpu_limits
        )

    def _start_waiting(self) -> None:
        """Walk the queue, first for the types that jobs want, then (if the plan allows) for any idle device."""
        if not self.waiting or not any(pool.free for pool in self.pools):
            return
        rows = np.fromiter(islice(self.waiting, self.rules.depth), dtype=np.int64)
        wish = self.wanted[rows]
        pinned = rows[wish != NO_TYPE]
        fits = self._free()[self.wanted[pinned]] >= self.needs[pinned, self.wanted[pinned]]
        for row in pinned[fits].tolist():
            self._try(row, int(self.wanted[row]))
        if self.backfill or (wish == NO_TYPE).any():
            self._start_anywhere(rows[self.on[rows] == NO_TYPE])

    def _free(self) -> Ints:
        return np.array([pool.free for pool in self.pools])

    def _start_anywhere(self, rows: Ints) -> None:
        """Start jobs on the fastest type with room, but not at under half the speed of the type they want.

        Nobody may preempt such a job later: a much slower type would cost it more than the wait it saves.
        """
        wish = self.wanted[rows]
        rates = np.where(self.usable[rows], self.beliefs.rates(rows)[0], 0.0)
        compared = np.where(wish == NO_TYPE, rates.max(axis=1), rates[np.arange(len(rows)), wish])
        least = 0.5 * compared if self.backfill else np.zeros(len(rows))
        allowed = (rates > 0) & (rates >= least[:, None])
        if not self.backfill:
            allowed &= (wish == NO_TYPE)[:, None]
        for index in np.flatnonzero((allowed & (self.needs[rows] <= self._free())).any(axis=1)).tolist():
            row = int(rows[index])
            room = np.where(allowed[index] & (self.needs[row] <= self._free()), rates[index], 0.0)
            if room.any():
                self._try(row, int(room.argmax()))

    def _try(self, row: int, column: int) -> None:
        if self.pools[column].free >= self.needs[row, column] and not self._held_back(row):
            self._start(row, column)

    def _start(self, row: int, column: int) -> None:
        held = self.pools[column].take(int(self.needs[row, column]), self.trace.profile[row])
        if held is None:
            return
        self.held[row] = held
        self.on[row], self.since_s[row] = column, self.now_s
        del self.waiting[row]
        rules = self.rules
        again_s = rules.restart_s if self.starts[row] else 0.0
        slice_s = rules.slice_s if self.trace.profile[row] else 0.0
        self.overhead_s[row] = rules.prolog_s + slice_s + again_s
        self.starts[row] += 1
        self._count(row, 1)
        run_s = self.overhead_s[row] + self.remaining[row] / self.trace.throughput[row, column]
        limit_s = min(self.trace.limit_s[row], self.cluster.partition(self.trace.partition[row]).max_time_s)
        end_s = self.now_s + min(run_s, max(limit_s - self.run_s[row], 0.0))
        heapq.heappush(self.events, (end_s, row, int(self.starts[row])))
        self.record.started(np.array([row]), self.now_s)

    def _sample(self) -> None:
        share = [1.0 - pool.free / pool.total for pool in self.pools]
        busy = np.array([part * t.count for part, t in zip(share, self.cluster.types, strict=True)])
        self.record.sample(self.now_s, len(self.held), len(self.waiting), busy)
        self.sampled_s = self.now_s

    def _plan(self) -> None:
        """Ask the policy, put the queue in its order, and requeue opted-in jobs that should make room."""
        running = np.flatnonzero(self.on != NO_TYPE)
        rows = np.sort(np.concatenate([running, np.array(list(self.waiting), dtype=np.int64)]))
        state = self._state(rows)
        answer = allocate(self.policy, state, self.options, cache=self.cache)
        self.record.solved(answer.diagnostics)
        self._reorder(answer, state, rows)
        self.planned_s, self.changed = self.now_s, False
        self._make_room(answer, rows)
        self._start_waiting()

    def _state(self, rows: Ints) -> ClusterState:
        rates, sigma = self.beliefs.rates(rows)
        ran_s = np.where(self.on[rows] >= 0, self.now_s - self.since_s[rows] - self.overhead_s[rows], 0.0)
        true = self.trace.throughput[rows, np.maximum(self.on[rows], 0)]
        remaining = np.maximum(self.remaining[rows] - np.maximum(ran_s, 0.0) * true, 1e-9)
        age_s = self.now_s - self.trace.arrival_s[rows]
        return ClusterState.from_arrays(
            self.policy_types,
            np.where(self.usable[rows], rates, 0.0),
            self.size[rows],
            remaining,
            job_ids=self.trace.job_ids[rows],
            total=self.trace.total_steps[rows],
            weight=self.trace.weight[rows],
            age_s=age_s,
            waited_s=np.maximum(age_s - self.run_s[rows] - np.maximum(ran_s, 0.0), 0.0),
            sigma=sigma,
            deadline_s=self.trace.deadline_s[rows] - age_s,
            running_on=self.on[rows],
            movable=(self.on[rows] == NO_TYPE) | self.trace.preemptible[rows],
            accounts=tuple(self.trace.account[row] for row in rows.tolist()),
            now_s=self.now_s,
        )

    def _reorder(self, answer: Allocation, state: ClusterState, rows: Ints) -> None:
        if answer.order is not None and answer.wanted is not None:
            order, wanted, self.backfill = answer.order, answer.wanted, answer.backfill
        else:
            order, wanted = start_order(answer.time_shares(), state.usable)
            self.backfill = True
        self.wanted[rows] = wanted
        ranked = [row for row in rows[order].tolist() if row in self.waiting]
        rest = [row for row in self.waiting if row not in set(ranked)]
        self.waiting = dict.fromkeys([*ranked, *rest])

    def _make_room(self, answer: Allocation, rows: Ints) -> None:
        """Requeue running jobs that opted in and to which the plan gives nothing, where a waiting job should run."""
        given = answer.time_shares()
        short = np.zeros(len(self.pools))
        for index, row in enumerate(rows.tolist()):
            if row in self.waiting and given[index].max() >= 0.999:
                short[int(given[index].argmax())] += self.size[row]
        for index in reversed(range(len(rows))):
            row = int(rows[index])
            column = int(self.on[row])
            if column == NO_TYPE or not self.trace.preemptible[row] or given[index, column] > 0:
                continue
            if short[column] > self.pools[column].free:
                self._stop(row, self.now_s)
                self.waiting[row] = None
                self.record.moved(0, 0, 1)


def _models(cluster: SimCluster) -> tuple[GpuModel | None, ...]:
    return cluster.models or (None,) * len(cluster.types)
