"""Slice names in every spelling mean the right profiles, and typos are answered with the nearest slices."""

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyhetsched.errors import NeverError, RequestError
from pyhetsched.mig.names import looks_like_slice, parse_slice_name, resolve, suggest
from pyhetsched.mig.profiles import GpuModel, Profile, mig_models, model_by_key

HERE = tuple(model_by_key(k) for k in ("A100-80GB", "H100-80GB-SXM", "A30-24GB", "V100-32GB"))


def meaning(text: str) -> list[str]:
    return [f"{m.model.key} {m.profile.name}" for m in resolve(text, HERE)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1g.10gb", ["A100-80GB 1g.10gb", "H100-80GB-SXM 1g.10gb"]),
        ("1G.10GB", ["A100-80GB 1g.10gb", "H100-80GB-SXM 1g.10gb"]),
        ("a100_1g.10gb", ["A100-80GB 1g.10gb"]),
        ("a100:1g.10gb", ["A100-80GB 1g.10gb"]),
        ("nvidia_a100_80gb_pcie_1g.10gb", ["A100-80GB 1g.10gb"]),
        ("nvidia_a100-sxm4-80gb_3g.40gb", ["A100-80GB 3g.40gb"]),
        ("h100_3g.40gb", ["H100-80GB-SXM 3g.40gb"]),
        ("nvidia_h100_80gb_hbm3_1g.20gb", ["H100-80GB-SXM 1g.20gb"]),
        ("a30_1g.6gb+me", ["A30-24GB 1g.6gb+me"]),
        ("1g.6gb.me", ["A30-24GB 1g.6gb+me"]),
        ("1g.6gb_me", ["A30-24GB 1g.6gb+me"]),
        ("3g.39gb", ["A100-80GB 3g.40gb"]),
    ],
)
def test_spellings(text: str, expected: list[str]) -> None:
    assert looks_like_slice(text)
    assert meaning(text) == expected


PAIRS = [(m, p) for m in mig_models() for p in m.profiles]


@settings(deadline=None)
@given(st.sampled_from(PAIRS), st.data())
def test_every_profile_is_found_under_every_spelling(pair: tuple[GpuModel, Profile], data: st.DataObject) -> None:
    model, profile = pair
    device = data.draw(st.sampled_from(model.nvml_names)).replace(" ", "_")
    prefix = data.draw(st.sampled_from(["", f"{model.gres_type}_", f"{model.gres_type}:", f"{device}_"]))
    text = prefix + profile.name
    if data.draw(st.booleans()):
        text = text.upper()
    found = resolve(text, mig_models())
    assert (model, profile) in [(m.model, m.profile) for m in found]
    assert {m.profile.name for m in found} == {profile.name}


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_answered_or_refused_with_words(text: str) -> None:
    looks_like_slice(text)
    suggest(text, HERE)
    with contextlib.suppress(RequestError):
        assert resolve(text, HERE)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("1g.12gb", NeverError, "nearest here: 1g.10gb"),
        ("1g.5gb", NeverError, "nearest here: 1g.6gb"),
        ("5g.40gb", NeverError, "4g.40gb"),
        ("a10O_1g.10gb", NeverError, "did you mean a100_1g.10gb"),
        ("h200_1g.18gb", NeverError, "did you mean h100_1g.20gb"),
        ("v100_1g.10gb", NeverError, "no MIG GPU here is of type 'v100'"),
        ("1g10gb", RequestError, "nearest here: 1g.10gb"),
        ("1c.3g.40gb", RequestError, "write 3g.40gb"),
    ],
)
def test_what_cannot_be_is_answered_with_the_nearest(text: str, error: type[RequestError], words: str) -> None:
    assert looks_like_slice(text)
    with pytest.raises(error, match=re.escape(words)):
        resolve(text, HERE)


@pytest.mark.parametrize("text", ["a100", "v100", "20gb", "gpu", "", "a10O", "rtx_2080_ti", "gh200"])
def test_gpu_types_are_no_slices(text: str) -> None:
    assert not looks_like_slice(text)
    assert parse_slice_name(text) is None


def test_site_types_come_first() -> None:
    found = resolve("bigmig_1g.10gb", HERE, {"bigmig": ["H100-80GB-SXM"]})
    assert [m.model.key for m in found] == ["H100-80GB-SXM"]


def test_a_cluster_without_mig_says_so() -> None:
    with pytest.raises(NeverError, match="no GPU here can be cut into slices"):
        resolve("1g.10gb", [model_by_key("V100-32GB")])
