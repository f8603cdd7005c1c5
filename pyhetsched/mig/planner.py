"""Planning layouts across GPUs: initial deployment, reconfiguration, compaction; the answer is a list of steps.

* :func:`deploy` adds slices beside what is there, opening few GPUs.
* :func:`reconfigure` makes room by destroying instances that no job holds, keeping those that serve.
* :func:`compact` says which nodes to let run dry so that their slices are served by others. Instances do not
  move and jobs are never moved: a drained node empties as its jobs end.

Slices of running jobs stay where they are in all three. The packing is that of
:mod:`pyhetsched.mig.packing`; use cases after the workload placement of IBM for MIG (WPM), whose moves of
running work do not exist here.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyhetsched.errors import LayoutError, SolverError
from pyhetsched.mig.geometry import Counts, Media, Space
from pyhetsched.mig.inventory import GpuSlices
from pyhetsched.mig.layout import Layout, Placement, choose_starts, shape_index
from pyhetsched.mig.packing import Packing, compact_exactly, pack, pack_within
from pyhetsched.mig.profiles import GpuModel, Profile, space_of_model


@dataclass(frozen=True, slots=True)
class Drain:
    """Let no new slice job start on a node until it has run dry."""

    node: str
    reason: str

    def __str__(self) -> str:
        return f"drain   {self.node}  ({self.reason})"


@dataclass(frozen=True, slots=True)
class Destroy:
    """Destroy an instance that no job holds (any more)."""

    node: str
    gpu_index: int
    placement: Placement

    def __str__(self) -> str:
        return f"destroy {self.node}:{self.gpu_index} {self.placement}"


@dataclass(frozen=True, slots=True)
class Create:
    """Create an instance."""

    node: str
    gpu_index: int
    placement: Placement

    def __str__(self) -> str:
        return f"create  {self.node}:{self.gpu_index} {self.placement}"


@dataclass(frozen=True, slots=True)
class Resume:
    """Let slice jobs start on a node again, once it has run dry."""

    node: str

    def __str__(self) -> str:
        return f"resume  {self.node}  (once dry)"


Step = Drain | Destroy | Create | Resume


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order, the GPUs after them, and the demanded slices that found no place, by profile name."""

    steps: tuple[Step, ...]
    gpus: tuple[GpuSlices, ...]
    unplaced: Mapping[str, int]

    @property
    def gpus_used(self) -> int:
        """GPUs that host at least one instance after the plan."""
        return sum(1 for gpu in self.gpus if gpu.layout)


def deploy(gpus: Sequence[GpuSlices], demand: Mapping[str, int], time_limit_s: float = 0.0) -> Plan:
    """Create ``demand`` (profile name to count) beside the instances that are there.

    GPUs out of MIG mode are left alone. A profile is served on the models that have it, in the order in which
    they occur. ``time_limit_s`` is spent on bettering the packing by the integer program; 0 keeps to the
    heuristic. Raises :class:`LayoutError` if no GPU has a demanded profile.
    """
    return _plan(gpus, demand, keep_idle=True, time_limit_s=time_limit_s)


def reconfigure(gpus: Sequence[GpuSlices], demand: Mapping[str, int], time_limit_s: float = 0.0) -> Plan:
    """Serve ``demand`` with instances that no job holds: keep those that fit the plan, destroy and create.

    ``demand`` counts what shall be free for new jobs after the plan, idle instances that exist included.
    Otherwise as :func:`deploy`.
    """
    return _plan(gpus, demand, keep_idle=False, time_limit_s=time_limit_s)


def compact(gpus: Sequence[GpuSlices], time_limit_s: float = 0.0) -> Plan:
    """Name the nodes to let run dry: those whose held slices fit beside what stays, so that fewer GPUs are used.

    With ``time_limit_s`` 0 a greedy pass (nodes with fewest held compute slices first); else the integer
    program decides where it finishes in time and does better. Steps: drain, destroy what no job holds there,
    and resume once dry. The layouts after the plan show where the drained nodes' slices have their place when they
    start anew (held by job 0). Only nodes whose GPUs are of one model are considered.
    """
    plan = _drain(gpus, _by_occupancy(gpus))
    if time_limit_s <= 0:
        return plan
    try:
        dry = [node for model in _models(gpus) for node in _driest(model, gpus, time_limit_s)]
    except SolverError:
        return plan
    # The program counts kinds; where media engines then forbid the whole set, its nodes are tried one by one.
    together = _drain(gpus, dry, all_at_once=True, time_limit_s=time_limit_s)
    return min(plan, together, _drain(gpus, dry), key=lambda made: made.gpus_used)


def _driest(model: GpuModel, gpus: Sequence[GpuSlices], time_limit_s: float) -> list[str]:
    """The nodes of one model that the integer program empties, those that hold anything, fewest slices first."""
    space = space_of_model(model)
    alone = {g.node for g in gpus} - {g.node for g in gpus if g.model != model}
    mine = [g for g in gpus if g.node in alone and g.layout is not None]
    held = [kind_counts(space, g.held) for g in mine]
    dry = compact_exactly(space, [g.held.state for g in mine], held, [g.node for g in mine], time_limit_s)
    return [node for node in _by_occupancy(mine) if node in dry and any(g.held for g in mine if g.node == node)]


def _drain(
    gpus: Sequence[GpuSlices], order: Sequence[str], all_at_once: bool = False, time_limit_s: float = 0.0
) -> Plan:
    """Let nodes run dry one after the other where that uses fewer GPUs, or all of them together."""
    now = {(g.node, g.index): g.with_layout(g.held) if g.layout is not None else g for g in gpus}
    drained: list[str] = []
    for nodes in [list(order)] if all_at_once else [[node] for node in order]:
        after = _without_nodes(now, nodes, drained, time_limit_s)
        if after is not None:
            drained += nodes
            now = after
    steps: list[Step] = []
    for node in drained:
        mine = [g for g in gpus if g.node == node]
        jobs = sorted({job for g in mine for job in g.holders.values()})
        slices = sum(len(g.held) for g in mine)
        steps.append(Drain(node, f"its {slices} slices fit elsewhere; dry when jobs {_list(jobs)} end"))
        steps += [Destroy(node, g.index, p) for g in mine for p in g.idle]
        steps.append(Resume(node))
    return Plan(tuple(steps), tuple(now[g.node, g.index] for g in gpus), {})


def _without_nodes(
    now: Mapping[tuple[str, int], GpuSlices], nodes: Sequence[str], drained: Sequence[str], time_limit_s: float
) -> dict[tuple[str, int], GpuSlices] | None:
    """The GPUs once ``nodes`` have run dry, None if what they hold does not fit or no GPU is saved.

    All instances in ``now`` are held.
    """
    leaving = [g for g in now.values() if g.node in nodes]
    models = {g.model for g in leaving}
    if not any(g.layout for g in leaving) or len(models) != 1:
        return None
    model = models.pop()
    away = {*nodes, *drained}
    hosts = [g for g in now.values() if g.node not in away and g.model == model and g.layout is not None]
    space, names = (
        space_of_model(model),
        _names_by_kind(model, Counter(p.profile.name for g in leaving for p in g.layout or ())),
    )
    moving = sum(map(len, names))
    states = [g.layout.state for g in hosts if g.layout is not None]
    packing = _pack(space, states, tuple(map(len, names)), time_limit_s)
    if any(packing.unplaced) or packing.opened(states) >= sum(1 for g in leaving if g.layout):
        return None
    after = dict(now)
    for host, counts in zip(hosts, packing.added, strict=True):
        if any(counts):
            layout = _lay_out(host.layout or Layout.empty(model), Layout.empty(model), _take(model, counts, names))
            after[host.node, host.index] = _occupied(host.with_layout(layout))
    placed = sum(len(after[g.node, g.index].layout or ()) - len(g.layout or ()) for g in hosts)
    if placed != moving:
        return None
    after.update({(g.node, g.index): replace(g, layout=Layout.empty(model), holders={}) for g in leaving if g.layout})
    return after


def _occupied(gpu: GpuSlices) -> GpuSlices:
    """The GPU with every instance held, so that later rounds keep its place (job 0: a future start)."""
    layout = gpu.layout or Layout.empty(gpu.model)
    return GpuSlices(gpu.node, gpu.index, gpu.model, layout, {p.start: gpu.holders.get(p.start, 0) for p in layout})


def _by_occupancy(gpus: Sequence[GpuSlices]) -> list[str]:
    compute: Counter[str] = Counter()
    for gpu in gpus:
        compute[gpu.node] += gpu.held.compute_used
    return sorted(compute, key=lambda node: (compute[node], node))


def _list(jobs: Sequence[int]) -> str:
    shown = ", ".join(map(str, jobs[:5]))
    return f"{shown} and {len(jobs) - 5} more" if len(jobs) > 5 else shown


def _plan(gpus: Sequence[GpuSlices], demand: Mapping[str, int], keep_idle: bool, time_limit_s: float) -> Plan:
    left = Counter({name: n for name, n in demand.items() if n > 0})
    after = {(g.node, g.index): g for g in gpus}
    models = _models(gpus)
    unknown = [name for name in left if not any(_has(m, name) for m in models)]
    if unknown:
        raise LayoutError(f"no GPU in MIG mode has the profile {', '.join(sorted(unknown))}")
    for model in models:
        mine = [g for g in gpus if g.model == model and g.layout is not None]
        wanted = {name: n for name, n in left.items() if n and _has(model, name)}
        for gpu in _plan_model(model, mine, wanted, keep_idle, time_limit_s):
            before = after[gpu.node, gpu.index]
            placed = Counter(gpu.idle.counts)
            if keep_idle:
                placed -= Counter(before.idle.counts)
            left -= placed
            after[gpu.node, gpu.index] = gpu
    steps = [s for g in gpus for s in _steps(g, after[g.node, g.index])]
    return Plan(tuple(steps), tuple(after[g.node, g.index] for g in gpus), {n: c for n, c in left.items() if c})


def _models(gpus: Sequence[GpuSlices]) -> list[GpuModel]:
    """The models of the GPUs in MIG mode, in order of appearance."""
    return list(dict.fromkeys(g.model for g in gpus if g.layout is not None))


def _has(model: GpuModel, name: str) -> bool:
    return any(p.name == name for p in model.profiles)


def _plan_model(
    model: GpuModel, gpus: Sequence[GpuSlices], wanted: Mapping[str, int], keep_idle: bool, time_limit_s: float
) -> list[GpuSlices]:
    """The GPUs of one model after the plan."""
    space = space_of_model(model)
    bases = [(g.layout if keep_idle else g.held) or Layout.empty(model) for g in gpus]
    names = _names_by_kind(model, wanted)
    states = [base.state for base in bases]
    packing = _pack(space, states, tuple(map(len, names)), time_limit_s)
    added = list(packing.added)
    if not keep_idle:
        added = _swap_for_overlap(space, states, added, [g.idle for g in gpus])
    return [
        gpu.with_layout(_lay_out(base, Layout.empty(model) if keep_idle else gpu.idle, _take(model, counts, names)))
        for gpu, base, counts in zip(gpus, bases, added, strict=True)
    ]


def _pack(space: Space, states: Sequence[int], wanted: Counts, time_limit_s: float) -> Packing:
    if time_limit_s > 0:
        return pack_within(space, states, wanted, time_limit_s)
    return pack(space, states, wanted)


def _names_by_kind(model: GpuModel, wanted: Mapping[str, int]) -> list[list[str]]:
    """The demanded names of each kind, those with extra media engines last (they are handed out first)."""
    space = space_of_model(model)
    names: list[list[str]] = [[] for _ in space.kinds]
    for name, number in sorted(wanted.items(), key=lambda item: model.profile(item[0]).media is Media.EXTRA):
        names[space.kind_of[shape_index(model, model.profile(name))]] += [name] * number
    return names


def _take(model: GpuModel, counts: Counts, names: list[list[str]]) -> tuple[Profile, ...]:
    """Profiles for ``counts`` kinds out of the demanded names; one with extra media engines at most per GPU."""
    taken: list[Profile] = []
    for kind, number in enumerate(counts):
        for _ in range(number):
            extra_taken = any(p.media is Media.EXTRA for p in taken)
            last = model.profile(names[kind][-1])
            first = extra_taken and last.media is Media.EXTRA
            taken.append(model.profile(names[kind].pop(0 if first else -1)))
    return tuple(taken)


def _swap_for_overlap(
    space: Space, states: Sequence[int], added: Sequence[Counts], idle: Sequence[Layout]
) -> list[Counts]:
    """Hand the multisets of GPUs in one state to those whose idle instances resemble them most."""
    result = list(added)
    groups: dict[int, list[int]] = {}
    for i, state in enumerate(states):
        groups.setdefault(state, []).append(i)
    for members in groups.values():
        pool = Counter(added[i] for i in members)
        for i in sorted(members, key=lambda i: -len(idle[i])):
            have = kind_counts(space, idle[i])
            best = max(pool, key=lambda counts: (_likeness(have, counts), counts))
            result[i] = best
            pool -= Counter([best])
    return result


def kind_counts(space: Space, layout: Layout) -> Counts:
    """How many instances of each kind ``layout`` holds."""
    counts = [0] * len(space.kinds)
    for placement in layout:
        counts[space.kind_of[shape_index(layout.model, placement.profile)]] += 1
    return tuple(counts)


def _likeness(have: Counts, want: Counts) -> int:
    """Instances that can stay, less those to be destroyed."""
    kept = sum(min(h, w) for h, w in zip(have, want, strict=True))
    return 2 * kept - sum(have)


@functools.lru_cache(maxsize=16384)
def _lay_out(base: Layout, idle: Layout, profiles: tuple[Profile, ...]) -> Layout:
    """``base`` with ``profiles`` added, at the starts of ``idle`` instances of the same profile where possible.

    What media engines rule out is left away.
    """
    stay: list[Placement] = []
    missing = list(profiles)
    for placement in idle:
        if placement.profile in missing:
            stay.append(placement)
            missing.remove(placement.profile)
    while True:
        with_stay = Layout.of(base.model, [*base, *stay])
        starts = choose_starts(with_stay, missing) if with_stay.is_legal else None
        if starts is not None:
            return Layout.of(base.model, [*with_stay, *map(Placement, missing, starts)])
        if stay:
            missing.append(stay.pop().profile)
        else:
            missing.remove(next((p for p in missing if p.media is not Media.SHARE), missing[-1]))


def _steps(before: GpuSlices, after: GpuSlices) -> list[Step]:
    """Destroys first, then creates, of one GPU."""
    old = set(before.layout or ())
    new = set(after.layout or ())
    gone = sorted(old - new, key=lambda p: p.start)
    made = sorted(new - old, key=lambda p: p.start)
    return [
        *(Destroy(before.node, before.index, p) for p in gone),
        *(Create(before.node, before.index, p) for p in made),
    ]
