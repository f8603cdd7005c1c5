"""The one configuration file, ``/etc/hetsched/hetsched.toml``, validated.

Every key has a default, so an empty file is valid. Unknown keys are errors. ``sample()`` renders the file
that ``make install`` puts in place; ``load()`` raises `ConfigError` with one line per mistake.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pyhetsched.errors import ConfigError

DEFAULT_PATH = "/etc/hetsched/hetsched.toml"

ModeName = Literal["off", "shadow", "enforce"]
# A year at most: no wait of the interpreter may be endless (TOML knows "inf"), nor none at all.
Seconds = Annotated[float, Field(ge=0.001, le=31_622_400)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DaemonConfig(_Section):
    """Where the daemon listens and keeps its state."""

    socket: str = "/run/hetsched/hetschedd.sock"
    hook_socket: str = "/run/hetsched/hook.sock"
    listen: tuple[str, ...] = ()
    state_dir: str = "/var/lib/hetsched"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_listen: str = ""
    threads: int = Field(default=16, ge=2, le=256)

    @field_validator("socket", "hook_socket", "state_dir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError(f"write an absolute path instead of {value!r}")
        return value

    @field_validator("metrics_listen")
    @classmethod
    def _one_host_port(cls, value: str) -> str:
        return cls._host_port((value,))[0] if value else value

    @field_validator("listen")
    @classmethod
    def _host_port(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"write HOST:PORT, such as 0.0.0.0:6820, instead of {address!r}")
        return value


class SlurmConfig(_Section):
    """What hetsched must know of the site's Slurm."""

    user: str = "slurm"
    conf: str = ""
    mig_feature: str = "mig"
    whole_feature: str = "whole"
    snapshot_s: Seconds = 5.0
    command_timeout_s: Seconds = 10.0


class AccessConfig(_Section):
    """Who may see and do all, besides root and SlurmUser."""

    operators: tuple[str, ...] = ()


class ModeConfig(_Section):
    """How far hetsched may go; a narrower scope wins: user, then account, then partition, then default."""

    default: ModeName = "enforce"
    partitions: dict[str, ModeName] = Field(default_factory=dict)
    accounts: dict[str, ModeName] = Field(default_factory=dict)
    users: dict[str, ModeName] = Field(default_factory=dict)
    percent: int = Field(default=100, ge=0, le=100)
    disabled_file: str = "/etc/hetsched/disabled"


class GpuTypeConfig(_Section):
    """One gres type of the site: which model of the catalogue it is."""

    model: str


class StoreConfig(_Section):
    """The database; ``keep_days`` bounds how long decisions are kept."""

    url: str = ""
    keep_days: int = Field(default=365, ge=1)
    queue_length: int = Field(default=10_000, ge=100)


class AllocationConfig(_Section):
    """What happens when a GPU has no place for an allocated slice."""

    exclude_s: Seconds = 60.0
    backoff_first_s: Seconds = 1.0
    backoff_max_s: Seconds = 60.0
    interactive_wait_s: float = Field(default=15.0, ge=0, le=31_622_400)
    prolog_wait_s: Seconds = 180.0


class SteeringConfig(_Section):
    """Keeping pending slice jobs away from GPUs where they would be admitted and have no start.

    ``pick`` is how Slurm picks a GPU for shards: ``least-loaded`` with LL_SHARED_GRES, else ``first-fit``.
    ``strict`` keeps a job from every node that is not left open to it, also from full ones: fewer jobs are given
    back where Slurm frees and fills a GPU faster than we look, but squeue shows BadConstraints for some that wait.
    """

    enabled: bool = True
    pick: Literal["first-fit", "least-loaded"] = "first-fit"
    strict: bool = False
    least_s: Seconds = 0.1
    most_s: Seconds = 5.0


class PoolConfig(_Section):
    """The nodes whose MIG mode follows demand, all GPUs of a node at once; see docs/administrators.md.

    ``nodes`` is a hostlist; counts are nodes, and ``hourly_changes`` bounds the nodes changed in any hour.
    ``allow_reset`` permits the GPU reset that Ampere needs. Operators may order changes without ``enabled``.
    """

    enabled: bool = False
    nodes: str = ""
    min_nodes: int = Field(default=0, ge=0)
    max_nodes: int | None = Field(default=None, ge=0)
    spare_nodes: int = Field(default=0, ge=0)
    hourly_changes: int = Field(default=4, ge=0)
    grow_after_s: float = Field(default=120.0, ge=0, le=31_622_400)
    shrink_after_s: float = Field(default=1800.0, ge=0, le=31_622_400)
    recent_s: float = Field(default=900.0, ge=0, le=31_622_400)
    period_s: Seconds = 10.0
    order_s: Seconds = 300.0
    allow_reset: bool = False


class PolicyConfig(_Section):
    """Rounds: the policy that says, every ``round_s``, which job goes first and which GPU type it prefers.

    ``options`` are the policy's own; ``budget_s`` is what it may take before a simpler one answers. A rank moves a
    job's priority by at most ``order_points`` up or down; 0 leaves the order to Slurm. ``throughputs`` is a CSV file
    of the site's own measurements, as docs/rounds.md shows it.
    """

    name: str = "min-jct"
    mode: ModeName = "off"
    round_s: Seconds = 30.0
    budget_s: Seconds = 10.0
    order_points: int = Field(default=1000, ge=0, le=1_000_000)
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    throughputs: str = ""


class SubmitConfig(_Section):
    """Options of the rules of submit; what each means is said in docs/users.md."""

    slices: Literal["ok", "only", "no"] = "ok"
    many_by_need: Literal["whole", "slices"] = "whole"
    allow_cut_whole: bool = True
    allow_flex: bool = False
    flex_nccl: Annotated[str, Field(pattern=r"^(\d{1,3}\.\d{1,3})?$")] = ""
    flex_cuda_driver: Annotated[str, Field(pattern=r"^(\d{1,3}\.\d{1,3})?$")] = ""
    flex_patched: bool = False
    allow_opt_out: bool = True
    announce: bool = True


class NodeConfig(_Section):
    """The compute nodes' side; read there by ``hetsched-node``."""

    address: str = "unix:/run/hetsched/hetschedd.sock"
    trusted_users: tuple[str, ...] = ("root", "slurm")
    deadline_s: Seconds = 10.0
    destroy_foreign: bool = False
    isolation: Literal["auto", "none", "owner", "cgroup"] = "auto"
    state_dir: str = "/var/lib/hetsched/node"
    run_dir: str = "/run/hetsched/node"


class Config(_Section):
    """The whole file."""

    daemon: DaemonConfig = DaemonConfig()
    slurm: SlurmConfig = SlurmConfig()
    access: AccessConfig = AccessConfig()
    mode: ModeConfig = ModeConfig()
    gpus: dict[str, GpuTypeConfig] = Field(default_factory=dict)
    store: StoreConfig = StoreConfig()
    allocation: AllocationConfig = AllocationConfig()
    steering: SteeringConfig = SteeringConfig()
    pool: PoolConfig = PoolConfig()
    policy: PolicyConfig = PolicyConfig()
    submit: SubmitConfig = SubmitConfig()
    node: NodeConfig = NodeConfig()

    @property
    def store_url(self) -> str:
        """The database URL: as written, else SQLite in the state directory."""
        return self.store.url or f"sqlite:///{self.daemon.state_dir}/hetsched.db"


def config_path() -> Path:
    """Return the file to read: ``$HETSCHED_CONFIG``, else the default."""
    return Path(os.environ.get("HETSCHED_CONFIG", DEFAULT_PATH))


def parse(text: str, source: str = "hetsched.toml") -> Config:
    """Return the configuration written in ``text``.

    Raises `ConfigError` with one line per mistake, each naming ``source`` and the key.
    """
    try:
        return Config.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(source, item) for item in error.errors())) from error


def load(path: Path | None = None) -> Config:
    """Read and validate the file at ``path`` (default: `config_path`).

    Raises `ConfigError` when it cannot be read or is wrong.
    """
    path = path or config_path()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error
    return parse(text, str(path))


def _explain(source: str, item: object) -> str:
    assert isinstance(item, dict)
    location = [str(part) for part in item["loc"]]
    key = ".".join(location)
    if item["type"] == "extra_forbidden":
        return f"{source}: {key}: unknown key; valid here: {', '.join(_valid_keys(location[:-1]))}"
    return f"{source}: {key}: {item['msg'].removeprefix('Value error, ')}"


def _valid_keys(section: list[str]) -> list[str]:
    fields = Config.model_fields
    if not section:
        return sorted(fields)
    if section[0] == "gpus":
        return sorted(GpuTypeConfig.model_fields)
    model = fields[section[0]].annotation if section[0] in fields else None
    if isinstance(model, type) and issubclass(model, BaseModel):
        return sorted(model.model_fields)
    return []
