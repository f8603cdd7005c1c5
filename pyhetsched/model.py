"""The values that the rooms of hetsched exchange: all frozen, all without behaviour that touches the world."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyhetsched.instances import GpuReport, MigInstance, Reservation, ReservationState

__all__ = [
    "Candidate", "ClusterView", "Decision", "GpuGroup", "GpuReport", "JobAsk", "JobField", "MigInstance", "Mode",
    "NodeView", "PartitionView", "Reservation", "ReservationState", "SliceAsk", "SubmitOutcome", "SubmitRequest",
    "Verdict",
]  # fmt: skip


class Verdict(enum.Enum):
    """What is to be done with a request at submit."""

    UNCHANGED = "unchanged"
    REWRITTEN = "rewritten"
    REFUSED = "refused"


class Mode(enum.Enum):
    """How far hetsched may go: nothing, decide and record, or act."""

    OFF = "off"
    SHADOW = "shadow"
    ENFORCE = "enforce"


class JobField(enum.Enum):
    """A field of a job description that hetsched may read or write.

    Values are the names in ``proto/hetsched/v1/hook.proto`` (enum ``Field``).
    """

    TRES_PER_NODE = "TRES_PER_NODE"
    TRES_PER_JOB = "TRES_PER_JOB"
    TRES_PER_SOCKET = "TRES_PER_SOCKET"
    TRES_PER_TASK = "TRES_PER_TASK"
    TRES_BIND = "TRES_BIND"
    CPUS_PER_TRES = "CPUS_PER_TRES"
    MEM_PER_TRES = "MEM_PER_TRES"
    NTASKS_PER_TRES = "NTASKS_PER_TRES"
    FEATURES = "FEATURES"
    PREFER = "PREFER"
    ADMIN_COMMENT = "ADMIN_COMMENT"
    EXCLUDED_NODES = "EXCLUDED_NODES"
    MIN_NODES = "MIN_NODES"
    MAX_NODES = "MAX_NODES"
    REQUEUE = "REQUEUE"
    MIN_CPUS = "MIN_CPUS"
    MEMORY_PER_NODE_MIB = "MEMORY_PER_NODE_MIB"


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The GPUs of one gres type on one node.

    ``model_key`` is a key of the profile catalogue (``A100-80GB``), None where the site has not said and no
    node has reported. ``shards_per_gpu`` is 0 where Slurm offers no shards; ``mig_enabled`` is then False.
    ``switchable`` GPUs are in the pool: their MIG mode follows demand, so both slices and several whole GPUs of a
    node can be had there, if not at once.
    """

    gres_type: str
    model_key: str | None
    count: int
    mig_enabled: bool = False
    shards_per_gpu: int = 0
    switchable: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as Slurm knows it; ``usable`` is False for down, drained and future nodes.

    ``state`` is for people: no rule looks at it, for it changes with every job.
    """

    name: str
    features: frozenset[str] = frozenset()
    gpus: tuple[GpuGroup, ...] = ()
    partitions: frozenset[str] = frozenset()
    state: str = field(default="IDLE", compare=False)
    usable: bool = True
    cpus: int = 0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition; ``nodes`` are node names, ``max_time_min`` None means no limit."""

    name: str
    nodes: frozenset[str] = frozenset()
    is_default: bool = False
    max_time_min: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the rules of submit may know of the cluster, as of ``as_of_s``; views of other times may be equal.

    ``mig_feature`` and ``whole_feature`` are the node features by which the site marks nodes whose GPUs are
    in MIG mode and nodes whose GPUs are not.
    """

    nodes: tuple[NodeView, ...] = ()
    partitions: tuple[PartitionView, ...] = ()
    as_of_s: float = field(default=0.0, compare=False)
    mig_feature: str = "mig"
    whole_feature: str = "whole"


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """The GPU-relevant part of a job description; see ``SubmitRequest`` in hook.proto for each field."""

    uid: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    job_name: str = ""
    comment: str = ""
    features: str = ""
    prefer: str = ""
    tres_per_node: str = ""
    tres_per_job: str = ""
    tres_per_socket: str = ""
    tres_per_task: str = ""
    tres_bind: str = ""
    cpus_per_tres: str = ""
    mem_per_tres: str = ""
    ntasks_per_tres: int = 0
    min_nodes: int = 0
    max_nodes: int = 0
    num_tasks: int = 0
    ntasks_per_node: int = 0
    cpus_per_task: int = 0
    time_limit_min: int = 0
    required_nodes: str = ""
    excluded_nodes: str = ""
    reservation: str = ""
    array_inx: str = ""
    batch: bool = False
    test_only: bool = False
    het_job_offset: int = 0
    het_job: bool = False
    script_lines: tuple[str, ...] = ()
    gpu_environment: tuple[str, ...] = ()
    submit_host: str = ""
    memory_per_node_mib: int = 0
    user_name: str = ""
    exclusive: bool = False
    gpus_per_node_option: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve a request: what it is, whether it may be used, its score (smaller is better), and why."""

    name: str
    admissible: bool
    chosen: bool = False
    score: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SliceAsk:
    """``count`` slices of ``profile`` (canonical name, such as ``1g.10gb``)."""

    profile: str
    count: int


@dataclass(frozen=True, slots=True)
class JobAsk:
    """What a job has the right to, as decided at submit; kept in the store, never where the owner can edit it.

    ``kind`` is ``plain`` (no GPU, or GPUs as Slurm hands them out), ``whole`` (whole GPUs; on a card in MIG
    mode the full-size instance), or ``slices``. ``slices`` are per node, or per task when ``per_task``.
    ``gpus_per_node`` is the number of whole GPUs per node (0 for slices served by shards). When ``cut_whole``
    the slices are cut from that many whole GPUs, which the job owns alone. ``model_keys`` are the GPU models
    that may serve it. ``shards`` is what Slurm must have allocated per node, or per task when ``per_task``.
    """

    kind: str
    slices: tuple[SliceAsk, ...] = ()
    per_task: bool = False
    gpus_per_node: int = 0
    cut_whole: bool = False
    model_keys: tuple[str, ...] = ()
    shards: int = 0
    flex: bool = False


@dataclass(frozen=True, slots=True)
class SubmitOutcome:
    """What the rules of submit say about one request.

    ``changes`` maps fields to new values ("" clears). ``message`` is for the user and may be empty. ``asked``
    and ``became`` are one line each. ``policy`` says what the scores of the candidates mean.
    ``broken_rules`` names rules that raised and were passed over.
    """

    verdict: Verdict
    ask: JobAsk
    asked: str = ""
    became: str = ""
    message: str = ""
    changes: Mapping[JobField, str] = field(default_factory=dict)
    drop_environment: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    policy: str = ""
    broken_rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """One record of what was decided and why; ``detail`` is JSON-able."""

    id: str
    time_s: float
    kind: str
    job_id: int
    uid: int
    mode: str
    asked: str
    became: str
    outcome: str
    message: str = ""
    candidates: tuple[Candidate, ...] = ()
    policy: str = ""
    node: str = ""
    partition: str = ""
    account: str = ""
    user: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)
