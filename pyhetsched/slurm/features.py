"""Feature expressions of ``--constraint``: reading them, asking whether a node satisfies one, and adding to one.

Slurm reads operators from left to right without precedence, allows one level of parentheses, square brackets
for "one of these on all nodes", and ``*N`` for counts of nodes (sbatch(1), ``--constraint``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass

from pyhetsched.errors import RequestError

_TOKEN = re.compile(r"\s*([&|,()\[\]]|\*\d+|[A-Za-z0-9_.:=+/-]+)\s*")


class FeatureError(RequestError):
    """A feature expression is malformed; Slurm itself will say so."""


@dataclass(frozen=True, slots=True)
class Name:
    """One feature."""

    text: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Terms joined by operators (``&`` or ``|``), one fewer than terms, read from left to right.

    ``bracket`` is ``[`` or ``(`` or empty; ``counted`` says that ``*N`` stands somewhere inside.
    """

    terms: tuple[Name | Chain, ...]
    operators: tuple[str, ...] = ()
    bracket: str = ""
    counted: bool = False


def parse_features(text: str) -> Chain | None:
    """Parse an expression; None when it is empty or ``(null)``. Raises :class:`FeatureError`."""
    if text.strip() in ("", "(null)"):
        return None
    chain, rest = _chain(_tokens(text), "")
    if rest:
        raise FeatureError(f"cannot read {text[:200]!r} from {rest[0]!r} on")
    return chain


def satisfies(expression: Chain | None, features: Set[str], known: Set[str]) -> bool:
    """Whether a node with ``features`` may serve the expression.

    Features outside ``known`` hold everywhere, since Slurm refuses them in its own words. With counts of nodes
    a node may serve if it has any of the counted features.
    """
    return expression is None or _holds(expression, features, known)


def names_in(expression: Chain | None) -> tuple[str, ...]:
    """The features that occur, in order."""
    if expression is None:
        return ()
    return tuple(n for t in expression.terms for n in ((t.text,) if isinstance(t, Name) else names_in(t)))


def is_special(expression: Chain | None) -> bool:
    """Whether brackets or counts occur, to which nothing can safely be added."""
    return expression is not None and (
        expression.counted
        or expression.bracket == "["
        or any(is_special(term) for term in expression.terms if isinstance(term, Chain))
    )


def any_of(features: Iterable[str]) -> str:
    """An expression that any of ``features`` satisfies, in the order given, without parentheses."""
    return "|".join(dict.fromkeys(features))


def add_features(text: str, alternatives: Iterable[str], also: Iterable[str] = ()) -> str:
    """The user's expression ``text`` AND (one of ``alternatives``) AND every feature of ``also``.

    What the user wrote stands first and is kept character for character: operators are read from left to
    right, so all of it binds before what is appended. Only a bare alternative (``a|b``) is put in
    parentheses. The result is for expressions that are not :func:`is_special`.
    """
    options = tuple(dict.fromkeys(alternatives))
    one = any_of(options) if len(options) < 2 else f"({any_of(options)})"
    added = [part for part in (one, *dict.fromkeys(also)) if part]
    own = "" if text.strip() == "(null)" else text.strip()
    if own and "|" in own and "(" not in own:
        own = f"({own})"
    if not own and len(added) == 1:
        return any_of(options) or added[0]
    return "&".join([own, *added] if own else added)


def _tokens(text: str) -> list[str]:
    tokens, place = [], 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise FeatureError(f"cannot read {text[:200]!r} at character {place + 1}")
        tokens.append(found[1])
        place = found.end()
    return tokens


def _chain(tokens: list[str], bracket: str) -> tuple[Chain, list[str]]:
    """Read terms and operators until the closing bracket (or the end); return what is left."""
    terms: list[Name | Chain] = []
    operators: list[str] = []
    counted = False
    while True:
        term, tokens = _term(tokens, bracket)
        terms.append(term)
        if tokens and tokens[0].startswith("*"):
            counted, tokens = True, tokens[1:]
        if not tokens or tokens[0] in ")]":
            break
        if tokens[0] not in ("&", "|", ","):
            raise FeatureError(f"an operator (& or |) is missing before {tokens[0]!r}")
        operators.append("&" if tokens[0] == "," else tokens[0])
        tokens = tokens[1:]
    if bracket:
        if tokens[:1] != [")" if bracket == "(" else "]"]:
            raise FeatureError(f"{bracket!r} is not closed")
        tokens = tokens[1:]
    return Chain(tuple(terms), tuple(operators), bracket, counted), tokens


def _term(tokens: list[str], bracket: str) -> tuple[Name | Chain, list[str]]:
    if not tokens:
        raise FeatureError("a feature is missing at the end")
    head = tokens[0]
    if head in ("(", "["):
        if bracket in ("(", head):
            raise FeatureError("parentheses cannot be nested")
        return _chain(tokens[1:], head)
    if head in ("&", "|", ",", ")", "]") or head.startswith("*"):
        raise FeatureError(f"a feature is missing before {head!r}")
    return Name(head), tokens[1:]


def _holds(term: Name | Chain, features: Set[str], known: Set[str]) -> bool:
    if isinstance(term, Name):
        return term.text in features or term.text not in known
    held = [_holds(each, features, known) for each in term.terms]
    if term.counted:
        return any(held)
    result = held[0]
    for operator, value in zip(term.operators, held[1:], strict=True):
        result = (result and value) if operator == "&" else (result or value)
    return result
