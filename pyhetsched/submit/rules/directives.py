"""Reads ``#HETSCHED`` lines of the script and ``--comment=hetsched:``, merged; contradictions are refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator

from pyhetsched.errors import RequestError
from pyhetsched.submit.draft import Draft, Wishes
from pyhetsched.submit.registry import rule

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([gmt])(?:i?b)?", re.IGNORECASE)
_GB = {"m": 1 / 1024, "g": 1.0, "t": 1024.0}
_KEY_AHEAD = re.compile(
    r"[\s;]+|,(?=\s*(?:min[-_]vram|min[-_]cc|types|not[-_]slower[-_]than|slices|preemptible|class|flex|opt[-_]out)\b)",
    re.IGNORECASE,
)


@rule("directives")
def read_directives(draft: Draft) -> Draft:
    """Fill ``wishes``."""
    written: dict[str, str] = {}
    values: dict[str, object] = {}
    for key, text in _items(draft):
        field, read, _ = _FIELDS[key]
        value = read(text if key == "class" else text.casefold())
        if values.setdefault(field, value) != value:
            raise RequestError(f"{key}={written[key]} and {key}={text} contradict each other: write one of them")
        written.setdefault(key, text)
    words = tuple(f"{key}={text}" if text else key for key, text in written.items())
    return draft.change(wishes=Wishes(**values, written=words))  # type: ignore[arg-type]


def _items(draft: Draft) -> Iterator[tuple[str, str]]:
    for text in (*draft.request.script_lines, *_comment_parts(draft.request.comment)):
        for token in _KEY_AHEAD.split(_without_remark(_without_prefix(text))):
            if token := token.strip(","):
                yield _item(token)


def _comment_parts(comment: str) -> list[str]:
    """What follows ``hetsched:`` in a comment that may hold other words before it."""
    return re.findall(r"(?:^|[\s;,])hetsched:(.*)", comment, re.IGNORECASE | re.DOTALL)


def _without_prefix(line: str) -> str:
    return re.sub(r"^\s*#\s*HETSCHED\b:?", "", line, count=1, flags=re.IGNORECASE)


def _without_remark(line: str) -> str:
    """``line`` up to a remark, which begins as in #SBATCH lines."""
    return re.sub(r"(?:^|\s)#.*", "", line, flags=re.DOTALL)


def _item(token: str) -> tuple[str, str]:
    key, equals, value = token.partition("=")
    key = key.strip().casefold().replace("_", "-")
    if key not in _FIELDS:
        near = difflib.get_close_matches(key, _FIELDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(_FIELDS)}"
        raise RequestError(f"unknown directive {token[:60]!r}; {hint}")
    if key != "opt-out" and not (equals and value):
        raise RequestError(f"{key} needs a value, such as {_FIELDS[key][2]}")
    return key, value


def _size(value: str) -> float:
    found = _SIZE.fullmatch(value)
    if found is None:
        raise RequestError(f"min-vram={value[:40]} is no size: write the unit too, such as min-vram=40G")
    return float(found[1]) * _GB[found[2].casefold()]


def _capability(value: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,2})(?:\.(\d{1,2}))?", value)
    if found is None:
        raise RequestError(f"min-cc={value[:40]} is no compute capability: write for example min-cc=8.0")
    return int(found[1]), int(found[2] or 0)


def _types(value: str) -> tuple[str, ...]:
    types = tuple(dict.fromkeys(part for part in re.split(r"[,|]", value) if part))
    if not types:
        raise RequestError("types needs GPU types, such as types=a100,h100")
    return types


def _choice(*choices: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in choices:
            raise RequestError(f"{value[:40]!r} is not one of {', '.join(choices)}")
        return value

    return read


def _yes(value: str) -> bool:
    if value in ("yes", "true", "1", "on"):
        return True
    if value in ("no", "false", "0", "off"):
        return False
    raise RequestError(f"{value[:40]!r} is neither yes nor no")


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
        raise RequestError(f"class={value[:40]} is no name: letters, digits, '_', '.' and '-' only, at most 64")
    return value


_FIELDS: dict[str, tuple[str, Callable[[str], object], str]] = {
    "min-vram": ("min_vram_gb", _size, "min-vram=40G"),
    "min-cc": ("min_cc", _capability, "min-cc=8.0"),
    "types": ("types", _types, "types=a100,h100"),
    "not-slower-than": ("not_slower_than", str, "not-slower-than=v100"),
    "slices": ("slices", _choice("ok", "only", "no"), "slices=ok"),
    "preemptible": ("preemptible", _yes, "preemptible=yes"),
    "class": ("job_class", _name, "class=training"),
    "flex": ("flex", _yes, "flex=yes"),
    "opt-out": ("opt_out", lambda value: _yes(value or "yes"), "opt-out"),
}

KEYS = tuple(_FIELDS)
"""The directives, in the order of the page for users."""
