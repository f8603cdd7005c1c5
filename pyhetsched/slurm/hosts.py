"""Hostlists, folded and expanded by ClusterShell.

Groups (``@all``) are never resolved: they are the user's word, and resolving one may run a command.
"""

from __future__ import annotations

from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError

from pyhetsched.errors import RequestError


def expand(hostlist: str) -> tuple[str, ...]:
    """Return the names in ``hostlist`` (``gpu[01-03]``); raises `RequestError` when it cannot be read."""
    try:
        return tuple(NodeSet(hostlist, resolver=RESOLVER_NOGROUP)) if hostlist else ()
    except NodeSetParseError as error:
        raise RequestError(f"{hostlist!r} is not a host list ({error}); write for example gpu[01-03],login1") from error


def fold(names: Iterable[str]) -> str:
    """Return ``names`` as one hostlist."""
    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))
