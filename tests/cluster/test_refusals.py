"""What cannot be served is refused at submit, in one or two sentences that name the nearest request that works."""

from __future__ import annotations

import re

import pytest
from conftest import Slurm, run_as

REFUSED = [
    (("--gres=gpu:a10O:1",), "a100"),
    (("--gres=gpu:h200:1",), "h100"),
    (("-C", "v100", "--gres=gpu:1g.10gb:1"), "v100"),
    (("--gres=gpu:3g.40gb:9",), "8"),
    (("--gres=gpu:200gb:1",), "80"),
]


@pytest.mark.parametrize(("options", "named"), REFUSED)
def test_refused_with_the_nearest_request(quiet_cluster: Slurm, options: tuple[str, ...], named: str) -> None:
    ran = quiet_cluster.try_sbatch("alice", *options)
    assert ran.status != 0
    said = next(line for line in ran.err.splitlines() if "hetsched" in line)
    assert named in said
    assert "--gres=" in said
    nearest = re.search(r"--gres=([\w.:,]+\w)", said)
    assert nearest
    # The request that the sentence names does work.
    ran = quiet_cluster.try_sbatch("alice", "--test-only", f"--gres={nearest[1]}")
    assert ran.status == 0, ran.err


def test_memory_that_no_gpu_has_in_a_directive(quiet_cluster: Slurm) -> None:
    ran = quiet_cluster.try_sbatch("alice", script="#!/bin/sh\n#HETSCHED min-vram=200G\ntrue\n")
    assert ran.status != 0
    assert "80" in ran.err


def test_shards_by_hand_are_refused(quiet_cluster: Slurm) -> None:
    ran = quiet_cluster.try_sbatch("alice", "--gres=shard:4")
    assert ran.status != 0
    assert "slice" in ran.err


def test_would_run_says_the_same_and_submits_nothing(quiet_cluster: Slurm) -> None:
    ran = run_as("alice", "hetsched", "would-run", "--", "--gres=gpu:3g.40gb:9")
    assert ran.status == 1
    assert "refused" in ran.out
    ran = run_as("alice", "hetsched", "would-run", "--", "--gres=gpu:1g.10gb:1")
    assert ran.status == 0
    assert "TRES_PER_NODE=gres/shard:4" in ran.out
    assert not run_as("root", "squeue", "-h").out
