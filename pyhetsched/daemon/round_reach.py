"""Which GPU types a job could run on, as far as a view of the cluster tells. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pyhetsched.errors import RequestError
from pyhetsched.model import ClusterView, GpuGroup, JobAsk, NodeView
from pyhetsched.policies.contract import GpuType
from pyhetsched.slurm.features import FeatureError, parse_features, satisfies
from pyhetsched.slurm.gpu_jobs import GpuJob
from pyhetsched.slurm.hosts import expand


@dataclass(frozen=True, slots=True)
class Reach:
    """The gres ``types`` a job could run on; ``telling`` are those that a node feature of their name tells apart."""

    types: frozenset[str]
    telling: frozenset[str] = frozenset()


def types_of_view(view: ClusterView) -> tuple[GpuType, ...]:
    """Return the GPU types of the cluster, with how many GPUs of each are on usable nodes."""
    counts: dict[str, int] = {}
    for node in view.nodes:
        for group in node.gpus:
            counts[group.gres_type] = counts.get(group.gres_type, 0) + group.count * node.usable
    return tuple(GpuType(name, count) for name, count in sorted(counts.items()))


class Reaches:
    """Answers for one view; jobs that ask for the same are looked at once."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._node = {node.name: node for node in view.nodes}
        self._features = frozenset(feature for node in view.nodes for feature in node.features)
        self._kept: dict[tuple[object, ...], Reach] = {}

    def of(self, job: GpuJob, ask: JobAsk | None) -> Reach:
        """Return where a waiting job could run."""
        keys = ask.model_keys if ask is not None and job.shards else ()
        # Steering changes the excluded nodes of slice jobs all the time; they say nothing of types.
        excluded = "" if job.shards else job.excluded_nodes
        kind = (job.gpus, job.shards, job.gres_type, job.node_count, keys)
        key = (*kind, job.partitions, job.features, job.required_nodes, excluded)
        if key not in self._kept:
            self._kept[key] = self._look(job, keys, excluded)
        return self._kept[key]

    def held(self, job: GpuJob) -> tuple[tuple[str, int], ...]:
        """Return the GPUs of each type that a running job holds (0 for shards); nothing where it cannot be told."""
        if job.by_type:
            return job.by_type
        nodes = [self._node[name] for name in _names(job.nodes) if name in self._node]
        groups = [group.gres_type for node in nodes for group in node.gpus]
        return ((groups[0], job.gpus),) if groups else ()

    def _look(self, job: GpuJob, keys: Sequence[str], excluded: str) -> Reach:
        nodes = self._nodes(job, excluded)
        found: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            for group in node.gpus:
                if _serves(group, job, keys):
                    found[group.gres_type].add(node.name)
        types = frozenset(name for name, there in found.items() if len(there) >= job.node_count)
        telling = frozenset(
            name for name in types
            if all((name in node.features) == (node.name in found[name]) for node in nodes)
            and all(len(node.gpus) == 1 for node in nodes if node.name in found[name])
        )  # fmt: skip
        return Reach(types, telling)

    def _nodes(self, job: GpuJob, excluded: str) -> list[NodeView]:
        try:
            expression = parse_features(job.features)
        except FeatureError:
            return []
        required, away, partitions = _names(job.required_nodes), _names(excluded), set(job.partitions) - {""}
        return [
            node for node in self._view.nodes
            if node.usable and node.gpus and node.name not in away and (not required or node.name in required)
            and (not partitions or partitions & node.partitions)
            and satisfies(expression, node.features, self._features)
        ]  # fmt: skip


def _serves(group: GpuGroup, job: GpuJob, keys: Sequence[str]) -> bool:
    if job.shards:
        fits = math.ceil(job.shards / job.node_count) <= group.shards_per_gpu * group.count
        return group.mig_enabled and fits and (not keys or group.model_key in keys)
    if job.gres_type and job.gres_type != group.gres_type:
        return False
    return group.count >= math.ceil(job.gpus / job.node_count)


def _names(hostlist: str) -> frozenset[str]:
    try:
        return frozenset(expand(hostlist)) if hostlist else frozenset()
    except RequestError:
        return frozenset()
