"""Past runs in the database, and the migration that brought them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from pyhetsched.model import Decision
from pyhetsched.store import tables
from pyhetsched.store.database import Database
from pyhetsched.store.decisions import DecisionStore
from pyhetsched.store.runs import RoundStore, Run, RunStore


@pytest.fixture
def database(tmp_path: Path):
    base = Database(f"sqlite:///{tmp_path}/hetsched.db")
    yield base
    base.close()


def run(job_id: int = 7, start_s: float = 100.0, **more: object) -> Run:
    values = dict(user="alice", name="train", gpu_type="a100", gpus=2, elapsed_s=60.0, ended_s=start_s + 60.0)
    return Run(job_id, start_s, **{**values, **more})  # type: ignore[arg-type]


def decision(id: str, **more: object) -> Decision:
    values = dict(time_s=1.0, kind="submit", job_id=0, uid=1, mode="enforce", asked="", became="", outcome="unchanged")
    return Decision(id, **{**values, **more})  # type: ignore[arg-type]


def test_runs_come_back_oldest_first_and_once(database: Database) -> None:
    store = RunStore(database)
    store.add([run(8, 300.0), run(), run()])
    store.add([run(), run(7, 200.0)])
    assert store.recent(10) == [run(), run(7, 200.0), run(8, 300.0)]
    assert store.recent(1) == [run(8, 300.0)]


def test_old_runs_are_forgotten_and_long_names_cut(database: Database) -> None:
    store = RunStore(database)
    store.add([run(), run(8, 300.0, name="n" * 500)])
    store.forget_before(200.0)
    assert store.recent(10) == [run(8, 300.0, name="n" * 128)]


def test_what_was_asked_and_what_was_set_last_are_found(database: Database) -> None:
    DecisionStore(database).add([
        decision("d1", asked="gpu:1 class=bert"),
        decision("r1", kind="round", job_id=5, detail={"prefer": "a100"}),
        decision("r2", kind="round", job_id=5, detail={"prefer": "h100"}),
        decision("r3", kind="round", job_id=5, mode="shadow", detail={"prefer": "v100"}),
    ])  # fmt: skip
    store = RoundStore(database)
    assert store.asked(["d1", "gone"]) == {"d1": "gpu:1 class=bert"}
    assert store.last_set([5, 6]) == {5: {"prefer": "h100"}}


def test_a_database_of_the_first_version_gets_the_table_and_keeps_its_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hetsched.db"
    first = Database(url)
    DecisionStore(first).add([decision("d1")])
    first.close()
    with sqlite3.connect(tmp_path / "hetsched.db") as connection:
        connection.execute("DROP TABLE runs")
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    second = Database(url)
    RunStore(second).add([run()])
    assert [item.id for item in DecisionStore(second).recent(5)] == ["d1"]
    second.close()


def test_the_migrations_make_the_tables_that_the_code_names(database: Database) -> None:
    with database.transaction() as connection:
        there = sa.inspect(connection)
        for table in tables.metadata.sorted_tables:
            assert {c["name"] for c in there.get_columns(table.name)} == {c.name for c in table.columns}
