"""The grammar of GRES and TRES requests, in every spelling that Slurm's clients produce.

``tres_per_node`` and its sisters hold comma lists such as ``gres/gpu:a100:2``, ``gres:gpu:2`` (Slurm 22.05),
``gres/gpu=1``, ``gres/gpu:1g.10gb=1``, ``cpu=2,gres/gpu:1``; node lines and job details add suffixes such as
``(S:0-1)`` and ``(IDX:0,4-5)``. Counts may carry k, m, g, t, p (powers of 1024; ``src/common/gres.c``).
Sources: sbatch(1) ``--gres``, ``--gpus``, ``--tres-per-task``; gres.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pyhetsched.errors import RequestError

_SUFFIX = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_COUNT = re.compile(r"(\d{1,18})([kmgtp]?)", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_SLICE = re.compile(r"\d+g\.", re.IGNORECASE)
_EMPTY = frozenset({"", "(null)", "n/a", "none"})


class GresError(RequestError):
    """A GRES string is malformed; Slurm itself will say so."""


@dataclass(frozen=True, slots=True)
class GresEntry:
    """One entry of a comma list.

    ``kind`` is ``gres`` or, for entries that are no GRES, the TRES (``cpu``, ``license/matlab``). ``name`` is the
    GRES (``gpu``, ``shard``), ``type`` its type or None, ``count`` None where it is omitted (Slurm reads 1).
    ``suffix`` is what stands in parentheses behind it, with them.
    """

    name: str
    type: str | None = None
    count: int | None = None
    kind: str = "gres"
    suffix: str = ""

    @property
    def amount(self) -> int:
        """The count, 1 where it is omitted."""
        return 1 if self.count is None else self.count

    def __str__(self) -> str:
        if self.kind != "gres":
            return self.kind if self.count is None else f"{self.kind}={self.count}"
        parts = [f"gres/{self.name}", *([self.type] if self.type is not None else [])]
        return ":".join([*parts, *([str(self.count)] if self.count is not None else [])]) + self.suffix


def parse_gres(text: str) -> tuple[GresEntry, ...]:
    """Parse a comma list of GRES or TRES; empty, ``(null)`` and ``none`` give no entries.

    Raises :class:`GresError` with the entry that cannot be read.
    """
    if text.strip().casefold() in _EMPTY:
        return ()
    return tuple(_entry(part) for part in _split(text))


def format_gres(entries: Iterable[GresEntry]) -> str:
    """The canonical text of ``entries``: ``gres/NAME[:TYPE][:COUNT]``, comma-separated."""
    return ",".join(str(entry) for entry in entries)


def parse_count(text: str) -> int | None:
    """A count such as ``4`` or ``2k``; None if ``text`` is none."""
    found = _COUNT.fullmatch(text)
    return None if found is None else int(found[1]) * _SUFFIX[found[2].casefold()]


def parse_per_gpu(text: str) -> int | None:
    """The count of ``cpus_per_tres`` and ``mem_per_tres`` (``gres/gpu:4``); None when it is not about GPUs."""
    try:
        entries = parse_gres(text)
    except GresError:
        return None
    counts = [entry.count for entry in entries if entry.kind == "gres" and entry.name == "gpu"]
    return counts[0] if len(counts) == 1 else None


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses and drop empty parts."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth < 0:
            raise GresError(f"{text[:200]!r}: a parenthesis closes that was never opened")
        if char == "," and not depth:
            parts.append(current)
            current = ""
        else:
            current += char
    if depth:
        raise GresError(f"{text[:200]!r}: a parenthesis is not closed")
    return [part.strip() for part in (*parts, current) if part.strip()]


def _entry(part: str) -> GresEntry:
    text, suffix = _cut_suffix(part)
    lowered = text.casefold()
    if lowered.startswith(("gres/", "gres:")):
        text = text[5:]
    elif _is_other_tres(lowered):
        return _other(text, part)
    fields = re.split("[:=]", text)
    if not all(_WORD.fullmatch(field) for field in fields):
        raise GresError(f"cannot read the GRES {part[:100]!r}; write NAME[:TYPE][:COUNT]")
    return _gres(fields, suffix, part)


def _gres(fields: list[str], suffix: str, part: str) -> GresEntry:
    name = fields[0].casefold() if fields[0].casefold() in ("gpu", "shard", "mps") else fields[0]
    types = fields[1:]
    count = parse_count(types[-1]) if types else None
    if count is not None:
        types = types[:-1]
    if len(types) == 2 and _SLICE.match(types[1]):  # gpu:a100:1g.10gb, a type and a slice of it
        types = [":".join(types)]
    if len(types) > 1:
        raise GresError(f"cannot read the count in {part[:100]!r}; write NAME:TYPE:COUNT")
    return GresEntry(name, types[0] if types else None, count, suffix=suffix)


def _cut_suffix(part: str) -> tuple[str, str]:
    if not part.endswith(")"):
        return part, ""
    text, _, suffix = part.partition("(")
    if "(" in suffix or ")" in suffix[:-1]:
        raise GresError(f"cannot read the suffix of {part[:100]!r}")
    return text, "(" + suffix


_OTHER = ("cpu", "mem", "node", "billing", "energy", "vmem", "pages", "fs/", "ic/", "bb/", "license/", "licenses")


def _is_other_tres(lowered: str) -> bool:
    head = re.split("[:=]", lowered)[0]
    return head in _OTHER or lowered.startswith(tuple(o for o in _OTHER if o.endswith("/")))


def _other(text: str, part: str) -> GresEntry:
    head, count = re.fullmatch("([^:=]*)(?:[:=](.*))?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    value = None if count is None else parse_count(count)
    if not re.fullmatch(r"[A-Za-z0-9_./@+-]+", head) or (count is not None and value is None):
        raise GresError(f"cannot read the TRES {part[:100]!r}; write NAME=COUNT")
    return GresEntry(head, None, value, kind=head)
