"""The node's own journal: one file a job, written before the GPU is touched, and a spool of reports.

The files suffice to undo everything with the daemon away. They are written whole (temporary file, fsync,
rename, fsync of the directory), so after a crash one is either the old state or the new.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pyhetsched.errors import DataError
from pyhetsched.instances import Reservation, ReservationState
from pyhetsched.node.paths import NodePaths, sync_directory, write_atomically

_FORMAT = 1
_SPOOL_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class SliceRecord:
    """One slice: its reservation, the id of its profile, and the UUID of its GPU ("" until known)."""

    reservation: Reservation
    gi_profile_id: int = 0
    gpu_uuid: str = ""

    def with_reservation(self, reservation: Reservation) -> SliceRecord:
        """Return the record in another state."""
        return replace(self, reservation=reservation)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What this node has made, makes or unmakes for one job; ``boot_id`` is the boot in which it began."""

    job_id: int
    uid: int
    restart_count: int
    boot_id: str
    slices: tuple[SliceRecord, ...]
    slices_per_task: int = 0
    flex: bool = False

    def map(self, change: Callable[[SliceRecord], SliceRecord]) -> JobRecord:
        """Return the record with every slice changed."""
        return replace(self, slices=tuple(change(item) for item in self.slices))

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The reservations of all slices."""
        return tuple(item.reservation for item in self.slices)

    @property
    def gpu_indexes(self) -> frozenset[int]:
        """The GPUs that it concerns, as they were counted when it was written."""
        return frozenset(item.reservation.gpu_index for item in self.slices)


class Journal:
    """The records under one node's state directory."""

    def __init__(self, paths: NodePaths) -> None:
        self._paths = paths

    def save(self, record: JobRecord) -> None:
        """Write a record; it is on disk when this returns."""
        write_atomically(self._paths.record(record.job_id), _dump(record))

    def load(self, job_id: int) -> JobRecord | None:
        """Return the record of a job, None if there is none; raises `DataError` when it is damaged."""
        path = self._paths.record(job_id)
        try:
            return _parse(path.read_text(encoding="utf-8"), path)
        except FileNotFoundError:
            return None

    def remove(self, job_id: int) -> None:
        """Forget a job."""
        self._paths.record(job_id).unlink(missing_ok=True)
        sync_directory(self._paths.state)

    def records(self) -> tuple[tuple[JobRecord, ...], tuple[str, ...]]:
        """Return all records by job, and one line for each file that is damaged."""
        records, damaged = [], []
        for path in sorted(self._paths.state.glob("job-*.json")):
            try:
                records.append(_parse(path.read_text(encoding="utf-8"), path))
            except FileNotFoundError:
                continue
            except DataError as error:
                damaged.append(str(error))
        return tuple(records), tuple(damaged)

    # Reports that wait for the daemon

    def spool(self, report: bytes) -> None:
        """Keep a serialised report until the daemon can be told; beyond 1000 the oldest are given up."""
        waiting = sorted(self._paths.spool.glob("*.report"))
        number = 1 + (int(waiting[-1].name.partition("-")[0]) if waiting else 0)
        name = f"{number:012d}-{os.getpid()}.report"
        temporary = self._paths.spool / f".{name}"
        temporary.write_bytes(report)
        temporary.replace(self._paths.spool / name)
        for path in sorted(self._paths.spool.glob("*.report"))[:-_SPOOL_LIMIT]:
            path.unlink(missing_ok=True)

    def spooled(self) -> Iterator[tuple[Path, bytes]]:
        """Yield the reports that wait, oldest first; the caller unlinks what it has delivered."""
        for path in sorted(self._paths.spool.glob("*.report")):
            try:
                yield path, path.read_bytes()
            except FileNotFoundError:
                continue


def _dump(record: JobRecord) -> str:
    slices = []
    for item in record.slices:
        reservation = asdict(item.reservation)
        reservation["state"] = item.reservation.state.value
        slices.append(
            {"reservation": reservation, "gi_profile_id": item.gi_profile_id, "gpu_uuid": item.gpu_uuid}
        )
    head = {
        name: getattr(record, name)
        for name in ("job_id", "uid", "restart_count", "boot_id", "slices_per_task", "flex")
    }
    return json.dumps({"format": _FORMAT, **head, "slices": slices}, indent=1) + "\n"


def _parse(text: str, path: Path) -> JobRecord:
    try:
        data: dict[str, Any] = json.loads(text)
        if data.pop("format") != _FORMAT:
            raise DataError(f"{path}: written by another version of hetsched; remove it once its job is over")
        slices = tuple(_slice(item) for item in data.pop("slices"))
        return JobRecord(slices=slices, **data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a record of this node: {error!r}") from error


def _slice(item: dict[str, Any]) -> SliceRecord:
    fields = dict(item["reservation"])
    fields["state"] = ReservationState(fields["state"])
    return SliceRecord(Reservation(**fields), int(item["gi_profile_id"]), str(item["gpu_uuid"]))
