"""Read Gavel's job lists: CSV with a throughput of the whole gang per type, or keys into a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyhetsched.errors import DataError
from pyhetsched.simulator.tables import read_rows
from pyhetsched.simulator.trace import Trace, make_trace
from pyhetsched.throughput.tables import ThroughputTable

_RATE = "steps_per_s_"


def read_gavel_jobs(path: Path, table: ThroughputTable | None = None) -> Trace:
    """Read columns job_id, arrival_time_s, job_type, scale_factor, total_steps and optionally priority_weight, SLO.

    For Slurm's rules also account (path with /), partition, time_limit_s, preemptible (yes or no) and profile (a
    MIG profile; scale_factor is then 1). Rates come from ``table`` if given, else from the columns
    ``steps_per_s_<type>``. SLO is a multiple of duration_v100_s. Raises DataError with file and line.
    """
    rows = list(read_rows(path))
    if not rows:
        raise DataError(f"{path}: holds no job")
    types = table.types if table else tuple(name[len(_RATE) :] for name in rows[0][1] if name.startswith(_RATE))
    if not types:
        raise DataError(f"{path}: no column {_RATE}<type>; give a throughput table")
    columns: dict[str, list[object]] = {name: [] for name in _COLUMNS}
    for line, row in rows:
        try:
            _append(columns, row, types, table)
        except (KeyError, TypeError, ValueError, DataError) as error:
            raise DataError(f"{path}:{line}: {error!r}") from error
    arrival, gang, steps, rates = (columns.pop(name) for name in ("arrival_s", "gang", "total_steps", "throughput"))
    return make_trace(types, arrival, gang, steps, rates, source=str(path), **columns)  # type: ignore[arg-type]


_COLUMNS = (
    "job_ids", "arrival_s", "gang", "total_steps", "weight", "deadline_s", "job_class", "throughput",
    "account", "partition", "limit_s", "preemptible", "profile",
)  # fmt: skip


def _append(
    columns: dict[str, list[object]], row: dict[str, str], types: Sequence[str], table: ThroughputTable | None
) -> None:
    kind, gang = row["job_type"], int(row["scale_factor"])
    slo = float(row["SLO"]) if row.get("SLO") else 0.0
    values = {
        "job_ids": int(row["job_id"]),
        "arrival_s": float(row["arrival_time_s"]),
        "gang": gang,
        "total_steps": float(row["total_steps"]),
        "weight": float(row.get("priority_weight") or 1.0),
        "deadline_s": slo * float(row["duration_v100_s"]) if slo > 0 else float("inf"),
        "job_class": kind,
        "throughput": table.rates[table.row(kind, gang)].tolist() if table else [float(row[_RATE + t]) for t in types],
        "account": tuple(part for part in (row.get("account") or "").split("/") if part),
        "partition": row.get("partition") or "",
        "limit_s": float(row.get("time_limit_s") or "inf"),
        "preemptible": (row.get("preemptible") or "").lower() in ("1", "yes", "true"),
        "profile": row.get("profile") or "",
    }
    for name, value in values.items():
        columns[name].append(value)
