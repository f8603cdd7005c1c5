"""Slurm's nodes and partitions as values, and the view of the cluster that the rules of submit see."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyhetsched.mig.profiles import GpuModel, catalogue, models_of_type, shards_per_gpu
from pyhetsched.model import ClusterView, GpuGroup, GpuReport, NodeView, PartitionView

_UNUSABLE = ("DOWN", "DRAIN", "FAIL", "FUTURE", "UNKNOWN", "NOT_RESPONDING", "POWERED_DOWN", "REBOOT")


@dataclass(frozen=True, slots=True)
class RawNode:
    """One node as Slurm reports it; ``gres`` maps ``gpu:a100`` or ``shard:a100`` to counts."""

    name: str
    state: str
    features: tuple[str, ...] = ()
    gres: Mapping[str, int] = field(default_factory=dict)
    gres_used: Mapping[str, int] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    cpus: int = 0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class RawPartition:
    """One partition as Slurm reports it."""

    name: str
    nodes: tuple[str, ...] = ()
    is_default: bool = False
    max_time_min: int | None = None


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job that waits, as far as steering must know it; ``array`` is whether it stands for several elements."""

    job_id: int
    admin_comment: str
    priority: int
    partitions: tuple[str, ...]
    reason: str = ""
    excluded_nodes: str = ""
    required_nodes: str = ""
    array: bool = False


def build_view(nodes: Sequence[RawNode], partitions: Sequence[RawPartition], model_keys: Mapping[str, str],
               reports: Mapping[str, Sequence[GpuReport]], as_of_s: float, mig_feature: str = "mig",
               whole_feature: str = "whole", pool: Collection[str] = ()) -> ClusterView:  # fmt: skip
    """Return the cluster as the rules see it.

    ``model_keys`` are the site's gres types and their models; ``reports`` what nodes said of their GPUs, by
    node, which decides where both speak of a type. The GPUs of nodes in the ``pool`` are switchable.
    """
    members = {name: {p.name for p in partitions if name in set(p.nodes)} for name in (n.name for n in nodes)}
    return ClusterView(
        nodes=tuple(
            NodeView(
                name=node.name,
                features=frozenset(node.features),
                gpus=_groups(node, model_keys, reports.get(node.name, ()), node.name in pool),
                partitions=frozenset(node.partitions) | members[node.name],
                state=node.state,
                usable=not any(word in node.state.upper() for word in _UNUSABLE),
                cpus=node.cpus,
                memory_mib=node.memory_mib,
            )
            for node in nodes
        ),
        partitions=tuple(PartitionView(p.name, frozenset(p.nodes), p.is_default, p.max_time_min) for p in partitions),
        as_of_s=as_of_s,
        mig_feature=mig_feature,
        whole_feature=whole_feature,
    )


def gpu_models(node: NodeView) -> dict[int, GpuModel]:
    """Return the GPUs of ``node`` that are in MIG mode, by Slurm's index, with their models."""
    found: dict[int, GpuModel] = {}
    index = 0
    for group in node.gpus:
        for number in range(index, index + group.count):
            model = catalogue().get(group.model_key or "")
            if group.mig_enabled and model is not None:
                found[number] = model
        index += group.count
    return found


def gpu_types(node: NodeView) -> list[GpuGroup]:
    """Return the group of each GPU of ``node`` in the order of Slurm's indexes."""
    return [group for group in node.gpus for _ in range(group.count)]


def _groups(
    node: RawNode, model_keys: Mapping[str, str], reports: Sequence[GpuReport], in_pool: bool
) -> tuple[GpuGroup, ...]:
    groups: list[GpuGroup] = []
    first = 0
    gpu_total = sum(count for key, count in node.gres.items() if key.split(":")[0] == "gpu")
    untyped_shards = node.gres.get("shard", 0)
    for key, count in node.gres.items():
        kind, _, gres_type = key.partition(":")
        if kind != "gpu" or count <= 0:
            continue
        shards = node.gres.get(f"shard:{gres_type}", 0) or (untyped_shards * count // gpu_total)
        model_key = _model_key(gres_type, model_keys, reports[first : first + count])
        per_gpu = shards // count
        enabled = bool(per_gpu) and model_key is not None and per_gpu == shards_per_gpu_of(model_key)
        groups.append(GpuGroup(gres_type, model_key, count, enabled, per_gpu, enabled and in_pool))
        first += count
    return tuple(groups)


def shards_per_gpu_of(model_key: str) -> int:
    """Return the shards that a GPU of this model must offer, 0 where it has no MIG."""
    model = catalogue().get(model_key)
    return shards_per_gpu(model) if model is not None and model.mig_capable else 0


def _model_key(gres_type: str, model_keys: Mapping[str, str], reports: Sequence[GpuReport]) -> str | None:
    reported = {gpu.model_key for gpu in reports if gpu.model_key}
    if len(reported) == 1:
        return reported.pop()
    if gres_type in model_keys:
        return model_keys[gres_type]
    # A name that fits exactly one model of the catalogue needs no configuration (v100 alone does not).
    fitting = models_of_type(gres_type)
    return fitting[0].key if len(fitting) == 1 else None
