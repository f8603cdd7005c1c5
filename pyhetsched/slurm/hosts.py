"""Hostlists, folded and expanded by ClusterShell.

Groups (``@all``) are never resolved: they are the user's word, and resolving one may run a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError

from pyhetsched.errors import RequestError

MOST_NAMES = 65536
_LONGEST = 1 << 20
_RANGE = re.compile(r"(?P<low>\d{1,9})(-(?P<high>\d{1,9}))?(/\d{1,9})?")


def expand(hostlist: str) -> tuple[str, ...]:
    """Return the names in ``hostlist`` (``gpu[01-03]``).

    Raises `RequestError` when it cannot be read, or names more than 65536: ``n[1-999999999]`` takes all memory.
    """
    if len(hostlist) > _LONGEST or most_names(hostlist) > MOST_NAMES:
        raise RequestError(f"{hostlist[:60]!r} names more than {MOST_NAMES} hosts; write fewer")
    try:
        return tuple(NodeSet(hostlist, resolver=RESOLVER_NOGROUP)) if hostlist else ()
    except NodeSetParseError as error:
        raise RequestError(f"{hostlist!r} is not a host list ({error}); write for example gpu[01-03],login1") from error


def fold(names: Iterable[str]) -> str:
    """Return ``names`` as one hostlist."""
    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def most_names(hostlist: str) -> int:
    """Return how many names the ranges of ``hostlist`` can make at most: several in one name multiply.

    Raises `RequestError` for ranges that cannot be read.
    """
    most = 0
    for part in re.split(r"[,&!^](?![^\[]*\])", hostlist):
        size = 1
        for bracket in re.findall(r"\[([^\]]*)\]?", part):
            size *= max(1, sum(_range_size(item) for item in re.split(r"[,\s]", bracket)))
        most += size
    return most


def _range_size(item: str) -> int:
    found = _RANGE.fullmatch(item)
    if found is not None:
        return max(1, int(found["high"] or found["low"]) - int(found["low"]) + 1)
    if re.search(r"\d", item):  # ClusterShell reads more than this, such as [-5-5]; Slurm does not
        raise RequestError(f"{item[:60]!r} is not a host list's range of numbers; write for example gpu[01-03],login1")
    return 1
