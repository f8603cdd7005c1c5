"""The fake NVML's devices: MIG handles, identity, mode, resets and reboots, processes, utilisation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fakenvml"))

from fakenode import (  # noqa: E402
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    IN_USE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNINITIALIZED,
    FakeNode,
    NvmlCodeError,
    Worker,
)

ONE, THREE = 19, 9
RESETLESS, QUERY_WITH_MODE_OFF = 184, 199


def code_of(call: Any, *arguments: Any) -> int:
    with pytest.raises(NvmlCodeError) as caught:
        call(*arguments)
    return caught.value.code


def make_device(nvml: Worker, gpu: Any, start: int = 0, profile: int = ONE) -> tuple[Any, Any]:
    """A GPU instance and its compute instance."""
    gi = nvml.create(gpu, profile, start)
    return gi, nvml.nvmlGpuInstanceCreateComputeInstance(gi, {ONE: 0, THREE: 2}[profile])


def test_a_mig_device_is_found_by_index_and_uuid(tmp_path: Path) -> None:
    with FakeNode(tmp_path).worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        gi, ci = make_device(nvml, gpu, 4, THREE)
        mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        uuid = nvml.nvmlDeviceGetUUID(mig)
        assert uuid.startswith("MIG-")
        assert nvml.nvmlDeviceGetHandleByUUID(uuid) == mig
        assert nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig) == gpu
        assert nvml.nvmlDeviceIsMigDeviceHandle(mig) == 1
        assert nvml.nvmlDeviceIsMigDeviceHandle(gpu) == 0
        assert nvml.nvmlDeviceGetGpuInstanceId(mig) == nvml.nvmlGpuInstanceGetInfo(gi)["id"]
        assert nvml.nvmlDeviceGetComputeInstanceId(mig) == nvml.nvmlComputeInstanceGetInfo(ci)["id"]
        assert nvml.nvmlDeviceGetName(mig) == "NVIDIA A100 80GB PCIe MIG 3g.40gb"
        assert nvml.nvmlDeviceGetMemoryInfo(mig)["total"] == 40192 << 20
        attributes = nvml.nvmlDeviceGetAttributes(mig)
        assert (attributes["gpuInstanceSliceCount"], attributes["multiprocessorCount"]) == (3, 42)
        assert code_of(nvml.nvmlDeviceGetAttributes, gpu) == NOT_SUPPORTED
        assert code_of(nvml.nvmlDeviceGetMinorNumber, mig) == NOT_SUPPORTED
        assert code_of(nvml.nvmlDeviceGetHandleByUUID, uuid[:-1] + "x") == NOT_FOUND


def test_an_instance_without_compute_instance_is_no_device(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.create(gpu, THREE, 0)
        assert code_of(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 0) == NOT_FOUND
    assert node.run("fake-cuda-hold")[0] == 100


def test_slots_have_holes_and_end(tmp_path: Path) -> None:
    with FakeNode(tmp_path).worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        made = [make_device(nvml, gpu, start) for start in range(3)]
        nvml.nvmlComputeInstanceDestroy(made[1][1])
        assert code_of(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 1) == NOT_FOUND
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2)
        assert code_of(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 7) == INVALID_ARGUMENT


@pytest.mark.parametrize("policy", ["same", "fresh"])
def test_a_recreated_instance_may_have_the_uuid_of_its_predecessor(tmp_path: Path, policy: str) -> None:
    node = FakeNode(tmp_path)
    node.ctl("policy", f"uuid={policy}")
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        uuids, handles = [], []
        for _ in range(2):
            gi, ci = make_device(nvml, gpu, 3)
            handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))
            uuids.append(nvml.nvmlDeviceGetUUID(handles[-1]))
            nvml.nvmlComputeInstanceDestroy(ci)
            nvml.nvmlGpuInstanceDestroy(gi)
        assert (uuids[0] == uuids[1]) is (policy == "same")
        assert code_of(nvml.nvmlDeviceGetUUID, handles[0]) == INVALID_ARGUMENT


def test_a_gpu_without_mig(tmp_path: Path) -> None:
    with FakeNode(tmp_path, gpus=["V100-32GB"]).worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetCudaComputeCapability(gpu) == [7, 0]
        assert nvml.nvmlDeviceGetMemoryInfo(gpu)["total"] == 32768 << 20
        assert code_of(nvml.nvmlDeviceGetMigMode, gpu) == NOT_SUPPORTED
        assert code_of(nvml.nvmlDeviceSetMigMode, gpu, 1) == NOT_SUPPORTED
        assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 0
        assert nvml.field(gpu, RESETLESS) == [0, 0]


def test_with_mode_off_profiles_cannot_be_asked(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, mig=False)
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.profiles(gpu) == {}
        assert code_of(nvml.create, gpu, ONE, 0, 1) == NOT_SUPPORTED
        assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 0
        assert nvml.field(gpu, QUERY_WITH_MODE_OFF) == [0, 0]
        node.ctl("policy", "query-off=on")
        assert nvml.field(gpu, QUERY_WITH_MODE_OFF) == [0, 1]
        assert len(nvml.profiles(gpu)) == 7
        assert code_of(nvml.create, gpu, ONE, 0, 1) == NOT_SUPPORTED


def test_ampere_needs_a_reset_and_keeps_its_mode(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, mig=False)
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.field(gpu, RESETLESS) == [0, 0]
        assert nvml.nvmlDeviceSetMigMode(gpu, 1) == RESET_REQUIRED
        assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 1]
        assert node.run("fake-nvidia-smi", "--gpu-reset", "-i", "0")[0] == 0
        assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
        make_device(nvml, gpu)
        node.ctl("reboot")
        assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert node.layout() == set()


def test_hopper_switches_at_once_and_forgets_at_reboot(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, gpus=["H100-80GB"], mig=False)
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.field(gpu, RESETLESS) == [0, 1]
        assert nvml.nvmlDeviceSetMigMode(gpu, 1) == 0
        assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
        make_device(nvml, gpu)
        assert code_of(nvml.nvmlDeviceSetMigMode, gpu, 0) == IN_USE
        assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
        node.ctl("reboot")
        assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
    assert node.show()["boots"] == 1


def test_a_client_leaves_the_mode_pending(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, gpus=["H100-80GB"], mig=False)
    pid = node.ctl("hold", "--gpu", "0").strip()
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceSetMigMode(gpu, 1) == IN_USE
        assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 1]
        assert node.run("fake-nvidia-smi", "--gpu-reset", "-i", "0")[0] == IN_USE
        node.ctl("unhold", "--pid", pid)
        assert nvml.nvmlDeviceSetMigMode(gpu, 1) == 0
        assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]


def test_a_mode_change_may_move_the_minor(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, gpus=["H100-80GB:2"], mig=False)
    node.ctl("policy", "shift-minor=on")
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(1)
        before = nvml.nvmlDeviceGetMinorNumber(gpu)
        nvml.nvmlDeviceSetMigMode(gpu, 1)
        assert (before, nvml.nvmlDeviceGetMinorNumber(gpu)) == (1, 17)


def test_a_process_makes_its_instance_busy_and_no_other(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        gi, ci = make_device(nvml, gpu, 0)
        other_gi, other_ci = make_device(nvml, gpu, 1)
        mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        assert nvml.nvmlDeviceGetComputeRunningProcesses(mig) == []
        uuid = nvml.nvmlDeviceGetUUID(mig)
        holder = node.tool("fake-cuda-hold", "--mem", "100", "60", CUDA_VISIBLE_DEVICES=uuid, SLURM_JOB_ID="12")
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == uuid
        (seen,) = nvml.nvmlDeviceGetComputeRunningProcesses(mig)
        assert (seen["pid"], seen["usedGpuMemory"]) == (holder.pid, 100 << 20)
        assert seen["gpuInstanceId"] == nvml.nvmlGpuInstanceGetInfo(gi)["id"]
        assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu) == [seen]
        assert nvml.nvmlDeviceGetRunningProcessDetailList(gpu, 0x1000018, 0)[0]["pid"] == holder.pid
        assert nvml.nvmlDeviceGetMemoryInfo(mig)["used"] == 100 << 20
        assert code_of(nvml.nvmlComputeInstanceDestroy, ci) == IN_USE
        nvml.nvmlComputeInstanceDestroy(other_ci)
        nvml.nvmlGpuInstanceDestroy(other_gi)
        holder.kill()
        holder.communicate()
        assert nvml.nvmlDeviceGetComputeRunningProcesses(mig) == []
        nvml.nvmlComputeInstanceDestroy(ci)
        nvml.nvmlGpuInstanceDestroy(gi)


def test_a_leaked_handle_keeps_an_instance_busy_with_no_process_to_see(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        gi, ci = make_device(nvml, gpu)
        number = str(nvml.nvmlGpuInstanceGetInfo(gi)["id"])
        node.ctl("hold", "--gpu", "0", "--gi", number, "--hidden")
        assert nvml.nvmlDeviceGetComputeRunningProcesses(gpu) == []
        assert code_of(nvml.nvmlComputeInstanceDestroy, ci) == IN_USE
        node.ctl("unhold", "--all")
        nvml.nvmlComputeInstanceDestroy(ci)
        node.ctl("hold", "--gpu", "0", "--gi", number, "--ci", "-1", "--for", "0.2")
        assert code_of(nvml.nvmlGpuInstanceDestroy, gi) == IN_USE


def test_utilisation_is_told_of_whole_gpus_only(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, gpus=["A100-80GB:1:on", "A100-80GB:1:off"])
    node.ctl("util", "--gpu", "1", "73")
    with node.worker() as nvml:
        gpu, whole = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        make_device(nvml, gpu)
        mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        assert nvml.nvmlDeviceGetUtilizationRates(whole)["gpu"] == 73
        assert code_of(nvml.nvmlDeviceGetUtilizationRates, gpu) == NOT_SUPPORTED
        assert code_of(nvml.nvmlDeviceGetUtilizationRates, mig) == NOT_SUPPORTED
        assert code_of(nvml.nvmlDeviceGetProcessUtilization, mig, 0) == NOT_SUPPORTED


def test_a_lost_gpu_and_its_neighbour(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, gpus=["A100-80GB:2"])
    with node.worker() as nvml:
        gpu, neighbour = (nvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
        node.ctl("lost", "--gpu", "0")
        assert code_of(nvml.nvmlDeviceGetMigMode, gpu) == GPU_IS_LOST
        assert code_of(nvml.nvmlDeviceGetHandleByIndex, 0) == GPU_IS_LOST
        make_device(nvml, neighbour)
        node.ctl("reboot")
        assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]


def test_a_library_that_was_not_initialised_and_a_node_without_driver(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    with node.worker() as nvml:
        nvml.nvmlShutdown()
        assert code_of(nvml.nvmlDeviceGetCount) == UNINITIALIZED
        assert code_of(nvml.nvmlShutdown) == UNINITIALIZED
        (tmp_path / "node0.state").unlink()
        assert code_of(nvml.nvmlInit) == DRIVER_NOT_LOADED


def test_devices_are_found_by_bus(tmp_path: Path) -> None:
    with FakeNode(tmp_path, gpus=["H200:8"]).worker() as nvml:
        assert nvml.nvmlDeviceGetCount() == 8
        gpu = nvml.nvmlDeviceGetHandleByIndex(5)
        info = nvml.nvmlDeviceGetPciInfo(gpu)
        assert nvml.nvmlDeviceGetHandleByPciBusId(info["busId"]) == gpu
        assert info["pciDeviceId"] == 0x233510DE
        assert nvml.nvmlDeviceGetIndex(gpu) == 5
