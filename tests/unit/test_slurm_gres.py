"""The grammar of GRES and TRES."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhetsched.slurm.gres import GresEntry, GresError, format_gres, parse_count, parse_gres, parse_per_gpu


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", ()),
        ("(null)", ()),
        ("none", ()),
        ("gres/gpu:a100:2", (GresEntry("gpu", "a100", 2),)),
        ("gres:gpu:2", (GresEntry("gpu", None, 2),)),
        ("gpu", (GresEntry("gpu"),)),
        ("gpu:a100", (GresEntry("gpu", "a100"),)),
        ("gres/gpu=1", (GresEntry("gpu", None, 1),)),
        ("gres/gpu:1g.10gb=1", (GresEntry("gpu", "1g.10gb", 1),)),
        ("gpu:a100:1g.10gb:1", (GresEntry("gpu", "a100:1g.10gb", 1),)),
        ("gpu:2k", (GresEntry("gpu", None, 2048),)),
        ("GPU:NVIDIA-H100_80GB.HBM3:1", (GresEntry("gpu", "NVIDIA-H100_80GB.HBM3", 1),)),
        ("gpu:a100:4(S:0-1),shard:31", (GresEntry("gpu", "a100", 4, suffix="(S:0-1)"), GresEntry("shard", None, 31))),
        ("gpu:tesla:2(IDX:0,4-5)", (GresEntry("gpu", "tesla", 2, suffix="(IDX:0,4-5)"),)),
        ("gpu:tesla:2,gpu:kepler:2", (GresEntry("gpu", "tesla", 2), GresEntry("gpu", "kepler", 2))),
        (",gpu:1,,nic:2,", (GresEntry("gpu", None, 1), GresEntry("nic", None, 2))),
        ("cpu=2,gres/gpu:1", (GresEntry("cpu", None, 2, kind="cpu"), GresEntry("gpu", None, 1))),
        ("license/matlab:1", (GresEntry("license/matlab", None, 1, kind="license/matlab"),)),
    ],
)
def test_every_spelling_is_read(text: str, entries: tuple[GresEntry, ...]) -> None:
    assert parse_gres(text) == entries


@pytest.mark.parametrize(
    "text", ["gpu:a:b:1", "gpu::1", "gpu:1)", "gpu:(1", ":1", "gpu:a b:1", "gpu:1(S:0)(S:1)", "cpu=x"]
)
def test_malformed_entries_are_named(text: str) -> None:
    with pytest.raises(GresError):
        parse_gres(text)


def test_counts_have_binary_suffixes() -> None:
    assert [parse_count(text) for text in ("4", "1k", "2M", "1g")] == [4, 1024, 2 * 2**20, 2**30]
    assert parse_count("a100") is None


def test_amounts_per_gpu() -> None:
    assert parse_per_gpu("gres/gpu:4") == 4
    assert parse_per_gpu("gres/nic:4") is None
    assert parse_per_gpu("gpu:(") is None


words = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,12}", fullmatch=True)
slices = st.sampled_from(["1g.10gb", "1g.10gb+me", "a100:1g.10gb", "nvidia_a100_80gb_pcie_3g.40gb", "20gb"])
types = st.one_of(st.none(), words, slices)
counts = st.one_of(st.none(), st.integers(0, 10**9))
suffixes = st.sampled_from(["", "(S:0-1)", "(IDX:0,4-5)", "(CNT:4)", "(4/8,0/8)"])
entries = st.builds(GresEntry, st.sampled_from(["gpu", "shard", "nic", "craynetwork"]), types, counts, suffix=suffixes)


@given(st.lists(entries, max_size=5))
def test_what_is_written_is_read_back(written: list[GresEntry]) -> None:
    assert parse_gres(format_gres(written)) == tuple(written)


@given(st.text(max_size=60))
def test_any_text_is_read_or_named(text: str) -> None:
    try:
        read = parse_gres(text)
    except GresError:
        return
    assert parse_gres(format_gres(read)) == read
