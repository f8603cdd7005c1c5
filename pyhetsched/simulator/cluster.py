"""The cluster of a simulation: types in order of speed, devices in servers, partitions, prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyhetsched.errors import ConfigError, HetschedError
from pyhetsched.mig import profiles
from pyhetsched.mig.profiles import GpuModel
from pyhetsched.placement.devices import Server, servers_of
from pyhetsched.policies.contract import GpuType

# Google Cloud spot prices as hard-coded in Gavel's repository (scheduler/utils.py), USD per GPU-hour.
GAVEL_PRICES = {"v100": 0.74, "p100": 0.43, "k80": 0.135}


@dataclass(frozen=True, slots=True)
class Partition:
    """A Slurm partition: the types its nodes have, and its MaxTime in s (inf: none)."""

    name: str
    types: frozenset[str]
    max_time_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class SimCluster:
    """GPU types (``types[j]``), their devices by server (``servers[j]``), and what bounds jobs.

    ``models[j]`` is the MIG model of a type whose nodes offer slices, else None. ``gpu_limits`` are the most GPUs that
    the jobs of an account may hold at once (GrpTRES=gres/gpu=N).
    """

    types: tuple[GpuType, ...]
    servers: tuple[tuple[Server, ...], ...]
    models: tuple[GpuModel | None, ...] = ()
    partitions: tuple[Partition, ...] = ()
    gpu_limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the types."""
        return tuple(gpu_type.name for gpu_type in self.types)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the devices of each type."""
        return tuple(gpu_type.count for gpu_type in self.types)

    def partition(self, name: str) -> Partition:
        """Return the partition ``name``; "" and, where none are given, any name mean all types."""
        if not name or not self.partitions:
            return Partition(name, frozenset(self.names))
        for partition in self.partitions:
            if partition.name == name:
                return partition
        known = ", ".join(partition.name for partition in self.partitions)
        raise ConfigError(f"no partition {name!r}; there are {known}")


def parse_cluster(
    text: str,
    prices: Mapping[str, float] | None = None,
    partitions: Sequence[str] = (),
    gpu_limits: Sequence[str] = (),
) -> SimCluster:
    """Read ``v100:12,p100:12x4,a100:8x4/A100-80GB``: type:count, GPUs per server (default 4), MIG model if sliced.

    Types are filled in the order given, so write the fastest first. ``prices`` in USD per GPU-hour. Each of
    ``partitions`` is ``name=type+type`` or ``name=type@hours``, each of ``gpu_limits`` ``account=GPUs``.
    """
    known = {**GAVEL_PRICES, **(prices or {})}
    types: list[GpuType] = []
    servers: list[tuple[Server, ...]] = []
    models: list[GpuModel | None] = []
    for item in text.split(","):
        name, count, per_server, model = _item(item.strip(), text)
        if any(gpu_type.name == name for gpu_type in types):
            raise ConfigError(f"cluster {text!r}: type {name} is given twice")
        types.append(GpuType(name, count, known.get(name, 0.0)))
        servers.append(servers_of(count, per_server, prefix=f"{name}-"))
        models.append(model)
    names = frozenset(gpu_type.name for gpu_type in types)
    return SimCluster(
        tuple(types),
        tuple(servers),
        tuple(models),
        tuple(_partition(item, names) for item in partitions),
        dict(_limit(item) for item in gpu_limits),
    )


def _item(item: str, text: str) -> tuple[str, int, int, GpuModel | None]:
    name, _, amount = item.partition(":")
    amount, _, model = amount.partition("/")
    count, _, per_server = amount.partition("x")
    if not name or not count.isdigit() or int(count) < 1 or (per_server and not per_server.isdigit()):
        raise ConfigError(
            f"cluster {text!r}: {item!r} is not type:count, type:countxGPUs-per-server or type:count/MIG-model"
        )
    if not model:
        return name, int(count), int(per_server or 4), None
    try:
        found = profiles.model_by_key(model)
        profiles.geometry_of(found)
    except HetschedError as error:
        raise ConfigError(f"cluster {text!r}: {error}") from error
    return name, int(count), int(per_server or 4), found


def _partition(item: str, names: frozenset[str]) -> Partition:
    name, _, rest = item.partition("=")
    types, _, hours = rest.partition("@")
    chosen = frozenset(types.split("+")) if types else names
    if not name or not chosen <= names:
        raise ConfigError(f"partition {item!r}: write name=type+type[@hours] with types of {', '.join(sorted(names))}")
    try:
        return Partition(name, chosen, float(hours) * 3600.0 if hours else float("inf"))
    except ValueError:
        raise ConfigError(f"partition {item!r}: {hours!r} is not a number of hours") from None


def _limit(item: str) -> tuple[str, int]:
    account, _, count = item.partition("=")
    if not account or not count.isdigit():
        raise ConfigError(f"GPU limit {item!r}: write account=GPUs")
    return account, int(count)
