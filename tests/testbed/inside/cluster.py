"""What a cluster file says: nodes with their GPUs, partitions and users."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLUSTER_FILE = Path("/etc/hetsched-testbed/cluster.toml")
FIRST_UID = 2001
FIRST_SLURMD_PORT = 17000


class ClusterFileError(Exception):
    """The cluster file says something that cannot be booted."""


@dataclass(frozen=True, slots=True)
class Node:
    """One slurmd. shards_per_gpu is 0 where the node offers no slices."""

    name: str
    port: int
    gres_type: str
    model: str
    gpus: int
    mig: bool
    shards_per_gpu: int
    cpus: int
    memory_mib: int

    @property
    def features(self) -> str:
        """The node's Feature value: its GPU type, and whether its GPUs are cut."""
        return f"{self.gres_type},{'mig' if self.mig else 'whole'}"

    @property
    def gres(self) -> str:
        """The node's Gres value."""
        gpus = f"gpu:{self.gres_type}:{self.gpus}"
        if not self.shards_per_gpu:
            return gpus
        return f"{gpus},shard:{self.gres_type}:{self.gpus * self.shards_per_gpu}"

    @property
    def device_dir(self) -> Path:
        """Where the character devices lie that stand in for this node's /dev/nvidiaN."""
        return Path("/dev/testbed") / self.name


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition; nodes is a Slurm host list or ALL."""

    name: str
    nodes: str = "ALL"
    default: bool = False
    max_time: str = "UNLIMITED"
    extra: str = ""


@dataclass(frozen=True, slots=True)
class User:
    """One ordinary user with an association; admin_level is slurmdbd's (None or Operator)."""

    name: str
    uid: int
    account: str
    admin_level: str = "None"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A whole cluster file. slurm_conf holds further lines for slurm.conf, hetsched for hetsched.toml."""

    name: str
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    users: tuple[User, ...]
    slurm_conf: str = ""
    hetsched: dict[str, Any] = field(default_factory=dict)

    @property
    def gres_types(self) -> list[str]:
        """The GPU types of the cluster, each once, in order."""
        return list(dict.fromkeys(node.gres_type for node in self.nodes))

    @property
    def accounts(self) -> list[str]:
        """The accounts of the cluster's users, each once, in order."""
        return list(dict.fromkeys(user.account for user in self.users))


def load_cluster(path: Path = CLUSTER_FILE) -> Cluster:
    """Read a cluster file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return Cluster(
            name=data.get("name", "testbed"),
            nodes=tuple(_nodes(data)),
            partitions=tuple(Partition(**entry) for entry in data["partitions"]),
            users=tuple(User(uid=FIRST_UID + i, **entry) for i, entry in enumerate(data["users"])),
            slurm_conf=data.get("slurm_conf", ""),
            hetsched=data.get("hetsched", {}),
        )
    except (KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise ClusterFileError(f"cluster file: {error!r}; clusters/default.toml shows every key") from error


def _nodes(data: dict[str, Any]) -> Iterable[Node]:
    port = FIRST_SLURMD_PORT
    for entry in data["nodes"]:
        for name in entry["names"]:
            yield Node(
                name=name,
                port=port,
                gres_type=entry["gres_type"],
                model=entry["model"],
                gpus=entry["gpus"],
                mig=entry["mig"],
                shards_per_gpu=entry.get("shards_per_gpu", 0),
                cpus=entry.get("cpus", data.get("cpus_per_node", 64)),
                memory_mib=entry.get("memory_mib", data.get("memory_mib_per_node", 262144)),
            )
            port += 1
