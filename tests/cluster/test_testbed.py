"""The test cluster itself: its nodes, users, accounting and daemons are what the cluster file says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Daemons, Slurm, run_as

GRES = {
    "a100-0": "gpu:a100:4,shard:a100:124",
    "a100-1": "gpu:a100:4,shard:a100:124",
    "h100-0": "gpu:h100:4,shard:h100:124",
    "h100-1": "gpu:h100:4",
    "a30-0": "gpu:a30:2,shard:a30:8",
    "v100-0": "gpu:v100:4",
    "v100-1": "gpu:v100:4",
}


def test_nodes_offer_what_the_cluster_file_says(slurm: Slurm) -> None:
    assert {name: slurm.node(name)["gres"] for name in slurm.node_states()} == GRES


def test_features_tell_cut_nodes_from_whole_ones(slurm: Slurm) -> None:
    features = {name: ",".join(slurm.node(name)["features"]) for name in ("a100-0", "h100-0", "h100-1", "v100-0")}
    assert features == {"a100-0": "a100,mig", "h100-0": "h100,mig", "h100-1": "h100,whole", "v100-0": "v100,whole"}


def test_gpu_job_runs_and_is_accounted(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "--gres=gpu:v100:1", wrap="id -un; echo gpu=$CUDA_VISIBLE_DEVICES; hostname")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert quiet_cluster.output("alice", job) == "alice\ngpu=0\nctl\n"
    assert "gres/gpu:v100=1" in quiet_cluster.accounted(job, "AllocTRES")
    assert quiet_cluster.accounted(job, "Account") == "physics"


def test_shards_are_allocated_on_one_gpu(quiet_cluster: Slurm, daemons: Daemons) -> None:
    request = "gpu:1g.10gb:1" if daemons.with_hetsched() else "shard:4"
    job = quiet_cluster.sbatch("bob", f"--gres={request}", "-C", "a100", wrap="sleep 60")
    quiet_cluster.wait_state(job, "RUNNING")
    assert quiet_cluster.allocated_gres(job) == ["shard:a100:4(4/31,0/31,0/31,0/31)"]
    assert "gres/shard=4" in quiet_cluster.accounted(job, "AllocTRES")


@pytest.mark.parametrize(("user", "account"), [("alice", "physics"), ("bob", "bio"), ("oper", "staff")])
def test_users_have_their_accounts(user: str, account: str) -> None:
    rows = run_as("root", "sacctmgr", "-n", "-P", "show", "user", user, "withassoc", "format=Account", check=True)
    assert rows.out.split() == [account]


def test_operator_may_change_the_jobs_of_others(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "--hold")
    assert run_as("bob", "scontrol", "update", f"job={job}", "TimeLimit=10").status != 0
    assert run_as("oper", "scontrol", "update", f"job={job}", "TimeLimit=10").status == 0


def test_slurmctld_does_not_run_as_root(daemons: Daemons) -> None:
    pid = daemons.pid("slurmctld")
    assert Path(f"/proc/{pid}").owner() == "slurm"


def test_job_lives_through_a_restart_of_the_controller(quiet_cluster: Slurm, daemons: Daemons) -> None:
    job = quiet_cluster.sbatch("alice", "--gres=gpu:v100:1", wrap="sleep 3")
    quiet_cluster.wait_state(job, "RUNNING")
    before = daemons.pid("slurmctld")
    daemons.restart("slurmctld")
    assert daemons.pid("slurmctld") != before
    assert quiet_cluster.wait_ended(job) == "COMPLETED"


def test_controller_comes_back_after_a_kill(quiet_cluster: Slurm, daemons: Daemons) -> None:
    daemons.kill("slurmctld")
    assert daemons.pid("slurmctld") is None
    daemons.start("slurmctld")
    job = quiet_cluster.sbatch("alice", "--gres=gpu:v100:1")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"


def test_a_stopped_slurmd_is_started_again(quiet_cluster: Slurm, daemons: Daemons) -> None:
    before = daemons.pid("slurmd@v100-0")
    daemons.restart("slurmd@v100-0")
    assert daemons.pid("slurmd@v100-0") != before
    job = quiet_cluster.sbatch("alice", "-w", "v100-0")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"


def test_pyslurm_reads_the_cluster() -> None:
    program = "import pyslurm; print(sorted(pyslurm.Nodes.load()))"
    ran = run_as("alice", "/opt/hetsched-venv/bin/python", "-c", program, check=True)
    assert ran.out.strip() == str(sorted(GRES))


def test_the_run_stands_apart_from_the_host() -> None:
    links = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "net", "uts", "ipc")}
    assert len(set(links.values())) == 5
    assert run_as("root", "hostname").out.strip() == "ctl"
    interfaces = sorted(os.listdir("/sys/class/net"))
    assert interfaces == ["lo"]
