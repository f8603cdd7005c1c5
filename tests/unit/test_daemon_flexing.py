"""One to many at submit: only for jobs that may, where the site's NCCL can, and when nothing else starts now."""

from __future__ import annotations

import dataclasses

import pytest

from pyhetsched.config import SubmitConfig
from pyhetsched.daemon.flexing import flexed, support_of
from pyhetsched.mig.flex import CollectiveSupport
from pyhetsched.mig.layout import Layout
from pyhetsched.mig.needs import node_needs
from pyhetsched.mig.profiles import model_by_key
from pyhetsched.mig.steering import NodeGpus, PickRule, gpu_of
from pyhetsched.model import JobAsk, JobField, SliceAsk, SubmitOutcome, SubmitRequest, Verdict

MODEL = model_by_key("A100-80GB")
ASK = JobAsk("slices", (SliceAsk("3g.40gb", 1),), model_keys=("A100-80GB",), shards=15, flex=True)
OUTCOME = SubmitOutcome(
    Verdict.REWRITTEN, ASK, "gpu:3g.40gb:1 flex=yes", "1 slice 3g.40gb", "hetsched: ...",
    {JobField.TRES_PER_NODE: "gres/shard:15"},
)  # fmt: skip
REQUEST = SubmitRequest(num_tasks=4)
PATCHED = CollectiveSupport(patched=True)


def node(*layouts: str) -> NodeGpus:
    return NodeGpus("n", MODEL, tuple(gpu_of(Layout.parse(MODEL, text)) for text in layouts))


#: Four slices 1g fit, and no 3g: its starts, 0 and 4, are taken.
HOLE = node("1g.10gb@0,1g.10gb@4")
ROOM = node("1g.10gb@0")


def changed(nodes: NodeGpus, **request: object) -> SubmitOutcome:
    wanted = dataclasses.replace(REQUEST, **request)  # type: ignore[arg-type]
    return flexed(wanted, OUTCOME, [nodes], PickRule.FIRST_FIT, PATCHED)


def test_leaves_take_the_place_of_a_slice_that_cannot_start() -> None:
    outcome = changed(HOLE)
    assert outcome.ask.slices == (SliceAsk("1g.10gb", 4),)
    assert outcome.ask.shards == 16
    assert outcome.changes == {JobField.TRES_PER_NODE: "gres/shard:16"}
    assert "4 x 1g.10gb, one for each task, in place of 3g.40gb" in outcome.message
    needs = node_needs(outcome.ask, (), {0: 16}, {0: MODEL})
    assert (needs.slices_per_task, needs.flex, needs.mismatch) == (1, True, "")
    assert [p.name for p in needs.gpus[0].profiles] == ["1g.10gb"] * 4


@pytest.mark.parametrize("request_", [{"num_tasks": 1}, {"num_tasks": 2}, {"num_tasks": 8}, {"min_nodes": 2}], ids=str)
def test_it_stays_where_tasks_and_leaves_do_not_match(request_: dict[str, object]) -> None:
    assert changed(HOLE, **request_) is OUTCOME


def test_it_stays_where_the_slice_itself_can_start() -> None:
    assert changed(ROOM) is OUTCOME


def nodes_with(*layouts: str) -> list[NodeGpus]:
    return [dataclasses.replace(node(layout), name=f"n{i}") for i, layout in enumerate(layouts)]


#: Two slices 1g fit on this GPU, and no 3g.
HALF = "3g.40gb@0,1g.10gb@4"


def spread(nodes: list[NodeGpus], **request: object) -> SubmitOutcome:
    wanted = dataclasses.replace(REQUEST, batch=True, **request)  # type: ignore[arg-type]
    return flexed(wanted, OUTCOME, nodes, PickRule.FIRST_FIT, PATCHED)


def test_leaves_lie_on_gpus_of_several_nodes_where_no_gpu_has_room_for_all() -> None:
    outcome = spread(nodes_with(HALF, HALF))
    assert outcome.ask.slices == (SliceAsk("1g.10gb", 1),)
    assert (outcome.ask.shards, outcome.ask.per_task) == (4, True)
    assert outcome.changes == {JobField.TRES_PER_NODE: "", JobField.TRES_PER_TASK: "gres/shard:4"}
    assert "4 x 1g.10gb, one for each task, on GPUs of several nodes" in outcome.message
    needs = node_needs(outcome.ask, (), {1: 8}, {1: MODEL})
    assert (needs.slices_per_task, needs.flex, needs.mismatch) == (1, True, "")
    assert [p.name for p in needs.gpus[0].profiles] == ["1g.10gb"] * 2


def test_one_gpu_is_preferred_to_several() -> None:
    assert not spread([*nodes_with(HALF, HALF), HOLE]).ask.per_task


@pytest.mark.parametrize("request_", [{"max_nodes": 1}, {"ntasks_per_node": 4}, {"batch": False}], ids=str)
def test_it_stays_where_the_job_may_have_one_node_only(request_: dict[str, object]) -> None:
    wanted = dataclasses.replace(REQUEST, **{"batch": True, **request_})  # type: ignore[arg-type]
    assert flexed(wanted, OUTCOME, nodes_with(HALF, HALF), PickRule.FIRST_FIT, PATCHED) is OUTCOME


def test_it_stays_where_several_gpus_have_no_room_either() -> None:
    assert spread(nodes_with(HALF)) is OUTCOME


def test_it_stays_where_nothing_can_start() -> None:
    assert changed(node("4g.40gb@0,3g.40gb@4")) is OUTCOME


@pytest.mark.parametrize(
    ("config", "shares"),
    [
        (SubmitConfig(), False),
        (SubmitConfig(flex_nccl="2.30", flex_cuda_driver="13.0"), False),
        (SubmitConfig(flex_nccl="2.31"), False),
        (SubmitConfig(flex_nccl="2.31", flex_cuda_driver="13.0"), True),
        (SubmitConfig(flex_patched=True), True),
    ],
    ids=str,
)
def test_the_declared_library_decides(config: SubmitConfig, shares: bool) -> None:
    outcome = flexed(REQUEST, OUTCOME, [HOLE], PickRule.FIRST_FIT, support_of(config))
    assert (outcome is not OUTCOME) == shares
