"""The driver of NVML on the fake library, under the real pynvml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from node_world import World

from pyhetsched.errors import MigError, NvmlCallError
from pyhetsched.mig.nvml import NvmlDriver
from pyhetsched.mig.nvml_codes import (
    GPU_IS_LOST,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    NO_PERMISSION,
    indexes_by_minor,
)
from pyhetsched.mig.profiles import mig_models

ONE, THREE, SEVEN = 19, 9, 0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch, "A100-80GB:2")


@pytest.fixture
def driver(world: World) -> Iterator[NvmlDriver]:
    with NvmlDriver() as opened:
        yield opened


def code_of(error: pytest.ExceptionInfo[NvmlCallError]) -> int:
    return error.value.code


@pytest.mark.parametrize(
    ("minors", "indexes"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([3, 1, 0, 2], [3, 1, 0, 2]),
        ([4, 6], [0, 1]),
        ([0, None, 2], [0, 1, 2]),
        ([None, None], [0, 1]),
        ([1, None, 0], [1, 2, 0]),
        ([], []),
    ],
)
def test_slurm_counts_gpus_by_minor(minors: list[int | None], indexes: list[int]) -> None:
    assert indexes_by_minor(minors) == indexes


def test_a_slice_has_what_was_asked(driver: NvmlDriver) -> None:
    made = driver.create_slice(1, THREE, 4, 4)
    assert (made.profile, made.start, made.size) == ("3g.40gb", 4, 4)
    assert made.mig_uuid.startswith("MIG-")
    assert driver.instances(1) == (made,)
    assert driver.instances(0) == ()


def test_instances_come_by_start(driver: NvmlDriver) -> None:
    for start in (6, 0, 3):
        driver.create_slice(0, ONE, start, 1)
    assert [i.start for i in driver.instances(0)] == [0, 3, 6]


def test_a_gpu_instance_without_compute_instance_is_shown(driver: NvmlDriver) -> None:
    gi_id = driver.create_gpu_instance(0, ONE, 0, 1)
    [shown] = driver.instances(0)
    assert (shown.gi_id, shown.ci_id, shown.mig_uuid) == (gi_id, None, "")


def test_no_room_is_said_so(driver: NvmlDriver) -> None:
    driver.create_slice(0, THREE, 4, 4)
    with pytest.raises(NvmlCallError, match="no room at this place") as error:
        driver.create_slice(0, ONE, 5, 1)
    assert code_of(error) == INSUFFICIENT_RESOURCES


def test_a_failed_compute_instance_is_rolled_back(world: World, driver: NvmlDriver) -> None:
    world.node.ctl("fault", "add", "--call", "nvmlGpuInstanceCreateComputeInstance", "--fail", "23")
    with pytest.raises(NvmlCallError):
        driver.create_slice(0, ONE, 0, 1)
    assert driver.instances(0) == ()


def test_success_without_effect_is_found_out(world: World, driver: NvmlDriver) -> None:
    world.node.ctl("fault", "add", "--call", "nvmlGpuInstanceCreateComputeInstance", "--noop")
    with pytest.raises(MigError):
        driver.create_slice(0, ONE, 0, 1)
    assert driver.instances(0) == ()
    made = driver.create_slice(0, ONE, 0, 1)
    world.node.ctl("fault", "add", "--call", "nvmlGpuInstanceDestroy", "--noop")
    with pytest.raises(MigError, match="still there"):
        driver.destroy_slice(0, made.gi_id)


def test_destroying_what_is_gone_is_fine(driver: NvmlDriver) -> None:
    made = driver.create_slice(0, ONE, 0, 1)
    driver.destroy_slice(0, made.gi_id)
    driver.destroy_slice(0, made.gi_id)
    assert driver.instances(0) == ()


def test_a_busy_instance_is_in_use_and_its_process_named(world: World, driver: NvmlDriver) -> None:
    made = driver.create_slice(0, ONE, 0, 1)
    other = driver.create_slice(0, ONE, 1, 1)
    pid = int(world.node.ctl("hold", "--uuid", made.mig_uuid))
    with pytest.raises(NvmlCallError) as error:
        driver.destroy_slice(0, made.gi_id)
    assert code_of(error) == IN_USE
    assert driver.holders(0, made.gi_id) == (pid,)
    assert driver.holders(0, other.gi_id) == ()


def test_without_permission_it_says_what_it_takes(world: World, driver: NvmlDriver) -> None:
    world.node.ctl("policy", "permission=deny")
    with pytest.raises(NvmlCallError, match="takes root") as error:
        driver.create_slice(0, ONE, 0, 1)
    assert code_of(error) == NO_PERMISSION


def test_a_refusal_on_the_parent_is_tolerated(world: World, driver: NvmlDriver) -> None:
    world.node.ctl("fault", "add", "--call", "nvmlDeviceGetMemoryInfo", "--fail", "4", "--count", "0")
    world.node.ctl("fault", "add", "--call", "nvmlDeviceGetMigMode", "--fail", "4", "--count", "0")
    report = driver.report(0)
    assert (report.memory_mib, report.mig_mode, report.instances) == (0, "unknown", ())
    assert report.model_key == "A100-80GB"


def test_a_lost_gpu_renames_no_other(world: World) -> None:
    world.node.ctl("lost", "--gpu", "0")
    with NvmlDriver() as driver:
        assert driver.indexes == (0, 1)
        assert driver.mig_mode(0) == "unknown"
        assert driver.mig_mode(1) == "on"
        assert driver.report(0).name == "lost"
        with pytest.raises(NvmlCallError) as error:
            driver.create_slice(0, ONE, 0, 1)
        assert code_of(error) == GPU_IS_LOST


def test_an_unknown_gpu_is_named_with_those_there(driver: NvmlDriver) -> None:
    with pytest.raises(MigError, match=r"no GPU 9 on this node; there are \[0, 1\]"):
        driver.uuid(9)


def test_gpus_are_found_by_uuid(driver: NvmlDriver) -> None:
    assert driver.index_of(driver.uuid(1)) == 1
    assert driver.index_of("GPU-none") is None


def test_the_time_in_calls_is_kept(world: World, driver: NvmlDriver) -> None:
    before = driver.nvml_s
    world.node.ctl("policy", "latency-create-us=60000")
    driver.create_slice(0, ONE, 0, 1)
    assert driver.nvml_s - before > 0.12


def test_names_told_are_used_without_the_catalogue(
    driver: NvmlDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("the catalogue was read")

    monkeypatch.setattr("pyhetsched.mig.nvml._catalogue_model", forbidden)
    driver.learn_name(0, ONE, "1g.10gb")
    assert driver.create_slice(0, ONE, 0, 1).profile == "1g.10gb"


def test_no_library_is_an_error_with_a_code(world: World) -> None:
    (world.folder / "nvml" / "node0.state").unlink()
    with pytest.raises(NvmlCallError, match="nvmlInit"), NvmlDriver():
        pass


@pytest.mark.parametrize("model", [m.key for m in mig_models()])
def test_every_profile_of_every_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    [known] = [m for m in mig_models() if m.key == model]
    world = World(tmp_path, monkeypatch, f"{model}:1")
    with NvmlDriver() as driver:
        assert driver.report(0).model_key == model
        for profile in known.profiles:
            if profile.gi_profile_id is None or not profile.starts:
                continue
            start = profile.starts[-1]
            made = driver.create_slice(0, profile.gi_profile_id, start, profile.size)
            assert (made.profile, made.start) == (profile.name, start)
            driver.destroy_slice(0, made.gi_id)
    assert world.layout() == set()


class TestMode:
    def test_hopper_changes_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        World(tmp_path, monkeypatch, "H100-80GB-SXM:1", mig=False)
        with NvmlDriver() as driver:
            assert driver.resetless(0) is True
            assert driver.set_mig_mode(0, True) == "on"
            assert driver.set_mig_mode(0, False) == "off"

    def test_ampere_stays_pending_until_a_reset(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World(tmp_path, monkeypatch, "A100-80GB:1", mig=False)
        with NvmlDriver() as driver:
            assert driver.resetless(0) is False
            assert driver.set_mig_mode(0, True) == "pending-on"
            assert driver.instances(0) == ()
            world.node.ctl("reset", "--gpu", "0")
            assert driver.mig_mode(0) == "on"

    def test_success_with_a_bad_activation_is_an_error(self, world: World, driver: NvmlDriver) -> None:
        driver.create_slice(0, ONE, 0, 1)
        with pytest.raises(NvmlCallError) as error:
            driver.set_mig_mode(0, False)
        assert code_of(error) == IN_USE

    def test_a_change_without_effect_is_found_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World(tmp_path, monkeypatch, "H100-80GB-SXM:1", mig=False)
        with NvmlDriver() as driver:
            world.node.ctl("fault", "add", "--call", "nvmlDeviceSetMigMode", "--noop")
            with pytest.raises(MigError, match="reading back shows off"):
                driver.set_mig_mode(0, True)

    def test_minors_are_read_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World(tmp_path, monkeypatch, "H100-80GB-SXM:2", mig=False)
        world.node.ctl("policy", "shift-minor=on")
        with NvmlDriver() as driver:
            before = driver.minor(0)
            uuid = driver.uuid(0)
            driver.set_mig_mode(0, True)
            index = driver.index_of(uuid)
            assert index is not None
            assert driver.minor(index) != before

    def test_a_model_without_mig_has_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        World(tmp_path, monkeypatch, "V100-32GB:1")
        with NvmlDriver() as driver:
            assert driver.mig_mode(0) == "none"
            assert driver.instances(0) == ()
            assert driver.report(0).model_key == "V100-32GB"
