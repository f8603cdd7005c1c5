"""Reconciling at boot and later: ours and nobody's goes, what is foreign is reported and left."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_world import NODE, World, die_at_write

from pyhetsched.node import boot
from pyhetsched.rpc.gen import services_pb2 as pb


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def run(world: World, **options: bool) -> boot.Outcome:
    hook = world.hook()
    return boot.run(NODE, hook, options.pop("booted", boot.has_booted(hook)), **options)


def make_foreign(world: World, start: int = 2) -> None:
    with world.node.worker() as nvml:
        made = nvml.create(nvml.nvmlDeviceGetHandleByIndex(0), 19, start)
        nvml.nvmlGpuInstanceCreateComputeInstance(made, 0)


def slice_message(world: World, gpu: int = 0, start: int = 0) -> pb.Slice:
    [shown] = [i for i in world.daemon.reconciles[-1].inventory.gpus[gpu].slices if i.start == start]
    return shown


def test_the_daemon_gets_the_inventory(world: World) -> None:
    world.node.ctl("mode", "--gpu", "1", "off")
    make_foreign(world)
    outcome = run(world)
    assert outcome.reached
    request = world.daemon.reconciles[-1]
    assert request.booted
    assert [(g.index, g.minor, g.model, g.mig_mode) for g in request.inventory.gpus] == [
        (0, 0, "A100-80GB", "on"),
        (1, 1, "A100-80GB", "off"),
    ]
    assert request.inventory.gpus[0].memory_mib > 80000
    assert [(s.profile, s.start) for s in request.inventory.gpus[0].slices] == [("1g.10gb", 2)]
    assert request.inventory.boot_id == world.boot_id
    assert world.paths.mig_gpus.read_text() == ",0,\n"


def test_only_the_first_run_after_a_boot_is_one(world: World) -> None:
    run(world)
    assert not boot.has_booted(world.hook())
    world.boot_id = "boot-2"
    assert boot.has_booted(world.hook())


def test_a_restart_of_slurmd_touches_no_running_job(world: World) -> None:
    run(world)
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    run(world)
    assert world.layout() == {("1g.10gb", 0)}
    assert world.paths.record(7).exists()
    assert list(world.daemon.reconciles[-1].running_job_ids) == [7]
    assert not world.daemon.reconciles[-1].booted


def test_after_a_reboot_all_records_are_cleared(world: World) -> None:
    run(world)
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    world.node.ctl("reboot")
    world.boot_id = "boot-2"
    run(world)
    assert not world.paths.record(7).exists()
    assert world.visible(7) == ""
    assert world.daemon.last_states() == {"7.0": "gone"}
    assert list(world.daemon.reconciles[-1].running_job_ids) == []


def test_a_forced_boot_destroys_what_survived(world: World) -> None:
    run(world)
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    run(world, booted=True)
    assert world.layout() == set()
    assert not world.paths.record(7).exists()


def test_without_the_daemon_the_local_journal_is_acted_upon(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    world.daemon.away = True
    outcome = run(world, booted=True)
    assert not outcome.reached
    assert world.layout() == set()
    assert world.paths.pending.exists()
    world.daemon.away = False
    assert run(world, booted=False).reached
    assert world.daemon.last_states() == {"7.0": "gone"}
    assert not world.paths.pending.exists()


def test_foreign_instances_are_reported_and_left(world: World) -> None:
    make_foreign(world)
    run(world)
    world.daemon.reconcile_plan = pb.ReconcilePlan(foreign=[slice_message(world, start=2)])
    outcome = run(world)
    assert outcome.foreign == 1
    assert "1g.10gb at 2" in outcome.notes[0]
    assert world.layout() == {("1g.10gb", 2)}


def test_foreign_instances_go_at_boot_if_the_site_wants_it(world: World) -> None:
    make_foreign(world)
    run(world)
    world.daemon.reconcile_plan = pb.ReconcilePlan(foreign=[slice_message(world, start=2)])
    assert run(world, booted=False, destroy_foreign=True).destroyed == 0
    assert run(world, booted=True, destroy_foreign=True).destroyed == 1
    assert world.layout() == set()
    assert not world.daemon.reports[-1].inventory.gpus[0].slices


def test_what_the_daemon_names_is_destroyed(world: World) -> None:
    make_foreign(world, 0)
    run(world)
    world.daemon.reconcile_plan = pb.ReconcilePlan(destroy=[slice_message(world)])
    assert run(world).destroyed == 1
    assert world.layout() == set()


def test_a_place_suffices_where_only_one_gpu_fits(world: World) -> None:
    make_foreign(world, 0)
    run(world)
    world.daemon.reconcile_plan = pb.ReconcilePlan(destroy=[pb.Slice(profile="1g.10gb", start=0, size=1)])
    assert run(world).destroyed == 1
    assert world.layout() == set()


def test_what_a_record_claims_is_not_destroyed_on_the_daemons_word(world: World) -> None:
    run(world)
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    run(world)
    world.daemon.reconcile_plan = pb.ReconcilePlan(destroy=[slice_message(world)])
    assert run(world).destroyed == 0
    assert world.layout() == {("1g.10gb", 0)}


def test_an_instance_that_cannot_be_told_apart_is_left(world: World) -> None:
    with world.node.worker() as nvml:
        for gpu in (0, 1):
            nvml.create(nvml.nvmlDeviceGetHandleByIndex(gpu), 19, 0)  # no compute instance, so no UUID
    run(world)
    world.daemon.reconcile_plan = pb.ReconcilePlan(destroy=[slice_message(world)])
    assert run(world).destroyed == 0
    assert world.layout(0) == world.layout(1) == {("1g.10gb", 0)}


def test_a_creation_that_was_broken_off_is_undone_while_jobs_run(world: World) -> None:
    run(world)
    world.daemon.plan(6, ("1g.10gb", 3))
    world.prolog(6)
    world.daemon.plan(7, ("1g.10gb", 0))

    def die() -> None:
        die_at_write(1, after=True)  # "creating" is journalled
        world.prolog(7)

    assert world.crash(die)
    run(world)
    assert world.layout() == {("1g.10gb", 3)}
    assert not world.paths.record(7).exists()
    assert list(world.daemon.reconciles[-1].running_job_ids) == [6]


def test_a_sweep_retries_what_was_in_use(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    world.node.ctl("hold", "--uuid", world.daemon.reports[-1].slices[0].mig_uuid)
    assert not world.epilog(7)
    [note] = boot.sweep(NODE, world.hook())
    assert "pid" in note
    world.node.ctl("unhold", "--all")
    assert boot.sweep(NODE, world.hook()) == ()
    assert world.layout() == set()


def test_a_damaged_record_is_named(world: World) -> None:
    world.paths.record(7).write_text("garbage")
    assert any("job-7.json" in note for note in run(world).notes)


def test_a_node_without_nvml_is_not_an_error(world: World) -> None:
    (world.folder / "nvml" / f"{NODE}.state").unlink()
    outcome = run(world)
    assert not outcome.reached
    assert not world.paths.mig_gpus.exists()  # not known is not the same as none


def test_an_nvml_that_fails_later_makes_no_gpu_ordinary(world: World) -> None:
    run(world)
    (world.folder / "nvml" / f"{NODE}.state").unlink()
    run(world)
    assert world.paths.mig_gpus.read_text() == ",0,1,\n"


def test_a_gpu_off_the_bus_is_reported_as_unknown(world: World) -> None:
    world.node.ctl("lost", "--gpu", "0")
    run(world)
    modes = [(g.index, g.mig_mode) for g in world.daemon.reconciles[-1].inventory.gpus]
    assert modes == [(0, "unknown"), (1, "on")]
