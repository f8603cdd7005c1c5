"""Faults of the daemon, the controller and the database while slices are made and unmade.

What dies on a node is in test_node_faults.py; the daemon's death at every write in tests/unit/test_daemon_crash.py.
After each: no job lost or held, no node drained, no slice left or shared, and the record tells what happened.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Daemons, Slurm, run_as, wait_until
from main_path import SEES, explained, instances, profiles_seen, wait_clean

sys.path.append(str(Path(__file__).resolve().parent.parent / "chaos"))

from invariants import sharing  # noqa: E402

NODE = "a100-0"
HERE = ("-w", NODE, "--gres=gpu:1g.10gb:1")
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
DESTROY = "nvmlGpuInstanceDestroy"
EPILOG = Path("/usr/lib/hetsched/hooks/epilog")
LONG_S = 150


def nvml(*words: str) -> str:
    return run_as("root", "fake-nvml-ctl", "--node", NODE, *words, check=True).out


def reconcile(node: str = NODE) -> None:
    run_as("root", "env", f"SLURMD_NODENAME={node}", "hetsched-node", "reconcile", "--node", node, check=True)


@pytest.fixture(autouse=True)
def _no_faults_before_or_after(quiet_cluster: Slurm) -> Iterator[None]:
    nvml("fault", "clear")
    yield
    nvml("fault", "clear")


def all_well(slurm: Slurm, *jobs: int, within_s: float = LONG_S) -> None:
    """Every job has run on one slice, and nothing is left, drained or shared; the record has each job's end."""
    for job in jobs:
        assert slurm.wait_ended(job, within_s) == "COMPLETED", json.dumps(explained(job))
        assert profiles_seen(slurm.output("alice", job))[-1:] == ["1g.10gb"]
    wait_clean(slurm, LONG_S)
    assert not [state for state in slurm.node_states().values() if "drain" in state or "down" in state]
    assert sharing() == []
    for job in jobs:
        assert "gone" in json.dumps(explained(job))


@pytest.mark.parametrize("seed", range(6))
def test_the_daemon_killed_at_random_while_jobs_start_and_end(
    quiet_cluster: Slurm, daemons: Daemons, seed: int
) -> None:
    rng = random.Random(seed)
    jobs = [
        quiet_cluster.sbatch("alice", "--gres=gpu:1g.10gb:1", "-C", "a100", wrap=f"{SEES}; fake-cuda-hold 0.5")
        for _ in range(4)
    ]
    for _ in range(3):
        time.sleep(rng.uniform(0.05, 1.5))
        daemons.kill("hetschedd")
        time.sleep(rng.choice((0.0, rng.uniform(0, 2))))
        daemons.start("hetschedd")
    all_well(quiet_cluster, *jobs)


def test_the_controller_restarts_while_a_slice_is_made(quiet_cluster: Slurm, daemons: Daemons) -> None:
    nvml("fault", "add", "--call", CREATE, "--stall", "3")
    job = quiet_cluster.sbatch("alice", *HERE, wrap=SEES)
    wait_until(lambda: Path(f"/var/lib/hetsched/node/{NODE}/job-{job}.json").exists(), 30, "the prolog at work")
    daemons.restart("slurmctld")
    all_well(quiet_cluster, job)


def test_the_controller_restarts_while_a_slice_is_destroyed(quiet_cluster: Slurm, daemons: Daemons) -> None:
    nvml("fault", "add", "--call", DESTROY, "--stall", "3")
    job = quiet_cluster.sbatch("alice", *HERE, wrap=SEES)
    record = Path(f"/var/lib/hetsched/node/{NODE}/job-{job}.json")
    wait_until(lambda: record.exists() and "destroying" in record.read_text(), 60, "the epilog at work")
    daemons.restart("slurmctld")
    all_well(quiet_cluster, job)


def test_a_daemon_that_starts_before_the_controller_lets_no_slice_job_through(
    quiet_cluster: Slurm, daemons: Daemons
) -> None:
    job = quiet_cluster.sbatch("alice", *HERE, "--hold", wrap=SEES)
    daemons.stop("slurmctld")
    daemons.restart("hetschedd")
    daemons.start("slurmctld")
    run_as("alice", "scontrol", "release", str(job), check=True)
    all_well(quiet_cluster, job)


def test_a_call_that_stalls_for_30_s(quiet_cluster: Slurm) -> None:
    nvml("fault", "add", "--call", CREATE, "--stall", "30")
    slow = quiet_cluster.sbatch("alice", *HERE, wrap=SEES)
    quick = quiet_cluster.sbatch("alice", "-w", "a100-1", "--gres=gpu:1g.10gb:1", wrap=SEES)
    assert quiet_cluster.wait_ended(quick) == "COMPLETED"
    all_well(quiet_cluster, slow)


def test_two_prologs_on_one_gpu_at_once(quiet_cluster: Slurm) -> None:
    nvml("fault", "add", "--call", CREATE, "--stall", "1", "--count", "3")
    jobs = [quiet_cluster.sbatch("alice", *HERE, wrap=f"{SEES}; fake-cuda-hold 2") for _ in range(4)]
    all_well(quiet_cluster, *jobs)
    seen = [quiet_cluster.output("alice", job).split("MIG-")[1] for job in jobs]
    assert len(set(seen)) == len(jobs)


@pytest.fixture
def odd_epilog() -> Iterator[Path]:
    """The epilog's file, put back afterwards."""
    text = EPILOG.read_bytes()
    yield EPILOG
    EPILOG.write_bytes(text)


def test_an_epilog_that_never_runs(quiet_cluster: Slurm, odd_epilog: Path) -> None:
    right = odd_epilog.read_bytes()
    odd_epilog.write_text("#!/bin/sh\nexit 0\n")
    job = quiet_cluster.sbatch("alice", *HERE, wrap=SEES)
    assert quiet_cluster.wait_ended(job, LONG_S) == "COMPLETED"
    assert len(instances(NODE)) == 1
    odd_epilog.write_bytes(right)
    # Its place goes to the next job that needs it, without a word of an operator ...
    other = quiet_cluster.sbatch("alice", "-w", NODE, "--gres=gpu:7g.80gb:1", wrap=SEES)
    assert quiet_cluster.wait_ended(other, LONG_S) == "COMPLETED", json.dumps(explained(other))
    # ... and whatever nobody needs goes when the node is next compared.
    reconcile()
    all_well(quiet_cluster, job)


def test_what_an_epilog_left_goes_when_the_node_is_compared(quiet_cluster: Slurm, odd_epilog: Path) -> None:
    right = odd_epilog.read_bytes()
    odd_epilog.write_text("#!/bin/sh\nexit 0\n")
    job = quiet_cluster.sbatch("alice", *HERE, wrap=SEES)
    assert quiet_cluster.wait_ended(job, LONG_S) == "COMPLETED"
    odd_epilog.write_bytes(right)
    reconcile()
    assert instances(NODE) == []
    all_well(quiet_cluster, job)


@pytest.mark.parametrize("how", ["{0}; {0}", "{0} & {0}; wait"], ids=["one after the other", "at the same time"])
def test_an_epilog_that_runs_twice(quiet_cluster: Slurm, odd_epilog: Path, how: str) -> None:
    real = odd_epilog.with_name("epilog.real")
    real.write_bytes(odd_epilog.read_bytes())
    real.chmod(0o755)
    odd_epilog.write_text(f"#!/bin/sh\n{how.format(real)}\nexit 0\n")
    jobs = [quiet_cluster.sbatch("alice", *HERE, wrap=SEES) for _ in range(2)]
    all_well(quiet_cluster, *jobs)
    real.unlink()


def test_a_database_that_cannot_be_written(quiet_cluster: Slurm) -> None:
    """Somebody holds the write lock; to the daemon it is as if the disk were full."""
    held = quiet_cluster.sbatch("alice", *HERE, wrap=f"{SEES}; sleep 3")
    quiet_cluster.wait_state(held, "RUNNING")
    with _lock_database() as blocker:
        try:
            job = quiet_cluster.sbatch("alice", *HERE, wrap=SEES)
            time.sleep(8)
            assert not quiet_cluster.states(job) & {"FAILED", "CANCELLED", "COMPLETED"}
        finally:
            blocker.kill()
    all_well(quiet_cluster, held, job)


def _lock_database() -> subprocess.Popen[str]:
    """Hold SQLite's write lock: every write of the daemon fails after its time-out."""
    code = (
        "import sqlite3, time; c = sqlite3.connect('/var/lib/hetsched/hetsched.db', isolation_level=None); "
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_mig_mode_lost_under_way_lets_no_job_see_a_whole_gpu(quiet_cluster: Slurm) -> None:
    node = "h100-0"
    for gpu in range(4):
        run_as("root", "fake-nvml-ctl", "--node", node, "mode", "--gpu", str(gpu), "off", check=True)
    reconcile(node)
    job = quiet_cluster.sbatch("alice", "-C", "h100", "--gres=gpu:1g.10gb:1", wrap=SEES)
    wait_until(lambda: "lost MIG mode" in json.dumps(explained(job)), 60, "the reason in the record")
    assert "PENDING" in quiet_cluster.states(job)
    for gpu in range(4):
        run_as("root", "fake-nvml-ctl", "--node", node, "mode", "--gpu", str(gpu), "on", check=True)
    reconcile(node)
    all_well(quiet_cluster, job)
