"""Decisions and the jobs that came of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import sqlalchemy as sa

from pyhetsched.model import Candidate, Decision
from pyhetsched.store import tables
from pyhetsched.store.database import Database

_LONGEST = {c.name: c.type.length for c in tables.decisions.columns if isinstance(c.type, sa.String) and c.type.length}

_LONGEST |= {c.name: 4000 for c in tables.decisions.columns if isinstance(c.type, sa.Text)}
_LONGEST_DETAIL = 20_000

_CANDIDATE = tuple(field.name for field in fields(Candidate))


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job that Slurm has allocated at least once, and the decision it came from ("" if none)."""

    job_id: int
    decision_id: str
    uid: int
    user: str
    id_text: str
    name: str
    array_job_id: int
    seen_s: float


class DecisionStore:
    """Reads and writes decisions. All methods raise `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, decisions: Sequence[Decision]) -> None:
        """Write ``decisions`` in one transaction."""
        if not decisions:
            return
        with self._database.transaction() as connection:
            connection.execute(tables.decisions.insert(), _rows(decisions))

    def remember_job(self, job: KnownJob) -> None:
        """Write or replace what is known of a job."""
        with self._database.transaction() as connection:
            connection.execute(tables.jobs.delete().where(tables.jobs.c.job_id == job.job_id))
            connection.execute(tables.jobs.insert(), asdict(job))

    def job(self, job_id: int) -> KnownJob | None:
        """Return what is known of ``job_id``."""
        found = self._jobs(tables.jobs.c.job_id == job_id)
        return found[0] if found else None

    def jobs_of_text(self, id_text: str) -> list[KnownJob]:
        """Return the jobs that squeue shows as ``id_text`` (``12_3``, ``12+1``), newest first."""
        return self._jobs(tables.jobs.c.id_text == id_text)

    def _jobs(self, condition: sa.ColumnElement[bool]) -> list[KnownJob]:
        statement = sa.select(tables.jobs).where(condition).order_by(tables.jobs.c.seen_s.desc())
        with self._database.transaction() as connection:
            return [KnownJob(**row._mapping) for row in connection.execute(statement)]

    def of_job(self, job_id: int, decision_id: str = "") -> list[Decision]:
        """Return the decisions on ``job_id`` and the one of its submit, oldest first."""
        column = tables.decisions.c
        condition = column.job_id == job_id
        if decision_id:
            condition = sa.or_(condition, column.id == decision_id)
        return self._select(sa.select(tables.decisions).where(condition).order_by(column.sequence))

    def recent(self, limit: int, job_ids: Collection[int] = (), user: str = "", kind: str = "",
               since_s: float = 0.0, uid: int | None = None, after_sequence: int = 0) -> list[Decision]:  # fmt: skip
        """Return the newest ``limit`` decisions that match every given filter, oldest first."""
        column = tables.decisions.c
        conditions: list[sa.ColumnElement[bool]] = [column.time_s >= since_s, column.sequence > after_sequence]
        if job_ids:
            conditions.append(column.job_id.in_(job_ids))
        if user:
            conditions.append(column.user == user)
        if kind:
            conditions.append(column.kind == kind)
        if uid is not None:
            conditions.append(column.uid == uid)
        statement = sa.select(tables.decisions).where(*conditions).order_by(column.sequence.desc()).limit(limit)
        return self._select(statement)[::-1]

    def last_sequence(self) -> int:
        """Return the sequence number of the newest decision, 0 if there is none."""
        with self._database.transaction() as connection:
            return int(connection.execute(sa.select(sa.func.max(tables.decisions.c.sequence))).scalar() or 0)

    def forget_before(self, time_s: float) -> int:
        """Delete decisions and jobs older than ``time_s``; return how many decisions."""
        with self._database.transaction() as connection:
            old = connection.execute(tables.decisions.delete().where(tables.decisions.c.time_s < time_s))
            connection.execute(tables.jobs.delete().where(tables.jobs.c.seen_s < time_s))
            return old.rowcount

    def _select(self, statement: sa.Select[Any]) -> list[Decision]:
        with self._database.transaction() as connection:
            return [_decision(row) for row in connection.execute(statement)]


def _rows(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return the rows; decisions on repeated submits share all that is large, and its row is made once."""
    rows: dict[tuple[int, int, str], dict[str, Any]] = {}
    found = []
    for decision in decisions:
        key = (id(decision.candidates), id(decision.detail), decision.message)
        row = rows.get(key)
        if row is None or decision.kind != "submit":
            row = rows[key] = _row(decision)
        found.append({**row, "id": decision.id, "time_s": decision.time_s})
    return found


def _row(decision: Decision) -> dict[str, Any]:
    row = {name: getattr(decision, name) for name in Decision.__dataclass_fields__}
    for name, length in _LONGEST.items():
        row[name] = row[name][:length]
    row["candidates"] = [{name: getattr(item, name) for name in _CANDIDATE} for item in decision.candidates]
    detail = json.dumps(dict(decision.detail), default=str)
    # Users have a hand in how long a record is: none may fill the disk with a few requests.
    row["detail"] = json.loads(detail) if len(detail) <= _LONGEST_DETAIL else {"left_out": f"{len(detail)} bytes"}
    return row


def _decision(row: sa.Row[Any]) -> Decision:
    values = {name: getattr(row, name) for name in Decision.__dataclass_fields__}
    values["candidates"] = tuple(Candidate(**item) for item in row.candidates)
    return Decision(**values)
