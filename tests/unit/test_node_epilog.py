"""The epilog: exactly what was recorded goes, whatever the weather."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from node_world import NODE, World

from pyhetsched.rpc.gen import services_pb2 as pb


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path, monkeypatch)
    world.daemon.plan(7, ("3g.40gb", 4), ("1g.10gb", 0))
    world.prolog(7)
    return world


def nothing_is_left(world: World, job_id: int = 7) -> bool:
    return world.layout() == set() and not world.paths.record(job_id).exists() and world.visible(job_id) == ""


def test_everything_of_the_job_goes(world: World) -> None:
    assert world.epilog(7)
    assert nothing_is_left(world)
    assert world.daemon.last_states() == {"7.0": "gone", "7.1": "gone"}


def test_a_second_epilog_does_nothing(world: World) -> None:
    assert world.epilog(7)
    reports = len(world.daemon.reports)
    assert world.epilog(7)
    assert len(world.daemon.reports) == reports


def test_the_slices_of_others_stay(world: World) -> None:
    world.daemon.plan(8, ("1g.10gb", 1))
    world.prolog(8)
    with world.node.worker() as nvml:
        nvml.create(nvml.nvmlDeviceGetHandleByIndex(0), 19, 2)
    assert world.epilog(7)
    assert world.layout() == {("1g.10gb", 1), ("1g.10gb", 2)}


def test_without_the_daemon_the_report_waits(world: World) -> None:
    world.daemon.away = True
    assert world.epilog(7)
    assert nothing_is_left(world)
    assert len(list(world.journal.spooled())) == 1
    world.daemon.away = False
    assert world.epilog(99)  # any later hook delivers it
    assert world.daemon.last_states() == {"7.0": "gone", "7.1": "gone"}
    assert not list(world.journal.spooled())


def test_in_use_that_clears_is_waited_for(world: World) -> None:
    uuid = world.daemon.reports[-1].slices[0].mig_uuid
    world.node.ctl("hold", "--uuid", uuid, "--for", "0.4")
    assert world.epilog(7, wait_s=20.0)
    assert nothing_is_left(world)


def test_in_use_that_stays_is_journalled_and_its_holder_named(world: World) -> None:
    uuid = world.daemon.reports[-1].slices[0].mig_uuid
    pid = world.node.ctl("hold", "--uuid", uuid).strip()
    assert not world.epilog(7, wait_s=0.2)
    assert world.layout() == {("3g.40gb", 4)}
    [stuck] = [item for item in world.daemon.reports[-1].slices if item.state == "destroying"]
    assert stuck.reservation_id == "7.0"
    assert stuck.holder.startswith(f"pid {pid} (")
    assert world.paths.record(7).exists()
    world.node.ctl("unhold", "--all")
    assert world.epilog(7)
    assert nothing_is_left(world)


def test_a_hidden_holder_is_said_to_be_hidden(world: World) -> None:
    uuid = world.daemon.reports[-1].slices[0].mig_uuid
    world.node.ctl("hold", "--uuid", uuid, "--hidden")
    assert not world.epilog(7)
    [stuck] = [item for item in world.daemon.reports[-1].slices if item.state == "destroying"]
    assert "monitoring" in stuck.error
    assert not stuck.holder


def test_the_next_prolog_on_the_gpu_finishes_what_the_epilog_could_not(world: World) -> None:
    world.node.ctl("fault", "add", "--call", "nvmlGpuInstanceDestroy", "--fail", "19", "--count", "2")
    assert not world.epilog(7)
    world.daemon.plan(8, ("7g.80gb", 0))
    world.prolog(8)
    assert world.layout() == {("7g.80gb", 0)}


def test_no_permission_is_not_tried_again_and_again(world: World) -> None:
    world.node.ctl("fault", "add", "--call", "nvmlComputeInstanceDestroy", "--fail", "4", "--count", "2")
    assert not world.epilog(7, wait_s=60.0)
    assert "root" in world.daemon.reports[-1].slices[0].error
    assert world.epilog(7)
    assert nothing_is_left(world)


def test_a_gpu_off_the_bus_keeps_the_record(world: World) -> None:
    world.node.ctl("lost", "--gpu", "0")
    assert not world.epilog(7)
    assert world.daemon.last_states() == {"7.0": "destroying", "7.1": "destroying"}
    world.node.ctl("lost", "--gpu", "0", "--clear")
    assert world.epilog(7)
    assert nothing_is_left(world)


def test_without_nvml_the_record_is_kept(world: World) -> None:
    state = world.folder / "nvml" / f"{NODE}.state"
    state.rename(state.with_suffix(".away"))
    assert not world.epilog(7)
    state.with_suffix(".away").rename(state)
    assert world.epilog(7)
    assert nothing_is_left(world)


def test_an_instance_in_the_same_place_that_is_not_ours_is_left(world: World) -> None:
    world.node.ctl("policy", "uuid=fresh")
    ours = world.node.show()["gpus"][0]["instances"]
    with world.node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        [gi] = [i["gi"] for i in ours if i["start"] == 4]
        handle = nvml.nvmlDeviceGetGpuInstanceById(gpu, gi)
        nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(handle, 0))
        nvml.nvmlGpuInstanceDestroy(handle)
        made = nvml.create(gpu, 9, 4)
        nvml.nvmlGpuInstanceCreateComputeInstance(made, 2)
    assert world.epilog(7)
    assert world.layout() == {("3g.40gb", 4)}
    assert world.daemon.last_states() == {"7.0": "gone", "7.1": "gone"}


def test_after_a_reboot_nothing_there_is_ours(world: World) -> None:
    world.boot_id = "boot-2"
    assert world.epilog(7)
    assert world.layout() == {("3g.40gb", 4), ("1g.10gb", 0)}  # some other tool's, as far as we can know
    assert not world.paths.record(7).exists()


def test_a_damaged_record_is_replaced_by_the_daemons(world: World) -> None:
    world.paths.record(7).write_text("{")
    made = world.daemon.reports[-1].slices
    world.daemon.release_plan = pb.ReleasePlan(
        reservations=[
            pb.Reservation(id="7.0", job_id=7, node=NODE, profile="3g.40gb", start=4, size=4, state="ready",
                           mig_uuid=made[0].mig_uuid, gi_id=made[0].gi_id, ci_id=made[0].ci_id),
            pb.Reservation(id="7.1", job_id=7, node=NODE, profile="1g.10gb", start=0, size=1, state="reserved"),
        ]
    )  # fmt: skip
    assert world.epilog(7)
    assert nothing_is_left(world)


def test_a_damaged_record_without_the_daemon_is_kept_for_the_boot(world: World) -> None:
    world.paths.record(7).write_text("{")
    world.daemon.away = True
    world.epilog(7)
    assert world.paths.record(7).exists()


def test_two_epilogs_at_once(world: World) -> None:
    children = [threading.Thread(target=world.crash, args=(lambda: world.epilog(7),)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert nothing_is_left(world)
