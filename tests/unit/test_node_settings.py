"""Settings, paths and the journal's files."""

from __future__ import annotations

import fcntl
import os
from dataclasses import fields
from pathlib import Path

import pytest
from node_world import NODE

from pyhetsched.clock import ManualClock, RealClock
from pyhetsched.config import NodeConfig
from pyhetsched.config import parse as parse_all
from pyhetsched.errors import ConfigError, DataError, NotNowError
from pyhetsched.model import Reservation, ReservationState
from pyhetsched.node import environment
from pyhetsched.node.giveback import give_back, is_over
from pyhetsched.node.journal import JobRecord, Journal, SliceRecord
from pyhetsched.node.paths import NodePaths, gpu_locks, paths_of, write_atomically
from pyhetsched.node.processes import describe
from pyhetsched.node.rpc import trusted_uids
from pyhetsched.node.settings import ISOLATIONS, NodeSettings, load, parse


def test_keys_and_defaults_are_those_of_the_daemons_validator() -> None:
    assert {
        f.name: getattr(NodeSettings(), f.name) for f in fields(NodeSettings)
    } == NodeConfig().model_dump()
    for isolation in ISOLATIONS:
        assert parse_all(f'[node]\nisolation = "{isolation}"').node.isolation == isolation


def test_an_absent_file_means_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path / "none.toml") == NodeSettings()


def test_values_are_read(tmp_path: Path) -> None:
    file = tmp_path / "hetsched.toml"
    file.write_text(
        '[slurm]\nuser = "x"\n[node]\naddress = "ctl:6820"\ndeadline_s = 3\ntrusted_users = ["root"]\n'
    )
    settings = load(file)
    assert (settings.address, settings.deadline_s, settings.trusted_users) == ("ctl:6820", 3.0, ("root",))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[node", "not valid TOML"),
        ("node = 3", "write a section"),
        ("[node]\nadress = 'x'", "node.adress: unknown key; valid here: address"),
        ("[node]\ndeadline_s = 'soon'", "seconds above 0"),
        ("[node]\ndeadline_s = 0", "seconds above 0"),
        ("[node]\ndeadline_s = true", "seconds above 0"),
        ("[node]\ndestroy_foreign = 'yes'", "true or false"),
        ("[node]\nisolation = 'strict'", "one of auto, none, owner, cgroup"),
        ("[node]\ntrusted_users = 'root'", "list of user names"),
        ("[node]\nstate_dir = 'var'", "absolute path"),
        ("[node]\naddress = ''", "text in quotes"),
    ],
)
def test_mistakes_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(text, "hetsched.toml")


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a b", "x" * 300])
def test_impossible_node_names(name: str) -> None:
    with pytest.raises(ConfigError, match="not a node name"):
        paths_of(name, NodeSettings())


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    made = NodePaths(tmp_path / "state", tmp_path / "run")
    made.create()
    return made


def test_directories_have_the_modes_that_the_hooks_rely_on(paths: NodePaths) -> None:
    assert paths.state.stat().st_mode & 0o777 == 0o700
    assert paths.run.stat().st_mode & 0o777 == 0o755


def test_a_write_follows_no_link_and_leaves_no_half(paths: NodePaths, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    (paths.run / "file").symlink_to(target)
    write_atomically(paths.run / "file", "new", 0o644)
    assert target.read_text() == "untouched"
    assert (paths.run / "file").read_text() == "new"
    assert [p.name for p in paths.run.iterdir()] == ["file"]


def test_a_lock_that_is_not_let_go_is_given_up(paths: NodePaths) -> None:
    descriptor = os.open(paths.lock(1), os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(NotNowError, match=r"gpu1\.lock"), gpu_locks(paths, [0, 1], ManualClock(), 2.0):
        pass
    os.close(descriptor)
    with gpu_locks(paths, [1, 0, 1], RealClock(), 0.0):
        pass


def record(job_id: int = 7) -> JobRecord:
    made = Reservation(
        "r1", job_id, 1, 1001, NODE, 0, "1g.10gb", 3, 1, ReservationState.READY,
        mig_uuid="MIG-a", gi_id=9, ci_id=0, changed_s=12.5, note="x",
    )  # fmt: skip
    return JobRecord(job_id, 1001, 1, "boot", (SliceRecord(made, 19, "GPU-a"),), 1)


def test_records_come_back_as_they_were(paths: NodePaths) -> None:
    journal = Journal(paths)
    journal.save(record())
    journal.save(record(8))
    assert journal.load(7) == record()
    assert journal.records() == ((record(), record(8)), ())
    journal.remove(7)
    assert journal.load(7) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 2}', '{"format": 1}', '{"format": 1, "slices": [{}]}']
)
def test_a_damaged_record_is_an_error_that_names_it(paths: NodePaths, text: str) -> None:
    paths.record(7).write_text(text)
    with pytest.raises(DataError, match=r"job-7\.json"):
        Journal(paths).load(7)
    assert len(Journal(paths).records()[1]) == 1


def test_the_spool_keeps_order_and_is_bounded(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyhetsched.node.journal._SPOOL_LIMIT", 3)
    journal = Journal(paths)
    for number in range(5):
        journal.spool(bytes([number]))
    assert [data for _, data in journal.spooled()] == [b"\2", b"\3", b"\4"]


def test_nothing_strange_gets_into_a_tasks_environment() -> None:
    bad = record().map(
        lambda item: item.with_reservation(
            Reservation("r", 7, 0, 1, NODE, 0, "1g", 0, 1, ReservationState.READY, "a;b")
        )
    )
    with pytest.raises(DataError, match="cannot be passed"):
        environment.lines(bad)


class TestGiveBack:
    def run(self, *answers: str) -> tuple[bool, list[str]]:
        """Give back where each requeue in turn is answered so ("" is yes); the last answer stays."""
        asked: list[str] = []
        left = list(answers)

        def runner(command: object) -> tuple[int, str]:
            text = " ".join(command)  # type: ignore[call-overload]
            asked.append(text)
            if "requeue" not in text:
                return 0, ""
            answer = left.pop(0) if len(left) > 1 else left[0]
            return (1, answer) if answer else (0, "")

        return give_back(7, "a test", runner, lambda _: None), asked

    def test_a_batch_job_is_requeued(self) -> None:
        assert self.run("") == (True, ["scontrol requeue 7"])

    def test_a_job_that_may_not_be_requeued_is_made_to(self) -> None:
        done, asked = self.run("Requested operation is presently disabled", "")
        assert done
        assert asked == ["scontrol requeue 7", "scontrol update job=7 Requeue=1", "scontrol requeue 7"]

    def test_an_interactive_job_is_cancelled(self) -> None:
        done, asked = self.run("Only batch jobs are accepted or processed for job 7")
        assert done
        assert asked[-1] == "scancel 7"

    @pytest.mark.parametrize("text", ["Job is pending execution", "Job/step already completing or completed",
                                      "Job has already finished", "Invalid job id specified"])  # fmt: skip
    def test_a_job_that_is_not_here_any_more_is_left_alone(self, text: str) -> None:
        assert self.run(text) == (True, ["scontrol requeue 7"])

    def test_a_slurm_that_does_not_answer_is_asked_again_and_no_job_is_cancelled(self) -> None:
        done, asked = self.run("Unable to contact slurm controller")
        assert not done
        assert asked.count("scontrol requeue 7") == 5
        assert not any("scancel" in command for command in asked)
        assert self.run("Unable to contact slurm controller", "Zero Bytes were transmitted", "")[0]

    @pytest.mark.parametrize(
        ("status", "text", "over"),
        [
            (0, "RUNNING\n", False),
            (0, "COMPLETING\n", False),
            (0, "", True),
            (0, "PENDING\n", True),
            (1, "slurm_load_jobs error: Invalid job id specified", True),
            (1, "Unable to contact slurm controller", False),
        ],
    )
    def test_whether_a_job_is_over(self, status: int, text: str, over: bool) -> None:
        assert is_over(7, lambda _: (status, text)) is over


def test_holders_are_described() -> None:
    said = describe([os.getpid()])
    assert said.startswith(f"pid {os.getpid()} (")
    assert said.endswith(f"uid {os.getuid()})")
    assert describe([]) == ""
    assert "not visible" in describe([2**22 + 1])


def test_trusted_users_are_looked_up() -> None:
    assert trusted_uids(("root", "no-such-user")) == {0}
    with pytest.raises(ConfigError, match="no-such-user"):
        trusted_uids(("no-such-user",))
