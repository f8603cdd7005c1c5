"""Read Gavel's job lists: CSV with a throughput of the whole gang per type, or keys into a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyhetsched.errors import DataError
from pyhetsched.simulator.tables import ThroughputTable, read_rows
from pyhetsched.simulator.trace import Trace, make_trace

_RATE = "steps_per_s_"


def read_gavel_jobs(path: Path, table: ThroughputTable | None = None) -> Trace:
    """Read columns job_id, arrival_time_s, job_type, scale_factor, total_steps and optionally priority_weight, SLO.

    Rates come from ``table`` if given, else from the columns ``steps_per_s_<type>``. SLO is a multiple of
    duration_v100_s. Raises DataError with file and line.
    """
    rows = list(read_rows(path))
    if not rows:
        raise DataError(f"{path}: holds no job")
    types = table.types if table else tuple(name[len(_RATE) :] for name in rows[0][1] if name.startswith(_RATE))
    if not types:
        raise DataError(f"{path}: no column {_RATE}<type>; give a throughput table")
    columns: dict[str, list[object]] = {name: [] for name in ("id", "at", "gang", "steps", "weight", "slo", "kind", "rates")}
    for line, row in rows:
        try:
            _append(columns, row, types, table)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}:{line}: {error!r}") from error
    return make_trace(
        types, columns["at"], columns["gang"], columns["steps"], columns["rates"],  # type: ignore[arg-type]
        job_ids=columns["id"], weight=columns["weight"], deadline_s=columns["slo"], job_class=columns["kind"],
        source=str(path),
    )  # fmt: skip


def _append(
    columns: dict[str, list[object]], row: dict[str, str], types: Sequence[str], table: ThroughputTable | None
) -> None:
    kind, gang = row["job_type"], int(row["scale_factor"])
    slo = float(row["SLO"]) if row.get("SLO") else 0.0
    values = {
        "id": int(row["job_id"]),
        "at": float(row["arrival_time_s"]),
        "gang": gang,
        "steps": float(row["total_steps"]),
        "weight": float(row.get("priority_weight") or 1.0),
        "slo": slo * float(row["duration_v100_s"]) if slo > 0 else float("inf"),
        "kind": kind,
        "rates": table.row(kind, gang) if table else [float(row[_RATE + name]) for name in types],
    }
    for name, value in values.items():
        columns[name].append(value)
