"""Slice names in the spellings that users and static MIG sites have: which profiles they can mean.

Understood: ``1g.10gb``; a model or device name before it (``a100_1g.10gb``, ``a100:1g.10gb``,
``nvidia_a100_80gb_pcie_1g.10gb``); media and graphics variants with ``+``, ``.`` or ``_``
(``1g.10gb+me``, ``1g.10gb.me``); any case; the names that other driver versions give a profile
(``3g.39gb``). A profile is matched by its figures, never by position in a list.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyhetsched.errors import NeverError, RequestError
from pyhetsched.mig.profiles import GpuModel, Profile, models_of_type

_SLICE = re.compile(
    r"^(?:(?P<prefix>[a-z0-9][a-z0-9._+ -]*?)[_:-])?"
    r"(?:(?P<ci>\d+)c\.)?(?P<compute>\d+)g\.(?P<memory>\d+)gb"
    r"(?P<variant>[+._](?:me\.all|me|gfx)|[._]?-me)?$"
)
_LIKE_SLICE = re.compile(r"(?:^|[_:.-])\d+g[._-]?\d+(?:g|gb|gib)?(?:$|[+._-])")


@dataclass(frozen=True, slots=True)
class SliceName:
    """A slice name taken apart: an optional model ``prefix``, slices, gigabytes, and the variant (``+me``)."""

    prefix: str
    compute_slices: int
    memory_gb: int
    variant: str

    @property
    def profile_name(self) -> str:
        """The canonical spelling without the prefix."""
        return f"{self.compute_slices}g.{self.memory_gb}gb{self.variant}"


@dataclass(frozen=True, slots=True)
class Meaning:
    """One thing that a slice name can mean."""

    model: GpuModel
    profile: Profile


def looks_like_slice(text: str) -> bool:
    """Whether ``text`` is meant as a slice name, well formed or not (``1g.10gb``, ``1g10gb``, ``a100_2g.20``)."""
    lowered = text.casefold().strip()
    return bool(_SLICE.match(lowered) or _LIKE_SLICE.search(lowered))


def parse_slice_name(text: str) -> SliceName | None:
    """``text`` taken apart, None if it is no slice name.

    Raises :class:`RequestError` for a part of an instance (``1c.3g.20gb``): slices are isolated whole.
    """
    found = _SLICE.match(text.casefold().strip())
    if found is None:
        return None
    if found["ci"]:
        whole = text.casefold().partition("c.")[2]
        raise RequestError(f"{text} names a part of a GPU instance; only whole instances are served: write {whole}")
    variant = (found["variant"] or "").lstrip("._")
    if variant and variant[0] not in "+-":
        variant = f"+{variant}"
    return SliceName(found["prefix"] or "", int(found["compute"]), int(found["memory"]), variant)


def resolve(
    text: str, models: Sequence[GpuModel], site_types: Mapping[str, Sequence[str]] | None = None
) -> tuple[Meaning, ...]:
    """All that the slice name ``text`` can mean on a cluster that has ``models``, in their order.

    ``site_types`` maps the site's own gres types to model keys. Exact profile names win over the names of
    other driver versions. Raises :class:`NeverError`, naming the nearest slices there are, if it means
    nothing here, and :class:`RequestError` if it is no slice name.
    """
    name = parse_slice_name(text)
    if name is None:
        raise RequestError(f"{text!r} is not a slice name such as 1g.10gb{_did_you_mean(text, models)}")
    named = _models_of_prefix(name.prefix, models, site_types or {})
    if not named:
        raise NeverError(f"no MIG GPU here is of type {name.prefix!r}{_nearest_types(name, models, site_types)}")
    wanted = name.profile_name
    meanings = tuple(Meaning(m, p) for m in named for p in m.profiles if p.name == wanted)
    if not meanings:
        meanings = tuple(Meaning(m, p) for m in named for p in m.profiles if wanted in p.other_names)
    if not meanings:
        raise NeverError(f"no GPU here has a slice {wanted}{_did_you_mean(wanted, named)}")
    return meanings


def suggest(text: str, models: Iterable[GpuModel], most: int = 3) -> tuple[str, ...]:
    """The names of existing slices nearest to ``text``, best first."""
    names = sorted({p.name for m in models for p in m.profiles})
    lowered = text.casefold().strip()
    tail = re.search(r"\d+g.*$", lowered)
    wanted = tail[0] if tail else lowered
    scored = sorted(names, key=lambda name: (-_likeness(wanted, name), name))
    return tuple(name for name in scored[:most] if _likeness(wanted, name) >= 0.6)


def _likeness(wanted: str, name: str) -> float:
    """Likeness of spelling; with equal slices the nearer memory wins over equal letters."""
    likeness = difflib.SequenceMatcher(None, wanted, name, autojunk=False).ratio()
    figures = re.match(r"(\d+)g\D?(\d+)", wanted)
    if figures and name.startswith(f"{figures[1]}g."):
        memory = int(name.partition(".")[2].partition("gb")[0])
        likeness = max(likeness, 0.6) + 0.5 * min(memory, int(figures[2])) / max(memory, int(figures[2]), 1)
    return likeness


def _did_you_mean(text: str, models: Iterable[GpuModel]) -> str:
    near = suggest(text, models)
    if near:
        return f"; nearest here: {', '.join(near)}"
    there = sorted({p.name for m in models for p in m.profiles})
    return f"; slices here: {', '.join(there)}" if there else "; no GPU here can be cut into slices"


def _nearest_types(name: SliceName, models: Sequence[GpuModel], site_types: Mapping[str, Sequence[str]] | None) -> str:
    cut = {m.key for m in models if m.mig_capable}
    own = {name for name, keys in (site_types or {}).items() if cut & set(keys)}
    types = sorted({m.gres_type for m in models if m.mig_capable} | own)
    for near in difflib.get_close_matches(name.prefix, types, n=1, cutoff=0.6):
        there = _models_of_prefix(near, models, site_types or {})
        exact = any(p.name == name.profile_name for m in there for p in m.profiles)
        slices = [name.profile_name] if exact else suggest(name.profile_name, there, most=1)
        if slices:
            return f"; did you mean {near}_{slices[0]}?"
    return f"; there are: {', '.join(types)}" if types else "; no GPU here can be cut into slices"


def _models_of_prefix(
    prefix: str, models: Sequence[GpuModel], site_types: Mapping[str, Sequence[str]]
) -> tuple[GpuModel, ...]:
    cut = tuple(m for m in models if m.mig_capable)
    if not prefix:
        return cut
    for site_type, keys in site_types.items():
        if site_type.casefold() == prefix:
            return tuple(m for m in cut if m.key in keys)
    return models_of_type(prefix, cut)
