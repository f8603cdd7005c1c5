"""The database: round trips, migrations, and a database that fails."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pyhetsched.errors import StoreError
from pyhetsched.model import (
    Candidate,
    Decision,
    GpuReport,
    MigInstance,
    Reservation,
    ReservationState,
)
from pyhetsched.store.database import Database
from pyhetsched.store.decisions import DecisionStore, KnownJob
from pyhetsched.store.recorder import Recorder
from pyhetsched.store.reservations import ModeStore, NodeReport, NodeReportStore, ReservationStore


@pytest.fixture
def database(tmp_path: Path):
    base = Database(f"sqlite:///{tmp_path}/hetsched.db")
    yield base
    base.close()


def decision(id: str = "d1", job_id: int = 0, **more: object) -> Decision:
    values = dict(
        id=id, time_s=1.0, kind="submit", job_id=job_id, uid=1001, user="alice", mode="enforce", asked="gpu:1g.10gb:1",
        became="shard:4", outcome="rewritten", candidates=(Candidate("1g.10gb", True, True, 1.0, "smallest"),),
        detail={"a": [1, 2]},
    )  # fmt: skip
    return Decision(**{**values, **more})  # type: ignore[arg-type]


def reservation(id: str = "r1", state: ReservationState = ReservationState.RESERVED) -> Reservation:
    return Reservation(id, 7, 0, 1001, "a100-0", 2, "1g.10gb", 6, 1, state, changed_s=5.0)


def test_a_decision_comes_back_as_it_was_written(database: Database) -> None:
    store = DecisionStore(database)
    store.add([decision(), decision("d2", job_id=9)])
    assert store.recent(10) == [decision(), decision("d2", job_id=9)]
    assert store.of_job(9, "d1") == [decision(), decision("d2", job_id=9)]
    assert store.recent(10, uid=7) == []


def test_an_overlong_name_is_cut_rather_than_refused(database: Database) -> None:
    store = DecisionStore(database)
    store.add([decision(user="u" * 500)])
    assert store.recent(1)[0].user == "u" * 64


def test_no_record_is_longer_than_a_bound(database: Database) -> None:
    store = DecisionStore(database)
    store.add([decision(asked="gpu:x" * 20_000, message="m" * 60_000, detail={"array": "1," * 30_000})])
    kept = store.recent(1)[0]
    assert (len(kept.asked), len(kept.message)) == (4000, 4000)
    assert kept.detail == {"left_out": "60013 bytes"}


def test_jobs_are_found_by_number_and_by_text(database: Database) -> None:
    store = DecisionStore(database)
    job = KnownJob(12, "d1", 1001, "alice", "11_1", "train", 11, 3.0)
    store.remember_job(job)
    store.remember_job(job)
    assert store.job(12) == job
    assert store.jobs_of_text("11_1") == [job]


def test_only_open_reservations_hold_space(database: Database) -> None:
    store = ReservationStore(database)
    store.save([reservation(), reservation("r2", ReservationState.GONE)])
    assert store.open() == [reservation()]
    store.save([reservation(state=ReservationState.GONE)])
    assert store.open() == []
    assert len(store.of_job(7)) == 2


def test_reports_and_modes_are_replaced(database: Database) -> None:
    instance = MigInstance("1g.10gb", 6, 1, 7, 0, "MIG-1")
    gpu = GpuReport(0, 0, "GPU-1", "A100-80GB", "NVIDIA A100", 81920, "on", (instance,))
    reports, modes = NodeReportStore(database), ModeStore(database)
    for time_s in (1.0, 2.0):
        reports.save(NodeReport("a100-0", time_s, "boot", "580", (gpu,)))
        modes.save("partition=gpu", "shadow")
    assert reports.all() == [NodeReport("a100-0", 2.0, "boot", "580", (gpu,))]
    assert modes.all() == {"partition=gpu": "shadow"}


def test_opening_twice_keeps_everything(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hetsched.db"
    first = Database(url)
    DecisionStore(first).add([decision()])
    first.close()
    second = Database(url)
    assert DecisionStore(second).recent(5) == [decision()]
    second.close()


def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hetsched.db"
    Database(url).close()
    connection = sqlite3.connect(tmp_path / "hetsched.db")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="newer hetsched"):
        Database(url)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "hetsched.db").write_text("this is not a database, " * 100)
    with pytest.raises(StoreError, match="hetsched.db"):
        Database(f"sqlite:///{tmp_path}/hetsched.db")


def test_records_wait_for_a_locked_database_and_are_then_written(tmp_path: Path) -> None:
    base = Database(f"sqlite:///{tmp_path}/hetsched.db")
    recorder = Recorder(DecisionStore(base), 100)
    blocker = sqlite3.connect(tmp_path / "hetsched.db", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    recorder.start()
    recorder.record(decision())
    assert not recorder.flush(0.2)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert recorder.flush(10)
    assert DecisionStore(base).recent(5) == [decision()]
    recorder.stop()
    base.close()


def test_what_does_not_fit_into_the_queue_is_counted(database: Database) -> None:
    recorder = Recorder(DecisionStore(database), 2)
    for number in range(5):
        recorder.record(decision(f"d{number}"))
    assert recorder.lost == 3
    recorder.start()
    assert recorder.flush()
    recorder.stop()
    assert len(DecisionStore(database).recent(10)) == 2
