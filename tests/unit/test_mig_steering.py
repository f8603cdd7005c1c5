"""Steering: picks are predicted as Slurm makes them, and no order of safe starts meets a hole."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyhetsched.mig.layout import Layout, choose_starts, fits
from pyhetsched.mig.profiles import model_by_key, weight
from pyhetsched.mig.steering import (
    NodeGpus,
    PendingSlices,
    PickRule,
    Steering,
    gpu_of,
    hole_at_pick,
    predictor_of,
    settle,
    steer,
)

A100 = model_by_key("A100-80GB")
NAMES = [p.name for p in A100.profiles if not p.variant]


@st.composite
def gpu_layouts(draw: st.DrawFn) -> Layout:
    layout = Layout.empty(A100)
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=5)):
        starts = fits(layout, A100.profile(name))
        if starts:
            layout = layout.with_placement(A100.profile(name), draw(st.sampled_from(starts)))
    return layout


def node_of(name: str, layouts: Sequence[Layout]) -> NodeGpus:
    return NodeGpus(name, A100, tuple(gpu_of(layout) for layout in layouts))


clusters = st.lists(st.lists(gpu_layouts(), min_size=1, max_size=3), min_size=1, max_size=3)
queues = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2), max_size=12)


@pytest.mark.parametrize(("rule", "expected"), [(PickRule.FIRST_FIT, [3, 1, 0]), (PickRule.LEAST_LOADED, [3, 3, 3])])
def test_picks_are_those_of_slurm(rule: PickRule, expected: list[int]) -> None:
    gpus = ((0, 7), (0, 8), (0, 0), (0, 31))
    predictor = predictor_of(A100, rule)
    assert [predictor.pick(gpus, shards) for shards in (16, 8, 4)] == expected
    assert predictor.pick(gpus, 32) is None
    assert predictor.pick((), 1) is None


def test_a_hole_at_the_pick_is_avoided_and_a_later_gpu_does_not_help() -> None:
    holed, empty = Layout.parse(A100, "1g.10gb@0,1g.10gb@4"), Layout.empty(A100)
    bad, good = node_of("bad", [holed, empty]), node_of("good", [empty, holed])
    assert hole_at_pick(bad, ("3g.40gb",))
    assert not hole_at_pick(good, ("3g.40gb",))
    steering = steer([bad, good], [PendingSlices(1, ("3g.40gb",)), PendingSlices(2, ("1g.10gb",))])
    assert "bad" in steering.avoid[1]
    assert "good" not in steering.avoid[1]
    assert steering.avoid[2] != frozenset({"bad", "good"})


def test_nodes_without_room_and_foreign_models_are_not_named() -> None:
    full = node_of("full", [Layout.parse(A100, "7g.80gb@0")])
    other = NodeGpus("a30", model_by_key("A30-24GB"), ((0, 4),))
    steering = steer([full, other], [PendingSlices(1, ("3g.40gb",)), PendingSlices(2, ("9g.90gb",))])
    assert steering.avoid == {1: frozenset(), 2: frozenset()}


def test_jobs_stay_within_their_nodes() -> None:
    nodes = [node_of("n0", [Layout.empty(A100)]), node_of("n1", [Layout.empty(A100)])]
    steering = steer(nodes, [PendingSlices(1, ("7g.80gb",), frozenset({"n1"}))])
    assert steering.avoid[1] == frozenset()
    assert steering.open_to[1] == frozenset({"n1"})


@settings(max_examples=60, deadline=None)
@given(clusters, queues, st.sampled_from(PickRule), st.integers(0, 2**32))
def test_any_order_of_starts_in_one_pass_is_free_of_holes(
    cluster: list[list[Layout]], queue: list[list[str]], rule: PickRule, seed: int
) -> None:
    """Replays a pass with real layouts: jobs in any order, on any node left open to them."""
    nodes = {f"n{i}": list(layouts) for i, layouts in enumerate(cluster)}
    jobs = [PendingSlices(i, tuple(names)) for i, names in enumerate(queue)]
    steering = steer([node_of(n, layouts) for n, layouts in nodes.items()], jobs, rule)
    assert set(steering.avoid) == {job.job_id for job in jobs}
    rng = random.Random(seed)
    order = rng.sample(jobs, len(jobs))
    for job in order:
        shards = sum(weight(A100, name) for name in job.profiles)
        for name in rng.sample(sorted(nodes), len(nodes)):
            if name in steering.avoid[job.job_id]:
                continue
            brief = tuple(gpu_of(layout) for layout in nodes[name])
            index = predictor_of(A100, rule).pick(brief, shards)
            if index is None:
                continue
            profiles = [A100.profile(p) for p in job.profiles]
            layout = nodes[name][index]
            starts = choose_starts(layout, profiles)
            if predictor_of(A100, rule).ask(job.profiles) is None:
                continue
            assert starts is not None, (job, name, layout)
            for profile, start in zip(profiles, starts, strict=True):
                layout = layout.with_placement(profile, start)
            nodes[name][index] = layout
            break


@settings(max_examples=60, deadline=None)
@given(clusters, st.sampled_from(NAMES), st.sampled_from(PickRule))
def test_a_lone_job_is_left_open_wherever_its_pick_is_legal(
    cluster: list[list[Layout]], name: str, rule: PickRule
) -> None:
    nodes = [node_of(f"n{i}", layouts) for i, layouts in enumerate(cluster)]
    avoid = steer(nodes, [PendingSlices(7, (name,))], rule).avoid[7]
    assert avoid == {node.name for node in nodes if hole_at_pick(node, (name,), rule)}


def test_settling_changes_as_little_as_safety_asks() -> None:
    nodes = frozenset({"a", "b", "c"})
    steering = Steering({1: frozenset({"a"}), 2: frozenset({"a"}), 3: frozenset()}, {3: frozenset({"b"})})
    previous = {1: frozenset({"a", "b"}), 2: frozenset({"b", "c"}), 3: frozenset({"a", "b"})}
    settled = settle(previous, steering, {1: nodes, 2: nodes, 3: nodes})
    assert settled[1] == previous[1]
    assert settled[2] == frozenset({"a"})
    assert settled[3] == frozenset({"a"})
    closed = settle(previous, steering, {1: nodes, 2: nodes, 3: nodes}, closed=True)
    assert closed == {1: nodes, 2: nodes, 3: frozenset({"a", "c"})}
