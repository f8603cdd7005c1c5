"""Past runs, and what earlier rounds asked and set: all that a round needs of the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import sqlalchemy as sa

from pyhetsched.store import tables
from pyhetsched.store.database import Database

ROUND_KIND = "round"
_CHUNK = 500
_NAME_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Run:
    """A job that ended well: ``elapsed_s`` on ``gpus`` GPUs of one type; ``start_s`` tells its runs apart."""

    job_id: int
    start_s: float
    user: str
    name: str
    gpu_type: str
    gpus: int
    elapsed_s: float
    ended_s: float


class RunStore:
    """Reads and writes past runs. All methods raise `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, runs: Iterable[Run]) -> None:
        """Write runs; those that are there already are left alone."""
        table = tables.runs
        rows = {(run.job_id, run.start_s): replace(run, name=run.name[:_NAME_LENGTH]) for run in runs}
        if not rows:
            return
        with self._database.transaction() as connection:
            for keys in _chunks(list(rows)):
                there = sa.select(table.c.job_id, table.c.start_s).where(table.c.job_id.in_([key[0] for key in keys]))
                for job_id, start_s in connection.execute(there):
                    rows.pop((job_id, start_s), None)
            if rows:
                connection.execute(table.insert(), [asdict(run) for run in rows.values()])

    def recent(self, limit: int) -> list[Run]:
        """Return the ``limit`` runs that ended last, oldest first."""
        statement = sa.select(tables.runs).order_by(tables.runs.c.ended_s.desc()).limit(limit)
        with self._database.transaction() as connection:
            return [Run(**row._mapping) for row in connection.execute(statement)][::-1]

    def forget_before(self, time_s: float) -> None:
        """Delete the runs that ended before ``time_s``."""
        with self._database.transaction() as connection:
            connection.execute(tables.runs.delete().where(tables.runs.c.ended_s < time_s))


class RoundStore:
    """What decisions say that a round must know. All methods raise `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def asked(self, decision_ids: Sequence[str]) -> dict[str, str]:
        """Return what was asked, by decision id, for those decisions that are there."""
        column = tables.decisions.c
        found: dict[str, str] = {}
        with self._database.transaction() as connection:
            for ids in _chunks(decision_ids):
                rows = connection.execute(sa.select(column.id, column.asked).where(column.id.in_(ids)))
                found.update({row.id: row.asked for row in rows})
        return found

    def last_set(self, job_ids: Collection[int]) -> dict[int, Mapping[str, Any]]:
        """Return the detail of the last round that changed each job (mode enforce)."""
        column = tables.decisions.c
        found: dict[int, Mapping[str, Any]] = {}
        with self._database.transaction() as connection:
            for ids in _chunks(sorted(job_ids)):
                wanted = (column.job_id.in_(ids), column.kind == ROUND_KIND, column.mode == "enforce")
                statement = sa.select(column.job_id, column.detail).where(*wanted).order_by(column.sequence)
                found.update({row.job_id: row.detail for row in connection.execute(statement)})
        return found


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    # SQLite takes a bounded number of values in one statement.
    return (items[first : first + _CHUNK] for first in range(0, len(items), _CHUNK))
