"""A node that comes back, and epilogs that never ran: the node takes up what was left, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from node_world import World

from pyhetsched.mig.nvml import NvmlDriver
from pyhetsched.node import boot, inventory, prolog
from pyhetsched.node.hook import HookJob
from pyhetsched.rpc.gen import services_pb2 as pb


def modes(world: World) -> list[int]:
    return [gpu["mode"] for gpu in world.node.show()["gpus"]]


def reboot(world: World) -> boot.Outcome:
    world.node.ctl("reboot")
    world.boot_id = "boot-2"
    inventory_file = world.paths.mig_gpus
    inventory_file.unlink(missing_ok=True)  # it does not outlive a boot
    return boot.run("node0", world.hook(), booted=True)


def test_mig_mode_that_a_reboot_took_is_switched_on_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, "H100-80GB-SXM:2")
    boot.run("node0", world.hook(), booted=False)
    outcome = reboot(world)
    assert modes(world) == [1, 1]
    assert outcome.notes == ("GPU 0: MIG mode is on again", "GPU 1: MIG mode is on again")
    assert inventory.read_mig_gpus(world.paths) == {0, 1}


def test_a_gpu_whose_mode_stays_off_still_concerns_the_prolog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, "H100-80GB-SXM:1")
    boot.run("node0", world.hook(), booted=False)
    world.node.ctl("policy", "permission=deny")
    reboot(world)
    assert modes(world) == [0]
    assert inventory.read_mig_gpus(world.paths) == {0}
    world.daemon.plans[7] = pb.PreparePlan(action=pb.PreparePlan.GIVE_BACK, job_id=7)
    world.prolog(7)
    assert world.visible(7).startswith("STATE=blocked")


def test_a_gpu_that_never_was_in_mig_mode_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, "H100-80GB-SXM:1", mig=False)
    boot.run("node0", world.hook(), booted=False)
    assert reboot(world).notes == ()
    assert modes(world) == [0]
    assert inventory.read_mig_gpus(world.paths) == frozenset()


def ready(world: World) -> pb.Slice:
    """Job 7 has a slice; returns what the daemon says once it takes the job for dead."""
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    boot.run("node0", world.hook(), booted=False)
    [shown] = world.daemon.reconciles[-1].inventory.gpus[0].slices
    return pb.Slice(
        profile=shown.profile, start=shown.start, size=shown.size, uuid=shown.uuid, gi_id=shown.gi_id, job_id=7
    )  # fmt: skip


@pytest.mark.parametrize("over", [True, False])
def test_slices_of_a_job_whose_epilog_never_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
    world = World(tmp_path, monkeypatch, "A100-80GB:1")
    world.daemon.reconcile_plan = pb.ReconcilePlan(destroy=[ready(world)])
    if over:
        world.jobs_over.add(7)
    boot.run("node0", world.hook(), booted=False)
    assert world.layout() == (set() if over else {("1g.10gb", 0)})
    assert world.paths.record(7).exists() is not over
    assert (world.visible(7) == "") is over
    if over:
        assert world.daemon.last_states() == {"7.0": "gone"}


def test_an_instance_that_goes_while_the_daemon_is_asked_is_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, "A100-80GB:1")
    shown = ready(world)
    real = world.daemon.reconcile

    def while_the_epilog_runs(request: pb.ReconcileRequest) -> pb.ReconcilePlan:
        real(request)
        foreign = [slices for gpu in request.inventory.gpus for slices in gpu.slices]
        if world.layout():
            world.epilog(7)
        return pb.ReconcilePlan(foreign=foreign)

    setter: Any = world.daemon
    setter.reconcile = while_the_epilog_runs
    before = len(world.daemon.reconciles)
    outcome = boot.run("node0", world.hook(), booted=False)
    assert shown.profile == "1g.10gb"
    assert outcome.foreign == 0
    assert len(world.daemon.reconciles) == before + 2


def test_a_boot_that_was_broken_off_lets_no_job_have_a_whole_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, "H100-80GB-SXM:2")
    boot.run("node0", world.hook(), booted=True)
    world.node.ctl("reboot")
    for left in world.paths.run.iterdir():
        left.unlink()
    world.boot_id = "boot-2"
    world.node.ctl("fault", "add", "--call", "nvmlDeviceSetMigMode", "--skip", "1", "--kill", "before")
    assert world.crash(lambda: boot.run("node0", world.hook(), booted=True))
    assert modes(world) == [1, 0]
    world.daemon.plans[7] = pb.PreparePlan(action=pb.PreparePlan.GIVE_BACK, job_id=7)
    for _ in range(2):
        world.prolog(7, 1)
        assert world.visible(7).startswith("STATE=blocked")
        world.paths.mig_gpus.unlink()  # the boot may also have died before it wrote that
    boot.run("node0", world.hook(), booted=False)
    assert modes(world) == [1, 1]


def test_what_was_laid_down_for_tasks_goes_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, "A100-80GB:1")
    world.daemon.plans[7] = pb.PreparePlan(action=pb.PreparePlan.BLOCK, job_id=7)
    world.daemon.plan(8, ("1g.10gb", 0))
    world.prolog(7)
    world.prolog(8)
    boot.run("node0", world.hook(), booted=False)
    assert world.visible(7)
    assert world.visible(8)
    world.jobs_over |= {7, 8}
    boot.run("node0", world.hook(), booted=False)
    assert world.visible(7) == world.visible(8) == ""
    assert world.layout() == set()


def test_a_job_whose_gpus_slurm_does_not_tell_is_seen_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, "A100-80GB:1")
    boot.run("node0", world.hook(), booted=True)
    world.daemon.plan(7, ("1g.10gb", 0))
    prolog.run(HookJob(7, 1001, "node0"), world.hook())
    assert world.visible(7).startswith("STATE=ready")
    prolog.run(HookJob(8, 1001, "node0"), world.hook())
    assert world.visible(8) == ""


def test_a_record_is_kept_while_its_gpu_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch, "A100-80GB:1")
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    for code in ("4", "15", "999"):
        world.node.ctl("fault", "add", "--call", "nvmlDeviceGetMigMode", "--fail", code, "--count", "0")
        assert not world.epilog(7)
        world.node.ctl("fault", "clear")
        assert world.paths.record(7).exists()
        assert world.layout() == {("1g.10gb", 0)}
    assert world.epilog(7)
    assert world.layout() == set()


@pytest.mark.parametrize("call", ["nvmlDeviceSetMigMode", "nvmlDeviceGetMigMode"])
def test_a_mode_that_could_not_be_restored_at_once_is_restored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    world = World(tmp_path, monkeypatch, "H100-80GB-SXM:2")
    boot.run("node0", world.hook(), booted=True)
    world.paths.booted.unlink()
    world.node.ctl("fault", "add", "--call", call, "--fail", "15")
    reboot(world)
    assert modes(world).count(0) == 1
    assert inventory.read_mig_gpus(world.paths) == {0, 1}
    boot.run("node0", world.hook(), booted=False)
    assert modes(world) == [1, 1]


def test_whoever_holds_an_old_record_of_a_job_leaves_its_later_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, "A100-80GB:1")
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    old = world.journal.load(7)
    assert old is not None
    assert world.epilog(7)
    world.daemon.plan(7, ("1g.10gb", 0)).slices[0].reservation_id = "7.later"
    world.prolog(7)
    with NvmlDriver() as driver:
        assert world.hook().engine(driver).unmake(old, 0.0).done
    assert world.layout() == {("1g.10gb", 0)}
    now = world.journal.load(7)
    assert now is not None
    assert [item.id for item in now.reservations] == ["7.later"]
    assert world.epilog(7)
    assert world.layout() == set()
