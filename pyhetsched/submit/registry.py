"""The rules of submit in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from pyhetsched.submit.draft import Draft

Rule = Callable[[Draft], Draft]

_rules: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register a rule; rules run in the order in which :mod:`pyhetsched.submit.rules` imports them.

    A rule takes a draft and returns one. It raises :class:`~pyhetsched.errors.RequestError` to refuse; any
    other exception is a bug, for which the rule alone is passed over.
    """

    def register(function: Rule) -> Rule:
        if name in _rules:
            raise ValueError(f"two rules of submit are called {name!r}; give one of them another name")
        _rules[name] = function
        return function

    return register


def rules() -> tuple[tuple[str, Rule], ...]:
    """All rules by name, in order."""
    import pyhetsched.submit.rules  # noqa: F401  (registers them)

    return tuple(_rules.items())
