"""Feature expressions: reading, asking, and adding without losing what the user wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhetsched.slurm.features import FeatureError, add_features, is_special, names_in, parse_features, satisfies

KNOWN = frozenset("abcdxy")


@pytest.mark.parametrize(
    ("text", "node", "holds"),
    [
        ("", "", True),
        ("a", "a", True),
        ("a", "b", False),
        ("a&b", "a", False),
        ("a,b", "ab", True),
        ("a|b", "b", True),
        ("a|b&c", "a", False),  # from left to right: (a|b)&c
        ("(a&b)|(c&d)", "cd", True),
        ("(a&b)|(c&d)", "bc", False),
        ("[a|b]", "b", True),
        ("[(a&b)|c]", "c", True),
        ("a*2&b*1", "b", True),
        ("[a*2&b*4]", "a", True),
        ("a&unknown", "a", True),  # Slurm itself refuses what no node has
    ],
)
def test_nodes_that_may_serve(text: str, node: str, holds: bool) -> None:
    assert satisfies(parse_features(text), frozenset(node), KNOWN) is holds


@pytest.mark.parametrize("text", ["a&", "&a", "a b", "(a", "a)", "((a))", "[a", "a&&b", "*2", "a;b"])
def test_malformed_expressions_are_refused(text: str) -> None:
    with pytest.raises(FeatureError):
        parse_features(text)


def test_brackets_and_counts_are_special() -> None:
    assert [is_special(parse_features(text)) for text in ("", "a&(b|c)", "[a|b]", "a*2", "x&[a*2&b]")] == [
        False,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("own", "types", "also", "result"),
    [
        ("", ["x"], [], "x"),
        ("", ["x", "y"], [], "x|y"),
        ("(null)", ["x", "y"], ["m"], "(x|y)&m"),
        ("", [], ["m"], "m"),
        ("a", ["x"], [], "a&x"),
        ("a&b", ["x", "y"], [], "a&b&(x|y)"),
        ("a|b", ["x", "y"], ["m"], "(a|b)&(x|y)&m"),
        ("(a|b)&c", ["x"], [], "(a|b)&c&x"),
    ],
)
def test_features_are_added_behind_the_users_own(own: str, types: list[str], also: list[str], result: str) -> None:
    assert add_features(own, types, also) == result


names = st.sampled_from(sorted(KNOWN))
chains = st.lists(names, min_size=1, max_size=4).flatmap(
    lambda terms: st.lists(st.sampled_from("&|"), min_size=len(terms), max_size=len(terms)).map(
        lambda ops: "".join(f"{op if i else ''}{term}" for i, (op, term) in enumerate(zip(ops, terms, strict=True)))
    )
)
expressions = st.lists(chains.map("({})".format), min_size=1, max_size=3).map("&".join) | chains


@given(expressions, st.lists(names, max_size=3), st.lists(names, max_size=2), st.frozensets(names))
def test_added_features_narrow_only(own: str, types: list[str], also: list[str], node: frozenset[str]) -> None:
    both = add_features(own, types, also)
    wanted = (
        satisfies(parse_features(own), node, KNOWN) and (not types or bool(node & set(types))) and node >= set(also)
    )
    assert satisfies(parse_features(both), node, KNOWN) is wanted
    assert own in both
    assert set(names_in(parse_features(both))) == {*names_in(parse_features(own)), *types, *also}
