"""Steering: keep slice jobs away from GPUs where they would be admitted and yet have no legal start.

Slurm picks the node and the GPU, and counts shards; it cannot see that a GPU with room by count has no
start left for a profile. What it will pick on a node can be predicted: the first GPU in index order with
enough free shards, or the least loaded one with ``LL_SHARED_GRES`` (one GPU per node per job). From that
follows, for each pending job, the set of nodes to keep it away from until something changes.

A prediction holds for the next start on a node only. Several jobs may start in one scheduling pass, before
anybody can react, so a node is left open to several jobs only if *every* order in which they may start
there, each placed at the start that :func:`~pyhetsched.mig.layout.choose_starts` will choose, meets no hole
(:func:`steer`). Everything here is a pure function of the GPUs' state and the pending jobs.
"""

from __future__ import annotations

import enum
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyhetsched.errors import LayoutError
from pyhetsched.mig.geometry import Space
from pyhetsched.mig.layout import Layout, shape_index
from pyhetsched.mig.profiles import GpuModel, space_of_model, weights_of


class PickRule(enum.Enum):
    """How Slurm chooses the GPU of a node for shards."""

    FIRST_FIT = "first fit"
    LEAST_LOADED = "least loaded"


Gpu = tuple[int, int]
"""A GPU in brief: the state of its geometry (reservations included), and the shards that Slurm counts free
(0 on a GPU that is not in MIG mode, or that a whole-GPU job holds). Make it with :func:`gpu_of`."""

Gpus = tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """One node's GPUs in index order, all of one model."""

    name: str
    model: GpuModel
    gpus: Gpus


def gpu_of(layout: Layout, shards_free: int | None = None) -> Gpu:
    """A GPU in brief; without ``shards_free`` the instances of ``layout`` are all that takes shards."""
    free = weights_of(layout.model).shards_per_gpu - layout.shards_used if shards_free is None else shards_free
    return layout.state, free


@dataclass(frozen=True, slots=True)
class PendingSlices:
    """One pending slice job: the profiles it needs on one GPU of each of its nodes, by name.

    ``nodes`` are the nodes that it may use at all, None for any, and ``open_now`` those of them that it is not kept
    from at present. Jobs are given in the order in which Slurm will try them.
    """

    job_id: int
    profiles: tuple[str, ...]
    nodes: frozenset[str] | None = None
    open_now: frozenset[str] = frozenset()


MOST_TICKETS = 8
"""Jobs that a node is left open to at a time; bounds the orders that are tried."""

FEW_NODES = 4
"""Nodes that a job may be open on now for its places to be kept."""

MOST_STATES = 400
"""Distinct states of a node that are tried before a further ticket is denied."""


MOST_ANSWERS = 20_000
"""Answers about orders that are kept."""


class Predictor:
    """Starts on one kind of node, predicted: which GPU Slurm picks, and what the GPUs are after the start."""

    def __init__(self, model: GpuModel, rule: PickRule = PickRule.FIRST_FIT) -> None:
        self.model = model
        self.rule = rule
        self.space: Space = space_of_model(model)
        self.weights = weights_of(model)
        self._asks: dict[tuple[str, ...], Ask | None] = {}
        self._safe: dict[tuple[Gpus, frozenset[tuple[Ask, int]]], bool] = {}

    def ask(self, profiles: tuple[str, ...]) -> Ask | None:
        """The shapes and shards of a request; None if this model lacks a profile or can never host them."""
        if profiles not in self._asks:
            self._asks[profiles] = self._make_ask(profiles)
        return self._asks[profiles]

    def _make_ask(self, profiles: tuple[str, ...]) -> Ask | None:
        try:
            shapes = tuple(shape_index(self.model, self.model.profile(name)) for name in profiles)
        except LayoutError:
            return None
        if self.space.best_starts(0, shapes) is None:
            return None
        return Ask(shapes, sum(self.weights.by_shape[s] for s in shapes))

    def pick(self, gpus: Gpus, shards: int) -> int | None:
        """The index of the GPU that Slurm will choose for ``shards``, None if none has room by count."""
        if self.rule is PickRule.FIRST_FIT:
            return next((i for i, gpu in enumerate(gpus) if gpu[1] >= shards), None)
        best = max(range(len(gpus)), key=lambda i: (gpus[i][1], -i), default=None)
        return best if best is not None and gpus[best][1] >= shards else None

    def start(self, gpus: Gpus, ask: Ask) -> Gpus | None:
        """The GPUs after the start; unchanged if there is no room by count, None if the pick is a hole."""
        index = self.pick(gpus, ask.shards)
        if index is None:
            return gpus
        state, free = gpus[index]
        starts = self.space.best_starts(state, ask.shapes)
        if starts is None:
            return None
        for shape, at in zip(ask.shapes, starts, strict=True):
            state = self.space.put(state, shape, at)
        return (*gpus[:index], (state, free - ask.shards), *gpus[index + 1 :])

    def any_order_is_safe(self, gpus: Gpus, asks: Mapping[Ask, int]) -> bool:
        """Whether no order of starting any of ``asks`` (with how many of each) meets a hole.

        Gives up, answering False, after :data:`MOST_STATES` states. Answers are kept: many nodes are alike.
        """
        key = (gpus, frozenset(asks.items()))
        if key not in self._safe:
            if len(self._safe) >= MOST_ANSWERS:
                self._safe.clear()
            self._safe[key] = self._try_all_orders(gpus, asks)
        return self._safe[key]

    def _try_all_orders(self, gpus: Gpus, asks: Mapping[Ask, int]) -> bool:
        kinds = tuple(asks)
        todo = [(gpus, tuple(asks.values()))]
        seen = set(todo)
        while todo:
            now, left = todo.pop()
            for i, ask in enumerate(kinds):
                if not left[i]:
                    continue
                after = self.start(now, ask)
                if after is None:
                    return False
                if after is now:
                    continue
                following = (after, (*left[:i], left[i] - 1, *left[i + 1 :]))
                if following not in seen:
                    if len(seen) >= MOST_STATES:
                        return False
                    seen.add(following)
                    todo.append(following)
        return True


@dataclass(frozen=True, slots=True)
class Ask:
    """A request on one GPU in brief: shapes of the model's geometry, and shards in all."""

    shapes: tuple[int, ...]
    shards: int


@dataclass(frozen=True, slots=True)
class Steering:
    """By job id: the nodes to keep the job away from, and the nodes with room on which it is left open."""

    avoid: Mapping[int, frozenset[str]]
    open_to: Mapping[int, frozenset[str]]


@functools.lru_cache(maxsize=128)
def predictor_of(model: GpuModel, rule: PickRule) -> Predictor:
    """The one :class:`Predictor` of a model and rule."""
    return Predictor(model, rule)


def hole_at_pick(node: NodeGpus, profiles: tuple[str, ...], rule: PickRule = PickRule.FIRST_FIT) -> bool:
    """Whether Slurm would now start the request on this node on a GPU without a legal start for it."""
    predictor = predictor_of(node.model, rule)
    ask = predictor.ask(profiles)
    return ask is not None and predictor.start(node.gpus, ask) is None


def steer(
    nodes: Sequence[NodeGpus],
    pending: Sequence[PendingSlices],
    rule: PickRule = PickRule.FIRST_FIT,
    starting: Sequence[PendingSlices] = (),
) -> Steering:
    """For each pending job the nodes to keep it away from until something changes, and those left open.

    A node with room by count is left open to those jobs, in queue order, for which every order of starting
    keeps clear of holes; each job is first left open on one such node, then on more while that is safe.
    Nodes without room are not named: nothing can start there before a change. Jobs in ``starting`` have left the
    queue and are not in the picture yet: each may take its place on any of its nodes. Deterministic; time grows
    with nodes that have room times pending jobs.
    """
    desks = [_Desk(node, predictor_of(node.model, rule), starting) for node in nodes]
    queues = _Queues(pending)
    _keep_places(desks, queues, pending)
    for desk in desks:
        desk.hand_out(queues, unseen=True)
    for desk in desks:
        desk.hand_out(queues, unseen=False)
    avoid: dict[int, frozenset[str]] = {}
    for key, jobs in queues.by_kind.items():
        closed = frozenset(desk.node.name for desk in desks if desk.admits_by_count(key))
        for job in jobs:
            avoid[job.job_id] = closed - queues.open_to.get(job.job_id, frozenset())
    return Steering(avoid, queues.open_to)


def _keep_places(desks: Iterable[_Desk], queues: _Queues, pending: Iterable[PendingSlices]) -> None:
    """Leave jobs where they are open now, if they are open on few nodes: each move is a change to a job."""
    by_name = {desk.node.name: desk for desk in desks}
    for job in pending:
        if len(job.open_now) > FEW_NODES:
            continue
        for name in sorted(job.open_now & by_name.keys()):
            if by_name[name].offer(queues, (job.profiles, job.nodes), job):
                break


def settle(
    previous: Mapping[int, frozenset[str]],
    steering: Steering,
    eligible: Mapping[int, frozenset[str]],
    closed: bool = False,
) -> dict[int, frozenset[str]]:
    """The nodes to exclude for each job, changed from ``previous`` as little as safety asks.

    ``steering`` must speak of all nodes; ``eligible`` gives the nodes that each job may use at all. A job stays
    away from nodes that it was already kept from, unless it is now left open there or would be kept from all
    of its nodes. With ``closed`` it is kept from every node that is not left open to it: robust where updates
    come late, but Slurm shows BadConstraints for jobs that are open nowhere, and plans no start for them.
    """
    nowhere: frozenset[str] = frozenset()
    if closed:
        return {i: eligible[i] - steering.open_to.get(i, nowhere) for i in steering.avoid}
    result = {}
    for job_id, wanted in steering.avoid.items():
        kept = (previous.get(job_id, nowhere) | wanted) - steering.open_to.get(job_id, nowhere)
        result[job_id] = kept if eligible[job_id] - kept else wanted
    return result


_Kind = tuple[tuple[str, ...], frozenset[str] | None]


class _Queues:
    """Pending jobs by kind (profiles and admissible nodes), each in queue order, and their tickets so far."""

    def __init__(self, pending: Iterable[PendingSlices]) -> None:
        self.by_kind: dict[_Kind, list[PendingSlices]] = {}
        self.rank: dict[int, int] = {}
        for job in pending:
            self.by_kind.setdefault((job.profiles, job.nodes), []).append(job)
            self.rank[job.job_id] = len(self.rank)
        self.next_unseen: dict[_Kind, int] = dict.fromkeys(self.by_kind, 0)
        self.open_to: dict[int, frozenset[str]] = {}

    def candidate(self, kind: _Kind, node: str, unseen: bool) -> PendingSlices | None:
        """The first job of the kind without any ticket, or (not ``unseen``) without one for ``node``."""
        jobs = self.by_kind[kind]
        if unseen:
            at = self.next_unseen[kind]
            while at < len(jobs) and jobs[at].job_id in self.open_to:
                at += 1
            self.next_unseen[kind] = at
            return jobs[at] if at < len(jobs) else None
        return next((j for j in jobs[:MOST_TICKETS] if node not in self.open_to.get(j.job_id, ())), None)

    def ticket(self, job: PendingSlices, node: str) -> None:
        """Note that ``job`` is left open on ``node``."""
        self.open_to[job.job_id] = self.open_to.get(job.job_id, frozenset()) | {node}


class _Desk:
    """One node handing out tickets."""

    def __init__(self, node: NodeGpus, predictor: Predictor, starting: Iterable[PendingSlices]) -> None:
        self.node = node
        self.predictor = predictor
        self.gpus = node.gpus
        asks = (predictor.ask(job.profiles) for job in starting if job.nodes is None or node.name in job.nodes)
        self.given: dict[Ask, int] = Counter(ask for ask in asks if ask is not None)
        self.denied: set[Ask | None] = set()

    def admits_by_count(self, kind: _Kind) -> bool:
        """Whether Slurm could start a job of this kind here now, hole or not."""
        profiles, allowed = kind
        if allowed is not None and self.node.name not in allowed:
            return False
        ask = self.predictor.ask(profiles)
        return ask is not None and self.predictor.pick(self.gpus, ask.shards) is not None

    def hand_out(self, queues: _Queues, unseen: bool) -> None:
        """Leave the node open to jobs in queue order while any order of their starts is safe."""
        kinds = [kind for kind in queues.by_kind if self.admits_by_count(kind)]
        while kinds and sum(self.given.values()) < MOST_TICKETS:
            offers = [(kind, queues.candidate(kind, self.node.name, unseen)) for kind in kinds]
            waiting = [(kind, job) for kind, job in offers if job is not None and self._may_get(kind)]
            if not waiting:
                return
            kind, job = min(waiting, key=lambda offer: queues.rank[offer[1].job_id])
            if not self._give(queues, kind, job):
                self.denied.add(self._ask(kind))

    def offer(self, queues: _Queues, kind: _Kind, job: PendingSlices) -> bool:
        """Leave the node open to one job if that is safe; return whether it is."""
        if not self.admits_by_count(kind) or not self._may_get(kind) or sum(self.given.values()) >= MOST_TICKETS:
            return False
        return self._give(queues, kind, job)

    def _give(self, queues: _Queues, kind: _Kind, job: PendingSlices) -> bool:
        ask = self._ask(kind)
        if ask is None:
            return False
        more = {**self.given, ask: self.given.get(ask, 0) + 1}
        if not self.predictor.any_order_is_safe(self.gpus, more):
            return False
        self.given = more
        queues.ticket(job, self.node.name)
        return True

    def _ask(self, kind: _Kind) -> Ask | None:
        return self.predictor.ask(kind[0])

    def _may_get(self, kind: _Kind) -> bool:
        """Not denied before, and more of its kind could start than already have tickets."""
        ask = self.predictor.ask(kind[0])
        if ask is None or ask in self.denied:
            return False
        return self.given.get(ask, 0) < sum(free // ask.shards for _, free in self.gpus)
