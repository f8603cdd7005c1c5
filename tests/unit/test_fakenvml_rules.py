"""The fake NVML answers as the real one does: tables, placement, capacity, order, errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fakenvml"))

from fakenode import (  # noqa: E402
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    FakeNode,
    NvmlCodeError,
    Worker,
)

CATALOGUE = {
    model["key"]: model
    for model in json.loads((files("pyhetsched") / "mig/data/mig_profiles.json").read_text())["models"]
}
ONE, TWO, THREE, FOUR, SEVEN, ONE_DOUBLE, ONE_MEDIA = 19, 14, 9, 5, 0, 15, 20


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


@pytest.fixture
def nvml(node: FakeNode) -> Iterator[Worker]:
    with node.worker() as worker:
        yield worker


@pytest.fixture
def gpu(nvml: Worker) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(0)


def code_of(call: Any, *arguments: Any) -> int:
    with pytest.raises(NvmlCodeError) as caught:
        call(*arguments)
    return caught.value.code


@pytest.mark.parametrize("key", sorted(CATALOGUE))
def test_every_model_of_the_catalogue_has_its_profiles(tmp_path: Path, key: str) -> None:
    node = FakeNode(tmp_path, gpus=[key])
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        found = nvml.profiles(gpu)
        for profile in CATALOGUE[key]["profiles"]:
            info = found.pop("MIG " + profile["name"])
            assert info["id"] == profile["gi_profile_id"]
            assert info["sliceCount"] == profile["compute_slices"]
            assert info["instanceCount"] == profile["max_instances"]
            assert profile["memory_mib"] in (None, info["memorySizeMB"])
            assert profile["sm_count"] in (None, info["multiprocessorCount"])
            assert nvml.placements(gpu, info["id"]) == [[start, profile["size"]] for start in profile["starts"]]
            assert nvml.nvmlDeviceGetGpuInstanceProfileInfoById(gpu, info["id"]) == info
        assert not found


def test_a_constant_beyond_the_last_and_one_the_gpu_lacks_differ(nvml: Worker, gpu: Any) -> None:
    assert code_of(nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 18) == INVALID_ARGUMENT
    assert code_of(nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 10) == NOT_SUPPORTED
    assert code_of(nvml.create, gpu, 47, 0, 1) == NOT_SUPPORTED


def test_the_first_version_of_profile_info_says_the_same(nvml: Worker, gpu: Any) -> None:
    first = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 2, 1)
    second = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 2)
    assert first == {key: value for key, value in second.items() if key not in ("version", "name")}


def explore(nvml: Worker, gpu: Any, profiles: dict[int, list[list[int]]]) -> dict[frozenset[tuple[int, int]], bool]:
    """Every layout that create calls reach, and whether it is maximal."""
    seen: dict[frozenset[tuple[int, int]], bool] = {}

    def visit(layout: frozenset[tuple[int, int]]) -> None:
        seen[layout] = True
        for profile, places in profiles.items():
            for start, size in places:
                try:
                    gi = nvml.create(gpu, profile, start, size)
                except NvmlCodeError as error:
                    if error.code != INSUFFICIENT_RESOURCES:
                        raise
                    continue
                seen[layout] = False
                if (larger := layout | {(profile, start)}) not in seen:
                    visit(larger)
                nvml.nvmlGpuInstanceDestroy(gi)

    visit(frozenset())
    return seen


def test_the_layouts_of_an_a100_are_298_of_which_19_maximal(nvml: Worker, gpu: Any) -> None:
    plain = {profile: nvml.placements(gpu, profile) for profile in (ONE, TWO, THREE, FOUR, SEVEN)}
    seen = explore(nvml, gpu, plain)
    assert len(seen) == 298
    assert sum(seen.values()) == 19


@pytest.mark.parametrize("key", ["A30-24GB", "RTX-PRO-6000-Blackwell"])
def test_the_layouts_of_a_gpu_of_four_slices(tmp_path: Path, key: str) -> None:
    plain = [p for p in CATALOGUE[key]["profiles"] if p["gi_profile_const"] <= 4]
    with FakeNode(tmp_path, gpus=[key]).worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        seen = explore(nvml, gpu, {p["gi_profile_id"]: nvml.placements(gpu, p["gi_profile_id"]) for p in plain})
    # Each half is empty, one double, or any subset of two singles: five ways but empty twice; or the whole.
    assert len(seen) == 5 * 5 + 1
    assert sum(seen.values()) == 2 * 2 + 1


def test_an_illegal_start_and_a_taken_one_differ(nvml: Worker, gpu: Any) -> None:
    nvml.create(gpu, THREE, 4)
    assert code_of(nvml.create, gpu, THREE, 2) == INVALID_ARGUMENT
    assert code_of(nvml.create, gpu, THREE, 0, 3) == INVALID_ARGUMENT
    assert code_of(nvml.create, gpu, ONE, 7) == INVALID_ARGUMENT
    assert code_of(nvml.create, gpu, TWO, 4) == INSUFFICIENT_RESOURCES
    assert code_of(nvml.nvmlDeviceCreateGpuInstance, gpu, SEVEN) == INSUFFICIENT_RESOURCES


def test_remaining_capacity_counts_slices_and_promises_no_start(nvml: Worker, gpu: Any) -> None:
    nvml.create(gpu, ONE, 0)
    nvml.create(gpu, ONE, 4)
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, THREE) == 1
    assert code_of(nvml.nvmlDeviceCreateGpuInstance, gpu, THREE) == INSUFFICIENT_RESOURCES
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, ONE) == 5
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, SEVEN) == 0


def test_two_halves_leave_a_compute_slice_that_nothing_can_use(nvml: Worker, gpu: Any) -> None:
    nvml.create(gpu, THREE, 0)
    nvml.create(gpu, THREE, 4)
    assert nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, ONE) == 0


def test_one_instance_with_media_engines_a_gpu(nvml: Worker, gpu: Any) -> None:
    nvml.create(gpu, ONE_MEDIA, 0)
    assert code_of(nvml.create, gpu, ONE_MEDIA, 1) == INSUFFICIENT_RESOURCES
    nvml.create(gpu, ONE_DOUBLE, 2)


def test_all_media_engines_leave_profiles_without(tmp_path: Path) -> None:
    with FakeNode(tmp_path, gpus=["RTX-PRO-6000"]).worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.create(gpu, 65, 0)
        assert code_of(nvml.create, gpu, 14, 3) == INSUFFICIENT_RESOURCES
        nvml.create(gpu, 67, 3)


@pytest.mark.parametrize(("order", "starts"), [("low", [0, 1, 2, 3, 4, 5, 6]), ("high", [6, 5, 4, 3, 2, 1, 0])])
def test_the_driver_chooses_a_start_by_an_order_of_its_own(
    node: FakeNode, nvml: Worker, gpu: Any, order: str, starts: list[int]
) -> None:
    node.ctl("policy", f"start-order={order}")
    made = [nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceCreateGpuInstance(gpu, ONE)) for _ in range(7)]
    assert [info["placement"]["start"] for info in made] == starts
    assert code_of(nvml.nvmlDeviceCreateGpuInstance, gpu, ONE) == INSUFFICIENT_RESOURCES


def test_ids_come_from_the_range_of_the_share(node: FakeNode, nvml: Worker, gpu: Any) -> None:
    def made(profile: int, start: int) -> int:
        info = nvml.nvmlGpuInstanceGetInfo(nvml.create(gpu, profile, start))
        assert (info["profileId"], info["placement"]["start"]) == (profile, start)
        return int(info["id"])

    assert made(THREE, 4) == 1
    assert made(TWO, 2) == 3
    node.ctl("policy", "gi-ids=high")
    assert made(ONE, 0) == 14
    assert made(ONE, 1) == 13


def test_instances_are_found_by_profile_and_by_id(nvml: Worker, gpu: Any) -> None:
    one, other = nvml.create(gpu, ONE, 3), nvml.create(gpu, ONE, 0)
    assert nvml.instances(gpu, ONE) == [one, other]
    assert nvml.instances(gpu, TWO) == []
    number = nvml.nvmlGpuInstanceGetInfo(other)["id"]
    assert nvml.nvmlDeviceGetGpuInstanceById(gpu, number) == other
    assert code_of(nvml.nvmlDeviceGetGpuInstanceById, gpu, 14) == NOT_FOUND


def test_compute_instances_go_before_their_gpu_instance(nvml: Worker, gpu: Any) -> None:
    gi = nvml.create(gpu, THREE, 0)
    ci = nvml.nvmlGpuInstanceCreateComputeInstance(gi, 2)
    assert code_of(nvml.nvmlGpuInstanceDestroy, gi) == IN_USE
    nvml.nvmlComputeInstanceDestroy(ci)
    assert code_of(nvml.nvmlComputeInstanceDestroy, ci) == INVALID_ARGUMENT
    nvml.nvmlGpuInstanceDestroy(gi)
    assert code_of(nvml.nvmlGpuInstanceGetInfo, gi) == INVALID_ARGUMENT


def test_a_handle_does_not_pass_to_the_successor(nvml: Worker, gpu: Any) -> None:
    old = nvml.create(gpu, THREE, 0)
    nvml.nvmlGpuInstanceDestroy(old)
    new = nvml.create(gpu, THREE, 0)
    assert old != new
    assert code_of(nvml.nvmlGpuInstanceDestroy, old) == INVALID_ARGUMENT
    nvml.nvmlGpuInstanceDestroy(new)


def test_compute_profiles_of_a_gpu_instance(nvml: Worker, gpu: Any) -> None:
    gi = nvml.create(gpu, THREE, 0)
    names = {}
    for constant in range(9):
        try:
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, constant, 0)
        except NvmlCodeError as error:
            if error.code != NOT_SUPPORTED:
                raise
            continue
        names[info["name"]] = (info["id"], info["sliceCount"], info["multiprocessorCount"])
    assert names == {"MIG 1c.3g.40gb": (0, 1, 14), "MIG 2c.3g.40gb": (1, 2, 28), "MIG 3g.40gb": (2, 3, 42)}
    assert code_of(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, gi, 9, 0) == INVALID_ARGUMENT


def test_compute_instances_share_a_gpu_instance(nvml: Worker, gpu: Any) -> None:
    gi = nvml.create(gpu, THREE, 0)
    assert nvml.ci_placements(gi, 0) == [[0, 1], [1, 1], [2, 1]]
    nvml.create_ci(gi, 0, 1, 1)
    assert code_of(nvml.create_ci, gi, 0, 1, 1) == INSUFFICIENT_RESOURCES
    assert code_of(nvml.create_ci, gi, 1, 1, 2) == INVALID_ARGUMENT
    assert nvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0) == 2
    made = [nvml.nvmlGpuInstanceCreateComputeInstance(gi, 0) for _ in range(2)]
    assert [nvml.nvmlComputeInstanceGetInfo(ci)["placement"]["start"] for ci in made] == [0, 2]
    assert len(nvml.compute_instances(gi, 0)) == 3
    assert code_of(nvml.nvmlGpuInstanceCreateComputeInstance, gi, 0) == INSUFFICIENT_RESOURCES


def test_double_memory_has_a_compute_profile_of_its_own(nvml: Worker, gpu: Any) -> None:
    gi = nvml.create(gpu, ONE_DOUBLE, 6)
    assert code_of(nvml.nvmlGpuInstanceCreateComputeInstance, gi, 0) == NOT_SUPPORTED
    ci = nvml.nvmlGpuInstanceCreateComputeInstance(gi, 7)
    assert nvml.nvmlComputeInstanceGetInfo(ci)["gpuInstance"] == gi


def test_only_who_may_configure_configures(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, permission="auto")
    with node.worker(privileged=False) as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert code_of(nvml.create, gpu, ONE, 0) == NO_PERMISSION
        assert code_of(nvml.nvmlDeviceSetMigMode, gpu, 0) == NO_PERMISSION
        assert code_of(nvml.instances, gpu, ONE) == NO_PERMISSION
        assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
        assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7


def test_errors_have_texts(nvml: Worker) -> None:
    assert nvml.nvmlErrorString(IN_USE) == "In use by another client"
    assert nvml.nvmlErrorString(INSUFFICIENT_RESOURCES) == "Insufficient Resources"
    assert nvml.nvmlErrorString(999) == "Unknown Error"
