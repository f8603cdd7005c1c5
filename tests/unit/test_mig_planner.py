"""Plans: steps lead from one legal inventory to another, held slices stay, and few GPUs are used."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyhetsched.errors import DataError, LayoutError
from pyhetsched.mig.inventory import GpuSlices, format_inventory, parse_demand, parse_inventory
from pyhetsched.mig.layout import Layout, fits
from pyhetsched.mig.packing import compact_exactly, fewest_opened, pack, pack_exactly, pack_within
from pyhetsched.mig.planner import Create, Destroy, Drain, Plan, compact, deploy, reconfigure
from pyhetsched.mig.profiles import GpuModel, model_by_key, space_of_model

A100, A30 = model_by_key("A100-80GB"), model_by_key("A30-24GB")
NAMES = [p.name for p in A100.profiles if not p.variant]


def random_inventory(rng: random.Random, nodes: int, gpus: int, held: float, model: GpuModel = A100) -> list[GpuSlices]:
    result = []
    for n in range(nodes):
        for index in range(gpus):
            layout = Layout.empty(model)
            for _ in range(rng.randint(0, 4)):
                profile = rng.choice(model.profiles)
                starts = fits(layout, profile)
                if starts:
                    layout = layout.with_placement(profile, rng.choice(starts))
            holders = {p.start: rng.randint(1, 99) for p in layout if rng.random() < held}
            result.append(GpuSlices(f"n{n}", index, model, layout, holders))
    return result


def random_demand(rng: random.Random, gpus: int, names: list[str] = NAMES) -> Counter[str]:
    return Counter({name: rng.randint(0, gpus) for name in names if rng.random() < 0.7})


def apply(gpus: list[GpuSlices], plan: Plan) -> dict[tuple[str, int], Layout]:
    """The layouts after doing the steps one by one; illegal steps raise."""
    layouts = {(g.node, g.index): g.layout for g in gpus if g.layout is not None}
    for step in plan.steps:
        if isinstance(step, Destroy):
            key = (step.node, step.gpu_index)
            assert step.placement in layouts[key].placements
            layouts[key] = layouts[key].without(step.placement.start)
        elif isinstance(step, Create):
            key = (step.node, step.gpu_index)
            layouts[key] = layouts[key].with_placement(step.placement.profile, step.placement.start)
    return layouts


seeds = st.integers(0, 2**32)


@settings(max_examples=50, deadline=None)
@given(seeds, st.booleans())
def test_steps_are_legal_and_held_slices_stay(seed: int, use_idle: bool) -> None:
    rng = random.Random(seed)
    gpus = random_inventory(rng, rng.randint(1, 4), rng.randint(1, 4), rng.random())
    demand = random_demand(rng, len(gpus), [p.name for p in A100.profiles])
    plan = (reconfigure if use_idle else deploy)(gpus, demand)
    after = apply(gpus, plan)
    for gpu, planned in zip(gpus, plan.gpus, strict=True):
        assert planned.layout == after[gpu.node, gpu.index]
        assert planned.layout.is_legal
        assert gpu.held <= planned.layout
        if not use_idle:
            assert gpu.layout is not None
            assert gpu.layout <= planned.layout
    created = Counter(s.placement.profile.name for s in plan.steps if isinstance(s, Create))
    for name, number in demand.items():
        missing = plan.unplaced.get(name, 0)
        assert 0 <= missing <= number
        if not use_idle:
            assert created[name] == number - missing


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_packing_is_within_two_percent_of_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    space = space_of_model(A100)
    states = [g.held.state for g in random_inventory(rng, rng.randint(1, 40), 1, rng.choice([0.0, 1.0]))]
    wanted = tuple(rng.randint(0, max(1, len(states) // 3)) for _ in space.kinds)
    exact, quick = pack_exactly(space, states, wanted), pack(space, states, wanted)
    better = pack_within(space, states, wanted, 20.0)
    used = sum(1 for s in states if s)
    assert fewest_opened(space, states, wanted) <= exact.opened(states) or any(exact.unplaced)
    if not any(exact.unplaced) and not any(quick.unplaced):
        assert used + better.opened(states) <= (used + exact.opened(states)) * 1.02
        assert quick.opened(states) <= exact.opened(states) + 1
    assert sum(better.unplaced) <= sum(quick.unplaced)
    for packing in (exact, quick):
        for state, counts in zip(states, packing.added, strict=True):
            assert counts in space.multisets(state)
        total = [sum(c[k] for c in packing.added) + packing.unplaced[k] for k in range(len(wanted))]
        assert tuple(total) == wanted


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_compaction_saves_what_the_oracle_saves(seed: int) -> None:
    rng = random.Random(seed)
    per_node = rng.choice([1, 2, 4])
    gpus = random_inventory(rng, rng.randint(1, 16 // per_node), per_node, 1.0)
    plan = compact(gpus, time_limit_s=20.0)
    space = space_of_model(A100)
    held = [[0] * len(space.kinds) for _ in gpus]
    for counts, gpu in zip(held, gpus, strict=True):
        for placement in gpu.held:
            counts[space.kind_of[A100.profiles.index(placement.profile)]] += 1
    dry = compact_exactly(space, [g.held.state for g in gpus], list(map(tuple, held)), [g.node for g in gpus], 20.0)
    drained = {s.node for s in plan.steps if isinstance(s, Drain)}
    before = sum(1 for g in gpus if g.held)
    assert plan.gpus_used <= before
    total = Counter[str]()
    for gpu, after in zip(gpus, plan.gpus, strict=True):
        assert after.layout is not None
        assert after.layout.is_legal
        if gpu.node not in drained:
            assert gpu.held <= after.layout
        else:
            assert not after.layout
        total += Counter(after.layout.counts)
    assert total == sum((Counter(g.held.counts) for g in gpus), Counter())
    if not any(gpu.held for gpu in gpus if gpu.node in dry):
        assert not drained


def test_draining_names_the_node_and_its_jobs_and_moves_nothing() -> None:
    gpus = parse_inventory("a:0 A100-80GB 1g.10gb@6=7\nb:0 A100-80GB 4g.40gb@0=8,2g.20gb@4\n")
    plan = compact(gpus)
    assert [str(step) for step in plan.steps] == [
        "drain   a  (its 1 slices fit elsewhere; dry when jobs 7 end)",
        "resume  a  (once dry)",
    ]
    assert plan.gpus_used == 1


def test_reconfiguring_keeps_what_serves() -> None:
    gpus = parse_inventory("a:0 A100-80GB 1g.10gb@4,3g.40gb@0\n")
    plan = reconfigure(gpus, {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb+me": 1})
    assert not plan.unplaced
    assert [str(step) for step in plan.steps] == [
        "destroy a:0 1g.10gb@4",
        "create  a:0 2g.20gb@4",
        "create  a:0 1g.10gb+me@6",
    ]
    assert str(plan.gpus[0]) == "a:0 A100-80GB 3g.40gb@0,2g.20gb@4,1g.10gb+me@6"


def test_demand_is_served_across_models_and_refused_without_any() -> None:
    gpus = [GpuSlices("a", 0, A30, Layout.empty(A30)), GpuSlices("b", 0, A100, Layout.empty(A100))]
    plan = deploy(gpus, {"1g.6gb": 2, "3g.40gb": 1})
    assert not plan.unplaced
    assert {(s.node, s.placement.profile.name) for s in plan.steps if isinstance(s, Create)} == {
        ("a", "1g.6gb"),
        ("b", "3g.40gb"),
    }
    with pytest.raises(LayoutError, match="no GPU in MIG mode has the profile 1g.5gb"):
        deploy(gpus, {"1g.5gb": 1})


def test_one_instance_with_extra_media_engines_per_gpu() -> None:
    gpus = [GpuSlices("a", i, A100, Layout.empty(A100)) for i in range(2)]
    plan = deploy(gpus, {"1g.10gb+me": 3, "1g.10gb": 10})
    assert sum(plan.unplaced.values()) <= 2
    for gpu in plan.gpus:
        assert gpu.layout is not None
        assert gpu.layout.counts.get("1g.10gb+me", 0) <= 1


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_inventories_round_trip(seed: int) -> None:
    rng = random.Random(seed)
    gpus = random_inventory(rng, 2, 2, 0.5, rng.choice([A100, A30]))
    gpus.append(GpuSlices("off", 0, A100, None))
    assert parse_inventory(format_inventory(gpus)) == tuple(gpus)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:0 A100-80GB", "is not NODE:INDEX MODEL LAYOUT"),
        ("a:0 A100-99GB -", "no GPU model 'A100-99GB'"),
        ("a:0 A100-80GB 3g.40gb@0,4g.40gb@0", "does not fit beside"),
        ("a:0 A100-80GB 3g.40gb@0=x", "is not PROFILE@START=JOBID"),
        ("# fine\na:0 A100-80GB -\na:0 A100-80GB off", "line 3: a:0 occurs twice"),
    ],
)
def test_malformed_inventories_name_the_line(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words.replace("(", r"\(")):
        parse_inventory(text)


def test_demands_are_read() -> None:
    assert parse_demand("2g.20gb=2, 1g.10gb=3,2g.20gb=1") == {"2g.20gb": 3, "1g.10gb": 3}
    assert parse_demand("") == {}
    with pytest.raises(DataError, match="is not PROFILE=COUNT"):
        parse_demand("2g.20gb")
