"""Who holds which GPU: told at a job's start and end, in whatever order the news arrive."""

from __future__ import annotations

from dataclasses import replace

from pyhetsched.daemon.holdings import Holder, Holdings
from pyhetsched.slurm.allocation import AllocatedJob, NodeAllocation

JOB = AllocatedJob(
    11, "11", "train", "alice", 2001, "RUNNING",
    nodes=(NodeAllocation("h100-1", (0, 1)), NodeAllocation("a100-0", (), {2: 8})),
)  # fmt: skip


def test_a_job_holds_whole_gpus_and_shards_until_it_ends() -> None:
    holdings = Holdings()
    holdings.note(JOB)
    assert holdings.on("h100-1", 1) == [Holder(11, 2001, "alice", id_text="11")]
    assert holdings.on("a100-0", 2) == [Holder(11, 2001, "alice", 8, "11")]
    assert holdings.on("a100-0", 0) == []
    holdings.ended(11)
    assert holdings.on("h100-1", 1) == []


def test_what_is_learned_of_a_job_after_its_end_is_not_believed() -> None:
    holdings = Holdings()
    holdings.ended(11)
    holdings.note(JOB)
    assert holdings.on("h100-1", 1) == []


def test_the_next_run_of_a_requeued_job_is_believed() -> None:
    holdings = Holdings()
    holdings.note(JOB)
    holdings.ended(11, 0)
    holdings.note(replace(JOB, restart_count=1))
    assert holdings.on("h100-1", 1) == [Holder(11, 2001, "alice", id_text="11")]


def test_released_shards_count_as_free_before_slurm_has_them_back() -> None:
    holdings = Holdings()
    holdings.note(JOB)
    holdings.released(11, "a100-0")
    assert holdings.on("a100-0", 2) == []
    assert holdings.on("h100-1", 0) == [Holder(11, 2001, "alice", id_text="11")]
