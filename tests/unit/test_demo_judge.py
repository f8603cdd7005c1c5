"""The demo fails when a job ends otherwise than it had to."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "demo"))

from cluster_view import Outcome
from judge import problems
from scenario import Request, refusal, served, whole

SLICE = "GPU 0: NVIDIA A100 (UUID: GPU-0)\n  MIG 1g.10gb     Device  0: (UUID: MIG-00000000-{})\n"
GPUS = "GPU 0: NVIDIA H100 (UUID: GPU-1)\nGPU 1: NVIDIA H100 (UUID: GPU-2)\n"


def explained(*uuids: str, profile: str = "1g.10gb", restart_count: int = 0) -> dict[str, Any]:
    made = [{"profile": profile, "mig_uuid": f"MIG-00000000-{uuid}", "restart_count": restart_count} for uuid in uuids]
    return {"decisions": [{"kind": "submit"}], "reservations": made}


GOOD = Outcome(
    Request("alice", ("sbatch", "--gres=gpu:1g.10gb:1"), served("1g.10gb", on=("a100-0",))), "", ("1",), ("COMPLETED",),
    ("a100-0",), (SLICE.format("1"),), (explained("1"),),
)  # fmt: skip
ARRAY = replace(
    GOOD, jobs=("1_0", "1_1"), states=("RUNNING",) * 2, outputs=(SLICE.format("1"), SLICE.format("2")),
    explained=(explained("1"), explained("2")),
)  # fmt: skip
WHOLE = Outcome(
    Request("bob", ("sbatch", "--gres=gpu:h100:2"), whole(2, "h100-1")), "", ("2",), ("COMPLETED",), ("h100-1",),
    (GPUS,), (explained(),),
)  # fmt: skip
REFUSED = Outcome(
    Request("bob", ("sbatch", "--gres=gpu:a10O:1"), refusal("--gres=gpu:a100:1")),
    "sbatch: error: hetsched: did you mean --gres=gpu:a100:1?", status=1,
)  # fmt: skip


@pytest.mark.parametrize("outcome", [GOOD, ARRAY, WHOLE, REFUSED])
def test_what_is_as_wanted(outcome: Outcome) -> None:
    assert problems(outcome) == []


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (replace(GOOD, states=("FAILED",)), "is FAILED"),
        (replace(GOOD, nodes=("a100-1",)), "ran on a100-1"),
        (replace(GOOD, outputs=("",)), "saw no slice"),
        (replace(GOOD, outputs=(SLICE.format("2"),)), "other slices than the record"),
        (replace(GOOD, explained=(explained("1", profile="2g.20gb"),)), "record names other slices"),
        (replace(GOOD, jobs=(), status=1, said="Invalid"), "not accepted: Invalid"),
        (replace(GOOD, explained=({"decisions": [], "reservations": []},)), "no record"),
        (replace(ARRAY, outputs=(SLICE.format("1"),) * 2, explained=(explained("1"),) * 2), "seen twice"),
        (replace(WHOLE, outputs=("",)), "saw 0 GPUs instead of 2"),
        (replace(REFUSED, status=0), "had to be refused"),
        (replace(REFUSED, said="sbatch: error: Unspecified error"), "does not name"),
    ],
)
def test_what_is_not(outcome: Outcome, said: str) -> None:
    assert any(said in problem for problem in problems(outcome))


def test_slices_of_an_earlier_start_do_not_count() -> None:
    again = explained("9")["reservations"] + explained("1", restart_count=1)["reservations"]
    assert problems(replace(GOOD, explained=({"decisions": [{}], "reservations": again},))) == []
