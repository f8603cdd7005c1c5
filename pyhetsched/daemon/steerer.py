"""Steering at run time: a thread that watches what changes, and a process of its own that plans.

Loading ten thousand jobs holds the interpreter for a sixth of a second; in another process no submit feels it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from multiprocessing.connection import Connection

from pyhetsched.clock import Clock
from pyhetsched.config import Config
from pyhetsched.daemon.allocator import Allocator
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.flexing import flexed, support_of
from pyhetsched.daemon.giveback import GiveBack
from pyhetsched.daemon.open_submits import OpenSubmits, Wish
from pyhetsched.daemon.pool_demand import wants_several
from pyhetsched.daemon.pools import Pools
from pyhetsched.daemon.steering_plan import Planner, Steering, SteeringState, names, serves
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.errors import HetschedError
from pyhetsched.mig.profiles import GpuModel, weights_of
from pyhetsched.mig.steering import Gpu, NodeGpus, PickRule, gpu_of
from pyhetsched.model import ClusterView, JobAsk, SubmitOutcome, SubmitRequest
from pyhetsched.slurm.direct import DirectSlurm
from pyhetsched.slurm.snapshot import gpu_types

log = logging.getLogger(__name__)

_ANSWER_S = 60.0
_ATTEMPTS = 4
_RELEASE_S = 2.0
_SUBMIT_S = 0.5
_BURST_S = 2.0
_RESTART_S = 5.0
_STOP_S = 2.0
_MOST_WISHES = 1000


class Steerer:
    """Keeps waiting slice jobs away from GPUs where they would be admitted and yet have no start."""

    def __init__(
        self, watcher: Watcher, book: Book, allocator: Allocator, giveback: GiveBack, config: Config, clock: Clock,
        start_planner: Callable[[Connection, Config], None] | None = None,
    ) -> None:  # fmt: skip
        self._watcher = watcher
        self._book = book
        self._allocator = allocator
        self._giveback = giveback
        self._start_planner = start_planner or _start_process
        self._wake = threading.Event()
        self._stopping = False
        self._connection: Connection | None = None
        self._clock = clock
        self._open_jobs: frozenset[int] = frozenset()
        self.submits = OpenSubmits(clock)
        self._wishes: tuple[ClusterView, tuple[NodeGpus, ...], dict[object, tuple[Wish, frozenset[str], JobAsk]]]
        self._wishes = (watcher.view, (), {})
        self._nodes: tuple[NodeGpus, ...] = ()
        self._planned = threading.Condition()
        self._plans_begun = 0
        self._plans_done = 0
        self._submits = self._planned_submits = 0
        self.pools: Pools | None = None
        self.waiting: Mapping[int, JobAsk] = {}
        self.config = config
        book.listeners.append(self.poke)
        watcher.listeners.append(self.poke)
        allocator.on_start = self.submits.started
        self.on_seen: Callable[[Iterable[str]], object] = lambda decision_ids: None

    def poke(self) -> None:
        """Something has changed: plan again soon."""
        self._wake.set()

    def plan_now(self, at_most_s: float = _RELEASE_S) -> None:
        """Wait until a plan that saw the present state has been carried out, but not for long.

        Called before a node's Epilog may end: Slurm hands out a GPU's shards as soon as it has, and a waiting job
        must by then know whether it may go there.
        """
        if not self.config.steering.enabled:
            return
        with self._planned:
            wanted = self._plans_begun + 1
            self._wake.set()
            self._planned.wait_for(lambda: self._plans_done >= wanted or self._stopping, at_most_s)

    def admit(self, decision_id: str, ask: JobAsk, partitions: frozenset[str], excluded: frozenset[str],
              nodes_wanted: int = 1, ahead: bool = False) -> list[str]:  # fmt: skip
        """Return the nodes that a new job with ``ask`` must be kept from, lest it is admitted without a start for it.

        None where that are all nodes that it may have: Slurm refuses a job whose nodes are all excluded, and one
        that waits is seen to by the planner.
        """
        if not self.config.steering.enabled:
            return []
        self._submits += 1
        closed = self._closed(ask) - excluded
        if ask.per_task or ask.kind != "slices" or not ask.shards:
            return self._without_last(closed, ask, partitions, excluded)
        # As of the last plan, a fraction of a second ago: a submit does not wait for a newer picture.
        wish, closed = self._wish(ask, partitions, excluded, closed, nodes_wanted)
        kept_from = self.submits.admit(decision_id, wish, ahead)
        if not closed:
            return kept_from
        return sorted({*kept_from, *closed}) if wish.admissible > len(kept_from) else []

    def flexed(self, request: SubmitRequest, outcome: SubmitOutcome, partitions: Collection[str],
               excluded: Collection[str]) -> SubmitOutcome:  # fmt: skip
        """Return ``outcome`` with several small slices in place of a larger one, where only these could start now."""
        required = names(request.required_nodes)
        mine = [node for node in self._admissible(outcome.ask, partitions, excluded)
                if not required or node.name in required]  # fmt: skip
        return flexed(request, outcome, mine, self._pick, support_of(self.config.submit))

    @property
    def _pick(self) -> PickRule:
        return PickRule(self.config.steering.pick.replace("-", " "))

    def _reachable(self, partitions: Collection[str]) -> set[str]:
        """Return the nodes of the partitions, of all where none is named."""
        return {node.name for node in self._watcher.view.nodes
                if not partitions or node.partitions.intersection(partitions)}  # fmt: skip

    def _wish(self, ask: JobAsk, partitions: frozenset[str], excluded: frozenset[str], closed: frozenset[str],
              nodes_wanted: int) -> tuple[Wish, frozenset[str]]:  # fmt: skip
        """Return where a job may start, and which nodes that it could reach are closed to it."""
        view, nodes = self._watcher.standing_view, self._nodes
        if self._wishes[0] is not view or self._wishes[1] is not nodes or len(self._wishes[2]) > _MOST_WISHES:
            self._wishes = (view, nodes, {})
        key = (id(ask), partitions, excluded, closed, nodes_wanted)
        found = self._wishes[2].get(key)
        if found is None:
            mine = [node for node in self._admissible(ask, partitions, excluded) if node.name not in closed]
            profiles = tuple(item.profile for item in ask.slices for _ in range(item.count))
            wish = Wish(profiles, mine, self._pick, nodes_wanted)
            # The ask is kept with it, so that no other can have its id.
            found = self._wishes[2][key] = (wish, closed & self._reachable(partitions), ask)
        return found[0], found[1]

    def _admissible(self, ask: JobAsk, partitions: Collection[str], excluded: Collection[str]) -> list[NodeGpus]:
        """Return the nodes in MIG mode that a job may have."""
        reachable = self._reachable(partitions)
        return [node for node in self._nodes if node.name in reachable and node.name not in excluded
                and (not ask.model_keys or node.model.key in ask.model_keys)]  # fmt: skip

    def _closed(self, ask: JobAsk) -> frozenset[str]:
        """Return the nodes of the pool that are not in the MIG mode that a job with ``ask`` needs."""
        if self.pools is None or not (ask.kind == "slices" or wants_several(ask)):
            return frozenset()
        return self.pools.closed_to_slices() if ask.kind == "slices" else self.pools.closed_to_whole()

    def _without_last(self, closed: frozenset[str], ask: JobAsk, partitions: Collection[str],
                      excluded: Collection[str]) -> list[str]:  # fmt: skip
        """Return those of ``closed`` that could serve the job, none where that are all that could."""
        if not closed:
            return []
        could = {node.name for node in self._watcher.view.nodes if node.name not in excluded
                 and any(serves(node, ask, group.model_key or "", partitions) for group in node.gpus)}  # fmt: skip
        return sorted(closed & could) if could - closed else []

    def node_gpus(self) -> list[NodeGpus]:
        """Return the GPUs of every usable node in MIG mode, in brief."""
        found = []
        for node in self._watcher.view.nodes:
            mig = self._watcher.mig_gpus(node.name)
            models = set(mig.values())
            if node.usable and len(models) == 1:
                model = models.pop()
                gpus = tuple(self._gpu(node.name, i, i in mig, model) for i in range(len(gpu_types(node))))
                found.append(NodeGpus(node.name, model, gpus))
        return found

    def run(self) -> None:
        """Plan when something has changed, and now and then, until `stop`."""
        while not self._stopping:
            self._wait_for_change()
            if self.config.steering.enabled and not self._stopping:
                try:
                    with self._planned:
                        self._plans_begun += 1
                        number = self._plans_begun
                    self._cycle()
                    with self._planned:
                        self._plans_done = number
                        self._planned.notify_all()
                except (OSError, EOFError, HetschedError) as error:
                    log.warning("steering: the planning process is started again: %s", error or "it ended")
                    self._drop_planner()
                    self._wait(_RESTART_S)
                except Exception:  # noqa: BLE001 - jobs are served without steering, if less well
                    if not self._stopping:  # then the connection has been closed under our hands
                        log.exception("steering failed")
                    self._wait(_RESTART_S)
            self._wait(self.config.steering.least_s)

    def _wait_for_change(self) -> None:
        """Wait until something changes, or until a burst of submits is over, or goes on for long."""
        waited_s, seen, burst_s = 0.0, self._submits, 0.0
        while not self._wake.wait(_SUBMIT_S):
            waited_s += _SUBMIT_S
            goes_on, seen = self._submits != seen, self._submits
            burst_s = burst_s + _SUBMIT_S if seen != self._planned_submits else 0.0
            if (burst_s and not goes_on) or burst_s >= _BURST_S or waited_s >= self.config.steering.most_s:
                break
        self._planned_submits = self._submits
        self._wake.clear()

    def stop(self) -> None:
        """End `run` and the planning process."""
        self._stopping = True
        self._wake.set()
        self._drop_planner()

    def _cycle(self) -> None:
        """Plan, until submits that came meanwhile leave the plan safe, and have it carried out."""
        connection = self._connected()
        for attempt in range(_ATTEMPTS):
            state = self._state()
            answer = self._ask_planner(connection, state)
            waiting = {decision_id for decision_id, _ in answer.asks.values()}
            taken = self.submits.take(
                answer.open_to, waiting, state.submits, state.nodes, self._pick, attempt == _ATTEMPTS - 1
            )  # fmt: skip
            connection.send(taken)
            if taken:
                break
        self._open_jobs = answer.open_jobs
        self.on_seen(waiting)
        self._allocator.learn_pending(answer.asks)
        # A job that was given back waits for its time to begin, and wants a place all the same.
        back = {i: ask for i, (_, ask) in answer.asks.items() if self._giveback.times(i)}
        self.waiting = {**answer.waiting, **back}
        self._receive(connection)

    def _connected(self) -> Connection:
        if self._connection is None:
            ours, theirs = multiprocessing.Pipe()
            self._connection = ours
            self._start_planner(theirs, self.config)
            theirs.close()
        return self._connection

    def _state(self) -> SteeringState:
        there = {item.job_id for item in self._book.open()}
        placed = frozenset(i for i in self._open_jobs if i in there or self._allocator.holdings.has_ended(i))
        self._nodes = self.submits.see(self.node_gpus)
        return SteeringState(
            self._nodes, self._watcher.view, self._giveback.bounced(), self._pick, self.config.steering.strict,
            *self._pool(), placed, self._clock.monotonic_s(), self.submits.open(),
        )  # fmt: skip

    def _ask_planner(self, connection: Connection, state: SteeringState) -> Steering:
        connection.send(state)
        answer = self._receive(connection)
        if not isinstance(answer, Steering):
            raise HetschedError(str(answer))
        return answer

    def _receive(self, connection: Connection) -> object:
        if not connection.poll(_ANSWER_S):
            raise OSError(f"it has not answered for {_ANSWER_S:.0f} s")
        return connection.recv()

    def _pool(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        if self.pools is None:
            return frozenset(), frozenset(), frozenset()
        return self.pools.closed_to_slices(), self.pools.closed_to_whole(), self._watcher.pool_nodes

    def _gpu(self, node: str, index: int, in_mig_mode: bool, model: GpuModel) -> Gpu:
        layout = self._book.layout(node, index, model)
        if not in_mig_mode:
            return layout.state, 0
        holders = self._allocator.holdings.on(node, index)
        if any(not holder.shards for holder in holders):
            return layout.state, 0
        by_count = weights_of(model).shards_per_gpu - sum(holder.shards for holder in holders)
        return gpu_of(layout, max(0, min(by_count, weights_of(model).shards_per_gpu - layout.shards_used)))

    def _drop_planner(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _wait(self, seconds: float) -> None:
        if not self._stopping:
            threading.Event().wait(seconds)


def _start_process(connection: Connection, config: Config) -> None:
    context = multiprocessing.get_context("spawn")
    context.Process(target=planning_process, args=(connection, config), name="hetschedd-planner", daemon=True).start()


def planning_process(connection: Connection, config: Config) -> None:
    """Answer each `SteeringState` with a `Steering`, told to then make its changes; ends with the connection."""
    import signal

    from pyhetsched.daemon.logs import set_up

    # The daemon ends us by closing the connection; a reload is its business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(5)
    set_up(config.daemon.log_level)
    gateway, planner = DirectSlurm(config.slurm.conf, config.slurm.command_timeout_s), Planner()
    while True:
        try:
            state = connection.recv()
        except (EOFError, OSError):
            return
        try:
            steering = planner.plan(gateway.pending(), state)
        except HetschedError as error:
            connection.send(str(error))
            continue
        connection.send(steering)
        try:
            if connection.recv():
                _carry_out(gateway, steering)
                connection.send("done")
            else:
                planner.take_back()
        except (EOFError, OSError):
            return


def _carry_out(gateway: DirectSlurm, steering: Steering) -> None:
    for job_id, nodes in steering.changes.items():
        try:
            gateway.exclude(job_id, nodes)
        except HetschedError as error:
            # It has started or ended since we looked.
            log.debug("job %d: not steered: %s", job_id, error)
