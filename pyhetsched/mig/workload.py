"""A small event simulator of slice jobs on MIG nodes, to compare ways of keeping them off holes.

It holds what matters for that question and no more: jobs arrive, Slurm tries the queue in order, picks node
and GPU by its rules and counts shards; the start position is chosen when the job has been allocated; a job
without a legal start is handed back, and tried again two seconds later. Several jobs may start in one pass,
and the nodes to avoid are those computed before the pass. The planner to compare with may choose the GPU
freely and starts, at each event, a set of jobs that uses most compute slices.
"""

from __future__ import annotations

import bisect
import enum
import heapq
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyhetsched.mig.geometry import Counts, Space
from pyhetsched.mig.milp import IntegerProgram
from pyhetsched.mig.profiles import GpuModel
from pyhetsched.mig.steering import Gpus, NodeGpus, PendingSlices, PickRule, hole_at_pick, predictor_of, settle, steer

HAND_BACK_S = 2.0
"""Until a job that was handed back is tried again (requeue, then a start time of now)."""

SCHED_INTERVAL_S = 30.0
"""After a pass that started jobs, Slurm tries the queue again within this time (bf_interval)."""

BACK_OFF_S = 60.0
"""How long it then stays away from the node that had no place for it."""


_ARRIVAL, _END, _TRY_AGAIN = 0, 1, 2


class Way(enum.Enum):
    """A way of dealing with holes."""

    HAND_BACK = "hand back only"
    NEXT_START = "avoid nodes whose next pick is a hole"
    STEER = "leave nodes with room open to safe sets only"
    STEER_CLOSED = "leave any node open to safe sets only"
    STEER_LATE = "nodes with room, updated too late"
    STEER_CLOSED_LATE = "any node, updated too late"
    PIN = "pin each job to a GPU, in queue order"
    EXACT = "exact planner, free choice of GPU"


_STEERED = frozenset({Way.STEER, Way.STEER_CLOSED, Way.STEER_LATE, Way.STEER_CLOSED_LATE})


@dataclass(frozen=True, slots=True)
class SliceJob:
    """One job: arrival and duration in seconds, and the profile of its one slice."""

    job_id: int
    arrival_s: float
    duration_s: float
    profile: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did: allocations tried and handed back, jobs started, and compute-slice hours within the window."""

    allocations: int
    handed_back: int
    started: int
    slice_hours: float
    utilisation: float
    steered_updates: int

    @property
    def handed_back_share(self) -> float:
        """Handed back / allocations (0 without allocations)."""
        return self.handed_back / self.allocations if self.allocations else 0.0


def arrivals(
    model: GpuModel,
    mix: Mapping[str, float],
    gpus: int,
    horizon_s: float,
    rng: random.Random,
    load: float = 1.2,
    mean_duration_s: float = 3600.0,
    backlog_per_gpu: float = 2.0,
) -> tuple[SliceJob, ...]:
    """A saturating stream of jobs: ``load`` times what ``gpus`` could serve, plus a backlog at time 0.

    ``mix`` maps profile names to relative frequencies; arrivals are Poisson, durations log-normal (sigma 1).
    """
    names, shares = list(mix), list(mix.values())
    compute = sum(s * model.profile(n).compute_slices for n, s in mix.items()) / sum(shares)
    rate = load * gpus * model.total_compute_slices / (compute * mean_duration_s)
    times = [0.0] * int(backlog_per_gpu * gpus)
    now = rng.expovariate(rate)
    while now < horizon_s:
        times.append(now)
        now += rng.expovariate(rate)
    shift = 2.718281828**0.5
    return tuple(
        SliceJob(i, t, rng.lognormvariate(0.0, 1.0) * mean_duration_s / shift, rng.choices(names, shares)[0])
        for i, t in enumerate(times)
    )


def run(
    way: Way,
    model: GpuModel,
    jobs: Sequence[SliceJob],
    nodes: int,
    gpus_per_node: int,
    horizon_s: float,
    warm_up_s: float = 0.0,
    rule: PickRule = PickRule.FIRST_FIT,
) -> Outcome:
    """Serve ``jobs`` in one way; hours are counted from ``warm_up_s`` to ``horizon_s``."""
    cluster = _Cluster(model, nodes, gpus_per_node, rule, horizon_s, warm_up_s)
    return _Run(way, cluster, jobs).outcome()


class _Cluster:
    """GPUs in brief, what runs where, and what has been served."""

    def __init__(
        self, model: GpuModel, nodes: int, gpus: int, rule: PickRule, horizon_s: float, warm_up_s: float
    ) -> None:
        self.model = model
        self.predictor = predictor_of(model, rule)
        self.space: Space = self.predictor.space
        shards = self.predictor.weights.shards_per_gpu
        self.nodes: list[Gpus] = [((0, shards),) * gpus for _ in range(nodes)]
        self.names = [f"n{i}" for i in range(nodes)]
        self.instances: dict[tuple[int, int], dict[int, int]] = {}
        self.horizon_s = horizon_s
        self.warm_up_s = warm_up_s
        self.slice_s = 0.0

    def view(self) -> list[NodeGpus]:
        return [NodeGpus(n, self.model, g) for n, g in zip(self.names, self.nodes, strict=True)]

    def shape(self, job: SliceJob) -> tuple[int, int]:
        ask = self.predictor.ask((job.profile,))
        assert ask is not None, job.profile
        return ask.shapes[0], ask.shards

    def take(self, node: int, gpu: int, shards: int) -> None:
        """Count shards as Slurm does, negative to give them back."""
        gpus = self.nodes[node]
        state, free = gpus[gpu]
        self.nodes[node] = (*gpus[:gpu], (state, free - shards), *gpus[gpu + 1 :])

    def create(self, node: int, gpu: int, job: SliceJob, start: int, now_s: float) -> None:
        shape, shards = self.shape(job)
        self.instances.setdefault((node, gpu), {})[start] = shape
        self._refresh(node, gpu, -shards)
        begin, end = max(now_s, self.warm_up_s), min(now_s + job.duration_s, self.horizon_s)
        self.slice_s += max(0.0, end - begin) * self.space.geometry.shapes[shape].compute

    def destroy(self, node: int, gpu: int, job: SliceJob, start: int) -> None:
        del self.instances[node, gpu][start]
        self._refresh(node, gpu, self.shape(job)[1])

    def _refresh(self, node: int, gpu: int, freed: int) -> None:
        state = 0
        for start, shape in self.instances[node, gpu].items():
            state = self.space.put(state, shape, start)
        gpus = self.nodes[node]
        self.nodes[node] = (*gpus[:gpu], (state, gpus[gpu][1] + freed), *gpus[gpu + 1 :])

    def all_gpus(self) -> Iterator[tuple[int, int, int]]:
        for node, gpus in enumerate(self.nodes):
            for gpu, (state, _) in enumerate(gpus):
                yield node, gpu, state


class _Run:
    """One run: events in time order, and after each a pass over the queue."""

    def __init__(self, way: Way, cluster: _Cluster, jobs: Sequence[SliceJob]) -> None:
        self.way = way
        self.cluster = cluster
        self.jobs = {job.job_id: job for job in jobs}
        self.queue: list[int] = []
        self.events: list[tuple[float, int, int, tuple[int, int, int] | None]] = [
            (job.arrival_s, _ARRIVAL, job.job_id, None) for job in jobs
        ]
        heapq.heapify(self.events)
        self.allocations = self.handed_back = self.started = self.updates = 0
        self.backed_off: dict[tuple[int, int], float] = {}
        self.next_try_s = 0.0
        self.last_avoid: dict[int, frozenset[str]] = {}

    def outcome(self) -> Outcome:
        passes = {Way.PIN: self._pinned_pass, Way.EXACT: self._exact_pass}
        one_pass = passes.get(self.way, self._slurm_pass)
        while self.events and self.events[0][0] <= self.cluster.horizon_s:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, kind, job_id, place = heapq.heappop(self.events)
                if kind == _TRY_AGAIN:
                    self.next_try_s = 0.0
                elif place is None:
                    bisect.insort(self.queue, job_id)
                else:
                    self.cluster.destroy(place[0], place[1], self.jobs[job_id], place[2])
            before = self.started
            one_pass(now)
            if self.started > before and not self.next_try_s:
                self.next_try_s = now + SCHED_INTERVAL_S
                heapq.heappush(self.events, (self.next_try_s, _TRY_AGAIN, -1, None))
        cluster = self.cluster
        gpus = sum(len(g) for g in cluster.nodes)
        window = (cluster.horizon_s - cluster.warm_up_s) * gpus * cluster.model.total_compute_slices
        return Outcome(
            self.allocations,
            self.handed_back,
            self.started,
            cluster.slice_s / 3600.0,
            cluster.slice_s / window,
            self.updates,
        )

    def _begin(self, job: SliceJob, node: int, gpu: int, start: int, now: float) -> None:
        self.cluster.create(node, gpu, job, start, now)
        self.started += 1
        heapq.heappush(self.events, (now + job.duration_s, _END, job.job_id, (node, gpu, start)))

    def _avoided(self) -> dict[int, frozenset[str]]:
        """The nodes that each waiting job is kept away from, as computed before the pass."""
        cluster = self.cluster
        if self.way in (Way.STEER_LATE, Way.STEER_CLOSED_LATE) and self.last_avoid:
            known = self.last_avoid
            fresh = {i: n for i, n in self._steered().items() if i not in known}
            return {i: fresh.get(i, known.get(i, frozenset())) for i in self.queue}
        if self.way in _STEERED:
            return self._steered()
        if self.way is Way.NEXT_START:
            profiles = {self.jobs[i].profile for i in self.queue}
            by_profile = {
                p: frozenset(n.name for n in cluster.view() if hole_at_pick(n, (p,), cluster.predictor.rule))
                for p in profiles
            }
            return {i: by_profile[self.jobs[i].profile] for i in self.queue}
        return {}

    def _steered(self) -> dict[int, frozenset[str]]:
        cluster = self.cluster
        waiting = [PendingSlices(i, (self.jobs[i].profile,)) for i in self.queue]
        steering = steer(cluster.view(), waiting, cluster.predictor.rule)
        everywhere = dict.fromkeys(steering.avoid, frozenset(cluster.names))
        closed = self.way in (Way.STEER_CLOSED, Way.STEER_CLOSED_LATE)
        avoid = settle(self.last_avoid, steering, everywhere, closed)
        self.updates += sum(1 for i, nodes in avoid.items() if self.last_avoid.get(i, frozenset()) != nodes)
        self.last_avoid = avoid
        return avoid

    def _slurm_pass(self, now: float) -> None:
        avoid = self._avoided()
        cluster, hopeless, given_back = self.cluster, set[tuple[str, frozenset[str]]](), list[tuple[int, int, int]]()
        for job_id in tuple(self.queue):
            job, away = self.jobs[job_id], avoid.get(job_id, frozenset())
            if (job.profile, away) in hopeless:
                continue
            shape, shards = cluster.shape(job)
            found = self._allocate(job_id, shards, away, now)
            if found is None:
                if self.way is not Way.HAND_BACK or not self._is_backed_off(job_id, now):
                    hopeless.add((job.profile, away))
                continue
            node, gpu = found
            self.allocations += 1
            self.queue.remove(job_id)
            start = cluster.space.best_start(cluster.nodes[node][gpu][0], shape)
            if start is not None:
                self._begin(job, node, gpu, start, now)
                continue
            self.handed_back += 1
            cluster.take(node, gpu, shards)
            given_back.append((node, gpu, shards))
            self.backed_off[job_id, node] = now + BACK_OFF_S
            heapq.heappush(self.events, (now + HAND_BACK_S, _ARRIVAL, job_id, None))
        for node, gpu, shards in given_back:
            cluster.take(node, gpu, -shards)

    def _is_backed_off(self, job_id: int, now: float) -> bool:
        return any(self.backed_off.get((job_id, n), 0.0) > now for n in range(len(self.cluster.nodes)))

    def _allocate(self, job_id: int, shards: int, away: frozenset[str], now: float) -> tuple[int, int] | None:
        """Slurm's node and GPU for a job: nodes in order, then its rule within the node."""
        for node, gpus in enumerate(self.cluster.nodes):
            if self.cluster.names[node] in away or self.backed_off.get((job_id, node), 0.0) > now:
                continue
            gpu = self.cluster.predictor.pick(gpus, shards)
            if gpu is not None:
                return node, gpu
        return None

    def _pinned_pass(self, now: float) -> None:
        """Queue order; each job goes to the GPU and start that lose least openness."""
        hopeless: set[str] = set()
        for job_id in tuple(self.queue):
            job = self.jobs[job_id]
            if job.profile in hopeless:
                continue
            best = self._least_loss(self.cluster.shape(job)[0])
            if best is None:
                hopeless.add(job.profile)
                continue
            self.allocations += 1
            self.queue.remove(job_id)
            self._begin(job, *best, now)

    def _least_loss(self, shape: int) -> tuple[int, int, int] | None:
        space = self.cluster.space
        best: tuple[tuple[int, int], tuple[int, int, int]] | None = None
        for node, gpu, state in self.cluster.all_gpus():
            start = space.best_start(state, shape)
            if start is None:
                continue
            before, after = space.openness(state), space.openness(space.put(state, shape, start))
            gain = (after[0] - before[0], after[1] - before[1])
            if best is None or gain > best[0]:
                best = gain, (node, gpu, start)
        return None if best is None else best[1]

    def _exact_pass(self, now: float) -> None:
        """Start the jobs that use most compute slices at this moment, the earliest of each profile first."""
        by_kind: dict[int, list[int]] = {}
        space = self.cluster.space
        for job_id in self.queue:
            by_kind.setdefault(space.kind_of[self.cluster.shape(self.jobs[job_id])[0]], []).append(job_id)
        waiting = tuple(len(by_kind.get(k, ())) for k in range(len(space.kinds)))
        open_gpus = [(n, g, s) for n, g, s in self.cluster.all_gpus() if len(space.multisets(s)) > 1]
        plan = best_fill(space, tuple(s for _, _, s in open_gpus), waiting)
        for (node, gpu, _), counts in zip(open_gpus, plan, strict=True):
            chosen = [by_kind[k].pop(0) for k, n in enumerate(counts) for _ in range(n)]
            shapes = [self.cluster.shape(self.jobs[i])[0] for i in chosen]
            starts = space.best_starts(self.cluster.nodes[node][gpu][0], shapes)
            assert starts is not None
            for job_id, start in zip(chosen, starts, strict=True):
                self.allocations += 1
                self.queue.remove(job_id)
                self._begin(self.jobs[job_id], node, gpu, start, now)


def best_fill(space: Space, states: tuple[int, ...], waiting: Counts) -> list[Counts]:
    """For each GPU (by state) the multiset of kinds to start, exact: most compute slices, then fewest instances.

    ``waiting`` bounds how many of each kind there are. Where the waiting jobs outnumber what fits, GPUs do
    not compete for them and each is filled alone; otherwise an integer program shares them out.
    """
    compute = [space.geometry.shapes[k].compute for k in space.kinds]
    groups = Counter(states)
    options = [(state, counts) for state in groups for counts in sorted(_wanted(space, state, waiting))]
    most = [sum(space.most(s)[k] for s in states) for k in range(len(waiting))]
    if all(w >= m or not w for w, m in zip(waiting, most, strict=True)):
        best = {s: max((c for at, c in options if at == s), key=lambda c: _worth(c, compute)) for s in groups}
        return [best[s] for s in states]
    program = IntegerProgram()
    for state, counts in options:
        worth = _worth(counts, compute)
        program.variable(-worth[0] - worth[1] / 1000, groups[state])
    for state, number in groups.items():
        program.row(number, number, {i: 1.0 for i, (s, _) in enumerate(options) if s == state})
    for kind, number in enumerate(waiting):
        program.row(0, number, {i: float(c[kind]) for i, (_, c) in enumerate(options) if c[kind]})
    chosen, _ = program.solve()
    of_state = {
        state: [c for (s, c), n in zip(options, chosen, strict=True) if s == state for _ in range(n)]
        for state in groups
    }
    return [of_state[state].pop() for state in states]


def _wanted(space: Space, state: int, waiting: Counts) -> Iterator[Counts]:
    """The multisets that fit and hold no more of any kind than wait."""
    for counts in space.multisets(state):
        if all(n <= w for n, w in zip(counts, waiting, strict=True)):
            yield counts


def _worth(counts: Counts, compute: Sequence[int]) -> tuple[int, int]:
    return sum(n * c for n, c in zip(counts, compute, strict=True)), -sum(counts)
