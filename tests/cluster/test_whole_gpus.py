"""Whole GPUs pass as they are, except where the card is in MIG mode."""

from __future__ import annotations

import pytest
from conftest import Slurm, SubmitRefused
from main_path import explained, profiles_seen, uuids_of, wait_clean


def test_a_whole_gpu_on_a_card_in_mig_mode_is_the_full_size_instance(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "--gres=gpu:1", "-C", "a100", wrap="fake-nvidia-smi -L")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", job)) == ["7g.80gb"]
    wait_clean(quiet_cluster)


@pytest.mark.parametrize("gres", ["gpu:1", "gpu:v100:2"])
def test_a_plain_request_runs_unchanged_and_is_explained(quiet_cluster: Slurm, gres: str) -> None:
    job = quiet_cluster.sbatch("alice", f"--gres={gres}", wrap="echo cvd=$CUDA_VISIBLE_DEVICES")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert quiet_cluster.show(job)["tres_per_node"] == f"gres/{gres}"
    decisions = explained(job)["decisions"]
    assert decisions[0]["outcome"] == "unchanged"
    if "v100" in gres:
        assert uuids_of(quiet_cluster.output("alice", job), "cvd") == ["0", "1"]


def test_two_gpus_land_where_no_card_is_in_mig_mode(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "--gres=gpu:h100:2", wrap="echo cvd=$CUDA_VISIBLE_DEVICES")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert quiet_cluster.show(job)["nodes"] == "h100-1"


def test_two_gpus_of_a_type_that_is_all_in_mig_mode_are_refused_with_what_works(quiet_cluster: Slurm) -> None:
    with pytest.raises(SubmitRefused, match=r"(?s)every a100 .* MIG mode.*--gres=gpu:h100:2"):
        quiet_cluster.sbatch("alice", "--gres=gpu:a100:2")


def test_a_job_without_gpus_is_left_alone(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", wrap="echo cvd=$CUDA_VISIBLE_DEVICES")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert uuids_of(quiet_cluster.output("alice", job), "cvd") == []
