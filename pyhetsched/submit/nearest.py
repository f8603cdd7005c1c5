"""The nearest request that works, for refusals that help."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pyhetsched.submit.fleet import Offer, types_of

_LOOKALIKES = str.maketrans({"o": "0", "l": "1", "i": "1", "s": "5", "b": "8", "-": "", "_": "", ".": ""})


def nearest_type(text: str, types: Iterable[str]) -> str | None:
    """The type that ``text`` most likely means, or None; letters that look like digits count as those digits."""
    plain = {_plain(name): name for name in types}
    wanted = _plain(text)
    if wanted in plain:
        return plain[wanted]
    near = difflib.get_close_matches(wanted, plain, n=1, cutoff=0.6)
    if near:
        return plain[near[0]]
    inside = [key for key in plain if key and (key in wanted or wanted in key)] if wanted else []
    return plain[max(inside, key=len)] if inside else None


def either(names: Iterable[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *first, last = dict.fromkeys(names) or ("",)
    return f"{', '.join(first)} or {last}" if first else last


def both(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = dict.fromkeys(names) or ("",)
    return f"{', '.join(first)} and {last}" if first else last


def gpus_here(offers: Iterable[Offer]) -> str:
    """The GPU types of ``offers`` for a sentence."""
    return both(types_of(offers)) or "none"


def _plain(text: str) -> str:
    return text.casefold().translate(_LOOKALIKES)
