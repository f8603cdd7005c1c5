"""Jobs that are being submitted, steered before any plan has seen them: in a burst each may start at once.

The planner leaves a node open to several jobs only if every order of their starts keeps clear of holes
(`pyhetsched.mig.steering`). A submit is let into the same count here: what the last plan left open on a node and what
was submitted since may start there in any order, and the new job is left open only where that stays safe.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyhetsched.clock import Clock
from pyhetsched.daemon.steering_plan import Tickets
from pyhetsched.mig.steering import MOST_TICKETS, Ask, NodeGpus, PendingSlices, PickRule, hole_at_pick, predictor_of

#: So long does a place wait for a job: one whose submit is under way, one that may yet be submitted.
_KEPT_S, _KEPT_AHEAD_S = 3.0, 1.0
_LOOK_S = 0.25
_NODES_TRIED = 64

@dataclass(slots=True)
class _Open:
    """One job that was submitted, and the node that it was left open on."""

    node: str
    profiles: tuple[str, ...]
    until_s: float
    started: bool = False


class _Desk:
    """A node that has room by count for a kind of job, as of one picture."""

    def __init__(self, node: NodeGpus, profiles: tuple[str, ...], rule: PickRule) -> None:
        self.name = node.name
        self._node = node
        self._profiles = profiles
        self._rule = rule
        self._known: dict[frozenset[tuple[tuple[str, ...], int]], bool] = {}
        predictor = predictor_of(node.model, rule)
        ask = predictor.ask(profiles)
        self.has_room = ask is not None and predictor.pick(node.gpus, ask.shards) is not None
        self.is_hole = self.has_room and hole_at_pick(node, profiles, rule)

    def is_safe(self, given: Mapping[tuple[str, ...], int]) -> bool:
        """Whether the job and all that may start here already can do so in any order."""
        key = frozenset(given.items())
        if key not in self._known:
            self._known[key] = self._any_order(given)
        return self._known[key]

    def _any_order(self, given: Mapping[tuple[str, ...], int]) -> bool:
        if sum(given.values()) >= MOST_TICKETS:
            return False
        return _any_order_is_safe(self._node, Counter(given) + Counter((self._profiles,)), self._rule)


class Wish:
    """A kind of job on one picture of the GPUs: where it might start now, looked at once for a whole burst.

    ``nodes`` are those that it may have, ``profiles`` what it needs on one GPU of each of ``nodes_wanted`` nodes.
    """

    def __init__(self, profiles: tuple[str, ...], nodes: Sequence[NodeGpus], rule: PickRule, nodes_wanted: int) -> None:
        self.profiles = profiles
        self.nodes_wanted = nodes_wanted
        self.admissible = len(nodes)
        desks = (_Desk(node, profiles, rule) for node in sorted(nodes, key=lambda node: node.name))
        self.roomy = tuple(desk for desk in desks if desk.has_room)


class OpenSubmits:
    """Where the jobs of a burst may start. Safe between threads; a submit waits for no plan."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tickets: Tickets = {}
        self._open: dict[str, _Open] = {}
        self._given: dict[str, dict[tuple[str, ...], int]] = {}
        self._look_again_s = 0.0

    def see(self, look: Callable[[], Sequence[NodeGpus]]) -> tuple[NodeGpus, ...]:
        """Take a new picture of the GPUs; jobs that had started before it are in it."""
        with self._lock:
            in_it = [decision_id for decision_id, job in self._open.items() if job.started]
        nodes = tuple(look())
        with self._lock:
            self._drop(in_it)
        return nodes

    def take(self, tickets: Tickets, decision_ids: Collection[str], counted: Collection[str],
             nodes: Iterable[NodeGpus], rule: PickRule, insist: bool = False) -> bool:  # fmt: skip
        """Take over what a plan leaves open on each of ``nodes``; False if submits came between and it is unsafe now.

        The plan knew the waiting jobs of ``decision_ids``, and ``counted`` of those that were being submitted.
        With ``insist`` it is taken over whatever came between.
        """
        with self._lock:
            others: dict[str, Counter[tuple[str, ...]]] = {}
            late: set[str] = set()
            for decision_id, job in self._open.items():
                if decision_id not in decision_ids:
                    others.setdefault(job.node, Counter())[job.profiles] += 1
                    if decision_id not in counted:
                        late.add(job.node)
            if not insist and not all(
                _any_order_is_safe(node, others[node.name] + Counter(tickets.get(node.name, {})), rule)
                for node in nodes if node.name in late
            ):  # fmt: skip
                return False
            self._tickets = tickets
            self._drop(decision_ids)
            return True

    def started(self, decision_id: str) -> None:
        """The job of this decision has its GPU, as the next picture will show, or is back in the queue."""
        with self._lock:
            job = self._open.get(decision_id)
            if job is not None:
                job.started = True

    def open(self) -> dict[str, PendingSlices]:
        """Return the jobs that may start before a plan has seen them, by decision."""
        with self._lock:
            self._drop_old()
            return {i: PendingSlices(0, job.profiles, frozenset((job.node,))) for i, job in self._open.items()}

    def withdraw(self, decision_id: str) -> None:
        """Forget a job that was counted and then decided anew."""
        with self._lock:
            self._drop([decision_id])

    def admit(self, decision_id: str, wish: Wish, ahead: bool = False) -> list[str]:
        """Return which of its nodes a new job is to be kept from, and count it where it may start.

        With ``ahead`` it is one that may be submitted soon, or not.
        None where too few would be left: Slurm refuses a job that could not run on any node.
        """
        if wish.nodes_wanted > 1:
            kept_from = [desk.name for desk in wish.roomy if desk.is_hole]
        else:
            desk = self._desk(decision_id, wish, _KEPT_AHEAD_S if ahead else _KEPT_S)
            if desk is None and len(wish.roomy) == wish.admissible:
                # It must be left open somewhere, and then rather where only the others' order is a risk.
                desk = next((desk for desk in wish.roomy if not desk.is_hole), None)
            kept_from = [other.name for other in wish.roomy if other is not desk]
        return kept_from if wish.admissible - len(kept_from) >= wish.nodes_wanted else []

    def _desk(self, decision_id: str, wish: Wish, kept_s: float) -> _Desk | None:
        """The node that the job is left open on, where it is counted."""
        with self._lock:
            self._drop_old()
            for desk in wish.roomy[:_NODES_TRIED]:
                given = self._given.get(desk.name, {})
                if desk.is_safe(given):
                    self._open[decision_id] = _Open(desk.name, wish.profiles, self._clock.monotonic_s() + kept_s)
                    self._given[desk.name] = {**given, wish.profiles: given.get(wish.profiles, 0) + 1}
                    return desk
        return None

    def _drop_old(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + _LOOK_S
            self._drop([decision_id for decision_id, job in self._open.items() if job.until_s < now_s])

    def _drop(self, decision_ids: Iterable[str]) -> None:
        for decision_id in decision_ids:
            self._open.pop(decision_id, None)
        self._given = {node: dict(kinds) for node, kinds in self._tickets.items()}
        for job in self._open.values():
            kinds = self._given.setdefault(job.node, {})
            kinds[job.profiles] = kinds.get(job.profiles, 0) + 1


def _any_order_is_safe(node: NodeGpus, kinds: Mapping[tuple[str, ...], int], rule: PickRule) -> bool:
    """Whether jobs of these kinds can start on a node in any order."""
    predictor = predictor_of(node.model, rule)
    asks: Counter[Ask] = Counter()
    for profiles, count in kinds.items():
        ask = predictor.ask(profiles)
        if ask is not None:
            asks[ask] += count
    return predictor.any_order_is_safe(node.gpus, asks)
