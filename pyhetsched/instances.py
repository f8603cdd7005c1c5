"""Slices as values: reservations, the instances that NVML shows, and a node's report of its GPUs.

Apart from `pyhetsched.model`, which hands them on, for a prolog needs these alone and lives for a moment.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReservationState(enum.Enum):
    """The states of a slice, each journalled before the act that it announces."""

    RESERVED = "reserved"
    CREATING = "creating"
    READY = "ready"
    RUNNING = "running"
    DESTROYING = "destroying"
    GONE = "gone"
    FAILED = "failed"

    @property
    def holds_space(self) -> bool:
        """Whether the start position is taken."""
        return self not in (ReservationState.GONE, ReservationState.FAILED)


@dataclass(frozen=True, slots=True)
class Reservation:
    """One slice of one job on one GPU; ``gpu_index`` is as Slurm counts, ``start`` and ``size`` in memory slices."""

    id: str
    job_id: int
    restart_count: int
    uid: int
    node: str
    gpu_index: int
    profile: str
    start: int
    size: int
    state: ReservationState
    mig_uuid: str = ""
    gi_id: int | None = None
    ci_id: int | None = None
    changed_s: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance as NVML shows it; ``ci_id`` and ``mig_uuid`` are empty where it has no compute instance."""

    profile: str
    start: int
    size: int
    gi_id: int
    ci_id: int | None = None
    mig_uuid: str = ""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU as its node sees it; ``mig_mode`` is on, off, none, pending-on, pending-off or unknown.

    ``utilization_pct`` is None where NVML does not tell it, as on GPUs in MIG mode: unknown, which is not idle.
    """

    index: int
    minor: int
    uuid: str
    model_key: str | None
    name: str
    memory_mib: int
    mig_mode: str
    instances: tuple[MigInstance, ...] = ()
    utilization_pct: int | None = None
