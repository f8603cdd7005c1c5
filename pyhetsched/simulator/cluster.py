"""The cluster of a simulation: types in order of speed, devices in servers, prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyhetsched.errors import ConfigError
from pyhetsched.placement.devices import Server, servers_of
from pyhetsched.policies.contract import GpuType

# Google Cloud spot prices as hard-coded in Gavel's repository (scheduler/utils.py), USD per GPU-hour.
GAVEL_PRICES = {"v100": 0.74, "p100": 0.43, "k80": 0.135}


@dataclass(frozen=True, slots=True)
class SimCluster:
    """GPU types (``types[j]``) and their devices by server (``servers[j]``)."""

    types: tuple[GpuType, ...]
    servers: tuple[tuple[Server, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the types."""
        return tuple(gpu_type.name for gpu_type in self.types)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the devices of each type."""
        return tuple(gpu_type.count for gpu_type in self.types)


def parse_cluster(text: str, prices: Mapping[str, float] | None = None) -> SimCluster:
    """Read ``v100:12,p100:12x4,k80:12``: type:count, optionally xGPUs-per-server (default 4; Gavel's rules: 1).

    Types are filled in the order given, so write the fastest first. ``prices`` in USD per GPU-hour.
    """
    known = {**GAVEL_PRICES, **(prices or {})}
    types: list[GpuType] = []
    servers: list[tuple[Server, ...]] = []
    for item in text.split(","):
        name, _, amount = item.strip().partition(":")
        count, _, per_server = amount.partition("x")
        if not name or not count.isdigit() or (per_server and not per_server.isdigit()) or int(count) < 1:
            raise ConfigError(f"cluster {text!r}: {item!r} is not type:count or type:countxGPUs-per-server")
        if any(gpu_type.name == name for gpu_type in types):
            raise ConfigError(f"cluster {text!r}: type {name} is given twice")
        types.append(GpuType(name, int(count), known.get(name, 0.0)))
        servers.append(servers_of(int(count), int(per_server or 4), prefix=f"{name}-"))
    return SimCluster(tuple(types), tuple(servers))
