"""Packing slices into GPUs: which GPU hosts which multiset, with few GPUs newly opened.

All functions speak of the states and kinds of one :class:`~pyhetsched.mig.geometry.Space` (one GPU model).
GPUs that host something already cost nothing to fill further; each empty GPU that is opened costs one.
:func:`pack` is the heuristic for live use, :func:`pack_exactly` the oracle.
"""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyhetsched.errors import SolverError
from pyhetsched.mig.geometry import Counts, Space
from pyhetsched.mig.milp import IntegerProgram


@dataclass(frozen=True, slots=True)
class Packing:
    """For each GPU the kinds added to it, and what found no place."""

    added: tuple[Counts, ...]
    unplaced: Counts

    def opened(self, states: Sequence[int]) -> int:
        """How many GPUs that were empty now host something."""
        return sum(1 for state, counts in zip(states, self.added, strict=True) if not state and any(counts))

    def worse_than(self, other: Packing, states: Sequence[int]) -> bool:
        """Whether ``other`` leaves less unplaced, or as much with fewer GPUs opened."""
        mine, theirs = sum(self.unplaced), sum(other.unplaced)
        return (theirs, other.opened(states)) < (mine, self.opened(states))


def pack(space: Space, states: Sequence[int], wanted: Counts) -> Packing:
    """Place ``wanted`` (per kind) on GPUs in ``states``: the better of two greedy ways.

    Best fit takes the largest kind first and the GPU where least stays open; fullest first takes, GPU by
    GPU, the multiset that leaves least of it unused. Both are near linear in the number of slices.
    """
    best = _best_fit(space, states, wanted)
    if not any(best.unplaced) and best.opened(states) <= fewest_opened(space, states, wanted):
        return best
    other = _fullest_first(space, states, wanted)
    return other if best.worse_than(other, states) else best


def _best_fit(space: Space, states: Sequence[int], wanted: Counts) -> Packing:
    shelf = _Shelf(space, states)
    left = list(wanted)
    for kind in _largest_first(space):
        left[kind] -= shelf.place(kind, wanted[kind])
    return Packing(shelf.result(), tuple(left))


def _largest_first(space: Space) -> list[int]:
    def key(kind: int) -> tuple[int, int]:
        shape = space.geometry.shapes[space.kinds[kind]]
        return shape.size, shape.compute

    return sorted(range(len(space.kinds)), key=key, reverse=True)


class _Shelf:
    """GPUs grouped by state, filled kind by kind."""

    def __init__(self, space: Space, states: Sequence[int]) -> None:
        self.space = space
        self.groups: dict[int, list[int]] = {}
        for gpu in range(len(states) - 1, -1, -1):
            self.groups.setdefault(states[gpu], []).append(gpu)
        self.added = [[0] * len(space.kinds) for _ in states]

    def place(self, kind: int, number: int) -> int:
        """Place up to ``number`` instances of ``kind``; returns how many found a place."""
        shape = self.space.kinds[kind]
        order = [(self._key(state, shape), state) for state in self.groups if self.space.starts(state, shape)]
        heapq.heapify(order)
        placed = 0
        while placed < number and order:
            state = order[0][1]
            gpus = self.groups.get(state)
            if not gpus:
                heapq.heappop(order)
                continue
            start = self.space.best_start(state, shape)
            assert start is not None
            after = self.space.put(state, shape, start)
            gpu = gpus.pop()
            self.added[gpu][kind] += 1
            placed += 1
            if not self.groups.get(after) and self.space.starts(after, shape):
                heapq.heappush(order, (self._key(after, shape), after))
            self.groups.setdefault(after, []).append(gpu)
        return placed

    def _key(self, state: int, shape: int) -> tuple[bool, int, int]:
        """Used GPUs first, then those where least stays open after the placement."""
        start = self.space.best_start(state, shape)
        assert start is not None
        left = self.space.openness(self.space.put(state, shape, start))
        return (state == 0, left[0], left[1])

    def result(self) -> tuple[Counts, ...]:
        return tuple(tuple(counts) for counts in self.added)


def _fullest_first(space: Space, states: Sequence[int], wanted: Counts) -> Packing:
    left = wanted
    added: list[Counts] = [(0,) * len(wanted)] * len(states)
    used = sorted((i for i, s in enumerate(states) if s), key=lambda i: sum(space.most(states[i])))
    for gpu in used + [i for i, s in enumerate(states) if not s]:
        if not any(left):
            break
        counts = _fullest(space, states[gpu], left)
        added[gpu] = counts
        left = tuple(n - m for n, m in zip(left, counts, strict=True))
    return Packing(tuple(added), left)


def _prices(space: Space) -> tuple[int, ...]:
    """What a kind is worth when filling a GPU: its memory and compute, larger kinds slightly more."""
    shapes = [space.geometry.shapes[k] for k in space.kinds]
    memory, compute = space.geometry.memory, space.geometry.compute
    return tuple(100 * s.size * compute + 100 * s.compute * memory + 10 * s.size * s.compute for s in shapes)


def _fullest(space: Space, state: int, left: Counts) -> Counts:
    """The multiset, of what is ``left``, that is worth most."""
    return next(counts for counts in _by_worth(space, state) if _within(counts, left))


@functools.lru_cache(maxsize=4096)
def _by_worth(space: Space, state: int) -> tuple[Counts, ...]:
    """The multisets that fit, those worth most first (the empty one last)."""
    prices = _prices(space)
    return tuple(sorted(space.multisets(state), key=lambda c: (-sum(n * p for n, p in zip(c, prices, strict=True)), c)))


def pack_exactly(space: Space, states: Sequence[int], wanted: Counts, time_limit_s: float = 60.0) -> Packing:
    """The packing with least unplaced (by memory slices), then fewest GPUs opened: an integer program.

    Variables count the GPUs of each distinct state that get each multiset; that is exact, since a GPU's
    state tells which multisets fit. Raises :class:`~pyhetsched.errors.SolverError` out of time.
    """
    program, groups = IntegerProgram(), Counter(states)
    options = [(s, c) for s in groups for c in sorted(space.multisets(s)) if _within(c, wanted)]
    for state, counts in options:
        program.variable(1.0 if not state and any(counts) else 0.0, groups[state])
    for state, number in groups.items():
        program.row(number, number, {i: 1.0 for i, (s, _) in enumerate(options) if s == state})
    for kind, number in enumerate(wanted):
        size = space.geometry.shapes[space.kinds[kind]].size
        missing = program.variable(1000.0 * size, number)
        coefficients = {i: float(c[kind]) for i, (_, c) in enumerate(options) if c[kind]}
        program.row(number, number, {**coefficients, missing: 1.0})
    values, _ = program.solve(time_limit_s)
    unplaced = tuple(values[len(options) :])
    return Packing(_hand_out(options, values, states), unplaced)


def _within(counts: Counts, wanted: Counts) -> bool:
    return all(n <= m for n, m in zip(counts, wanted, strict=True))


def _hand_out(options: list[tuple[int, Counts]], values: list[int], states: Sequence[int]) -> tuple[Counts, ...]:
    of_state: dict[int, list[Counts]] = {}
    for (state, counts), number in zip(options, values, strict=False):
        of_state.setdefault(state, []).extend([counts] * number)
    return tuple(of_state[state].pop() for state in states)


def pack_within(space: Space, states: Sequence[int], wanted: Counts, time_limit_s: float) -> Packing:
    """:func:`pack`, bettered by :func:`pack_exactly` where a bound says that it may not be best.

    Keeps the heuristic's answer if the integer program is not done in ``time_limit_s``.
    """
    quick = pack(space, states, wanted)
    if not any(quick.unplaced) and quick.opened(states) <= fewest_opened(space, states, wanted):
        return quick
    try:
        exact = pack_exactly(space, states, wanted, time_limit_s)
    except SolverError:
        return quick
    return exact if quick.worse_than(exact, states) else quick


def fewest_opened(space: Space, states: Sequence[int], wanted: Counts) -> int:
    """A lower bound on the empty GPUs to open: compute and memory that do not fit on used GPUs.

    The ceiling of the larger of compute over slices per GPU and memory over slices per GPU (IBM WPM).
    """
    shapes = [space.geometry.shapes[k] for k in space.kinds]
    compute = sum(n * s.compute for n, s in zip(wanted, shapes, strict=True))
    memory = sum(n * s.size for n, s in zip(wanted, shapes, strict=True))
    for state in states:
        if state:
            most = _most_hosted(space, state)
            compute -= most[0]
            memory -= most[1]
    return max(0, -(-compute // space.geometry.compute), -(-memory // space.geometry.memory))


@functools.lru_cache(maxsize=4096)
def _most_hosted(space: Space, state: int) -> tuple[int, int]:
    """The most compute and the most memory slices that can still be created on a GPU."""
    shapes = [space.geometry.shapes[k] for k in space.kinds]
    sums = [
        (
            sum(n * s.compute for n, s in zip(c, shapes, strict=True)),
            sum(n * s.size for n, s in zip(c, shapes, strict=True)),
        )
        for c in space.multisets(state)
    ]
    return max(s[0] for s in sums), max(s[1] for s in sums)


def compact_exactly(
    space: Space, states: Sequence[int], held: Sequence[Counts], groups: Sequence[str], time_limit_s: float = 60.0
) -> frozenset[str]:
    """The groups (nodes) to let run dry so that fewest GPUs remain in use: the oracle of compaction.

    ``states`` and ``held`` describe the GPUs' held instances, ``groups`` the node of each GPU. A node stays
    or empties as a whole; what was on emptied nodes must fit beside what stays, empty GPUs of staying nodes
    included. Raises :class:`~pyhetsched.errors.SolverError` if nothing is found in time.
    """
    program = IntegerProgram()
    stays = {group: program.variable(0.0, 1.0) for group in dict.fromkeys(groups)}
    supply: list[dict[int, float]] = [{} for _ in space.kinds]
    for state, counts, group in zip(states, held, groups, strict=True):
        choices = {}
        for option in sorted(space.multisets(state)):
            used = bool(state) or any(option)
            variable = program.variable(1.0 if used else 0.0, 1.0)
            choices[variable] = 1.0
            for kind, number in enumerate(option):
                if number:
                    supply[kind][variable] = float(number)
        program.row(0.0, 0.0, {**choices, stays[group]: -1.0})
        for kind, number in enumerate(counts):
            if number:
                supply[kind][stays[group]] = supply[kind].get(stays[group], 0.0) + number
    total = [float(sum(counts[k] for counts in held)) for k in range(len(space.kinds))]
    for kind, row in enumerate(supply):
        if total[kind]:
            program.row(total[kind], 1e6, row)
    values, _ = program.solve(time_limit_s)
    return frozenset(group for group, variable in stays.items() if not values[variable])
