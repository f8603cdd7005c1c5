"""A node changes the MIG mode of its GPUs: all or none, never under a job, and says what became of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from node_world import NODE, World

from pyhetsched.node import boot, modes
from pyhetsched.node.paths import mode_lock
from pyhetsched.rpc.gen import services_pb2 as pb

HOPPER, AMPERE = "H100-80GB-SXM:2", "A100-80GB:2"


def changes(on: bool, reset_allowed: bool = False) -> list[pb.ModeChange]:
    return [pb.ModeChange(gpu_index=index, on=on, reset_allowed=reset_allowed) for index in range(2)]


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """nvidia-smi on the path, which is the only way to reset a GPU."""
    from fakenode import FakeNode

    tools = FakeNode(tmp_path / "tools", "n", [AMPERE]).tools
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").symlink_to(tools / "fake-nvidia-smi")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def world(folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, wanted: list[pb.ModeChange]) -> World:
    """A node with all GPUs in MIG mode, whose daemon orders ``wanted``."""
    made = World(folder, monkeypatch, gpus)
    made.daemon.reconcile_plan = pb.ReconcilePlan(modes=wanted)
    return made


def look(made: World) -> tuple[str, ...]:
    """What ``hetsched-node reconcile`` does."""
    outcome = boot.run(NODE, made.hook(), booted=False)
    return modes.run(NODE, made.hook(), outcome.modes)


def there(made: World) -> list[str]:
    with made.hook().open_driver() as driver:
        return [driver.mig_mode(index) for index in driver.indexes]


def test_hopper_changes_without_a_reset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, monkeypatch, HOPPER, changes(on=False))
    assert look(made) == ("MIG modes: GPU 0 off, GPU 1 off",)
    assert made.paths.mig_gpus.read_text() == ",,\n"
    report = made.daemon.reports[-1]
    assert [gpu.mig_mode for gpu in report.inventory.gpus] == ["off", "off"]
    assert report.modes_error == ""
    made.daemon.reconcile_plan = pb.ReconcilePlan(modes=changes(on=True))
    look(made)
    assert made.paths.mig_gpus.read_text() == ",0,1,\n"
    assert there(made) == ["on", "on"]


def test_ampere_stays_where_a_reset_is_not_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, monkeypatch, AMPERE, changes(on=False))
    assert "pool.allow_reset" in look(made)[1]
    assert there(made) == ["on", "on"]
    assert "pool.allow_reset" in made.daemon.reports[-1].modes_error


@pytest.mark.usefixtures("smi")
def test_ampere_is_reset_where_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, monkeypatch, AMPERE, changes(on=False, reset_allowed=True))
    look(made)
    assert there(made) == ["off", "off"]


@pytest.mark.usefixtures("smi")
@pytest.mark.parametrize("fault", [("--fail", "19"), ("--noop",)], ids=["in use", "says success, does nothing"])
def test_a_reset_that_fails_puts_every_gpu_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: tuple[str, ...]
) -> None:
    made = world(tmp_path, monkeypatch, AMPERE, changes(on=False, reset_allowed=True))
    made.node.ctl("fault", "add", "--call", "gpuReset", "--gpu", "1", *fault)
    said = look(made)
    assert "reset" in said[1]
    assert there(made) == ["on", "on"]
    assert made.daemon.reports[-1].modes_error == said[1]


def test_a_gpu_with_a_slice_keeps_all_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, monkeypatch, HOPPER, changes(on=False))
    made.daemon.plan(7, ("1g.10gb", 0), gpu=1)
    made.prolog(7, 1)
    assert "job 7 has a slice" in look(made)[1]
    assert there(made) == ["on", "on"]


def test_a_gpu_with_a_process_keeps_all_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, monkeypatch, HOPPER, changes(on=False))
    look(made)
    made.daemon.reconcile_plan = pb.ReconcilePlan(modes=changes(on=True))
    pid = made.node.ctl("hold", "--gpu", "1").strip()
    assert f"in use by pid {pid}" in look(made)[1]
    assert there(made) == ["off", "off"]
    made.node.ctl("unhold", "--all")


def test_a_change_that_the_daemon_withdraws_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm has given a GPU away since the first word."""
    made = world(tmp_path, monkeypatch, HOPPER, changes(on=False))
    wanted = boot.run(NODE, made.hook(), booted=False).modes
    made.daemon.reconcile_plan = pb.ReconcilePlan()
    assert modes.run(NODE, made.hook(), wanted) == ("the daemon has withdrawn the change of MIG modes",)
    assert there(made) == ["on", "on"]
    assert made.paths.mig_gpus.read_text() == ",0,1,\n"


def test_a_daemon_that_goes_away_in_between_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, monkeypatch, HOPPER, changes(on=False))
    wanted = boot.run(NODE, made.hook(), booted=False).modes
    made.daemon.away = True
    assert "cannot be asked again" in modes.run(NODE, made.hook(), wanted)[1]
    assert there(made) == ["on", "on"]


def test_a_crash_in_the_middle_is_made_good_by_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, monkeypatch, HOPPER, changes(on=False))
    made.node.ctl("fault", "add", "--call", "nvmlDeviceSetMigMode", "--skip", "1", "--kill", "before")
    assert made.crash(lambda: look(made))
    assert there(made) == ["off", "on"]
    # Until then every job is seen to by the prolog, whatever its GPU.
    assert made.paths.mig_gpus.read_text() == ",0,1,\n"
    look(made)
    assert there(made) == ["off", "off"]
    assert made.paths.mig_gpus.read_text() == ",,\n"


def test_modes_do_not_change_while_a_prolog_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, monkeypatch, HOPPER, changes(on=False))
    with mode_lock(made.paths, False, made.clock, 0.0):
        assert "a prolog, is at work" in look(made)[0]
    assert there(made) == ["on", "on"]
