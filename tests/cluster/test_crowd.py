"""200 slice jobs of mixed sizes at once: all run, nothing is shared, nothing is left."""

from __future__ import annotations

import json
import random
import re
import time

import pytest
from conftest import Slurm, SubmitRefused, run_as, wait_until
from main_path import MIG_NODES, wait_clean

SIZES = ("1g.10gb", "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.6gb", "2g.12gb")
JOBS = 200


@pytest.mark.timeout(1200)
def test_200_slice_jobs(quiet_cluster: Slurm) -> None:
    sizes = random.Random(20261130)
    jobs = {}
    for number in range(JOBS):
        size = sizes.choice(SIZES)
        user = ("alice", "bob")[number % 2]
        jobs[submit(quiet_cluster, user, size, sizes.uniform(0.2, 2))] = (user, size)
    wait_until(lambda: not run_as("root", "squeue", "-h").out, 900, "all jobs ended")
    rows = run_as("root", "sacct", "-n", "-X", "-P", "-o", "JobID,State").out.splitlines()  # "CANCELLED by 0"
    states = dict(row.split("|") for row in rows)
    assert {job: states[str(job)] for job in jobs if states[str(job)] != "COMPLETED"} == {}
    assert shared() == []
    wait_clean(quiet_cluster)


def submit(slurm: Slurm, user: str, size: str, seconds: float) -> int:
    """Submit one; where the daemon did not answer within its deadline, try again shortly, as the user is told."""
    for _ in range(20):
        try:
            return slurm.sbatch(user, f"--gres=gpu:{size}:1", wrap=f"fake-cuda-hold {seconds:.1f}")
        except SubmitRefused as refused:
            if "try again shortly" not in str(refused):
                raise
            time.sleep(1)
    raise AssertionError("the daemon does not answer")


def shared() -> list[str]:
    """Instances that two jobs used at once."""
    found = []
    for node in MIG_NODES:
        uses = json.loads(run_as("root", "fake-nvml-ctl", "--node", node, "uses", check=True).out)
        found += [f"{node}: {use}" for use in uses if re.search("conflict", json.dumps(use))]
    return found
