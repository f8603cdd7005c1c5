"""What the prolog, the epilog and the boot-time reconcile have in common: their job, their tools, their reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyhetsched.clock import Clock
from pyhetsched.errors import DataError
from pyhetsched.mig.nvml import NvmlDriver
from pyhetsched.node.giveback import give_back
from pyhetsched.node.journal import JobRecord, Journal
from pyhetsched.node.paths import NodePaths
from pyhetsched.node.rpc import NodeRpc
from pyhetsched.node.slices import SliceEngine

if TYPE_CHECKING:
    from pyhetsched.rpc.gen import services_pb2 as pb


@dataclass(frozen=True, slots=True)
class HookJob:
    """What slurmd says of the job in the environment of its hooks."""

    job_id: int
    uid: int
    node: str
    gpus: tuple[int, ...] = ()
    restart_count: int = 0


@dataclass(slots=True)
class Hook:
    """What a hook works with; ``open_driver`` is called only when a GPU must be looked at or touched.

    ``patience_s`` bounds the wait for a daemon that does not answer.
    """

    paths: NodePaths
    journal: Journal
    clock: Clock
    rpc: NodeRpc
    open_driver: Callable[[], NvmlDriver]
    engine: Callable[[NvmlDriver], SliceEngine]
    boot_id: str
    patience_s: float
    give_back: Callable[[int, str], bool] = field(default=give_back)


def job_from(variables: Mapping[str, str], node: str = "") -> HookJob:
    """Read the job from the variables of a hook; raises `DataError` on one that Slurm cannot have set."""
    gpus = variables.get("SLURM_JOB_GPUS", "")
    return HookJob(
        job_id=_number(variables, "SLURM_JOB_ID"),
        uid=_number(variables, "SLURM_JOB_UID"),
        node=node or variables.get("SLURMD_NODENAME", ""),
        gpus=_indexes(gpus),
        restart_count=_number(variables, "SLURM_RESTART_COUNT", "0"),
    )


def _number(variables: Mapping[str, str], name: str, default: str = "") -> int:
    text = variables.get(name) or default
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise DataError(f"{name}={text!r} is not a number; this command is meant to be run by slurmd")
    return int(text)


def _indexes(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None:
            raise DataError(f"SLURM_JOB_GPUS={text!r} is not a list of GPU indexes such as 0,2-3")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


def report_of(record: JobRecord, node: str, nvml_s: float, error: str = "") -> pb.ReportRequest:
    """Return the report on all slices of a record; with ``error`` none of them counts as made."""
    from pyhetsched.rpc.gen import services_pb2 as pb

    share_s = nvml_s / max(len(record.slices), 1)
    slices = []
    for made in record.reservations:
        state = made.state.value if not error or made.state.value == "destroying" else "failed"
        slices.append(
            pb.SliceReport(
                reservation_id=made.id, state=state, gi_id=made.gi_id or 0, ci_id=made.ci_id or 0,
                mig_uuid=made.mig_uuid, error=error, nvml_s=share_s,
            )
        )  # fmt: skip
    return pb.ReportRequest(node=node, job_id=record.job_id, slices=slices)
