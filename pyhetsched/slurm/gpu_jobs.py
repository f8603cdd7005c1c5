"""Every job with GPUs as a round sees it: what waits, what runs where, and what has just ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyhetsched.slurm.hosts import fold

PENDING, RUNNING, COMPLETED = "PENDING", "RUNNING", "COMPLETED"
_STATES = frozenset({PENDING, RUNNING, COMPLETED})


@dataclass(frozen=True, slots=True)
class GpuJob:
    """One job; ``gpus`` and ``shards`` are for the whole job, ``gres_type`` is "" where it holds or asks for any.

    Times are seconds since the epoch, 0 where Slurm has none; ``limit_s`` 0 means no limit. ``features`` and
    ``prefer`` are expressions, as ``--constraint`` and ``--prefer`` have them. ``array`` is whether it stands for
    several waiting elements, ``het`` whether it is part of a heterogeneous job. ``by_type`` counts the GPUs of each
    type where types are known: all that a running job holds, what a waiting one insists on.
    """

    job_id: int
    state: str
    user: str = ""
    uid: int = 0
    name: str = ""
    account: str = ""
    partitions: tuple[str, ...] = ()
    reason: str = ""
    admin_comment: str = ""
    features: str = ""
    prefer: str = ""
    gpus: int = 0
    shards: int = 0
    gres_type: str = ""
    by_type: tuple[tuple[str, int], ...] = ()
    node_count: int = 1
    nodes: str = ""
    required_nodes: str = ""
    excluded_nodes: str = ""
    limit_s: float = 0.0
    submit_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    run_s: float = 0.0
    restarts: int = 0
    array: bool = False
    het: bool = False


def gpu_job(job: Any) -> GpuJob | None:
    """Return a job of pyslurm's as a value; None where it has no GPU, or neither waits, runs nor has ended well."""
    state = str(job.state or "")
    if state not in _STATES:
        return None
    gres = {str(key): int(item.count) for key, item in (job.gres or {}).items()}
    gpus, shards, by_type = counts(gres)
    if not gpus and not shards:
        return None
    return GpuJob(
        job_id=int(job.id), state=state, user=str(job.user_name or ""), uid=int(job.user_id or 0),
        name=owners_text(job, "name"), account=str(job.account or ""),
        partitions=tuple((job.partition or "").split(",")),
        reason=str(job.state_reason or ""), admin_comment=job.admin_comment or "", features=_joined(job.constraints),
        prefer=_joined(job.preferred_features), gpus=gpus, shards=shards, by_type=by_type,
        gres_type=by_type[0][0] if len(by_type) == 1 else "",
        node_count=max(int(job.num_nodes or 1), 1), nodes=_hostlist(job.allocated_nodes),
        required_nodes=_hostlist(job.required_nodes), excluded_nodes=_hostlist(job.excluded_nodes),
        limit_s=60.0 * job.time_limit if isinstance(job.time_limit, int | float) else 0.0,
        submit_s=float(job.submit_time or 0), start_s=float(job.start_time or 0), end_s=float(job.end_time or 0),
        run_s=float(job.run_time or 0), restarts=int(job.requeue_count or 0), array=bool(job.array_tasks_waiting),
        het=bool(job.heterogeneous_id),
    )  # fmt: skip


def owners_text(job: Any, field: str) -> str:
    """Return a text that the job's owner chose, "" where its bytes are no text, for pyslurm raises then."""
    try:
        return str(getattr(job, field) or "")
    except UnicodeDecodeError:
        return ""


def counts(gres: Mapping[str, int]) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    """Return GPUs, shards, and the GPUs of each type that a job's TRES name.

    >>> counts({"gpu": 2, "gpu:h100": 2})
    (2, 0, (('h100', 2),))
    """
    typed = tuple((key.removeprefix("gpu:"), count) for key, count in gres.items() if key.startswith("gpu:"))
    total = gres.get("gpu", 0) or sum(count for _, count in typed)
    return total, sum(count for key, count in gres.items() if key.split(":")[0] == "shard"), typed


def parse_site_factors(text: str) -> dict[int, int]:
    """Return the site factor of each waiting job, from ``sprio -h -o %i|%S``.

    >>> parse_site_factors("8|0\\n10|-77\\n")
    {8: 0, 10: -77}
    """
    found: dict[int, int] = {}
    for line in text.splitlines():
        job, _, factor = (part.strip() for part in line.partition("|"))
        if job.isdigit() and factor.lstrip("-").isdigit():
            found[int(job)] = int(factor)
    return found


def _joined(value: Any) -> str:
    """pyslurm gives an expression cut at its commas."""
    return ",".join(value) if isinstance(value, list | tuple) else str(value or "")


def _hostlist(value: Any) -> str:
    return fold(value) if isinstance(value, list | tuple) else str(value or "")
