"""Which job ``explain`` tells of: arrays and heterogeneous jobs are several jobs to Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyhetsched.cli.explain import lines
from pyhetsched.daemon.auth import Caller
from pyhetsched.daemon.explain import Explainer
from pyhetsched.errors import RequestError
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.slurm.allocation import AllocatedJob
from pyhetsched.store.database import Database
from pyhetsched.store.decisions import DecisionStore
from pyhetsched.store.reservations import ReservationStore

ALICE, BOB = Caller(2001, "alice", False, False), Caller(2002, "bob", False, False)


def job(job_id: int, id_text: str) -> AllocatedJob:
    return AllocatedJob(job_id, id_text, "wrap", "alice", 2001, "RUNNING")


JOBS = {
    "13": [job(13, "13_3"), job(16, "13_1"), job(17, "13_2")],
    "14": [job(14, "14+0"), job(15, "14+1")],
    "23": [job(23, "23"), job(24, "23_1")],
}


class _Slurm:
    """Answers as ``scontrol show job``: for an element that it does not know, with the whole array."""

    def jobs(self, text: str) -> list[AllocatedJob]:
        return JOBS.get(text.partition("_")[0].partition("+")[0], [])


@pytest.fixture
def explainer(tmp_path: Path) -> Explainer:
    database = Database(f"sqlite:///{tmp_path}/hetsched.db")
    slurm: Any = _Slurm()
    nobody: Any = None
    return Explainer(slurm, nobody, DecisionStore(database), ReservationStore(database))


@pytest.mark.parametrize(
    ("text", "told", "others"),
    [
        ("13", "13_3", ["13_1", "13_2"]),
        ("13_2", "13_2", []),
        ("14", "14+0", ["14+1"]),
        ("14+1", "14+1", []),
        ("23_7", "23", []),
        ("23_[2-20%2]", "23", ["23_1"]),
    ],
)
def test_the_job_that_is_meant_is_told(explainer: Explainer, text: str, told: str, others: list[str]) -> None:
    reply = explainer.explain(text, ALICE)
    assert reply is not None
    assert (reply.job.id_text, list(reply.others)) == (told, others)
    assert explainer.explain(text, BOB) is None


@pytest.mark.parametrize("text", ["13_99", "14+7", "99"])
def test_another_job_is_never_told_instead(explainer: Explainer, text: str) -> None:
    assert explainer.explain(text, ALICE) is None


@pytest.mark.parametrize("text", ["", "1,2", "13_[x]", "1.batch", "7" * 65])
def test_what_is_no_job_id_is_refused(explainer: Explainer, text: str) -> None:
    with pytest.raises(RequestError, match="write a job id as squeue shows it"):
        explainer.explain(text, ALICE)


def test_of_many_others_some_are_named() -> None:
    reply = pb.ExplainReply(job=pb.JobState(job_id=1, id_text="1_0"), others=[f"1_{i}" for i in range(1, 12)])
    assert "  of the same submit: 1_1, 1_2, 1_3, 1_4, 1_5, 1_6, 1_7, 1_8 and 3 more" in list(lines(reply))
