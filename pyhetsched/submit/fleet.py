"""What the cluster offers to one request: GPU types with their models, by partition and by what the job may reach.

Nodes that are alike are taken together, so a cluster of thousands of nodes is looked at in microseconds.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyhetsched.errors import LayoutError, RequestError
from pyhetsched.mig.profiles import GpuModel, model_by_key, models_of_type, shards_per_gpu
from pyhetsched.model import ClusterView, GpuGroup, NodeView, SubmitRequest
from pyhetsched.slurm.features import Chain, FeatureError, parse_features, satisfies
from pyhetsched.slurm.hosts import expand

MOST_NAMES = 65_536
MOST_PARTITION_SETS = 256


@dataclass(frozen=True, slots=True)
class Offer:
    """The GPUs of one gres type on nodes that are alike.

    ``models`` are the models that the type can mean; ``model`` is the one if it is known. ``why_no_slices`` is
    empty where slices can be had. ``gpus`` counts per node; ``neighbours`` are all groups of such a node.
    """

    gres_type: str
    gpus: int
    mig: bool
    shards: int
    models: tuple[GpuModel, ...]
    why_no_slices: str
    features: frozenset[str]
    nodes: frozenset[str]
    usable: bool
    neighbours: tuple[GpuGroup, ...]

    @property
    def model(self) -> GpuModel | None:
        """The model, if there is no doubt about it."""
        return self.models[0] if len(self.models) == 1 else None

    @property
    def slices(self) -> bool:
        """Whether slices can be had."""
        return not self.why_no_slices

    @property
    def total_gpus(self) -> int:
        """GPUs on all nodes."""
        return self.gpus * len(self.nodes)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The offers to one request: of the whole cluster, of its partitions, and those that it may reach."""

    cluster: tuple[Offer, ...]
    in_partition: tuple[Offer, ...]
    reachable: tuple[Offer, ...]
    expression: Chain | None
    unreadable_features: bool
    known_features: frozenset[str]
    site_types: Mapping[str, tuple[str, ...]]
    partition: str


def fleet_of(request: SubmitRequest, view: ClusterView) -> Fleet:
    """What ``view`` offers to ``request``."""
    digest = _digest(_Identity(view))
    in_partition, partition = _in_partition(digest, view, request.partition)
    expression, unreadable = _expression(request.features)
    reachable = (o for o in in_partition if satisfies(expression, o.features, digest.known_features))
    reachable = (_narrow_to_lists(offer, request) for offer in reachable)
    return Fleet(
        cluster=digest.offers,
        in_partition=in_partition,
        reachable=tuple(offer for offer in reachable if offer.nodes),
        expression=expression,
        unreadable_features=unreadable,
        known_features=digest.known_features,
        site_types=digest.site_types,
        partition=partition,
    )


def types_of(offers: Iterable[Offer]) -> tuple[str, ...]:
    """The gres types of ``offers``, each once, in their order."""
    return tuple(dict.fromkeys(offer.gres_type for offer in offers))


def models_in(offers: Iterable[Offer]) -> tuple[GpuModel, ...]:
    """The models of those offers that can be cut, each once."""
    return tuple(dict.fromkeys(offer.models[0] for offer in offers if offer.slices))


def of_types_alone(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The offers to which an untyped request can be steered: all of them if they are of one type, which can be
    named, else those on nodes that have no GPU of yet another type."""
    offers = tuple(offers)
    types = types_of(offers)
    if len(types) < 2:
        return offers
    return tuple(offer for offer in offers if all(group.gres_type in types for group in offer.neighbours))


@dataclass(frozen=True, slots=True)
class _Digest:
    offers: tuple[Offer, ...]
    known_features: frozenset[str]
    site_types: Mapping[str, tuple[str, ...]]
    by_partitions: dict[frozenset[str], tuple[Offer, ...]] = field(default_factory=dict)


class _Identity:
    """A view as a key of the cache; a view never changes, so the object itself is the key."""

    __slots__ = ("view",)

    def __init__(self, view: ClusterView) -> None:
        self.view = view

    def __hash__(self) -> int:
        return id(self.view)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.view is self.view


@functools.lru_cache(maxsize=4)
def _digest(key: _Identity) -> _Digest:
    alike: dict[tuple[frozenset[str], tuple[GpuGroup, ...], bool], list[NodeView]] = defaultdict(list)
    for node in key.view.nodes:
        if node.gpus:
            alike[node.features, node.gpus, node.usable].append(node)
    offers = []
    site_types: dict[str, dict[str, None]] = defaultdict(dict)
    for (features, groups, usable), nodes in alike.items():
        names = frozenset(node.name for node in nodes)
        for group in groups:
            offer = _offer(group, features, names, usable, groups)
            offers.append(offer)
            site_types[group.gres_type].update((model.key, None) for model in offer.models)
    known = frozenset(feature for node in key.view.nodes for feature in node.features)
    return _Digest(tuple(offers), known, {name: tuple(keys) for name, keys in site_types.items()})


def _in_partition(digest: _Digest, view: ClusterView, partition: str) -> tuple[tuple[Offer, ...], str]:
    """The offers of the job's partitions, and the names of these partitions for a sentence."""
    asked = _partitions(partition, view)
    known = digest.by_partitions.get(asked)
    if known is None:
        names = _partition_names(asked, view)
        within = digest.offers if names is None else tuple(_narrow(offer, names) for offer in digest.offers)
        known = tuple(offer for offer in within if offer.nodes)
        if len(digest.by_partitions) < MOST_PARTITION_SETS:
            digest.by_partitions[asked] = known
    return known, ",".join(sorted(asked))


def _offer(
    group: GpuGroup, features: frozenset[str], names: frozenset[str], usable: bool, groups: tuple[GpuGroup, ...]
) -> Offer:
    models = _models(group)
    return Offer(
        group.gres_type,
        group.count,
        group.mig_enabled,
        group.shards_per_gpu,
        models,
        _why_no_slices(group, models, groups),
        features,
        names,
        usable,
        groups,
    )


def _models(group: GpuGroup) -> tuple[GpuModel, ...]:
    if group.model_key is not None:
        try:
            return (model_by_key(group.model_key),)
        except LayoutError:
            return ()
    return models_of_type(group.gres_type) if group.gres_type else ()


def _why_no_slices(group: GpuGroup, models: tuple[GpuModel, ...], groups: tuple[GpuGroup, ...]) -> str:
    if not group.mig_enabled:
        return "not in MIG mode"
    if len(models) != 1:
        return "which GPU model it is, is not known"
    if not models[0].mig_capable:
        return "the model has no MIG"
    needed = shards_per_gpu(models[0])
    if group.shards_per_gpu != needed:
        return f"Slurm offers {group.shards_per_gpu} shards per GPU where {needed} are needed"
    if any(other.shards_per_gpu and other.model_key != group.model_key for other in groups):
        return "its node has shards of several GPU models, which an untyped request cannot tell apart"
    return ""


def _partition_names(asked: frozenset[str], view: ClusterView) -> frozenset[str] | None:
    """The nodes of partitions; None when nothing is known of them."""
    if not asked:
        return None
    names = {name for each in view.partitions if each.name in asked for name in each.nodes}
    return frozenset(names | {node.name for node in view.nodes if node.partitions & asked}) or None


def _partitions(partition: str, view: ClusterView) -> frozenset[str]:
    """The partitions that a job asks for and that exist; the default one if it names none."""
    asked = frozenset(name.strip() for name in partition.split(",") if name.strip())
    if not asked:
        return frozenset(each.name for each in view.partitions if each.is_default)
    known = {each.name for each in view.partitions} | {name for node in view.nodes for name in node.partitions}
    return asked & known


def _expression(features: str) -> tuple[Chain | None, bool]:
    try:
        return parse_features(features), False
    except FeatureError:
        return None, True


def _narrow(offer: Offer, names: frozenset[str]) -> Offer:
    both = offer.nodes & names
    if len(both) == len(offer.nodes):
        return offer
    return replace(offer, nodes=both)


def _narrow_to_lists(offer: Offer, request: SubmitRequest) -> Offer:
    required, excluded = host_names(request.required_nodes), host_names(request.excluded_nodes)
    if required and max(request.min_nodes, 1) <= len(required):
        offer = _narrow(offer, required)
    return _narrow(offer, offer.nodes - excluded) if excluded else offer


@functools.lru_cache(maxsize=64)
def host_names(hostlist: str) -> frozenset[str]:
    """The names in a user's host list; empty if it is none, or too long to expand while slurmctld waits."""
    size = MOST_NAMES + 1 if re.search(r"\d{10}", hostlist) else 1
    for low, high in re.findall(r"(\d{1,9})-(\d{1,9})", hostlist):
        size *= max(1, int(high) - int(low) + 1)
    if "@" in hostlist or size > MOST_NAMES:  # "@" would ask ClusterShell for groups, which runs commands
        return frozenset()
    try:
        return frozenset(expand(hostlist))
    except RequestError:
        return frozenset()
