"""The geometry of one kind of MIG GPU: which instances fit beside which, as plain integers.

Two limits act together: instances occupy runs of memory slices and may begin only at certain starts, and
the sum of their compute slices must not exceed what the GPU has. A third concerns the media engines: one
instance at most may take the extra engines (``+me``), and one that takes all (``+me.all``) leaves only
instances without any (``-me``) beside it (NVIDIA MIG user guide, profile tables; nvml.h). Geometries are
few (all GPUs with seven compute slices share one), so all that is derived from one is computed once.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_COMPUTE_SHIFT = 16
_MEDIA_SHIFT = 24
_EXTRA, _ALL, _ANY = 1, 2, 4

Counts = tuple[int, ...]
"""How many instances of each kind, in the order of :attr:`Space.kinds`."""


_Found = tuple[tuple[int, int], tuple[int, ...]]
"""Openness reached, and the starts that reach it."""


class Media(enum.Enum):
    """What an instance takes of the media engines: its share, the extras too, all of them, or none."""

    SHARE = ""
    EXTRA = "+me"
    ALL = "+me.all"
    NONE = "-me"


@dataclass(frozen=True, slots=True)
class Shape:
    """One profile as the packer sees it: compute slices, memory slices (``size``), legal starts, media."""

    compute: int
    size: int
    starts: tuple[int, ...]
    media: Media = Media.SHARE


@dataclass(frozen=True, slots=True)
class Geometry:
    """Total compute and memory slices of a GPU, and the shapes that it offers."""

    compute: int
    memory: int
    shapes: tuple[Shape, ...]


_MEDIA_BITS = {Media.NONE: 0, Media.SHARE: _ANY, Media.EXTRA: _EXTRA | _ANY, Media.ALL: _ALL}


class Space:
    """All that can be said of a geometry; obtain it from :func:`space_of`, which keeps one per geometry.

    A *state* is an integer: occupied memory slices in bits 0-15, compute slices used in bits 16-23, media in
    bits 24-26. The empty GPU is 0. ``kinds`` are the indices of the shapes that differ in more than their
    media engines or graphics; variants count as their kind (``kind_of``).
    """

    def __init__(self, geometry: Geometry) -> None:
        if geometry.memory > _COMPUTE_SHIFT:
            raise ValueError(f"{geometry.memory} memory slices; at most {_COMPUTE_SHIFT} are supported")
        self.geometry = geometry
        kinds: dict[tuple[int, int, tuple[int, ...]], int] = {}
        for index, shape in enumerate(geometry.shapes):
            if shape.media is Media.SHARE:
                kinds.setdefault((shape.compute, shape.size, shape.starts), index)
        self.kinds: tuple[int, ...] = tuple(kinds.values())
        position = {index: place for place, index in enumerate(self.kinds)}
        self.kind_of: tuple[int, ...] = tuple(
            position[kinds[shape.compute, shape.size, shape.starts]] for shape in geometry.shapes
        )
        self._adds: tuple[tuple[int, int, int], ...] = tuple(
            (s.compute << _COMPUTE_SHIFT, (1 << s.size) - 1, _MEDIA_BITS[s.media] << _MEDIA_SHIFT)
            for s in geometry.shapes
        )
        self._best: dict[tuple[int, int], int | None] = {}
        self._starts: dict[tuple[int, int], tuple[int, ...]] = {}
        self._multisets: dict[int, frozenset[Counts]] = {}
        self._most: dict[int, Counts] = {}
        self._searched: dict[tuple[int, tuple[int, ...]], _Found | None] = {}

    def starts(self, state: int, shape: int) -> tuple[int, ...]:
        """The starts at which ``shape`` can still be created, ascending."""
        key = (state, shape)
        known = self._starts.get(key)
        if known is None:
            known = self._starts[key] = tuple(self._find_starts(state, self.geometry.shapes[shape]))
        return known

    def _find_starts(self, state: int, shape: Shape) -> Iterator[int]:
        used = (state >> _COMPUTE_SHIFT) & 0xFF
        if used + shape.compute > self.geometry.compute or not _media_allows(state >> _MEDIA_SHIFT, shape.media):
            return
        run = (1 << shape.size) - 1
        for start in shape.starts:
            if not state & (run << start):
                yield start

    def put(self, state: int, shape: int, start: int) -> int:
        """The state after creating ``shape`` at ``start``, which must be legal there."""
        added, run, media = self._adds[shape]
        return (state + added + (run << start)) | media

    def multisets(self, state: int) -> frozenset[Counts]:
        """Every multiset of kinds (the empty one too) that can still be created without moving anything."""
        known = self._multisets.get(state)
        if known is None:
            found = {(0,) * len(self.kinds)}
            for place, shape in enumerate(self.kinds):
                for start in self.starts(state, shape):
                    for counts in self.multisets(self.put(state, shape, start)):
                        found.add((*counts[:place], counts[place] + 1, *counts[place + 1 :]))
            known = self._multisets[state] = frozenset(found)
        return known

    def openness(self, state: int) -> tuple[int, int]:
        """How much can still be created: the sum over kinds of how many more of each alone, then the number of
        different multisets. The measure by which starts are chosen (more is better)."""
        return sum(self.most(state)), len(self.multisets(state))

    def most(self, state: int) -> Counts:
        """For each kind alone, how many more can be created."""
        known = self._most.get(state)
        if known is None:
            known = self._most[state] = tuple(map(max, zip(*self.multisets(state), strict=True)))
        return known

    def best_start(self, state: int, shape: int) -> int | None:
        """The legal start that keeps most open, the highest among equals; None if there is none."""
        key = (state, shape)
        if key not in self._best:
            starts = self.starts(state, shape)
            self._best[key] = max(
                starts, key=lambda start: (self.openness(self.put(state, shape, start)), start), default=None
            )
        return self._best[key]

    def best_starts(self, state: int, shapes: Sequence[int]) -> tuple[int, ...] | None:
        """Starts for all ``shapes`` at once (same order) that keep most open; None if they do not all fit."""
        order = sorted(range(len(shapes)), key=lambda i: (-self.geometry.shapes[shapes[i]].size, shapes[i]))
        best = self._search(state, tuple(shapes[i] for i in order))
        if best is None:
            return None
        result = [0] * len(shapes)
        for index, start in zip(order, best[1], strict=True):
            result[index] = start
        return tuple(result)

    def _search(self, state: int, shapes: tuple[int, ...]) -> _Found | None:
        if not shapes:
            return self.openness(state), ()
        if (state, shapes) in self._searched:
            return self._searched[state, shapes]
        best: _Found | None = None
        for start in self.starts(state, shapes[0]):
            rest = self._search(self.put(state, shapes[0], start), shapes[1:])
            if rest is not None and (best is None or (rest[0], (start, *rest[1])) > best):
                best = rest[0], (start, *rest[1])
        self._searched[state, shapes] = best
        return best

    def layouts(self, shapes: Sequence[int] | None = None) -> frozenset[frozenset[tuple[int, int]]]:
        """Every legal set of (shape, start), the empty one too, of the given shapes (default: the kinds)."""
        allowed = self.kinds if shapes is None else tuple(shapes)
        found: set[frozenset[tuple[int, int]]] = set()
        self._collect(0, frozenset(), allowed, found)
        return frozenset(found)

    def _collect(
        self,
        state: int,
        placed: frozenset[tuple[int, int]],
        allowed: tuple[int, ...],
        found: set[frozenset[tuple[int, int]]],
    ) -> None:
        if placed in found:
            return
        found.add(placed)
        for shape in allowed:
            for start in self.starts(state, shape):
                self._collect(self.put(state, shape, start), placed | {(shape, start)}, allowed, found)


@functools.lru_cache(maxsize=64)
def space_of(geometry: Geometry) -> Space:
    """The one :class:`Space` of ``geometry``."""
    return Space(geometry)


def _media_allows(present: int, wanted: Media) -> bool:
    if wanted is Media.NONE:
        return True
    if present & _ALL:
        return False
    if wanted is Media.EXTRA:
        return not present & _EXTRA
    return wanted is not Media.ALL or not present & _ANY
