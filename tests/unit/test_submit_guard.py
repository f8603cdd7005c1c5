"""What an owner may change of a job."""

from __future__ import annotations

import pytest

from pyhetsched.model import JobAsk, JobField, SliceAsk, SubmitRequest, Verdict
from pyhetsched.submit import decide_modify

SLICES = JobAsk("slices", (SliceAsk("1g.10gb", 1),), model_keys=("A100-80GB",), shards=4)
WHOLE = JobAsk("whole", gpus_per_node=2, model_keys=("H100-80GB-SXM",))
OLD = JobAsk("whole", gpus_per_node=2, model_keys=("V100-32GB",))
PLAIN = JobAsk("plain")
TRES = JobField.TRES_PER_NODE


@pytest.mark.parametrize("ask", [SLICES, WHOLE, OLD, PLAIN, None])
@pytest.mark.parametrize(
    "text", ["gres/shard:31", "shard:a100:4", "gres/gpu:7g.80gb:1", "gpu:a100_3g.40gb=2", "gpu:20gb:1"]
)
def test_nobody_helps_himself_to_shards_or_slices(ask: JobAsk | None, text: str) -> None:
    verdict, message = decide_modify(SubmitRequest(tres_per_node=text), {TRES}, ask)
    assert verdict is Verdict.REFUSED
    assert message.startswith("hetsched: ")
    assert "cancel the job and submit it again" in message


@pytest.mark.parametrize("field", [TRES, JobField.TRES_PER_TASK, JobField.FEATURES, JobField.TRES_BIND])
def test_a_job_with_slices_keeps_what_it_was_given(field: JobField) -> None:
    verdict, message = decide_modify(SubmitRequest(), {field}, SLICES)
    assert verdict is Verdict.REFUSED
    assert "gpu:1g.10gb:1" in message


@pytest.mark.parametrize("field", [JobField.EXCLUDED_NODES, JobField.REQUEUE, JobField.PREFER, JobField.MIN_NODES])
def test_other_changes_pass(field: JobField) -> None:
    assert decide_modify(SubmitRequest(features="x"), {field}, SLICES) == (Verdict.UNCHANGED, "")


@pytest.mark.parametrize(
    ("text", "ask", "verdict"),
    [
        ("gres/gpu:2", WHOLE, Verdict.REFUSED),
        ("gres/gpu:a100:2", PLAIN, Verdict.REFUSED),
        ("gres/gpu:1", WHOLE, Verdict.UNCHANGED),
        ("gres/gpu:v100:4", OLD, Verdict.UNCHANGED),
        ("gres/gpu:a100:2", None, Verdict.UNCHANGED),
        ("gpu:(", WHOLE, Verdict.UNCHANGED),
    ],
)
def test_several_whole_gpus_are_placed_at_submit(text: str, ask: JobAsk | None, verdict: Verdict) -> None:
    assert decide_modify(SubmitRequest(tres_per_node=text), {TRES}, ask)[0] is verdict


def test_features_hold_several_whole_gpus_off_mig_cards() -> None:
    touched = {JobField.FEATURES}
    assert decide_modify(SubmitRequest(), touched, WHOLE)[0] is Verdict.REFUSED
    assert decide_modify(SubmitRequest(), touched, OLD)[0] is Verdict.UNCHANGED
    assert decide_modify(SubmitRequest(), touched, PLAIN)[0] is Verdict.UNCHANGED


def test_operators_may_do_all() -> None:
    fields = SubmitRequest(tres_per_node="gres/shard:31")
    assert decide_modify(fields, {TRES}, SLICES, privileged=True) == (Verdict.UNCHANGED, "")
