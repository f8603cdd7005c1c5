"""Layouts of one GPU as values: what is where, what still fits, and where to put the next instance.

::

    >>> from pyhetsched.mig.profiles import model_by_key
    >>> a100 = model_by_key("A100-80GB")
    >>> layout = Layout.parse(a100, "3g.40gb@4,1g.10gb@0")
    >>> str(layout)
    '1g.10gb@0,3g.40gb@4'
    >>> fits(layout, a100.profile("2g.20gb"))
    (2,)
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyhetsched.errors import LayoutError
from pyhetsched.mig.geometry import Space
from pyhetsched.mig.profiles import GpuModel, Profile, space_of_model, weights_of


@dataclass(frozen=True, slots=True)
class Placement:
    """One instance: ``profile`` from memory slice ``start`` on."""

    profile: Profile
    start: int

    @property
    def end(self) -> int:
        """The memory slice after the last one occupied."""
        return self.start + self.profile.size

    def __str__(self) -> str:
        return f"{self.profile.name}@{self.start}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The instances on one GPU, ordered by start; a value: ``==``, ``<=`` (subset), ``in``, iteration, text.

    Make it with :meth:`of`, :meth:`parse` or :meth:`empty`. A layout read from hardware may be illegal by
    the tables; :attr:`is_legal` tells and :meth:`check` raises.
    """

    model: GpuModel
    placements: tuple[Placement, ...] = ()

    @classmethod
    def empty(cls, model: GpuModel) -> Layout:
        """A GPU without instances."""
        return cls(model)

    @classmethod
    def of(cls, model: GpuModel, placements: Iterable[Placement | tuple[str, int]]) -> Layout:
        """The layout of these placements, or (profile name, start) pairs, in any order; not checked."""
        made = [p if isinstance(p, Placement) else Placement(model.profile(p[0]), p[1]) for p in placements]
        return cls(model, tuple(sorted(made, key=lambda p: (p.start, p.profile.name))))

    @classmethod
    def parse(cls, model: GpuModel, text: str) -> Layout:
        """The layout that ``text`` spells (``3g.40gb@4,1g.10gb@0``; ``-`` or nothing for an empty GPU).

        Raises :class:`LayoutError` on unknown profiles, malformed starts and illegal layouts.
        """
        items = [item.strip() for item in text.split(",")] if text.strip() not in ("", "-") else []
        layout = cls.of(model, [_parse_item(item) for item in items])
        layout.check()
        return layout

    def __str__(self) -> str:
        return ",".join(map(str, self.placements)) or "-"

    def __iter__(self) -> Iterator[Placement]:
        return iter(self.placements)

    def __len__(self) -> int:
        return len(self.placements)

    def __le__(self, other: Layout) -> bool:
        return self.model == other.model and set(self.placements) <= set(other.placements)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many instances of each profile, by name."""
        return Counter(p.profile.name for p in self.placements)

    @property
    def compute_used(self) -> int:
        """Compute slices in use."""
        return sum(p.profile.compute_slices for p in self.placements)

    @property
    def memory_used(self) -> int:
        """Memory slices in use."""
        return sum(p.profile.size for p in self.placements)

    @property
    def shards_used(self) -> int:
        """The shards that Slurm counts for these instances."""
        by_shape = weights_of(self.model).by_shape
        return sum(by_shape[shape_index(self.model, p.profile)] for p in self.placements)

    @property
    def is_legal(self) -> bool:
        """Whether the tables allow these instances side by side."""
        return _state(self) is not None

    def check(self) -> None:
        """Raise :class:`LayoutError`, saying which instance does not fit, unless the layout is legal."""
        if self.is_legal:
            return
        fitted: list[Placement] = []
        for placement in self.placements:
            if _state(Layout(self.model, (*fitted, placement))) is None:
                beside = ",".join(map(str, fitted)) or "an empty GPU"
                raise LayoutError(f"{self.model}: {placement} does not fit beside {beside}")
            fitted.append(placement)
        raise LayoutError(f"{self.model}: illegal layout {self}")

    @property
    def state(self) -> int:
        """The geometry's integer for this layout; raises :class:`LayoutError` if it is illegal."""
        state = _state(self)
        if state is None:
            self.check()
            raise LayoutError(f"{self.model}: illegal layout {self}")
        return state

    def with_placement(self, profile: Profile, start: int) -> Layout:
        """The layout after creating ``profile`` at ``start``; raises :class:`LayoutError` if it cannot be."""
        if start not in fits(self, profile):
            raise LayoutError(f"{self.model}: {profile}@{start} does not fit beside {self}")
        return Layout.of(self.model, (*self.placements, Placement(profile, start)))

    def without(self, start: int) -> Layout:
        """The layout after destroying the instance at ``start``; raises :class:`LayoutError` if none is there."""
        kept = tuple(p for p in self.placements if p.start != start)
        if len(kept) == len(self.placements):
            raise LayoutError(f"{self.model}: no instance at start {start} in {self}")
        return Layout(self.model, kept)


def fits(layout: Layout, profile: Profile) -> tuple[int, ...]:
    """The legal starts for one more ``profile``, ascending; empty if it has no place."""
    return space_of_model(layout.model).starts(layout.state, shape_index(layout.model, profile))


def choose_start(layout: Layout, profile: Profile) -> int | None:
    """The start that keeps most open for later instances (:meth:`Space.openness`), None if there is none."""
    return space_of_model(layout.model).best_start(layout.state, shape_index(layout.model, profile))


def choose_starts(layout: Layout, profiles: Sequence[Profile]) -> tuple[int, ...] | None:
    """Starts for all ``profiles`` at once, in their order: an exact search; None if they do not all fit."""
    shapes = [shape_index(layout.model, p) for p in profiles]
    return space_of_model(layout.model).best_starts(layout.state, shapes)


def remaining(layout: Layout) -> dict[str, int]:
    """For each profile alone, how many more can be created: what the geometry says."""
    space, state = space_of_model(layout.model), layout.state
    most = space.most(state)
    result = {}
    for index, profile in enumerate(layout.model.profiles):
        bound = most[space.kind_of[index]] if space.starts(state, index) else 0
        result[profile.name] = min(bound, profile.max_instances)
    return result


def remaining_by_shards(layout: Layout) -> dict[str, int]:
    """For each profile alone, how many more Slurm's shard count admits: what holes do not show in."""
    weights = weights_of(layout.model)
    free = weights.shards_per_gpu - layout.shards_used
    pairs = zip(layout.model.profiles, weights.by_shape, strict=True)
    return {p.name: min(free // cost, p.max_instances) for p, cost in pairs}


def holes(layout: Layout) -> tuple[Profile, ...]:
    """The profiles that the shard count admits and that yet have no legal start."""
    counted = remaining_by_shards(layout)
    return tuple(p for p in layout.model.profiles if counted[p.name] and not fits(layout, p))


def fragmentation(layout: Layout) -> float:
    """The share of the multisets admitted by the shard count that have no place (0 none, towards 1 all).

    Because the weights are exact, the admitted multisets are those that would fit if all instances could be
    moved; what is missing is missing for their positions alone.
    """
    space = space_of_model(layout.model)
    weights = weights_of(layout.model)
    free = weights.shards_per_gpu - layout.shards_used
    cost = [weights.by_shape[kind] for kind in space.kinds]
    admitted = sum(1 for m in space.multisets(0) if sum(n * c for n, c in zip(m, cost, strict=True)) <= free)
    return 1.0 - len(space.multisets(layout.state)) / admitted


def legal_layouts(model: GpuModel, profiles: Iterable[str] | None = None) -> tuple[Layout, ...]:
    """Every legal layout of ``profiles`` (default: one profile per kind), the empty one first."""
    space, shapes = _shapes(model, profiles)
    found = [Layout.of(model, [Placement(model.profiles[i], s) for i, s in x]) for x in space.layouts(shapes)]
    return tuple(sorted(found, key=lambda layout: (len(layout), str(layout))))


def maximal_layouts(model: GpuModel, profiles: Iterable[str] | None = None) -> tuple[Layout, ...]:
    """The legal layouts to which no instance of ``profiles`` can be added."""
    space, shapes = _shapes(model, profiles)
    return tuple(
        layout
        for layout in legal_layouts(model, profiles)
        if not any(space.starts(layout.state, shape) for shape in shapes)
    )


@functools.lru_cache(maxsize=4096)
def shape_index(model: GpuModel, profile: Profile) -> int:
    """The index of ``profile`` in the model's geometry; raises :class:`LayoutError` if it has none."""
    for index, known in enumerate(model.profiles):
        if known.name == profile.name:
            return index
    raise LayoutError(f"{model} has no profile {profile.name}")


def _shapes(model: GpuModel, profiles: Iterable[str] | None) -> tuple[Space, tuple[int, ...]]:
    space = space_of_model(model)
    if profiles is None:
        return space, space.kinds
    return space, tuple(shape_index(model, model.profile(name)) for name in profiles)


@functools.lru_cache(maxsize=65536)
def _state(layout: Layout) -> int | None:
    space, state = space_of_model(layout.model), 0
    for placement in layout.placements:
        shape = shape_index(layout.model, placement.profile)
        if placement.start not in space.starts(state, shape):
            return None
        state = space.put(state, shape, placement.start)
    return state


def _parse_item(item: str) -> tuple[str, int]:
    name, at, start = item.rpartition("@")
    if not at or not start.isdecimal():
        raise LayoutError(f"{item!r} is not PROFILE@START, such as 3g.40gb@4")
    return name, int(start)
