"""The command ``hetsched-node`` as slurmd, systemd and people call it."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_world import NODE, World

from pyhetsched.clock import ManualClock
from pyhetsched.errors import UnreachableError
from pyhetsched.node import courier
from pyhetsched.node import main as command
from pyhetsched.node.inventory import boot_id
from pyhetsched.node.rpc import NodeRpc

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1001", "SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": NODE}


started: list[list[str]] = []


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path, monkeypatch)
    world.boot_id = boot_id()
    config = tmp_path / "hetsched.toml"
    config.write_text(
        f'[node]\nstate_dir = "{tmp_path}/state"\nrun_dir = "{tmp_path}/run"\ndeadline_s = 0.1\nisolation = "none"\n'
    )
    monkeypatch.setenv("HETSCHED_CONFIG", str(config))
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)

    def connect(_: object) -> NodeRpc:
        return world.daemon

    monkeypatch.setattr(command, "connect", connect)
    monkeypatch.setattr(command, "give_back", world._give_back)
    monkeypatch.setattr(command.courier, "start", lambda _, argv: started.append(list(argv)))
    started.clear()
    yield world
    log = logging.getLogger("hetsched.node")
    for handler in list(log.handlers):
        handler.close()
        log.removeHandler(handler)
    log.propagate = True


def test_a_job_from_boot_to_end(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    assert command.main(["boot"]) == 0
    assert command.main(["prolog", "--node", NODE]) == 0
    assert world.layout() == {("1g.10gb", 0)}
    assert command.main(["epilog", "--node", NODE]) == 0
    assert world.layout() == set()
    assert "job 7: GPU 0: 1g.10gb at 0 is MIG-" in world.paths.log.read_text()


def test_what_is_there_is_shown(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    command.main(["prolog"])
    assert command.main(["show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["gpus"][0]["instances"][0]["profile"] == "1g.10gb"
    assert shown["records"][0]["slices"][0]["reservation"]["state"] == "ready"
    assert command.main(["show"]) == 0
    text = capsys.readouterr().out
    assert "GPU 0  A100-80GB  MIG on" in text
    assert "job 7: 1g.10gb on GPU 0 at 0 ready" in text


def test_a_sweep_says_what_stays(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    command.main(["prolog"])
    world.node.ctl("hold", "--uuid", world.daemon.reports[-1].slices[0].mig_uuid)
    assert not world.epilog(7)
    assert command.main(["sweep"]) == 1
    assert "job 7: a slice stays, held by pid" in capsys.readouterr().err
    world.node.ctl("unhold", "--all")
    assert command.main(["sweep"]) == 0


def test_a_boot_without_the_daemon_is_made_up_for(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.daemon.away = True
    assert command.main(["boot"]) == 0
    assert "the daemon was not reached" in capsys.readouterr().err
    world.daemon.away = False
    assert command.main(["reconcile", "--if-pending"]) == 0
    assert len(world.daemon.reconciles) == 1
    assert command.main(["reconcile", "--if-pending"]) == 0
    assert len(world.daemon.reconciles) == 1
    assert command.main(["reconcile"]) == 0
    assert len(world.daemon.reconciles) == 2


def test_a_wrong_configuration_sends_the_job_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = world.folder / "wrong.toml"
    wrong.write_text("[node]\nadress = 'x'\n")
    monkeypatch.setenv("HETSCHED_CONFIG", str(wrong))
    assert command.main(["prolog"]) == 1
    assert "unknown key" in world.given_back[7]


def test_an_isolation_that_this_node_cannot_do_is_an_error(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = world.folder / "wrong.toml"
    wrong.write_text('[node]\nisolation = "cgroup"\n')
    assert command.main(["--config", str(wrong), "show"]) == 0
    assert command.main(["--config", str(wrong), "--config", str(wrong), "boot", "--node", "../x"]) == 1
    assert "not a node name" in capsys.readouterr().err


def test_outside_slurmd_it_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    assert command.main(["prolog"]) == 1
    assert "meant to be run by slurmd" in capsys.readouterr().err


def test_a_prolog_that_hangs_gives_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    monkeypatch.setattr(command, "_PROLOG_LIMIT_S", 0.3)
    command.main(["boot"])
    world.node.ctl("fault", "add", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--stall", "30")

    def note(job_id: int, why: str) -> bool:
        (world.folder / "given-back").write_text(f"{job_id} {why}")
        return True

    monkeypatch.setattr(command, "give_back", note)
    assert not world.crash(lambda: command.main(["prolog"]))  # it leaves by itself, with status 0
    assert (world.folder / "given-back").read_text() == "7 its prolog hangs"
    assert world.visible(7) == "STATE=blocked\n"
    assert world.epilog(7)
    assert world.layout() == set()


def test_the_log_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_LOG_LIMIT_BYTES", 10)
    command.main(["boot"])
    world.paths.log.write_text("x" * 100)
    command.main(["boot"])
    assert world.paths.log.stat().st_size < 100
    assert world.paths.log.with_suffix(".log.1").read_text() == "x" * 100


def test_what_could_not_be_told_is_brought_by_a_courier(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    command.main(["prolog"])
    world.daemon.away = True
    command.main(["epilog"])
    assert started[-1][-3:] == ["deliver", "--node", NODE]
    assert courier.needed(world.paths)
    threading.Timer(0.7, lambda: setattr(world.daemon, "away", False)).start()
    assert command.main(["deliver", "--node", NODE]) == 0
    assert world.daemon.last_states() == {"7.0": "gone"}
    assert not courier.needed(world.paths)


def test_a_courier_makes_up_for_the_boot(world: World) -> None:
    world.daemon.away = True
    command.main(["boot"])
    world.daemon.away = False
    assert command.main(["deliver"]) == 0
    assert len(world.daemon.reconciles) == 1


class TestCourier:
    def test_it_gives_up_in_the_end(self, world: World) -> None:
        world.journal.spool(b"x")
        clock = ManualClock()
        tries = []
        assert not courier.run(world.paths, lambda: tries.append(clock.monotonic_s()), clock, 100.0)
        assert tries == [0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5]

    def test_errors_do_not_end_it(self, world: World) -> None:
        world.journal.spool(b"x")

        def fail() -> None:
            raise UnreachableError("away")

        assert not courier.run(world.paths, fail, ManualClock(), 5.0)

    def test_there_is_one_at_a_time(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        marker = world.folder / "started"
        assert not courier.start(world.paths, ["touch", str(marker)])  # nothing waits
        world.journal.spool(b"x")
        pid = courier.start(world.paths, ["touch", str(marker)])
        assert os.waitpid(pid, 0) == (pid, 0)
        assert marker.exists()

        def another() -> None:
            assert not courier.start(world.paths, ["false"])
            assert courier.run(world.paths, lambda: None, ManualClock())
            for path, _ in world.journal.spooled():
                path.unlink()

        assert courier.run(world.paths, another, ManualClock())
