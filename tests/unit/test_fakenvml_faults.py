"""Faults, crashes and company: the fake's state stays right whoever dies, and two processes share it."""

from __future__ import annotations

import json
import random
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fakenvml"))

from fakenode import (  # noqa: E402
    GPU_IS_LOST,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    FakeNode,
    NvmlCodeError,
    Worker,
    WorkerDiedError,
    shared_instances,
)

ONE, TWO, THREE, SEVEN = 19, 14, 9, 0


def code_of(call: Any, *arguments: Any) -> int:
    with pytest.raises(NvmlCodeError) as caught:
        call(*arguments)
    return caught.value.code


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, gpus=["A100-80GB:2"])


def first_gpu(nvml: Worker) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(0)


def test_a_named_call_fails_as_often_as_told(node: FakeNode) -> None:
    node.ctl("fault", "add", "--call", "nvmlGpuInstanceDestroy", "--fail", str(IN_USE), "--skip", "1", "--count", "2")
    with node.worker() as nvml:
        gpu = first_gpu(nvml)
        nvml.nvmlGpuInstanceDestroy(nvml.create(gpu, THREE, 0))
        gi = nvml.create(gpu, THREE, 0)
        assert [code_of(nvml.nvmlGpuInstanceDestroy, gi) for _ in range(2)] == [IN_USE, IN_USE]
        nvml.nvmlGpuInstanceDestroy(gi)
    assert node.show()["faults"] == []


def test_a_fault_of_one_gpu_leaves_the_other_alone(node: FakeNode) -> None:
    node.ctl("fault", "add", "--call", "*", "--gpu", "1", "--fail", "999", "--count", "0")
    with node.worker() as nvml:
        nvml.create(first_gpu(nvml), THREE, 0)
        assert code_of(nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetHandleByIndex(1)) == 999
        node.ctl("fault", "clear")
        assert nvml.nvmlDeviceGetMigMode(nvml.nvmlDeviceGetHandleByIndex(1)) == [1, 1]


def test_a_gpu_falls_off_the_bus_in_a_named_call(node: FakeNode) -> None:
    node.ctl("fault", "add", "--call", "nvmlGpuInstanceCreateComputeInstance", "--stall", "0.01", "--lose")
    with node.worker() as nvml:
        gpu = first_gpu(nvml)
        gi = nvml.create(gpu, THREE, 0)
        assert code_of(nvml.nvmlGpuInstanceCreateComputeInstance, gi, 2) == GPU_IS_LOST
        assert code_of(nvml.nvmlGpuInstanceDestroy, gi) == GPU_IS_LOST
        node.ctl("lost", "--gpu", "0", "--clear")
        nvml.nvmlGpuInstanceDestroy(gi)


def test_a_call_that_does_nothing_but_say_so(node: FakeNode) -> None:
    node.ctl("fault", "add", "--call", "gpuReset", "--noop")
    with node.worker() as nvml:
        gpu = first_gpu(nvml)
        nvml.nvmlDeviceSetMigMode(gpu, 0)
        assert node.run("fake-nvidia-smi", "--gpu-reset", "-i", "0")[0] == 0
        assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 0]
        assert node.run("fake-nvidia-smi", "--gpu-reset", "-i", "0")[0] == 0
        assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 0]


def test_a_stalled_call_does_not_hold_up_other_processes(node: FakeNode) -> None:
    node.ctl("fault", "add", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--stall", "3600")
    with node.worker() as slow, node.worker() as other:
        stalled = threading.Thread(target=lambda: pytest.raises(WorkerDiedError, slow.create, first_gpu(slow), ONE, 0))
        stalled.start()
        while node.show()["faults"]:
            time.sleep(0.01)
        other.create(first_gpu(other), ONE, 1)
        slow.kill()
        stalled.join()
    assert node.layout() == {("1g.10gb", 1)}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_caller_killed_around_a_call(node: FakeNode, tmp_path: Path, when: str) -> None:
    node.ctl("fault", "add", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--kill", when)
    node.ctl("fault", "add", "--call", "nvmlGpuInstanceDestroy", "--kill", when)
    with node.worker() as nvml, pytest.raises(WorkerDiedError, match="-9"):
        nvml.create(first_gpu(nvml), THREE, 0)
    assert bool(node.layout()) is (when == "after")
    assert (tmp_path / "node0.calls").read_text().splitlines()[-1].split()[5] == "-9"
    with node.worker() as nvml, pytest.raises(WorkerDiedError):
        nvml.nvmlGpuInstanceDestroy(nvml.create(first_gpu(nvml), THREE, 4))
    assert (("3g.40gb", 4) in node.layout()) is (when == "before")


def overlaps(instances: list[dict[str, Any]]) -> bool:
    cells = [cell for gi in instances for cell in range(gi["start"], gi["start"] + gi["size"])]
    return len(cells) != len(set(cells))


def test_kill_at_any_instant_leaves_a_state_between_calls(node: FakeNode) -> None:
    moments = random.Random(20)
    for _ in range(15):
        with node.worker() as nvml:
            threading.Timer(moments.uniform(0.0, 0.05), nvml.kill).start()
            with pytest.raises(WorkerDiedError):
                nvml.churn(first_gpu(nvml), TWO, 1)
        for gpu in node.show()["gpus"]:
            assert not overlaps(gpu["instances"])
        with node.worker() as nvml:
            gpu = first_gpu(nvml)
            for gi in nvml.instances(gpu, TWO):
                for ci in nvml.compute_instances(gi, 1):
                    nvml.nvmlComputeInstanceDestroy(ci)
                nvml.nvmlGpuInstanceDestroy(gi)
        assert node.layout() == set()


def fill(nvml: Worker, made: list[int]) -> None:
    gpu = first_gpu(nvml)
    while True:
        try:
            made.append(nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceCreateGpuInstance(gpu, ONE))["placement"]["start"])
        except NvmlCodeError as error:
            if error.code != INSUFFICIENT_RESOURCES:
                raise
            return


def test_two_processes_fill_one_gpu(node: FakeNode) -> None:
    made: list[int] = []
    with node.worker() as one, node.worker() as other:
        threads = [threading.Thread(target=fill, args=(nvml, made)) for nvml in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(one.instances(first_gpu(one), ONE)) == 7
    assert sorted(made) == list(range(7))


def test_two_nodes_in_one_directory_are_apart(tmp_path: Path) -> None:
    nodes = [FakeNode(tmp_path, name) for name in ("a100-0", "a100-1")]
    with nodes[0].worker() as nvml:
        nvml.create(first_gpu(nvml), SEVEN, 0)
    assert [len(node.layout()) for node in nodes] == [1, 0]
    assert nodes[0].show()["gpus"][0]["uuid"] != nodes[1].show()["gpus"][0]["uuid"]


def test_calls_are_logged_and_their_latency_counts(node: FakeNode) -> None:
    node.ctl("policy", "latency-create-us=20000")
    with node.worker() as nvml:
        nvml.create(first_gpu(nvml), THREE, 0, 4)
        pid = nvml.pid
    (total,) = json.loads(node.ctl("times"))
    assert (total["pid"], total["calls"]) == (pid, 3)
    assert total["seconds"] >= 0.02


def make_devices(node: FakeNode, count: int) -> list[str]:
    with node.worker() as nvml:
        gpu = first_gpu(nvml)
        for start in range(count):
            nvml.nvmlGpuInstanceCreateComputeInstance(nvml.create(gpu, ONE, start), 0)
        handles = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index) for index in range(count)]
        return [nvml.nvmlDeviceGetUUID(handle) for handle in handles]


def test_a_cuda_program_gets_what_the_variable_names(node: FakeNode) -> None:
    uuids = make_devices(node, 3)

    def seen(*words: str, **environment: str) -> tuple[int, list[str]]:
        status, out = node.run("fake-cuda-hold", *words, **environment)
        return status, [line for line in out.split("\n") if line.startswith(("MIG", "GPU"))]

    assert seen() == (0, uuids[:1])
    assert seen(CUDA_VISIBLE_DEVICES=f"{uuids[2]},{uuids[0]}") == (0, [uuids[2], uuids[0]])
    assert seen(CUDA_VISIBLE_DEVICES=f"{uuids[1]},MIG-none,{uuids[0]}") == (0, [uuids[1]])
    assert seen("--strict", CUDA_VISIBLE_DEVICES=f"{uuids[1]},MIG-none")[0] == 101
    assert seen("--expect", "2", CUDA_VISIBLE_DEVICES=uuids[1])[0] == 101
    assert seen(CUDA_VISIBLE_DEVICES="MIG-none") == (100, [])
    assert seen(CUDA_VISIBLE_DEVICES="") == (100, [])
    assert seen(CUDA_VISIBLE_DEVICES="0") == (0, uuids[:1])


def test_nvidia_smi_lists_what_a_job_sees(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, gpus=["A100-80GB:2", "V100-32GB"])
    uuids = make_devices(node, 2)
    gpus = [gpu["uuid"] for gpu in node.show()["gpus"]]
    assert node.run("fake-nvidia-smi", "-L")[1].splitlines() == [
        f"GPU 0: NVIDIA A100 80GB PCIe (UUID: {gpus[0]})",
        f"  MIG 1g.10gb     Device  0: (UUID: {uuids[0]})",
        f"  MIG 1g.10gb     Device  1: (UUID: {uuids[1]})",
        f"GPU 1: NVIDIA A100 80GB PCIe (UUID: {gpus[1]})",
        f"GPU 2: Tesla V100-SXM2-32GB (UUID: {gpus[2]})",
    ]
    assert node.run("fake-nvidia-smi", "-L", CUDA_VISIBLE_DEVICES=f"{uuids[1]},2")[1].splitlines() == [
        f"GPU 0: NVIDIA A100 80GB PCIe (UUID: {gpus[0]})",
        f"  MIG 1g.10gb     Device  1: (UUID: {uuids[1]})",
        f"GPU 2: Tesla V100-SXM2-32GB (UUID: {gpus[2]})",
    ]
    assert node.run("fake-nvidia-smi", "-L", CUDA_VISIBLE_DEVICES="")[1] == "No devices found.\n"


def test_two_jobs_on_one_instance_are_told(node: FakeNode) -> None:
    (uuid,) = make_devices(node, 1)
    holder = node.tool("fake-cuda-hold", "60", CUDA_VISIBLE_DEVICES=uuid, SLURM_JOB_ID="1")
    assert holder.stdout is not None
    holder.stdout.readline()
    node.run("fake-cuda-hold", CUDA_VISIBLE_DEVICES=uuid, SLURM_JOB_ID="1")
    assert [use["event"] for use in node.uses()] == ["open", "open", "close"]
    node.run("fake-cuda-hold", CUDA_VISIBLE_DEVICES=uuid, SLURM_JOB_ID="2")
    events = [(use["event"], use["job"]) for use in node.uses()[3:]]
    assert events == [("conflict", "2"), ("open", "2"), ("close", "2")]
    holder.terminate()
    holder.communicate()
    assert node.uses()[-1]["event"] == "close"
    (serial,) = {use["serial"] for use in node.uses()}
    assert shared_instances(node.folder) == [
        "node0: job 2 was on GPU 0 instance 7/0 beside another job",
        f"node0: {uuid} serial {serial}: jobs 1, 2",
    ]


def test_one_job_after_the_other_on_a_whole_gpu_shares_nothing(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, gpus=["V100-32GB"])
    for job in ("1", "2"):
        assert node.run("fake-cuda-hold", SLURM_JOB_ID=job)[0] == 0
    assert len(node.uses()) == 4
    assert shared_instances(tmp_path) == []


def test_capabilities_follow_the_instances(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, gpus=["A100-80GB:2"], caps=True)
    caps, dev = tmp_path / "caps/proc/driver/nvidia/capabilities", tmp_path / "caps/dev"
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(1)
        gi = nvml.create(gpu, THREE, 0)
        ci = nvml.nvmlGpuInstanceCreateComputeInstance(gi, 2)
        number = nvml.nvmlGpuInstanceGetInfo(gi)["id"]
        minor = 3 + 135 * 1 + 9 * number
        text = (caps / f"gpu1/mig/gi{number}/access").read_text()
        assert text == f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        assert f"DeviceFileMinor: {minor + 1}\n" in (caps / f"gpu1/mig/gi{number}/ci0/access").read_text()
        minors = (tmp_path / "caps/proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
        assert f"gpu1/gi{number}/ci0/access {minor + 1}" in minors
        assert minors[-1] == "gpu31/gi14/ci7/access 4322"
        nodes = [dev / f"nvidia-caps/nvidia-cap{minor}", dev / f"nvidia-caps/nvidia-cap{minor + 1}"]
        assert [stat.S_IMODE(path.stat().st_mode) for path in nodes] == [0o444, 0o444]
        nvml.nvmlComputeInstanceDestroy(ci)
        assert [path.exists() for path in nodes] == [True, False]
        node.ctl("policy", "keep-caps=on")
        nvml.nvmlGpuInstanceDestroy(gi)
        assert nodes[0].exists()
        assert not (caps / f"gpu1/mig/gi{number}").exists()
    assert stat.S_IMODE((caps / "mig/config").stat().st_mode) == 0o400


def test_capabilities_follow_a_minor_that_moves(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, gpus=["H100-80GB"], mig=False, caps=True)
    node.ctl("policy", "shift-minor=on")
    with node.worker() as nvml:
        gpu = first_gpu(nvml)
        nvml.nvmlDeviceSetMigMode(gpu, 1)
        number = nvml.nvmlGpuInstanceGetInfo(nvml.create(gpu, THREE, 0))["id"]
    dev = tmp_path / "caps/dev"
    assert [path.name for path in dev.glob("nvidia[0-9]*")] == ["nvidia16"]
    assert (dev / f"nvidia-caps/nvidia-cap{3 + 135 * 16 + 9 * number}").exists()


def test_a_program_that_may_not_open_the_device_does_not_get_it(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, caps=True)
    (uuid,) = make_devices(node, 1)
    assert node.run("fake-cuda-hold", CUDA_VISIBLE_DEVICES=uuid)[0] == 0
    (tmp_path / "caps/dev/nvidia-caps/nvidia-cap67").unlink()  # GI 7, CI 0 of GPU 0
    status, out = node.run("fake-cuda-hold", CUDA_VISIBLE_DEVICES=uuid)
    assert status == 46
    assert "not permitted" in out
    assert [use["event"] for use in node.uses()] == ["open", "close"]
