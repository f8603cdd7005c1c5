"""Gavel's simulated machine: rounds, free preemption, rate-limited reallocation.

Rules as in stanford-futuredata/gavel at c4fa400, ``scheduler/scheduler.py`` (simulate and what it calls): rounds of
360 s in which a device serves one job or one pair; floor(rate * 360) steps in a round, or what is left; a
round ends when its last job has done its steps; arrivals are seen at the end of rounds; shares are
recomputed when jobs came or went, but not within 1920 s of the last time; moving a job costs nothing.

Two things are our own. Utilisation counts time on a job only (the original counts a gap
without jobs as busy). And a policy that ranks (Allocation.order) is followed by
:mod:`pyhetsched.placement.backfill` between two calls: idle devices go to newcomers and to jobs that gain by moving.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pyhetsched.errors import DataError
from pyhetsched.placement.backfill import Board, relative_speed
from pyhetsched.placement.devices import assign_devices, kept
from pyhetsched.placement.rounds import Gangs, choose_by_order, choose_by_priority, share_priority
from pyhetsched.policies.contract import NO_TYPE, Allocation, ClusterState, Floats, Ints, PairTable
from pyhetsched.policies.reference import isolated_shares, throughput_of
from pyhetsched.policies.registry import OptionValue, SolverCache, allocate
from pyhetsched.simulator.beliefs import Beliefs, Known
from pyhetsched.simulator.cluster import SimCluster
from pyhetsched.simulator.recorder import Recorder
from pyhetsched.simulator.result import Run
from pyhetsched.simulator.trace import Trace

# Gavel's policies that do not know speeds visit the types in random order (seed + 5).
_AGNOSTIC = frozenset({"fifo", "isolated", "max_min_fairness", "finish_time_fairness", "min_total_duration"})


@dataclass(frozen=True, slots=True)
class GavelRules:
    """Constants of the machine: s of a round, least s between allocations, random seed, and the most of each
    type that may be used for a round to measure unknown throughputs."""

    round_s: float = 360.0
    reallocate_s: float = 1920.0
    seed: int = 0
    shuffle_types: bool | None = None
    probe_share: float = 1.0


def simulate_gavel(
    trace: Trace,
    cluster: SimCluster,
    policy: str,
    options: Mapping[str, OptionValue] | None = None,
    window: tuple[int, int] | None = None,
    rules: GavelRules | None = None,
    beliefs: Beliefs | None = None,
    pairs: PairTable | None = None,
    pair_class: Ints | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Run ``policy`` on ``trace`` under Gavel's rules.

    ``window`` (first, last): rows whose figures count; the run ends when they are done. ``pairs`` and ``pair_class``
    [n] let policies share GPUs. ``progress`` is told (jobs done, jobs to do).
    """
    machine = _Machine(trace.on_types(cluster.names), cluster, policy, dict(options or {}), rules or GavelRules())
    machine.beliefs = beliefs or machine.beliefs
    machine.pairs, machine.pair_class = pairs, pair_class
    return machine.run(window, progress)


class _Machine:
    """State of one run; rows are rows of the trace."""

    def __init__(
        self, trace: Trace, cluster: SimCluster, policy: str, options: dict[str, OptionValue], rules: GavelRules
    ) -> None:
        n_jobs, n_types = len(trace), len(cluster.types)
        self.trace, self.cluster, self.policy, self.options, self.rules = trace, cluster, policy, options, rules
        self.beliefs: Beliefs = Known(trace)
        self.pairs: PairTable | None = None
        self.pair_class: Ints | None = None
        self.remaining = trace.total_steps.copy()
        self.active = np.empty(0, dtype=np.int64)
        self.arrived = 0
        self.now_s = 0.0
        self.last_reset_s = 0.0
        self.stale = False
        self.allocation: Allocation | None = None
        self.shares = np.zeros((n_jobs, n_types))
        self.in_allocation = np.zeros(n_jobs, dtype=bool)
        self.order: list[int] = []
        self.wanted = np.full(n_jobs, -1, dtype=np.int64)
        self.received_s = np.zeros((n_jobs, n_types))
        self.deficit_s = np.zeros((n_jobs, n_types))
        self.handed_out_s = np.zeros(n_types)
        self.isolated_rate = np.zeros(n_jobs)
        self.isolated_used_s = np.zeros(n_jobs)
        self.steps_at_reset = trace.total_steps.copy()
        self.held: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.holding = np.full(n_jobs, -1, dtype=np.int64)
        self.cache = SolverCache()
        self.record = Recorder(n_jobs, cluster)
        self.shuffler = random.Random(rules.seed + 5)
        self.shuffle = rules.shuffle_types if rules.shuffle_types is not None else policy in _AGNOSTIC
        self._check_runnable()

    def _check_runnable(self) -> None:
        counts = np.asarray(self.cluster.counts)
        usable = (self.trace.throughput * self.rules.round_s >= 1) & (self.trace.gang[:, None] <= counts)
        if not usable.any(axis=1).all():
            row = int((~usable.any(axis=1)).argmax())
            raise DataError(
                f"{self.trace.source}: job {int(self.trace.job_ids[row])} ({int(self.trace.gang[row])} GPUs) "
                f"can run on no type of this cluster; leave it out or give a larger cluster"
            )
        self.usable = usable

    def run(self, window: tuple[int, int] | None, progress: Callable[[int, int], None] | None) -> Run:
        """Play rounds until the jobs of the window (default: all) are done."""
        started = time.perf_counter()
        awaited = np.zeros(len(self.trace), dtype=bool)
        awaited[slice(*(window or (0, len(self.trace))))] = True
        to_do = left = int(awaited.sum())
        while left:
            self._admit()
            if not len(self.active):
                # Gavel forgets the last reset when nobody is left, so that the next job need not wait.
                self.now_s = float(self.trace.arrival_s[self.arrived])
                continue
            ended = self._round()
            left -= int(awaited[ended].sum())
            if progress is not None and len(ended):
                progress(to_do - left, to_do)
        return self.record.run(
            self.trace, self.policy, "gavel", self.now_s, window, time.perf_counter() - started
        )

    def _admit(self) -> None:
        last = int(np.searchsorted(self.trace.arrival_s, self.now_s, side="right"))
        if last > self.arrived:
            new = np.arange(self.arrived, last)
            self.received_s[new] = self.rules.round_s / 2.0
            self.active = np.concatenate([self.active, new])
            self.arrived = last
            self.stale = True

    def _round(self) -> Ints:
        if self.stale and (self.now_s - self.last_reset_s >= self.rules.reallocate_s or self.last_reset_s == 0.0):
            self._reallocate()
        gangs, partners = self._choose()
        round_s, ended = self._execute(gangs, partners)
        waiting = len(self.active) - len(gangs.rows)
        busy = np.bincount(gangs.columns, weights=self.trace.gang[gangs.rows], minlength=len(self.cluster.types))
        self.record.sample(self.now_s, len(gangs.rows), waiting, busy.astype(np.float64))
        self.now_s += round_s
        if len(ended):
            self.active = self.active[~np.isin(self.active, ended)]
            self.stale = True
        return ended

    def _state(self) -> ClusterState:
        rows = self.active
        rates, sigma = self.beliefs.rates(rows)
        done = self.steps_at_reset[rows] - self.remaining[rows]
        before = self.isolated_rate[rows]
        self.isolated_used_s[rows] += np.divide(done, before, out=np.zeros(len(rows)), where=before > 0)
        self.steps_at_reset[rows] = self.remaining[rows]
        kwargs = {} if self.pair_class is None else {"job_class": self.pair_class[rows], "pairs": self.pairs}
        state = ClusterState.from_arrays(
            self.cluster.types,
            rates,
            self.trace.gang[rows],
            self.remaining[rows],
            job_ids=self.trace.job_ids[rows],
            total=self.trace.total_steps[rows],
            weight=self.trace.weight[rows],
            age_s=self.now_s - self.trace.arrival_s[rows],
            sigma=sigma,
            deadline_s=self.trace.arrival_s[rows] + self.trace.deadline_s[rows] - self.now_s,
            isolated_used_s=self.isolated_used_s[rows],
            running_on=self.holding[rows],
            accounts=tuple(self.trace.account[row] for row in rows.tolist()),
            now_s=self.now_s,
            **kwargs,
        )
        self.isolated_rate[rows] = throughput_of(isolated_shares(state), rates)
        return state

    def _reallocate(self) -> None:
        elapsed_s, half = self.now_s - self.last_reset_s, self.rules.round_s / 2.0
        rows = self.active
        self.deficit_s[rows] += self.shares[rows] * elapsed_s - (self.received_s[rows] - half)
        self.received_s[rows] = half
        self.handed_out_s[:] = half * len(rows)
        self.last_reset_s = self.now_s
        answer = allocate(self.policy, self._state(), self.options, cache=self.cache)
        self.record.solved(answer.diagnostics)
        self.allocation, self.stale = answer, False
        self.shares[:] = 0.0
        self.shares[rows] = answer.shares
        self.in_allocation[:] = False
        self.in_allocation[rows] = True
        # What a policy promised counts as held: a job may run elsewhere for a round, on a device left idle.
        whole = answer.shares.max(axis=1, initial=0.0) > 0.999
        self.holding[rows] = np.where(whole, answer.shares.argmax(axis=1), NO_TYPE)
        self.pair_rows = self._pair_rows(answer, rows)
        if answer.order is not None and answer.wanted is not None:
            self.order = rows[answer.order].tolist()
            self.wanted[rows] = answer.wanted

    def _pair_rows(self, answer: Allocation, rows: Ints) -> tuple[Ints, Ints, Floats] | None:
        if answer.pairs is None or not len(answer.pairs.a):
            self.pair_received_s: Floats = np.zeros((0, len(self.cluster.types)))
            return None
        self.pair_received_s = np.full(answer.pairs.shares.shape, self.rules.round_s / 2.0)
        self.handed_out_s += self.pair_received_s.sum(axis=0)
        return rows[answer.pairs.a], rows[answer.pairs.b], answer.pairs.shares

    def _choose(self) -> tuple[Gangs, dict[int, int]]:
        """Return the gangs of the next round (rows of the trace) and the guests that share their devices."""
        assert self.allocation is not None
        # Gavel gives idle devices to anybody at priority 0, except under its FIFO policies.
        if self.allocation.backfill or (self.allocation.order is not None and self.policy.startswith("fifo")):
            return self._follow(self.allocation.backfill), {}
        type_order = list(range(len(self.cluster.types)))
        if self.shuffle:
            self.shuffler.shuffle(type_order)
        rows = self.active
        shares, usable, gang = self.shares[rows], self.usable[rows], self.trace.gang[rows]
        received, deficit = self.received_s[rows], self.deficit_s[rows]
        if self.pair_rows is not None:
            return self._choose_pairs(type_order)
        priority = share_priority(shares, received, self.handed_out_s, usable)
        index = {row: k for k, row in enumerate(rows.tolist())}
        for row, column in self._probes():
            priority[index[row], column] = np.inf
        picked = choose_by_priority(priority, deficit, shares, usable, gang, self.cluster.counts, type_order)
        chosen = rows[picked.rows]
        # Newcomers hold the devices they were picked for only once an allocation knows them.
        known = self.in_allocation[chosen]
        return Gangs(chosen[known], picked.columns[known]), {}

    def _choose_pairs(self, type_order: list[int]) -> tuple[Gangs, dict[int, int]]:
        """As :meth:`_choose`, where two jobs may hold the same devices: pairs stand in the queue like jobs."""
        assert self.pair_rows is not None
        a, b, pair_shares = self.pair_rows
        alive = np.isin(a, self.active) & np.isin(b, self.active)
        singles = self.active[self.in_allocation[self.active]]
        shares = np.concatenate([self.shares[singles], pair_shares[alive]])
        received = np.concatenate([self.received_s[singles], self.pair_received_s[alive]])
        usable = np.concatenate([self.usable[singles], pair_shares[alive] > 0])
        priority = share_priority(shares, received, self.handed_out_s, usable)
        host = np.concatenate([singles, a[alive]])
        guest = np.concatenate([np.full(len(singles), -1), b[alive]])
        left, used, rows, columns, guests = list(self.cluster.counts), set(), [], [], {}
        for column in type_order:
            ranking = np.lexsort((-shares[:, column], -priority[:, column]))
            for entry in ranking[usable[ranking, column]].tolist():
                one, two = int(host[entry]), int(guest[entry])
                size = int(self.trace.gang[one])
                if one in used or two in used or size > left[column]:
                    continue
                left[column] -= size
                used.update({one, two} - {-1})
                rows.append(one)
                columns.append(column)
                if two >= 0:
                    guests[one] = two
                if left[column] == 0:
                    break
        return Gangs(np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)), guests

    def _follow(self, backfill: bool) -> Gangs:
        here = set(self.active.tolist())
        order = [row for row in self.order if row in here]
        counts = self.cluster.counts
        wanted = self.wanted.tolist()
        probes = self._probes()
        if probes:
            measured = dict(probes)
            order = [*measured, *(row for row in order if row not in measured)]
            for row, column in probes:
                wanted[row] = column
        picked = choose_by_order(order, wanted, self.usable, self.trace.gang.tolist(), counts)
        if not backfill:
            return picked
        gang = self.trace.gang.tolist()
        speed = np.zeros_like(self.shares)
        speed[self.active] = relative_speed(self.beliefs.rates(self.active)[0]) * self.usable[self.active]
        board = Board(picked, speed, gang, counts)
        known = set(order)
        board.admit([row for row in self.active.tolist() if row not in known])
        board.admit(order)
        board.upgrade()
        return board.gangs()

    def _probes(self) -> list[tuple[int, int]]:
        """Return jobs that run this round to be measured: each job once."""
        left = [int(count * self.rules.probe_share) for count in self.cluster.counts]
        chosen: dict[int, int] = {}
        for row, column in self.beliefs.probes(self.active):
            size = int(self.trace.gang[row])
            if row not in chosen and self.usable[row, column] and size <= left[column]:
                chosen[row] = column
                left[column] -= size
        if chosen:
            # What is measured now should be planned with as soon as the rules allow.
            self.stale = True
        return list(chosen.items())

    def _execute(self, gangs: Gangs, guests: dict[int, int]) -> tuple[float, Ints]:
        """Let the gangs run for a round; return its length, s, and the rows that ended."""
        rows, columns = gangs.rows, gangs.columns
        rate = self.trace.throughput[rows, columns]
        if not guests:
            spent_s = self._advance(rows, columns, rate)
        else:
            spent_s = self._advance_pairs(rows, columns, rate, guests)
        round_s = float(spent_s.max(initial=0.0)) or self.rules.round_s
        self.received_s[rows, columns] += spent_s
        np.add.at(self.handed_out_s, columns, spent_s)
        self.record.worked(rows, columns, spent_s * self.trace.gang[rows], self.now_s)
        self._place(gangs)
        everyone = np.concatenate([rows, np.array(list(guests.values()), dtype=np.int64)])
        return round_s, everyone[self.remaining[everyone] <= 0]

    def _advance(self, rows: Ints, columns: Ints, rate: Floats) -> Floats:
        steps = np.minimum(np.floor(rate * self.rules.round_s), self.remaining[rows])
        spent_s: Floats = steps / rate
        self.remaining[rows] -= steps
        done = self.remaining[rows] <= 0
        self.record.finished(rows[done], self.now_s + spent_s[done])
        for row, column, seen in zip(rows.tolist(), columns.tolist(), rate.tolist(), strict=True):
            self.beliefs.observe(row, column, seen)
        return spent_s

    def _advance_pairs(self, rows: Ints, columns: Ints, rate: Floats, guests: dict[int, int]) -> Floats:
        assert self.pairs is not None
        assert self.pair_class is not None
        assert self.pair_rows is not None
        number = {(int(a), int(b)): k for k, (a, b) in enumerate(zip(*self.pair_rows[:2], strict=True))}
        spent = np.empty(len(rows))
        for index, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
            guest = guests.get(row)
            if guest is None:
                one = slice(index, index + 1)
                spent[index] = self._advance(rows[one], columns[one], rate[one])[0]
                continue
            one, two = self.pair_class[row], self.pair_class[guest]
            shared = np.array([self.pairs.rates[column, one, two], self.pairs.rates[column, two, one]])
            both = np.array([row, guest])
            spent[index] = self._advance(both, np.array([column, column]), shared).max()
            self.pair_received_s[number[row, guest], column] += spent[index]
            self.received_s[row, column] -= spent[index]
            self.record.started(np.array([guest]), self.now_s)
        return spent

    def _place(self, gangs: Gangs) -> None:
        """Give the gangs devices, and count who could keep theirs."""
        held = assign_devices(gangs, self.trace.gang.tolist(), range(len(self.trace)), self.cluster.servers, self.held)
        alive = [row for row in self.held if self.remaining[row] > 0 or row in held]
        self.record.moved(kept(self.held, held), len(alive), sum(1 for row in alive if row not in held))
        self.held = held
