"""Read what Slurm has run: ``sacct --json`` and ``sacct -P`` exports."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from pyhetsched.errors import DataError
from pyhetsched.simulator.trace import Trace, make_trace

_GPU = re.compile(r"gres/gpu(?::([A-Za-z0-9_.-]+))?=(\d+)")
# States of jobs that ran; the others (PENDING, CANCELLED before start) have no run time to replay.
_UNIX_EPOCH_MIN = 1_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """One GPU job of the accounting: times in s since the epoch, ``run_s``, ``limit_s`` (inf: none), GPUs and type."""

    job_id: int
    submit_s: float
    run_s: float
    gpus: int
    gpu_type: str
    user: str
    account: str
    partition: str
    name: str
    limit_s: float


def read_sacct(path: Path, types: Mapping[str, float]) -> Trace:
    """Read an export as a trace; jobs without GPUs or run time are left out.

    ``types`` gives the relative speed of each type of the simulated cluster (1 for all if nothing is known). A
    job's work is its run time on the type it ran on (on a type the cluster lacks: at speed 1). For
    ``-P`` the columns JobIDRaw, Submit, ElapsedRaw and AllocTRES are needed; User, Account, Partition, JobName
    and TimelimitRaw are used if there. Raises DataError with file and place.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    records = list(_from_json(text, path) if text.lstrip().startswith("{") else _from_parsable(text, path))
    if not records:
        raise DataError(f"{path}: holds no job that ran on GPUs")
    start_s = min(record.submit_s for record in records)
    speed = np.array(list(types.values()), dtype=np.float64)
    work = [r.run_s * types.get(r.gpu_type, 1.0) for r in records]
    return make_trace(
        tuple(types),
        [r.submit_s - start_s for r in records],
        [r.gpus for r in records],
        work,
        np.tile(speed, (len(records), 1)),
        job_ids=[r.job_id for r in records],
        job_class=[f"{r.user}/{r.name}" for r in records],
        account=[(r.account, r.user) for r in records],
        partition=[r.partition for r in records],
        limit_s=[r.limit_s for r in records],
        source=str(path),
    )


def _from_json(text: str, path: Path) -> Iterable[Record]:
    try:
        jobs = json.loads(text)["jobs"]
    except (ValueError, KeyError) as error:
        raise DataError(f"{path}: is not the output of sacct --json: {error!r}") from error
    for number, job in enumerate(jobs):
        try:
            record = _json_record(job)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: jobs[{number}]: {error!r}") from error
        if record is not None:
            yield record


def _json_record(job: Mapping[str, Any]) -> Record | None:
    tres = job["tres"].get("allocated") or job["tres"].get("requested") or []
    # An untyped entry counts all GPUs; the typed ones say of which type they are.
    gpus, kind = 0, ""
    for entry in tres:
        if entry.get("type") == "gres" and str(entry.get("name", "")).partition(":")[0] == "gpu":
            gpus = max(gpus, int(entry.get("count") or 0))
            kind = str(entry["name"]).partition(":")[2] or kind
    run_s = float(_number(job["time"].get("elapsed"), 0.0))
    if not gpus or run_s <= 0:
        return None
    limit_min = _number(job["time"].get("limit"), float("inf"))
    return Record(
        job_id=int(_number(job["job_id"], 0)),
        submit_s=float(_number(job["time"]["submission"], 0)),
        run_s=run_s,
        gpus=gpus,
        gpu_type=kind,
        user=str(job.get("user") or job.get("association", {}).get("user", "")),
        account=str(job.get("account") or ""),
        partition=str(job.get("partition") or ""),
        name=str(job.get("name") or ""),
        limit_s=limit_min * 60.0,
    )


def _number(value: Any, default: float) -> float:
    """Slurm writes numbers bare or as {"set": true, "infinite": false, "number": 5}."""
    if isinstance(value, Mapping):
        usable = value.get("set", True) and not value.get("infinite", False)
        return float(value["number"]) if usable else default
    return default if value is None else float(value)


def _from_parsable(text: str, path: Path) -> Iterable[Record]:
    reader = csv.DictReader(io.StringIO(text), delimiter="|", quoting=csv.QUOTE_NONE)
    needed = {"JobIDRaw", "Submit", "ElapsedRaw", "AllocTRES"}
    if not needed <= set(reader.fieldnames or ()):
        raise DataError(
            f"{path}: no {', '.join(sorted(needed - set(reader.fieldnames or ())))} column; export with sacct -P -a "
            "-o JobIDRaw,Submit,ElapsedRaw,AllocTRES,User,Account,Partition,JobName,TimelimitRaw"
        )
    for row in reader:
        # Steps are written as 12.batch, 12.extern, 12.0.
        if not row["JobIDRaw"].isdigit():
            continue
        try:
            record = _parsable_record(row)
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}:{reader.line_num}: {error}") from error
        if record is not None:
            yield record


def _parsable_record(row: Mapping[str, str]) -> Record | None:
    found = _GPU.findall(row["AllocTRES"] or "")
    run_s = float(row["ElapsedRaw"] or 0)
    if not found or run_s <= 0:
        return None
    limit = row.get("TimelimitRaw") or ""
    return Record(
        job_id=int(row["JobIDRaw"]),
        submit_s=_submit_s(row["Submit"]),
        run_s=run_s,
        gpus=max(int(count) for _, count in found),
        gpu_type=next((kind for kind, _ in found if kind), ""),
        user=row.get("User") or "",
        account=row.get("Account") or "",
        partition=row.get("Partition") or "",
        name=row.get("JobName") or "",
        limit_s=float(limit) * 60.0 if limit.isdigit() else float("inf"),
    )


def _submit_s(text: str) -> float:
    """Return seconds; sacct writes local time without a zone, and only differences matter here."""
    if text.isdigit() and int(text) > _UNIX_EPOCH_MIN:
        return float(text)
    return (datetime.fromisoformat(text) - datetime(1970, 1, 1)).total_seconds()
