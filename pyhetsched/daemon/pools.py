"""The pool: nodes whose GPUs go in and out of MIG mode together, as demand or an operator asks.

Slurm picks GPUs by their index and shards are per node, so all GPUs of a node change or none. A change is
an *order*: it is decided here, keeps waiting jobs off the node, is handed to the node when that next compares
itself with the daemon, and only while Slurm has given none of its GPUs away. Which mode a node is in is
always what the node has reported. The decision itself is `pyhetsched.mig.pool`, in nodes instead of cards.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyhetsched.clock import Clock
from pyhetsched.config import Config, PoolConfig
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.journal import Journal
from pyhetsched.daemon.pool_demand import Demand, demand_of
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.errors import HetschedError, RequestError
from pyhetsched.mig.pool import HOUR_S, Card, PoolDemand, PoolMemory, PoolSettings, decide
from pyhetsched.mig.profiles import GpuModel
from pyhetsched.model import JobAsk
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.store.decisions import DecisionStore

log = logging.getLogger(__name__)

KIND = "pool"


@dataclass(frozen=True, slots=True)
class Order:
    """All GPUs of a node are to have MIG mode ``on`` or off; given up at ``until_s``."""

    node: str
    on: bool
    until_s: float
    why: str


class Pools:
    """Decides, orders and hands out changes of MIG mode; ``waiting`` tells the asks of jobs that could start."""

    def __init__(
        self, watcher: Watcher, book: Book, journal: Journal, decisions: DecisionStore, config: Config, clock: Clock,
        waiting: Callable[[], Mapping[int, JobAsk]],
    ) -> None:  # fmt: skip
        self._watcher = watcher
        self._book = book
        self._journal = journal
        self._clock = clock
        self._waiting = waiting
        self.config = config
        self._lock = threading.RLock()
        self._orders: dict[str, Order] = {}
        self._foreign: dict[str, list[pb.Foreign]] = {}
        self._peaks: dict[str, deque[tuple[float, int]]] = {}
        self._memory: dict[str, PoolMemory] = {}
        self._reasons: dict[str, str] = {}
        self._stopping = threading.Event()
        self._remembered = self._earlier_changes(decisions)

    # What others ask

    def has(self, node: str) -> bool:
        """Return whether the mode of a node may be changed."""
        return node in self._watcher.pool_nodes

    def wanted(self, node: str) -> str:
        """Return on or off while a change of a node's mode is ordered, else an empty text."""
        order = self._orders.get(node)
        return "" if order is None else "on" if order.on else "off"

    def closed_to_slices(self) -> frozenset[str]:
        """Return the nodes of the pool on which no slice can start, or shall not as they are to leave MIG mode."""
        return frozenset(n for n in self._watcher.pool_nodes if (self._mode(n), self.wanted(n)) not in _SLICES)

    def closed_to_whole(self) -> frozenset[str]:
        """Return the nodes of the pool on which several whole GPUs cannot be had, or shall not be."""
        return frozenset(n for n in self._watcher.pool_nodes if (self._mode(n), self.wanted(n)) not in _WHOLE)

    def changes(self, node: str) -> list[pb.ModeChange]:
        """Return what a node that compares itself is to change now: nothing unless Slurm says that it is idle.

        Raises `SlurmError` when Slurm cannot be asked.
        """
        with self._lock:
            self._settle()
            order = self._orders.get(node)
        if order is None:
            return []
        self._watcher.refresh()
        if not self._idle(node):
            return []
        report = self._watcher.report(node)
        allowed = self.config.pool.allow_reset
        return [
            pb.ModeChange(gpu_index=gpu.index, on=order.on, reset_allowed=allowed)
            for gpu in (report.gpus if report else ())
        ]

    def take_foreign(self, node: str) -> list[pb.Foreign]:
        """Return, once, the instances on a node that an operator wants destroyed."""
        with self._lock:
            return self._foreign.pop(node, [])

    def failed(self, node: str, why: str) -> None:
        """A node could not make a change: the order is given up, and whoever looks is told why."""
        with self._lock:
            order = self._orders.pop(node, None)
        if order is not None:
            self._journal.event(KIND, "failed", f"MIG mode not changed: {why}", node=node)
        log.warning("node %s: MIG mode not changed: %s", node, why)

    def warnings(self) -> Iterator[str]:
        """What keeps the pool from working, one sentence each."""
        if self.config.pool.enabled and not self.config.steering.enabled:
            yield "pool.enabled needs steering.enabled: without it nothing is known of waiting jobs"
        for node in sorted(self._watcher.pool_nodes):
            if self._watcher.node(node) is None:
                yield f"pool.nodes: Slurm has no node {node}"
            elif self._model(node) is None:
                yield f"pool node {node}: it needs GPUs of one known model, all with shards; its mode is never changed"
            elif self._watcher.report(node) is not None and self._mode(node) == "mixed":
                yield f"pool node {node}: its GPUs are not all in one MIG mode; `hetsched mig apply` can put that right"

    # What operators ask

    def apply(self, request: pb.ApplyRequest, uid: int) -> pb.ApplyReply:
        """Order mode changes and the end of foreign instances; what cannot be done is refused with the reason."""
        reply = pb.ApplyReply()
        for item in request.modes:
            mode = "on" if item.on else "off"
            try:
                self._order_by_operator(item.node, item.on, uid)
            except RequestError as error:
                reply.refused.append(str(error))
            else:
                reply.ordered.append(f"{item.node}: MIG mode {mode} once it is idle")
        for foreign in request.destroy:
            found = self._book.foreign(foreign.node, foreign.gpu_index)
            name = f"{foreign.node}:{foreign.gpu_index} {foreign.profile}@{foreign.start}"
            if not any((f.profile, f.start) == (foreign.profile, foreign.start) for f in found):
                reply.refused.append(f"{name} is not an instance that hetsched did not make")
                continue
            with self._lock:
                self._foreign.setdefault(foreign.node, []).append(foreign)
            self._journal.event(KIND, "ordered", f"{name} is to be destroyed", node=foreign.node, uid=uid)
            reply.ordered.append(f"{name}: destroyed if nothing holds it")
        return reply

    def _order_by_operator(self, node: str, on: bool, uid: int) -> None:
        if not self.has(node):
            raise RequestError(f'{node} is not in the pool; write [pool] nodes = "{node}" in hetsched.toml')
        if self._model(node) is None:
            raise RequestError(f"{node}: its GPUs are not known, not of one model, or offer no shards")
        if self._mode(node) != ("on" if on else "off"):
            self._order(node, on, "an operator asks for it", uid)

    # What demand asks

    def run(self) -> None:
        """Decide now and then until `stop`."""
        while not self._stopping.wait(self.config.pool.period_s):
            try:
                self.step()
            except HetschedError as error:
                log.warning("pool: %s", error)
            except Exception:  # noqa: BLE001 - jobs are served as the modes are
                log.exception("pool: the decision failed")

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()

    def step(self) -> None:
        """Look at the demand once, and order what it asks for."""
        with self._lock:
            self._settle()
            if not self.config.pool.enabled:
                return
            for model, nodes in self._by_model().items():
                self._step(model, nodes)

    def _step(self, model: GpuModel, nodes: list[str]) -> None:
        now_s, key = self._clock.now_s(), model.key
        demand = self._demand(model, nodes)
        peaks = self._peaks.setdefault(key, deque())
        peaks.append((now_s, demand.nodes))
        while peaks and not now_s - self.config.pool.recent_s <= peaks[0][0] <= now_s:
            peaks.popleft()
        recent = max((count for _, count in peaks), default=0)
        memory = self._memory.get(key, PoolMemory(changes_s=self._remembered))
        decision = decide(
            settings_of(self.config.pool), [self._card(node, model) for node in nodes],
            PoolDemand(demand.nodes, recent, demand.whole_asks), memory, now_s,
        )  # fmt: skip
        self._memory[key] = decision.memory
        for card in decision.enable:
            self._order(card.node, True, decision.reason)
        for card in decision.disable:
            self._order(card.node, False, decision.reason)
        if self._reasons.get(key) != decision.reason:
            self._reasons[key] = decision.reason
            log.info("pool of %s: %s", key, _in_nodes(decision.reason))

    def _demand(self, model: GpuModel, nodes: list[str]) -> Demand:
        held = [r.profile for node in nodes for r in self._book.on_node(node)]
        idle_whole = max((self._gpus(n) for n in self._nodes_of(model) if self._gives_whole(n)), default=0)
        per_node = min(map(self._gpus, nodes))
        return demand_of(model, per_node, held, self._waiting().values(), idle_whole)

    def _card(self, node: str, model: GpuModel) -> Card:
        """A whole node as one card, in the mode that it will be in."""
        wanted = self.wanted(node)
        mode = wanted or self._mode(node)
        view = self._watcher.node(node)
        idle = not wanted and mode in ("on", "off") and view is not None and view.usable and self._idle(node)
        return Card(node, 0, model, mode == "on", idle)

    # Orders

    def _order(self, node: str, on: bool, why: str, uid: int = 0) -> None:
        until_s = self._clock.now_s() + self.config.pool.order_s
        with self._lock:
            self._orders[node] = Order(node, on, until_s, why)
        text = f"MIG mode {'on' if on else 'off'} once it is idle: {_in_nodes(why)}"
        log.info("node %s: %s", node, text)
        self._journal.event(KIND, "ordered", text, node=node, uid=uid, detail={"on": on})

    def _settle(self) -> None:
        """Close orders that the nodes have carried out, and give up those that took too long."""
        now_s = self._clock.now_s()
        for order in list(self._orders.values()):
            mode = "on" if order.on else "off"
            if self._mode(order.node) == mode:
                del self._orders[order.node]
                self._journal.event(KIND, "changed", f"MIG mode is {mode}", node=order.node)
            elif not now_s <= order.until_s <= now_s + self.config.pool.order_s or not self.has(order.node):
                del self._orders[order.node]
                self._journal.event(KIND, "given-up", f"MIG mode {mode} was not reached in time", node=order.node)

    def _earlier_changes(self, decisions: DecisionStore) -> tuple[float, ...]:
        """The changes of the last hour, so that a restart does not renew the budget."""
        since_s = self._clock.now_s() - HOUR_S
        found = decisions.recent(1000, kind=KIND, since_s=since_s)
        return tuple(d.time_s for d in found if d.outcome == "ordered" and "on" in d.detail)

    # The nodes

    def _mode(self, node: str) -> str:
        return self._watcher.all_modes(node)

    def _gpus(self, node: str) -> int:
        view = self._watcher.node(node)
        return sum(group.count for group in view.gpus) if view else 0

    def _model(self, node: str) -> GpuModel | None:
        """The model of a node's GPUs if all are alike and offer shards."""
        offered = self._watcher.offered(node)
        models = set(offered.values())
        return models.pop() if len(models) == 1 and len(offered) == self._gpus(node) else None

    def _by_model(self) -> dict[GpuModel, list[str]]:
        found: dict[GpuModel, list[str]] = {}
        for node in sorted(self._watcher.pool_nodes):
            model = self._model(node)
            if model is not None:
                found.setdefault(model, []).append(node)
        return found

    def _nodes_of(self, model: GpuModel) -> Iterable[str]:
        return (n.name for n in self._watcher.view.nodes if n.usable and any(g.model_key == model.key for g in n.gpus))

    def _gives_whole(self, node: str) -> bool:
        """Whether all GPUs of a node are free and out of MIG mode, or soon will be."""
        in_mig = self._mode(node) == "on" if self.has(node) else bool(self._watcher.mig_gpus(node))
        return self.wanted(node) == "off" or (not in_mig and not self.wanted(node) and self._idle(node))

    def _idle(self, node: str) -> bool:
        """Whether Slurm has given away nothing of a node's GPUs, and nothing is on them."""
        raw = self._watcher.raw(node)
        if raw is None or any(raw.gres_used.values()) or self._book.on_node(node):
            return False
        return not any(self._book.foreign(node, index) for index in range(self._gpus(node)))


_SLICES = frozenset({("on", ""), ("on", "on")})
_WHOLE = frozenset({("off", ""), ("off", "off")})


def _in_nodes(reason: str) -> str:
    """The words of a decision on cards, where each card is a node."""
    return re.sub(r"\b(1 whole GPUs on a|card)", lambda m: "node" if m[1] == "card" else "a whole", reason).replace(
        "cards", "nodes"
    )


def settings_of(config: PoolConfig) -> PoolSettings:
    """Return the administrator's settings with nodes in place of cards."""
    return PoolSettings(
        fewest_cards=config.min_nodes, most_cards=config.max_nodes, spare_cards=config.spare_nodes,
        grow_after_s=config.grow_after_s, shrink_after_s=config.shrink_after_s,
        changes_per_hour=config.hourly_changes, allow_reset=config.allow_reset,
    )  # fmt: skip
