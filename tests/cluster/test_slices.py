"""Every spelling of a slice runs with exactly that slice, made at prolog and gone after epilog."""

from __future__ import annotations

import pytest
from conftest import Slurm, run_as
from main_path import SEES, explained, profiles_seen, uuids_of, wait_clean

ONE = [
    ("--gres=gpu:1g.10gb:1",),
    ("--gres=gpu:a100_1g.10gb:1",),
    ("--gres=gpu:nvidia_a100_80gb_pcie_1g.10gb:1",),
    ("-G", "1g.10gb:1"),
    ("--gpus-per-node=1g.10gb:1",),
]
TWO_TASKS = [("-n2", "--gpus-per-task=1g.10gb:1"), ("-n2", "--tres-per-task=gres/gpu:1g.10gb:1")]


@pytest.mark.parametrize("options", ONE, ids=" ".join)
def test_one_slice_in_every_spelling(quiet_cluster: Slurm, options: tuple[str, ...]) -> None:
    job = quiet_cluster.sbatch("alice", *options, wrap=SEES)
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    output = quiet_cluster.output("alice", job)
    assert profiles_seen(output) == ["1g.10gb"]
    assert uuids_of(output, "batch") == uuids_of(output, "task 0")
    assert len(uuids_of(output, "batch")) == 1
    wait_clean(quiet_cluster)


@pytest.mark.parametrize("options", TWO_TASKS, ids=" ".join)
def test_each_task_sees_its_own_slice(quiet_cluster: Slurm, options: tuple[str, ...]) -> None:
    job = quiet_cluster.sbatch("alice", *options, wrap=SEES)
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    output = quiet_cluster.output("alice", job)
    first, second = uuids_of(output, "task 0"), uuids_of(output, "task 1")
    assert len(first) == len(second) == 1
    assert first != second
    assert sorted(first + second) == sorted(uuids_of(output, "batch"))
    wait_clean(quiet_cluster)


def test_srun_gets_its_slice(quiet_cluster: Slurm) -> None:
    ran = run_as("bob", "srun", "--gres=gpu:1g.10gb:1", "fake-nvidia-smi", "-L")
    assert ran.status == 0, ran.err
    assert profiles_seen(ran.out) == ["1g.10gb"]
    wait_clean(quiet_cluster)


def test_salloc_gets_its_slice_and_a_plain_srun_inside_sees_it(quiet_cluster: Slurm) -> None:
    ran = run_as("bob", "salloc", "--gres=gpu:1g.10gb:1", "srun", "fake-nvidia-smi", "-L")
    assert ran.status == 0, ran.err
    assert profiles_seen(ran.out) == ["1g.10gb"]
    wait_clean(quiet_cluster)


@pytest.mark.parametrize("option", ["-G", "--gpus-per-task", "--gpus-per-node"])
def test_interactive_forms_that_cannot_work_say_what_to_write(quiet_cluster: Slurm, option: str) -> None:
    words = [option, "1g.10gb:1"] if option == "-G" else [f"{option}=1g.10gb:1"]
    ran = run_as("bob", "srun", "-n1", *words, "fake-nvidia-smi", "-L")
    if ran.status == 0:
        assert profiles_seen(ran.out) == ["1g.10gb"]
    else:
        assert "--gres=gpu:1g.10gb:1" in ran.err


@pytest.mark.parametrize(
    ("gres", "seen"),
    [
        ("gpu:a100_3g.40gb:2", ["3g.40gb", "3g.40gb"]),
        ("gpu:7g.80gb:1", ["7g.80gb"]),
        ("gpu:1g.10gb:1,gpu:2g.20gb:1,gpu:4g.40gb:1", ["1g.10gb", "2g.20gb", "4g.40gb"]),
        ("gpu:3g.40gb:1,gpu:4g.40gb:1", ["3g.40gb", "4g.40gb"]),
        ("gpu:1g.6gb:2", ["1g.6gb", "1g.6gb"]),
    ],
)
def test_several_slices_of_one_job(quiet_cluster: Slurm, gres: str, seen: list[str]) -> None:
    job = quiet_cluster.sbatch("alice", f"--gres={gres}", wrap="fake-nvidia-smi -L")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert sorted(profiles_seen(quiet_cluster.output("alice", job))) == seen
    wait_clean(quiet_cluster)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_a_mix_fills_a_gpu_exactly_in_any_order(quiet_cluster: Slurm, order: tuple[int, ...]) -> None:
    mix = ("gpu:1g.10gb:1", "gpu:2g.20gb:1", "gpu:4g.40gb:1")
    jobs = [quiet_cluster.sbatch("alice", f"--gres={mix[i]}", "-w", "a100-0", wrap="sleep 60") for i in order]
    for job in jobs:
        quiet_cluster.wait_state(job, "RUNNING")
    used = [detail for job in jobs for detail in quiet_cluster.allocated_gres(job)]
    assert all("(" in detail and not detail.startswith("shard:a100:0") for detail in used)
    places = [r for job in jobs for r in explained(job)["reservations"]]
    assert {place["gpu_index"] for place in places} == {0}
    taken = sorted(cell for place in places for cell in range(place["start"], place["start"] + place["size"]))
    assert len(taken) == len(set(taken)) == 7


def test_more_slices_than_one_gpu_holds_take_whole_gpus(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "--gres=gpu:3g.40gb:4", wrap="fake-nvidia-smi -L")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", job)) == ["3g.40gb"] * 4
    wait_clean(quiet_cluster)


@pytest.mark.parametrize(
    ("options", "script", "profile"),
    [
        (("--gres=gpu:20gb:1",), "", "1g.20gb"),
        ((), "#HETSCHED min-vram=40G", "3g.40gb"),
        (("--gres=gpu:1",), "#HETSCHED min-vram=40G types=a100", "3g.40gb"),
        (("--comment=hetsched:min-vram=10G types=h100",), "", "1g.10gb"),
    ],
)
def test_the_smallest_thing_that_satisfies(
    quiet_cluster: Slurm, options: tuple[str, ...], script: str, profile: str
) -> None:
    text = f"#!/bin/sh\n{script}\nfake-nvidia-smi -L\n"
    job = quiet_cluster.sbatch("alice", *options, script=text)
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", job)) == [profile]
    submit = explained(job)["decisions"][0]
    others = [item for item in submit["candidates"] if item["admissible"] and not item["chosen"]]
    assert others, "the record says what else would have done"
    wait_clean(quiet_cluster)


@pytest.mark.parametrize("line", ["min-cc=8.0", "types=a100,h100"])
def test_directives_alone_are_served_by_an_admissible_type(quiet_cluster: Slurm, line: str) -> None:
    job = quiet_cluster.sbatch("alice", "--gres=gpu:1", script=f"#!/bin/sh\n#HETSCHED {line}\nfake-nvidia-smi -L\n")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    node = quiet_cluster.show(job)["nodes"]
    assert node.split("-")[0] in (("a100", "h100") if line.startswith("types") else ("a100", "h100", "a30"))
