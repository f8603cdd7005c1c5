"""One look at the waiting slice jobs: which nodes each must be kept from now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyhetsched.daemon.pool_demand import wants_several
from pyhetsched.errors import RequestError
from pyhetsched.mig.steering import NodeGpus, PendingSlices, PickRule, settle, steer
from pyhetsched.model import ClusterView, JobAsk, NodeView
from pyhetsched.slurm.admin_comment import decode, owners_exclusions
from pyhetsched.slurm.hosts import expand, fold
from pyhetsched.slurm.snapshot import PendingJob

# Jobs that cannot start whatever we do; steering them would only take places from those that can.
_CANNOT_START = ("Held", "Dependency", "BeginTime", "Limit", "MaxJobs", "JobArrayTaskLimit", "Reservation")


Tickets = Mapping[str, Mapping[tuple[str, ...], int]]
"""By node: how many jobs of each kind (profiles on one GPU) may start there."""


#: A start reaches us within this, or was none.
_STARTS_S = 3.0


@dataclass(frozen=True, slots=True)
class SteeringState:
    """What the serving side knows: GPUs of the nodes in MIG mode, the view, and where jobs were given back."""

    nodes: tuple[NodeGpus, ...]
    view: ClusterView
    bounced: Mapping[int, tuple[str, ...]]
    pick: PickRule = PickRule.FIRST_FIT
    strict: bool = False
    closed_to_slices: frozenset[str] = frozenset()
    closed_to_whole: frozenset[str] = frozenset()
    pool: frozenset[str] = frozenset()
    #: Of the jobs that the last plan left open somewhere, those that the picture of the GPUs shows.
    placed: frozenset[int] = frozenset()
    now_s: float = 0.0
    #: By decision id: the jobs that are being submitted, each open to one node.
    submits: Mapping[str, PendingSlices] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Steering:
    """What the planning side found.

    The changes to make, what each job may have, the asks of those that could start, and by node the kinds of slice
    jobs (profiles on one GPU) that it is left open to, with their number, and the jobs that these are.
    """

    changes: Mapping[int, frozenset[str]]
    asks: Mapping[int, tuple[str, JobAsk]]
    waiting: Mapping[int, JobAsk] = field(default_factory=dict)
    open_to: Tickets = field(default_factory=dict)
    open_jobs: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Open:
    """A job, its profiles and the nodes that it was left open on, when it was last seen waiting."""

    slices: PendingSlices
    seen_s: float


class Planner:
    """Plans again and again, remembering only what it set last, so that an owner's own change is kept."""

    def __init__(self) -> None:
        self._set: dict[int, frozenset[str]] = {}
        self._owners: dict[int, frozenset[str]] = {}
        self._kept: Mapping[int, frozenset[str]] = {}
        self._open: dict[int, _Open] = {}

    def plan(self, jobs: Sequence[PendingJob], state: SteeringState) -> Steering:
        """Return the excluded nodes of every job that must have others than it has; see `take_back`."""
        self._before = (dict(self._set), dict(self._owners), self._kept, self._open)
        known = {job.job_id: found for job in jobs if (found := decode(job.admin_comment))}
        wants = {job_id: ask for job_id, (_, ask) in known.items()}
        startable = [job for job in jobs if job.job_id in known and _could_start(job)]
        slices = [job for job in startable if wants[job.job_id].kind == "slices" and wants[job.job_id].shards > 0]
        others = [job for job in startable if state.pool and _minds_modes(wants[job.job_id])]
        owners = {job.job_id: self._owners_of(job, state) for job in (*slices, *others)}
        waiting = sorted(slices, key=lambda job: (-job.priority, job.job_id))
        asks = list(_asks(waiting, known, owners, state.view))
        eligible = {ask.job_id: ask.nodes or frozenset() for ask in asks}
        starting = self._starting({job.job_id for job in jobs}, state)
        seen = {decision_id for decision_id, _ in known.values()}
        submits = [slices for decision_id, slices in state.submits.items() if decision_id not in seen]
        steering = steer(state.nodes, asks, state.pick, [*starting, *submits])
        self._open = {i: job for i, job in self._open.items() if job.slices in starting}
        self._open |= {
            ask.job_id: _Open(PendingSlices(ask.job_id, ask.profiles, steering.open_to[ask.job_id]), state.now_s)
            for ask in asks if steering.open_to.get(ask.job_id)
        }  # fmt: skip
        self._kept = settle(self._kept, steering, eligible, state.strict)
        changes: dict[int, frozenset[str]] = {}
        for job in (*slices, *others):
            closed = _closed_to(job, wants[job.job_id], owners[job.job_id], state)
            kept = self._kept.get(job.job_id, frozenset()) | closed
            wanted = owners[job.job_id] | kept | set(state.bounced.get(job.job_id, ()))
            if wanted != names(job.excluded_nodes):
                changes[job.job_id] = wanted
            self._set[job.job_id] = wanted
        self._forget({job.job_id for job in jobs})
        startable_asks = {job.job_id: wants[job.job_id] for job in startable}
        tickets = _tickets(job.slices for job in self._open.values())
        return Steering(changes, known, startable_asks, tickets, frozenset(self._open))

    def take_back(self) -> None:
        """Forget the last plan: it was not carried out."""
        self._set, self._owners, self._kept, self._open = self._before

    def _starting(self, waiting: Collection[int], state: SteeringState) -> list[PendingSlices]:
        """Jobs that were left open and wait no more, but are not in the picture: slurmctld has just started them.

        Its prolog tells us some hundredths of a second later. One that does not turn up was cancelled.
        """
        return [
            job.slices for job_id, job in self._open.items()
            if job_id not in waiting and job_id not in state.placed and state.now_s - job.seen_s < _STARTS_S
        ]  # fmt: skip

    def _owners_of(self, job: PendingJob, state: SteeringState) -> frozenset[str]:
        now, last = names(job.excluded_nodes), self._set.get(job.job_id)
        owners = self._owners.setdefault(job.job_id, names(owners_exclusions(job.admin_comment)))
        if last is not None and now != last:
            # Somebody else has set the list: what is not ours in it is the owner's now.
            ours = last - owners
            owners = self._owners[job.job_id] = now - ours - set(state.bounced.get(job.job_id, ()))
        return owners

    def _forget(self, waiting: Collection[int]) -> None:
        for memory in (self._set, self._owners):
            for job_id in [job_id for job_id in memory if job_id not in waiting]:
                del memory[job_id]


def names(hostlist: str) -> frozenset[str]:
    """Return the nodes in ``hostlist``; none where it cannot be read."""
    try:
        return frozenset(expand(hostlist))
    except RequestError:
        return frozenset()


def with_nodes(hostlist: str, nodes: Iterable[str]) -> str:
    """Return ``hostlist`` with ``nodes`` added."""
    return fold({*names(hostlist), *nodes})


def serves(node: NodeView, ask: JobAsk, model_key: str, partitions: Collection[str]) -> bool:
    """Whether a node with GPUs of ``model_key`` may serve a job with ``ask`` in one of ``partitions``."""
    admissible = not ask.model_keys or model_key in ask.model_keys
    return admissible and node.usable and (not partitions or bool(node.partitions.intersection(partitions)))


def _could_start(job: PendingJob) -> bool:
    return not any(word in job.reason for word in _CANNOT_START)


def _closed_to(job: PendingJob, ask: JobAsk, owners: frozenset[str], state: SteeringState) -> frozenset[str]:
    """The nodes of the pool in the wrong mode for a job, unless no other could serve it.

    A job that is excluded from all its nodes would be held by Slurm (BadConstraints, priority 0), and stay so if
    the daemon went away. One that starts in the wrong place goes back to the queue instead, ever more seldom.
    """
    slices = ask.kind == "slices"
    closed = (state.closed_to_slices if slices else state.closed_to_whole) - names(job.required_nodes)
    if not closed:
        return closed
    could = {
        node.name for node in state.view.nodes
        if any(serves(node, ask, group.model_key or "", job.partitions) and (group.mig_enabled if slices else (
            group.count >= ask.gpus_per_node and (group.switchable or not group.mig_enabled))) for group in node.gpus)
    }  # fmt: skip
    return closed if could - closed - owners else frozenset()


def _tickets(open_jobs: Iterable[PendingSlices]) -> Tickets:
    """Return how many jobs of each kind may start on each node."""
    found: dict[str, dict[tuple[str, ...], int]] = {}
    for job in open_jobs:
        for node in job.nodes or ():
            kinds = found.setdefault(node, {})
            kinds[job.profiles] = kinds.get(job.profiles, 0) + 1
    return found


def _minds_modes(ask: JobAsk) -> bool:
    """Whether a job that Slurm counts in GPUs needs a node in MIG mode, or one that is not."""
    return ask.cut_whole or wants_several(ask)


def _asks(jobs: Iterable[PendingJob], known: Mapping[int, tuple[str, JobAsk]], owners: Mapping[int, frozenset[str]],
          view: ClusterView) -> Iterable[PendingSlices]:  # fmt: skip
    by_name = {node.name: node for node in view.nodes}
    for job in jobs:
        ask = known[job.job_id][1]
        profiles = tuple(item.profile for item in ask.slices for _ in range(item.count))
        required = names(job.required_nodes)
        nodes = frozenset(
            name for name, node in by_name.items()
            if any(serves(node, ask, group.model_key or "", job.partitions) for group in node.gpus if group.mig_enabled)
            and (not required or name in required)
        )  # fmt: skip
        nodes -= owners[job.job_id]
        yield PendingSlices(job.job_id, profiles, nodes, nodes - names(job.excluded_nodes))
