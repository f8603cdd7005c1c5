"""Arrays, heterogeneous jobs, --test-only, requeue, a restart of slurmctld, and an owner who edits the job."""

from __future__ import annotations

from conftest import Daemons, Slurm, run_as, wait_until
from main_path import SEES, explained, profiles_seen, wait_clean


def test_every_element_of_an_array_gets_its_own_slice(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "--array=0-3", "--gres=gpu:1g.10gb:1", wrap="fake-nvidia-smi -L; sleep 1")
    wait_until(lambda: not run_as("root", "squeue", "-h").out, 60, "the array ended")
    outputs = [quiet_cluster.output("alice", job, task) for task in range(4)]
    assert [profiles_seen(output) for output in outputs] == [["1g.10gb"]] * 4
    assert explained(f"{job}_2")["job"]["id_text"] == f"{job}_2"
    wait_clean(quiet_cluster)


def test_both_parts_of_a_heterogeneous_job_get_theirs(quiet_cluster: Slurm) -> None:
    script = "#!/bin/sh\n#SBATCH --gres=gpu:1g.10gb:1\n#SBATCH hetjob\n#SBATCH --gres=gpu:2g.20gb:1\n" \
        "srun --het-group=0,1 sh -c 'fake-nvidia-smi -L'\n"  # fmt: skip
    job = quiet_cluster.sbatch("alice", script=script)
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert sorted(profiles_seen(quiet_cluster.output("alice", job))) == ["1g.10gb", "2g.20gb"]
    wait_clean(quiet_cluster)


def test_test_only_answers_and_leaves_nothing(quiet_cluster: Slurm) -> None:
    before = run_as("root", "hetsched", "decisions", "-h", "-n", "10000").out
    ran = quiet_cluster.try_sbatch("alice", "--test-only", "--gres=gpu:1g.10gb:1")
    assert ran.status == 0
    assert "to start at" in ran.err
    assert run_as("root", "hetsched", "decisions", "-h", "-n", "10000").out == before


def test_a_requeued_job_gets_its_slice_again(quiet_cluster: Slurm) -> None:
    script = "#!/bin/sh\nfake-nvidia-smi -L\nif [ ${SLURM_RESTART_COUNT:-0} = 0 ]; then sleep 60; fi\n"
    job = quiet_cluster.sbatch("alice", "--requeue", "--gres=gpu:1g.10gb:1", script=script)
    quiet_cluster.wait_state(job, "RUNNING")
    run_as("alice", "scontrol", "requeue", str(job), check=True)
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", job)) == ["1g.10gb"]
    wait_clean(quiet_cluster)


def test_a_restart_of_slurmctld_changes_nothing(quiet_cluster: Slurm, daemons: Daemons) -> None:
    running = quiet_cluster.sbatch("alice", "--gres=gpu:1g.10gb:1", wrap="sleep 3; fake-nvidia-smi -L")
    quiet_cluster.wait_state(running, "RUNNING")
    pending = quiet_cluster.sbatch("alice", "--gres=gpu:2g.20gb:1", f"--dependency=afterok:{running}", wrap=SEES)
    daemons.restart("slurmctld")
    assert quiet_cluster.wait_ended(running) == "COMPLETED"
    assert quiet_cluster.wait_ended(pending) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", running)) == ["1g.10gb"]
    assert profiles_seen(quiet_cluster.output("alice", pending)) == ["2g.20gb"]
    wait_clean(quiet_cluster)


def test_an_owner_cannot_steal_a_bigger_slice(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "--hold", "--gres=gpu:1g.10gb:1", wrap="fake-nvidia-smi -L")
    for change in ("Gres=gpu:7g.80gb:1", "Gres=shard:31", "TresPerNode=gres/shard:31"):
        ran = run_as("alice", "scontrol", "update", f"job={job}", change)
        assert ran.status != 0, change
        assert "hetsched" in ran.out + ran.err
    assert run_as("alice", "scontrol", "update", f"job={job}", "AdminComment=hetsched:{}").status != 0
    # Comment and Extra are the owner's; they must not matter.
    forged = 'hetsched:{"d":"x","k":"slices","s":[["7g.80gb",1]],"w":4}'
    run_as("alice", "scontrol", "update", f"job={job}", f"Extra={forged}", f"Comment={forged}")
    run_as("alice", "scontrol", "release", str(job), check=True)
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", job)) == ["1g.10gb"]
    wait_clean(quiet_cluster)


def test_what_slipped_past_the_guard_is_not_served(quiet_cluster: Slurm) -> None:
    # An operator may edit anything; a record that no longer matches the allocation gives no slice to anybody.
    job = quiet_cluster.sbatch("alice", "--hold", "--gres=gpu:1g.10gb:1", wrap="echo cvd=$CUDA_VISIBLE_DEVICES")
    run_as("root", "scontrol", "update", f"job={job}", "Gres=shard:31", check=True)
    run_as("alice", "scontrol", "release", str(job), check=True)
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert "cvd=\n" in quiet_cluster.output("alice", job) + "\n"
    wait_clean(quiet_cluster)


def test_users_see_their_own_jobs_only(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "--gres=gpu:1g.10gb:1", wrap="true")
    quiet_cluster.wait_ended(job)
    assert run_as("alice", "hetsched", "explain", str(job)).status == 0
    assert run_as("oper", "hetsched", "explain", str(job)).status == 0
    ran = run_as("bob", "hetsched", "explain", str(job))
    assert ran.status == 1
    assert "not yours" in ran.err
    assert "alice" not in run_as("bob", "hetsched", "decisions").out
    assert run_as("bob", "hetsched", "mode", "off").status == 1
