"""Reservations of slices, exclusions, reports of nodes, and modes set at run time: written before they are acted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from pyhetsched.model import GpuReport, MigInstance, Reservation, ReservationState
from pyhetsched.store import tables
from pyhetsched.store.database import Database


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node last said of its GPUs."""

    node: str
    time_s: float
    boot_id: str
    driver_version: str
    gpus: tuple[GpuReport, ...]


class ReservationStore:
    """The journal of slices. All methods raise `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, reservations: Sequence[Reservation]) -> None:
        """Write or replace ``reservations`` in one transaction: all or none."""
        if not reservations:
            return
        table = tables.reservations
        with self._database.transaction() as connection:
            connection.execute(table.delete().where(table.c.id.in_([item.id for item in reservations])))
            connection.execute(table.insert(), [{**asdict(item), "state": item.state.value} for item in reservations])

    def open(self) -> list[Reservation]:
        """Return the reservations that still hold a start position."""
        held = [state.value for state in ReservationState if state.holds_space]
        return self._select(tables.reservations.c.state.in_(held))

    def of_job(self, job_id: int) -> list[Reservation]:
        """Return every reservation that ``job_id`` ever had, oldest first."""
        return self._select(tables.reservations.c.job_id == job_id)

    def recent(self, limit: int = 1000) -> list[Reservation]:
        """Return the ``limit`` reservations changed last, oldest first."""
        return self._select(sa.true(), limit)

    def forget_before(self, time_s: float) -> None:
        """Delete closed reservations that have not changed since ``time_s``."""
        held = [state.value for state in ReservationState if state.holds_space]
        column = tables.reservations.c
        with self._database.transaction() as connection:
            connection.execute(
                tables.reservations.delete().where(column.changed_s < time_s, column.state.not_in(held))
            )

    def _select(self, condition: sa.ColumnElement[bool], limit: int | None = None) -> list[Reservation]:
        column = tables.reservations.c
        statement = sa.select(tables.reservations).where(condition).order_by(column.changed_s.desc()).limit(limit)
        with self._database.transaction() as connection:
            return [_reservation(row) for row in connection.execute(statement)][::-1]


class NodeReportStore:
    """The last report of each node."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, report: NodeReport) -> None:
        """Write or replace the report of a node."""
        row = {**asdict(report), "gpus": [asdict(gpu) for gpu in report.gpus]}
        table = tables.node_reports
        with self._database.transaction() as connection:
            connection.execute(table.delete().where(table.c.node == report.node))
            connection.execute(table.insert(), row)

    def all(self) -> list[NodeReport]:
        """Return the last report of every node."""
        with self._database.transaction() as connection:
            rows = connection.execute(sa.select(tables.node_reports)).all()
        return [NodeReport(r.node, r.time_s, r.boot_id, r.driver_version, tuple(map(_gpu, r.gpus))) for r in rows]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A pending job that was given back: what its owner excludes, what we add until ``until_s``, how often."""

    job_id: int
    owners: str
    ours: str
    until_s: float
    times: int


class ExclusionStore:
    """The jobs that we keep away from nodes, so that a restart of the daemon never leaves them so."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, exclusion: Exclusion) -> None:
        """Write or replace the exclusion of a job."""
        table = tables.exclusions
        with self._database.transaction() as connection:
            connection.execute(table.delete().where(table.c.job_id == exclusion.job_id))
            connection.execute(table.insert(), asdict(exclusion))

    def forget(self, job_id: int) -> None:
        """Delete the exclusion of a job."""
        with self._database.transaction() as connection:
            connection.execute(tables.exclusions.delete().where(tables.exclusions.c.job_id == job_id))

    def all(self) -> list[Exclusion]:
        """Return the exclusions of all jobs."""
        with self._database.transaction() as connection:
            return [Exclusion(**row._mapping) for row in connection.execute(sa.select(tables.exclusions))]


class ModeStore:
    """Modes set at run time, by scope ("" is the whole cluster)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, scope: str, mode: str) -> None:
        """Set the mode of ``scope``."""
        with self._database.transaction() as connection:
            connection.execute(tables.modes.delete().where(tables.modes.c.scope == scope))
            connection.execute(tables.modes.insert(), {"scope": scope, "mode": mode})

    def forget(self, scope: str) -> None:
        """Drop the mode of ``scope``."""
        with self._database.transaction() as connection:
            connection.execute(tables.modes.delete().where(tables.modes.c.scope == scope))

    def all(self) -> dict[str, str]:
        """Return every scope that has a mode."""
        with self._database.transaction() as connection:
            return {row.scope: row.mode for row in connection.execute(sa.select(tables.modes))}


def _reservation(row: sa.Row[Any]) -> Reservation:
    values = dict(row._mapping)
    return Reservation(**{**values, "state": ReservationState(values["state"])})


def _gpu(value: dict[str, Any]) -> GpuReport:
    return GpuReport(**{**value, "instances": tuple(MigInstance(**item) for item in value["instances"])})
