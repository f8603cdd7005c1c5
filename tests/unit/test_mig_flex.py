"""One to many: leaves stand for the asked slice, lie where collectives work, and only when that is sooner."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyhetsched.mig.flex import (
    CollectiveSupport,
    FlexGpu,
    Leaves,
    decide,
    leaves_for,
    place_leaves,
    rank_environment,
    starts_sooner,
)
from pyhetsched.mig.layout import Layout, fits
from pyhetsched.mig.profiles import GpuModel, mig_models, model_by_key

A100 = model_by_key("A100-80GB")
STOCK, SHARING = CollectiveSupport((2, 27), (12, 8)), CollectiveSupport((2, 31), (13, 0))


def gpus(*texts: str) -> list[FlexGpu]:
    return [FlexGpu("n0", i, Layout.parse(A100, text)) for i, text in enumerate(texts)]


@settings(deadline=None)
@given(st.sampled_from([(m, p) for m in mig_models() for p in m.profiles]))
def test_leaves_together_hold_what_was_asked(pair: tuple[GpuModel, object]) -> None:
    model = pair[0]
    for asked in model.profiles:
        for leaves in leaves_for(model, asked):
            assert leaves.profile.compute_slices < asked.compute_slices
            assert leaves.count * leaves.profile.compute_slices >= asked.compute_slices
            assert leaves.count * leaves.profile.size >= asked.size
            assert leaves.count > 1


def test_fewest_leaves_come_first() -> None:
    assert leaves_for(A100, A100.profile("4g.40gb"))[0] == Leaves(A100.profile("2g.20gb"), 2)
    assert leaves_for(A100, A100.profile("1g.10gb")) == ()


@pytest.mark.parametrize(
    ("support", "shares"),
    [
        (STOCK, False),
        (SHARING, True),
        (CollectiveSupport((2, 31), (12, 9)), False),
        (CollectiveSupport((2, 30), (13, 0)), False),
        (CollectiveSupport(), False),
        (CollectiveSupport(patched=True), True),
    ],
)
def test_sharing_a_gpu_needs_the_declared_versions(support: CollectiveSupport, shares: bool) -> None:
    assert support.shares_a_gpu is shares


def test_stock_nccl_gets_one_leaf_a_gpu() -> None:
    leaves = Leaves(A100.profile("2g.20gb"), 2)
    assert place_leaves(gpus("-"), leaves, STOCK) is None
    spread = place_leaves(gpus("-", "4g.40gb@0"), leaves, STOCK)
    assert spread is not None
    assert [(index, len(placed)) for index, placed in spread.placements] == [(0, 1), (1, 1)]
    together = place_leaves(gpus("-", "4g.40gb@0"), leaves, SHARING)
    assert together is not None
    assert [(index, len(placed)) for index, placed in together.placements] == [(0, 2)]


def test_leaves_stay_on_one_node() -> None:
    half = Layout.parse(A100, "4g.40gb@0,1g.10gb@6")
    apart = [FlexGpu("n0", 0, half), FlexGpu("n1", 0, half)]
    assert place_leaves(apart, Leaves(A100.profile("2g.20gb"), 2), STOCK) is None


def test_leaves_only_when_sooner() -> None:
    assert starts_sooner(None, 0.0, 3600.0, 2.0)
    assert starts_sooner(1000.0, 0.0, 3600.0, 1.2)
    assert not starts_sooner(500.0, 0.0, 3600.0, 1.2)
    holed = gpus("1g.10gb@0,1g.10gb@4", "1g.10gb@0,1g.10gb@4")
    asked = A100.profile("3g.40gb")
    choice = decide(A100, asked, holed, STOCK, None, 3600.0, 1.2)
    assert choice is not None
    for index, placed in choice.placements:
        assert all(p.start in fits(holed[index].layout, p.profile) for p in placed)
    assert decide(A100, asked, holed, STOCK, 60.0, 3600.0, 1.2) is None
    assert decide(A100, asked, gpus("7g.80gb@0"), STOCK, None, 3600.0, 1.2) is None


def test_each_rank_sees_one_instance_and_no_peer_to_peer() -> None:
    apart, together = rank_environment("MIG-1", False), rank_environment("MIG-1", True)
    assert apart["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert apart["NCCL_P2P_DISABLE"] == "1"
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in apart
    assert together["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
