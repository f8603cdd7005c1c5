"""The shipped tables: models are found by what NVML and Slurm call them; unknown stays unknown."""

import pytest

from pyhetsched.errors import LayoutError
from pyhetsched.mig.profiles import (
    catalogue,
    find_model,
    geometry_of,
    mig_models,
    model_by_key,
    models_of_type,
)


@pytest.mark.parametrize(
    ("name", "memory_mib", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", 40960, "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", None, "H100-80GB-SXM"),
        ("NVIDIA H100 PCIe", None, "H100-80GB-PCIe"),
        ("NVIDIA H100 NVL", None, "H100-NVL-94GB"),
        ("NVIDIA GH200 480GB", None, "GH200-96GB"),
        ("NVIDIA H200", None, "H200-141GB"),
        ("NVIDIA GB200", 189_000, "GB200-189GB"),
        ("NVIDIA GB200", 186_000, "GB200-186GB"),
        ("NVIDIA A30", None, "A30-24GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "RTX-PRO-6000-Blackwell"),
        ("Tesla V100-SXM2-32GB", None, "V100-32GB"),
        ("Tesla V100-PCIE-16GB", None, "V100-16GB"),
        ("Tesla T4", None, "T4"),
        ("NVIDIA L40S", None, "L40S"),
    ],
)
def test_models_are_found_by_device_name(name: str, memory_mib: int | None, key: str) -> None:
    found = find_model(name, memory_mib)
    assert found is not None
    assert found.key == key


def test_an_unknown_name_is_found_by_pci_id_or_not_at_all() -> None:
    assert find_model("NVIDIA PG506-232") is None
    found = find_model("NVIDIA PG506-232", pci_device_id=0x20B6)
    assert found is not None
    assert found.key == "GH200-96GB"


def test_types_mean_models() -> None:
    assert [m.key for m in models_of_type("a100")] == ["A100-40GB", "A100-80GB"]
    assert [m.key for m in models_of_type("nvidia_a100_80gb_pcie")] == ["A100-80GB"]
    assert [m.key for m in models_of_type("A100-80GB")] == ["A100-80GB"]
    assert [m.key for m in models_of_type("l40")] == ["L40"]
    assert models_of_type("a10O") == ()
    assert models_of_type("") == ()


def test_unknown_stays_unknown() -> None:
    assert model_by_key("H100-80GB-PCIe").memory_mib is None
    assert model_by_key("B300-269GB").profile("1g.34gb").memory_mib is None
    assert model_by_key("B300-269GB").profile("1g.34gb").memory_gb == 34


def test_keys_are_found_in_any_case_and_typos_named() -> None:
    assert model_by_key("a100-80gb").key == "A100-80GB"
    with pytest.raises(LayoutError, match="known: A30-24GB"):
        model_by_key("a100")
    with pytest.raises(LayoutError, match="has no MIG"):
        geometry_of(model_by_key("T4"))


def test_every_model_is_consistent() -> None:
    for key, model in catalogue().items():
        assert key == model.key
        assert model.mig_capable == (model.total_compute_slices > 0)
        if model.memory_mib is not None:
            assert 0.9 < model.memory_mib / (model.memory_gb * 1000) < 1.06
    for model in mig_models():
        assert len({p.name for p in model.profiles}) == len(model.profiles)
        assert model.whole_profile.size == model.total_memory_slices
        for profile in model.profiles:
            assert profile.gi_profile_id is not None
            assert model.profile_by_id(profile.gi_profile_id) is profile
            assert all(s + profile.size <= model.total_memory_slices for s in profile.starts)
            if profile.memory_mib is not None:
                assert 0.85 < profile.memory_mib / (profile.memory_gb * 1000) < 1.05
