"""The shard weights count exactly what MIG can host, checked by a brute force that shares no code with them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyhetsched.errors import LayoutError
from pyhetsched.mig.geometry import Geometry, Media, Shape
from pyhetsched.mig.profiles import GpuModel, Profile, mig_models, shards_per_gpu, weight, weights_by_name
from pyhetsched.mig.weights import exact_weights


def kinds(model: GpuModel) -> list[Profile]:
    return [p for p in model.profiles if not p.variant]


def can_host(model: GpuModel, wanted: tuple[Profile, ...], taken: int = 0) -> bool:
    """Whether some legal layout hosts ``wanted``: plain backtracking over the placement table."""
    if sum(p.compute_slices for p in wanted) > model.total_compute_slices:
        return False
    return _place(sorted(wanted, key=lambda p: -p.size), taken)


def _place(wanted: list[Profile], taken: int) -> bool:
    if not wanted:
        return True
    first, rest = wanted[0], wanted[1:]
    for start in first.starts:
        run = ((1 << first.size) - 1) << start
        if not taken & run and _place(rest, taken | run):
            return True
    return False


def test_fifteen_models_are_tabulated() -> None:
    assert len(mig_models()) == 15


@pytest.mark.parametrize("model", mig_models(), ids=str)
def test_sum_of_weights_admits_exactly_what_some_layout_hosts(model: GpuModel) -> None:
    costs, capacity = weights_by_name(model), shards_per_gpu(model)
    for size in range(1, 10):
        for wanted in itertools.combinations_with_replacement(kinds(model), size):
            admitted = sum(costs[p.name] for p in wanted) <= capacity
            assert admitted == can_host(model, wanted), [p.name for p in wanted]


@settings(deadline=None)
@given(st.sampled_from(mig_models()), st.data())
def test_larger_multisets_are_refused_too(model: GpuModel, data: st.DataObject) -> None:
    wanted = tuple(data.draw(st.lists(st.sampled_from(kinds(model)), min_size=1, max_size=14)))
    assert (sum(weight(model, p) for p in wanted) <= shards_per_gpu(model)) == can_host(model, wanted)


@pytest.mark.parametrize("model", mig_models(), ids=str)
def test_variants_weigh_as_their_kind_and_the_whole_gpu_takes_all(model: GpuModel) -> None:
    for profile in model.profiles:
        plain = next(
            p
            for p in kinds(model)
            if (p.compute_slices, p.size, p.starts) == (profile.compute_slices, profile.size, profile.starts)
        )
        assert weight(model, profile) == weight(model, plain)
    assert weight(model, model.whole_profile) == shards_per_gpu(model)


def test_known_weights() -> None:
    by_key = {m.key: m for m in mig_models()}
    plain = [weights_by_name(by_key["A100-80GB"])[p.name] for p in kinds(by_key["A100-80GB"])]
    assert (shards_per_gpu(by_key["A100-80GB"]), plain) == (31, [4, 7, 8, 15, 16, 31])
    for key in ("A30-24GB", "RTX-PRO-6000-Blackwell"):
        assert shards_per_gpu(by_key[key]) == 4
        assert [weight(by_key[key], p) for p in kinds(by_key[key])] == [1, 2, 4]


@st.composite
def small_geometries(draw: st.DrawFn) -> Geometry:
    memory = draw(st.integers(1, 6))
    shapes = []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, memory))
        starts = draw(st.sets(st.integers(0, memory - size), min_size=1))
        shapes.append(Shape(draw(st.integers(1, 4)), size, tuple(sorted(starts)), Media.SHARE))
    return Geometry(draw(st.integers(1, 6)), memory, tuple(shapes))


@settings(deadline=None)
@given(small_geometries())
def test_weights_of_unseen_geometries_are_exact_or_refused(geometry: Geometry) -> None:
    try:
        found = exact_weights(geometry)
    except LayoutError:
        return
    for size in range(1, 8):
        for wanted in itertools.combinations_with_replacement(range(len(geometry.shapes)), size):
            shapes = [geometry.shapes[i] for i in wanted]
            profiles = [Profile("1g.1gb", None, None, s.compute, s.size, s.starts) for s in shapes]
            compute_fits = sum(s.compute for s in shapes) <= geometry.compute
            hosted = compute_fits and _place(sorted(profiles, key=lambda p: -p.size), 0)
            assert (sum(found.by_shape[i] for i in wanted) <= found.shards_per_gpu) == hosted
