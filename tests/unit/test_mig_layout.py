"""Layouts are values: legality, text, starts that keep most open, and fragmentation."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyhetsched.errors import LayoutError
from pyhetsched.mig.layout import (
    Layout,
    Placement,
    choose_start,
    choose_starts,
    fits,
    fragmentation,
    holes,
    legal_layouts,
    maximal_layouts,
    remaining,
    remaining_by_shards,
)
from pyhetsched.mig.profiles import GpuModel, mig_models, model_by_key, shards_per_gpu

A100 = model_by_key("A100-80GB")
RTX = model_by_key("RTX-PRO-6000-Blackwell")
PLAIN = [p.name for p in A100.plain_profiles]


@st.composite
def layouts(draw: st.DrawFn, models: tuple[GpuModel, ...] = mig_models()) -> Layout:
    layout = Layout.empty(draw(st.sampled_from(models)))
    for profile in draw(st.lists(st.sampled_from(layout.model.profiles), max_size=7)):
        starts = fits(layout, profile)
        if starts:
            layout = layout.with_placement(profile, draw(st.sampled_from(starts)))
    return layout


def test_a100_has_298_legal_layouts_19_of_them_maximal() -> None:
    legal = legal_layouts(A100, PLAIN)
    assert PLAIN == ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert len(legal) == len(set(legal)) == 298
    assert len(maximal_layouts(A100, PLAIN)) == 19
    assert len({tuple(sorted(layout.counts.items())) for layout in legal}) == 38


@settings(deadline=None)
@given(layouts())
def test_text_round_trips(layout: Layout) -> None:
    again = Layout.parse(layout.model, str(layout))
    assert again == layout
    assert hash(again) == hash(layout)
    assert Layout.of(layout.model, reversed(layout.placements)) == layout


@settings(deadline=None)
@given(layouts())
def test_legal_layouts_respect_every_limit(layout: Layout) -> None:
    model = layout.model
    assert layout.is_legal
    assert layout.compute_used <= model.total_compute_slices
    taken = [s for p in layout for s in range(p.start, p.end)]
    assert len(taken) == len(set(taken))
    assert all(0 <= s < model.total_memory_slices for s in taken)
    assert len(layout) <= model.max_gpu_instances
    for name, count in layout.counts.items():
        assert count <= model.profile(name).max_instances
    assert layout.shards_used <= shards_per_gpu(model)
    assert sum(n for name, n in layout.counts.items() if "+me" in name) <= 1


@settings(deadline=None)
@given(layouts(), st.data())
def test_subsets_of_legal_layouts_are_legal(layout: Layout, data: st.DataObject) -> None:
    kept = [p for p in layout if data.draw(st.booleans())]
    part = Layout.of(layout.model, kept)
    assert part.is_legal
    assert part <= layout


@settings(deadline=None)
@given(layouts())
def test_shards_never_admit_less_than_geometry(layout: Layout) -> None:
    possible, counted = remaining(layout), remaining_by_shards(layout)
    for name in possible:
        assert possible[name] <= counted[name]
    for profile in holes(layout):
        assert possible[profile.name] == 0
    assert 0.0 <= fragmentation(layout) < 1.0


@settings(deadline=None)
@given(layouts())
def test_an_empty_or_full_gpu_is_not_fragmented(layout: Layout) -> None:
    assert fragmentation(Layout.empty(layout.model)) == 0.0
    if not any(fits(layout, p) for p in layout.model.profiles):
        assert not any(remaining(layout).values())


@settings(deadline=None)
@given(layouts(), st.data())
def test_chosen_starts_are_legal_and_found_when_any_exist(layout: Layout, data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(layout.model.profiles), min_size=1, max_size=4))
    chosen = choose_starts(layout, wanted)
    spots = [p.starts for p in wanted]
    possible = any(
        Layout.of(layout.model, [*layout, *map(Placement, wanted, starts)]).is_legal
        for starts in itertools.islice(itertools.product(*spots), 5000)
    )
    if chosen is None:
        assert not possible
    else:
        assert Layout.of(layout.model, [*layout, *map(Placement, wanted, chosen)]).is_legal


@settings(deadline=None)
@given(layouts(), st.data())
def test_chosen_start_keeps_most_open(layout: Layout, data: st.DataObject) -> None:
    profile = data.draw(st.sampled_from(layout.model.profiles))
    start = choose_start(layout, profile)
    options = fits(layout, profile)
    assert (start is None) == (not options)
    if start is not None:
        left = {s: sum(remaining(layout.with_placement(profile, s)).values()) for s in options}
        kinds = {p.name for p in layout.model.profiles if not p.variant}
        open_after = {
            s: sum(n for name, n in remaining(layout.with_placement(profile, s)).items() if name in kinds) for s in left
        }
        assert start in options
        assert open_after[start] == max(open_after.values())


@pytest.mark.parametrize(
    ("profile", "start"),
    [("1g.10gb", 6), ("1g.20gb", 6), ("2g.20gb", 4), ("3g.40gb", 4), ("4g.40gb", 0), ("7g.80gb", 0)],
)
def test_first_choice_on_an_empty_a100_strands_nothing(profile: str, start: int) -> None:
    assert choose_start(Layout.empty(A100), A100.profile(profile)) == start


def test_any_order_of_a_mix_that_fills_the_gpu_is_placed_at_once() -> None:
    mix = ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
    for order in set(itertools.permutations(mix)):
        starts = choose_starts(Layout.empty(A100), [A100.profile(name) for name in order])
        assert starts is not None
        assert Layout.of(A100, zip(order, starts, strict=True)).is_legal


def test_a_hole_is_seen() -> None:
    layout = Layout.parse(A100, "1g.10gb@0,1g.10gb@4")
    assert A100.profile("3g.40gb") in holes(layout)
    assert remaining(layout)["3g.40gb"] == 0
    assert remaining_by_shards(layout)["3g.40gb"] == 1
    assert fragmentation(layout) > 0


def test_media_engines_limit_what_shards_cannot_count() -> None:
    one = Layout.parse(A100, "1g.10gb+me@6")
    assert fits(one, A100.profile("1g.10gb+me")) == ()
    assert fits(one, A100.profile("1g.10gb"))
    everything = Layout.parse(RTX, "1g.24gb+me.all@0")
    assert fits(everything, RTX.profile("1g.24gb")) == ()
    assert fits(everything, RTX.profile("1g.24gb+gfx")) == ()
    assert fits(everything, RTX.profile("2g.48gb-me")) == (6,)
    assert fits(Layout.parse(RTX, "1g.24gb@0"), RTX.profile("2g.48gb+me.all")) == ()


def test_illegal_layouts_say_what_does_not_fit() -> None:
    with pytest.raises(LayoutError, match="4g.40gb@0 does not fit beside 3g.40gb@0"):
        Layout.parse(A100, "3g.40gb@0,4g.40gb@0")
    with pytest.raises(LayoutError, match="not PROFILE@START"):
        Layout.parse(A100, "3g.40gb")
    with pytest.raises(LayoutError, match="has no profile '5g.40gb'"):
        Layout.parse(A100, "5g.40gb@0")
    with pytest.raises(LayoutError, match="no instance at start 3"):
        Layout.empty(A100).without(3)
    foreign = Layout.of(A100, [("3g.40gb", 1)])
    assert not foreign.is_legal
    with pytest.raises(LayoutError, match="3g.40gb@1 does not fit beside an empty GPU"):
        fits(foreign, A100.profile("1g.10gb"))


def test_with_and_without_are_inverse() -> None:
    layout = Layout.parse(A100, "4g.40gb@0,1g.10gb@6")
    grown = layout.with_placement(A100.profile("2g.20gb"), 4)
    assert grown.without(4) == layout
    assert layout <= grown
    assert not grown <= layout
    with pytest.raises(LayoutError, match="does not fit"):
        grown.with_placement(A100.profile("1g.10gb"), 6)
