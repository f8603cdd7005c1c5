"""A burst of submits is steered before any plan has seen it: no order of its starts may meet a hole."""

from __future__ import annotations

from pyhetsched.clock import ManualClock
from pyhetsched.daemon.open_submits import OpenSubmits, Wish
from pyhetsched.mig.layout import Layout
from pyhetsched.mig.profiles import model_by_key
from pyhetsched.mig.steering import NodeGpus, PendingSlices, PickRule, gpu_of, hole_at_pick, steer

MODEL = model_by_key("A100-80GB")
SMALL = ("1g.10gb",)
RULE = PickRule.FIRST_FIT


def node(name: str, layout: str) -> NodeGpus:
    return NodeGpus(name, MODEL, (gpu_of(Layout.parse(MODEL, layout)),))


#: Slurm counts room for two slices 1g, and there is a start for one.
TIGHT = "3g.40gb@0,1g.10gb@4,1g.10gb@5"
FULL = "3g.40gb@0,3g.40gb@4"


def admit(submits: OpenSubmits, decision_id: str, *nodes: NodeGpus) -> list[str]:
    return submits.admit(decision_id, Wish(SMALL, nodes, RULE, 1))


def test_the_example_has_room_for_two_by_count_and_for_one_in_truth() -> None:
    tight = node("a", TIGHT)
    after = node("a", TIGHT + ",1g.10gb@6")
    assert not hole_at_pick(tight, SMALL)
    assert hole_at_pick(after, SMALL)


def test_each_job_of_a_burst_is_left_open_where_all_may_start() -> None:
    submits = OpenSubmits(ManualClock())
    nodes = node("a", TIGHT), node("b", TIGHT), node("c", FULL)
    assert admit(submits, "1", *nodes) == ["b"]
    assert admit(submits, "2", *nodes) == ["a"]
    assert admit(submits, "3", *nodes) == ["a", "b"]  # it waits for the full node, and for the next plan


def test_a_job_is_never_kept_from_all_its_nodes() -> None:
    submits = OpenSubmits(ManualClock())
    assert admit(submits, "1", node("a", TIGHT)) == []
    assert admit(submits, "2", node("a", TIGHT)) == []
    assert admit(submits, "3") == []


def test_a_place_is_free_again_once_its_job_is_in_the_picture_or_gone() -> None:
    clock = ManualClock()
    submits = OpenSubmits(clock)
    nodes = node("a", TIGHT), node("c", FULL)
    assert admit(submits, "1", *nodes) == []
    assert admit(submits, "2", *nodes) == ["a"]
    submits.withdraw("1")
    assert admit(submits, "3", *nodes) == []
    submits.started("3")
    assert admit(submits, "4", *nodes) == ["a"]  # started, but the picture is from before
    submits.see(lambda: nodes)
    assert admit(submits, "5", *nodes) == []
    clock.sleep_s(10.0)  # it never came
    assert admit(submits, "6", *nodes) == []


def test_a_plan_is_not_taken_over_if_a_submit_made_it_unsafe() -> None:
    submits = OpenSubmits(ManualClock())
    nodes = node("a", TIGHT), node("c", FULL)
    known = submits.open()
    admit(submits, "1", *nodes)  # while the plan is made
    plan = {"a": {SMALL: 1}}
    assert not submits.take(plan, (), known, nodes, RULE)
    assert submits.take(plan, (), submits.open(), nodes, RULE), "a plan that counted it"
    assert submits.take(plan, {"1"}, known, nodes, RULE), "a plan that saw it waiting"
    assert admit(submits, "2", *nodes) == ["a"], "what the plan leaves open is counted"
    assert submits.take({"c": {SMALL: 1}}, (), (), nodes, RULE), "another node"


def test_a_plan_is_unsafe_with_all_that_may_start_not_only_with_what_came_late() -> None:
    submits = OpenSubmits(ManualClock())
    wide = node("a", "3g.40gb@0,1g.10gb@4"), node("c", FULL)  # two more slices 1g have a start, a third has none
    admit(submits, "1", *wide)
    known = submits.open()  # the plan counts the first, and leaves one more place open
    admit(submits, "2", *wide)
    assert not submits.take({"a": {SMALL: 1}}, (), known, wide, RULE)


def test_a_plan_that_must_be_is_taken_over() -> None:
    submits = OpenSubmits(ManualClock())
    nodes = (node("a", TIGHT),)
    admit(submits, "1", *nodes)
    assert submits.take({"a": {SMALL: 1}}, (), (), nodes, RULE, insist=True)


def test_jobs_that_are_starting_take_places_of_a_plan() -> None:
    job = PendingSlices(7, SMALL)
    starting = PendingSlices(6, SMALL, frozenset({"a"}))
    nodes = node("a", TIGHT), node("c", FULL)
    assert steer(nodes, [job]).open_to == {7: {"a"}}
    assert steer(nodes, [job], starting=[starting]).open_to == {}


def test_jobs_are_left_where_they_are_open_now() -> None:
    nodes = node("a", TIGHT), node("b", TIGHT)
    first, second = (PendingSlices(i, SMALL, None, frozenset({name})) for i, name in ((1, "b"), (2, "a")))
    assert steer(nodes, [first, second]).open_to == {1: {"b"}, 2: {"a"}}
