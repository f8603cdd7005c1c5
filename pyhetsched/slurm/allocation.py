"""Which GPUs Slurm gave to a job, from ``scontrol show job JOBID -d --json``.

pyslurm has no safe call for this (its ``get_resource_layout_per_node`` crashes on Slurm 26.05). The JSON form
is read rather than the text form, for a job's name or comment is the owner's and may say anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyhetsched.errors import DataError
from pyhetsched.slurm.hosts import expand

_SHARDS = re.compile(r"shard(?::[^:(,]+)?:\d+\((?P<counts>[\d/,\-]+)\)")
_GPUS = re.compile(r"gpu(?::(?P<type>[^:(,]+))?:\d+\(IDX:(?P<indexes>[\d,\-]+)\)")


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """What a job holds on one node: whole GPUs by index, and shards by GPU index."""

    node: str
    gpus: tuple[int, ...] = ()
    shards: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AllocatedJob:
    """One job as slurmctld shows it, with the GPUs that it holds; times are seconds since the epoch, 0 if unset."""

    job_id: int
    id_text: str
    name: str
    user: str
    uid: int
    state: str
    reason: str = ""
    partition: str = ""
    account: str = ""
    batch: bool = True
    requeue: bool = True
    restart_count: int = 0
    admin_comment: str = ""
    features: str = ""
    excluded_nodes: str = ""
    required_nodes: str = ""
    node_list: str = ""
    array_job_id: int = 0
    submit_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    exit_code: str = ""
    tasks: int = 1
    nodes: tuple[NodeAllocation, ...] = ()

    def on(self, node: str) -> NodeAllocation:
        """Return what the job holds on ``node`` (nothing if it is not there)."""
        return next((item for item in self.nodes if item.node == node), NodeAllocation(node))


def parse_show_job(document: Mapping[str, Any]) -> list[AllocatedJob]:
    """Return the jobs in a ``scontrol show job -d --json`` document; raises `DataError` if it has another shape."""
    try:
        return [_job(job) for job in document["jobs"]]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(f"scontrol show job --json has an unknown shape: {error!r}") from error


def parse_gres_detail(text: str) -> tuple[tuple[int, ...], dict[int, int]]:
    """Return the GPU indexes and the shards per GPU index in one node's gres detail.

    >>> parse_gres_detail("gpu:a100:2(IDX:1-2)")
    ((1, 2), {})
    >>> parse_gres_detail("shard:a100:4(0/31,4/31,-/31,0/31)")
    ((), {1: 4})
    """
    gpus = tuple(i for match in _GPUS.finditer(text) for i in _indexes(match["indexes"]))
    shards: dict[int, int] = {}
    for match in _SHARDS.finditer(text):
        for index, part in enumerate(match["counts"].split(",")):
            used = part.partition("/")[0]
            if used.isdigit() and int(used):
                shards[index] = shards.get(index, 0) + int(used)
    return gpus, shards


def _indexes(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first:
            found.extend(range(int(first), int(last or first) + 1))
    return found


def _job(job: Mapping[str, Any]) -> AllocatedJob:
    names = expand(job.get("nodes") or "")
    details = job.get("gres_detail") or []
    nodes = [NodeAllocation(name, *parse_gres_detail(detail)) for name, detail in zip(names, details, strict=False)]
    array_job_id = _number(job.get("array_job_id"))
    return AllocatedJob(
        job_id=int(job["job_id"]),
        id_text=_id_text(job, array_job_id),
        name=job.get("name") or "",
        user=job.get("user_name") or "",
        uid=int(job["user_id"]),
        state=(job.get("job_state") or ["UNKNOWN"])[0],
        reason=job.get("state_reason") or "",
        partition=job.get("partition") or "",
        account=job.get("account") or "",
        batch=bool(job.get("batch_flag")),
        requeue=bool(job.get("requeue")),
        restart_count=_number(job.get("restart_cnt")),
        admin_comment=job.get("admin_comment") or "",
        features=job.get("features") or "",
        excluded_nodes=job.get("excluded_nodes") or "",
        required_nodes=job.get("required_nodes") or "",
        node_list=job.get("nodes") or "",
        array_job_id=array_job_id,
        submit_s=_number(job.get("submit_time")),
        start_s=_number(job.get("start_time")),
        end_s=_number(job.get("end_time")),
        exit_code=_exit_code(job.get("exit_code") or {}),
        tasks=_number(job.get("tasks")) or 1,
        nodes=tuple(nodes),
    )


def _number(value: Any) -> int:
    """Slurm's JSON writes a number bare, or as {"set": bool, "infinite": bool, "number": int}."""
    if isinstance(value, Mapping):
        return int(value.get("number") or 0) if value.get("set") and not value.get("infinite") else 0
    return int(value or 0)


def _id_text(job: Mapping[str, Any], array_job_id: int) -> str:
    het_job_id = _number(job.get("het_job_id"))
    if het_job_id:
        return f"{het_job_id}+{_number(job.get('het_job_offset'))}"
    task = job.get("array_task_id")
    if array_job_id and isinstance(task, Mapping) and task.get("set"):
        return f"{array_job_id}_{int(task['number'])}"
    return str(job["job_id"])


def _exit_code(value: Mapping[str, Any]) -> str:
    signal = _number((value.get("signal") or {}).get("id"))
    return f"{_number(value.get('return_code'))}:{signal}"
