"""One to many: a slice that could not start is served by small ones, one for each task."""

from __future__ import annotations

import json
import re

from conftest import Daemons, Slurm, run_as, wait_until
from main_path import explained, gpu_map, profiles_seen, uuids_of, wait_clean, wait_started
from pool_site import configured

NODE = "a30-0"
SCRIPT = """#!/bin/sh
#HETSCHED flex=yes
srun sh -c 'echo task $SLURM_PROCID $CUDA_VISIBLE_DEVICES; echo nccl $NCCL_P2P_DISABLE$NCCL_MULTI_RANK_GPU_ENABLE'
fake-nvidia-smi -L
"""
ASK = ("-n2", "-C", "a30", "--gres=gpu:2g.12gb:1")


def leave_holes(slurm: Slurm) -> list[int]:
    """Jobs that leave two slices 1g free on one GPU, and no place for a 2g; the other GPU is taken."""
    jobs = [slurm.sbatch("bob", "-w", NODE, "--gres=gpu:4g.24gb:1", wrap="echo started; sleep 600")]
    wait_started(slurm, "bob", jobs[0])
    small = [slurm.sbatch("bob", "-w", NODE, "--gres=gpu:1g.6gb:1", wrap="echo started; sleep 600") for _ in range(4)]
    for job in small:
        wait_started(slurm, "bob", job)
    starts = {item["job_id"]: item["start"] for gpu in gpu_map()[NODE] for item in gpu["slices"]}
    for job in [job for job in small if starts[job] % 2]:
        run_as("root", "scancel", str(job))
        slurm.wait_ended(job)
    wait_until(lambda: sum(len(gpu["slices"]) for gpu in gpu_map()[NODE]) == 3, 30, "two slices gone")
    return jobs + small


def wait_would_become(words: str, *ask: str) -> None:
    """Wait until the daemon has seen the places that the jobs leave, and would serve the request so."""
    would_run = ("alice", "hetsched", "would-run", *ask, "--comment=hetsched:flex=yes")
    wait_until(lambda: words in run_as(*would_run).out, 20, f"{' '.join(ask)} would become {words}")


def test_two_leaves_start_where_the_slice_could_not(quiet_cluster: Slurm, daemons: Daemons) -> None:
    with configured(daemons, "[submit]\nallow_flex = true\nflex_patched = true"):
        leave_holes(quiet_cluster)
        wait_would_become("2 x 1g.6gb", *ASK)
        job = quiet_cluster.sbatch("alice", *ASK, script=SCRIPT)
        assert quiet_cluster.wait_ended(job) == "COMPLETED", explained(job)
        output = quiet_cluster.output("alice", job)
        assert profiles_seen(output) == ["1g.6gb", "1g.6gb"]
        first, second = uuids_of(output, "task 0"), uuids_of(output, "task 1")
        assert len(first) == len(second) == 1
        assert first != second
        assert re.findall(r"^nccl (\d+)$", output, re.MULTILINE) == ["11", "11"]
        quiet_cluster.cancel_everything()
        # With room for the slice itself it is that.
        wait_clean(quiet_cluster)
        whole = quiet_cluster.sbatch("alice", *ASK, script=SCRIPT)
        assert quiet_cluster.wait_ended(whole) == "COMPLETED", explained(whole)
        assert profiles_seen(quiet_cluster.output("alice", whole)) == ["2g.12gb"]
    wait_clean(quiet_cluster)

A100_NODES = ("a100-0", "a100-1")
SPREAD = ("-n4", "-C", "a100", "--gres=gpu:3g.40gb:1")


def leave_three_small_places(slurm: Slurm, node: str) -> None:
    """Jobs that leave three slices 1g free on one GPU of a node with four, and no place for a 3g."""
    for profile in (*("7g.80gb",) * 3, "3g.40gb", "1g.10gb"):
        job = slurm.sbatch("bob", "-w", node, f"--gres=gpu:{profile}:1", wrap="echo started; sleep 600")
        wait_started(slurm, "bob", job)


def test_leaves_of_several_gpus_start_where_no_gpu_has_room_for_all(quiet_cluster: Slurm, daemons: Daemons) -> None:
    with configured(daemons, "[submit]\nallow_flex = true\nflex_patched = true"):
        for node in A100_NODES:
            leave_three_small_places(quiet_cluster, node)
        wait_would_become("on GPUs of several nodes", *SPREAD)
        job = quiet_cluster.sbatch("alice", *SPREAD, script=SCRIPT)
        assert quiet_cluster.wait_ended(job) == "COMPLETED", explained(job)
        output = quiet_cluster.output("alice", job)
        seen = [uuids_of(output, f"task {rank}") for rank in range(4)]
        assert all(len(uuids) == 1 for uuids in seen), output
        assert len({uuid for uuids in seen for uuid in uuids}) == 4, output
        assert re.findall(r"^nccl (\d+)$", output, re.MULTILINE) == ["11"] * 4
        nodes = {word for word in A100_NODES if word in json.dumps(explained(job))}
        assert nodes == set(A100_NODES), explained(job)
        quiet_cluster.cancel_everything()
    wait_clean(quiet_cluster)
