"""The pool of cards in MIG mode: how many there should be, and which idle card to change now.

Pure decisions. The demand is what pending and recent slice requests need, in whole cards, as the packing of
:mod:`pyhetsched.mig.packing` counts them. Changes wait until the need has lasted (hysteresis), stay within
an hourly budget, touch idle cards only, and on GPUs whose mode change needs a reset happen only where the
site allows it. Jobs that want several whole GPUs on a node get cards back in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyhetsched.mig.layout import shape_index
from pyhetsched.mig.packing import pack
from pyhetsched.mig.profiles import GpuModel, space_of_model

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What the administrator allows; times in seconds, cards as counts."""

    fewest_cards: int = 0
    most_cards: int | None = None
    spare_cards: int = 1
    grow_after_s: float = 120.0
    shrink_after_s: float = 1800.0
    changes_per_hour: int = 4
    allow_reset: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """One card of the model in question; ``idle`` when no job, reservation or instance is on it."""

    node: str
    index: int
    model: GpuModel
    mig_on: bool
    idle: bool

    def changeable(self, settings: PoolSettings) -> bool:
        """Whether its mode may be changed now."""
        return self.idle and (settings.allow_reset or self.model.mode_needs_reset is False)


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """Demand in cards: for slices pending now, for slices at the recent peak, and whole GPUs per node that
    pending jobs ask for and that the cards out of MIG mode cannot give (one entry a job)."""

    pending_cards: int = 0
    recent_cards: int = 0
    whole_asks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What a decision needs to know of the past: since when more or fewer cards are wanted, changes made."""

    more_since_s: float | None = None
    fewer_since_s: float | None = None
    changes_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """Cards to put into and take out of MIG mode now, in words why, and the memory for the next time."""

    enable: tuple[Card, ...]
    disable: tuple[Card, ...]
    reason: str
    memory: PoolMemory


def cards_needed(model: GpuModel, slices: Mapping[str, int]) -> int:
    """How many empty cards of ``model`` the slices (profile name to count) need; profiles it lacks are not counted."""
    space = space_of_model(model)
    wanted = [0] * len(space.kinds)
    for name, number in slices.items():
        if any(p.name == name for p in model.profiles):
            wanted[space.kind_of[shape_index(model, model.profile(name))]] += number
    states = [0] * sum(wanted)
    return pack(space, states, tuple(wanted)).opened(states)


def decide(
    settings: PoolSettings, cards: Sequence[Card], demand: PoolDemand, memory: PoolMemory, now_s: float
) -> PoolDecision:
    """What to change now; call it at every round and keep the returned memory.

    Each decision changes at most what the budget of the running hour leaves.
    """
    have = sum(card.mig_on for card in cards)
    wanted = _wanted(settings, demand, len(cards))
    give_back = _for_whole_jobs(settings, cards, demand)
    memory = _remember(memory, wanted - have, bool(give_back), settings, now_s)
    budget = settings.changes_per_hour - len(memory.changes_s)
    if wanted > have and not _lasted(memory.more_since_s, settings.grow_after_s, now_s):
        return PoolDecision((), (), f"{wanted} cards wanted, {have} in the pool: waiting to see it last", memory)
    if wanted > have:
        chosen = _to_enable(settings, cards)[: wanted - have]
        return _within_budget(chosen, (), budget, f"{wanted} cards wanted, {have} in the pool", memory, now_s)
    if not _lasted(memory.fewer_since_s, settings.shrink_after_s, now_s):
        return PoolDecision((), (), f"{wanted} cards wanted, {have} in the pool: nothing to change", memory)
    if give_back:
        reason = f"a job asks for {min(demand.whole_asks)} whole GPUs on a node"
        return _within_budget((), give_back, budget, reason, memory, now_s)
    chosen = _to_disable(settings, cards)[: max(0, have - wanted)]
    return _within_budget((), chosen, budget, f"{wanted} cards wanted, {have} in the pool", memory, now_s)


def _wanted(settings: PoolSettings, demand: PoolDemand, there: int) -> int:
    need = max(demand.pending_cards, demand.recent_cards)
    wanted = max(need + settings.spare_cards if need else 0, settings.fewest_cards)
    most = there if settings.most_cards is None else min(settings.most_cards, there)
    return min(wanted, most)


def _remember(memory: PoolMemory, missing: int, give_back: bool, settings: PoolSettings, now_s: float) -> PoolMemory:
    """Since when the pool is too small or too large; changes older than an hour are forgotten.

    A pool that is larger than wanted by no more than the spare cards is not too large: that is the dead band.
    """
    too_large = missing < -settings.spare_cards or (give_back and missing <= 0)
    return PoolMemory(
        _since(memory.more_since_s, missing > 0, now_s),
        _since(memory.fewer_since_s, too_large, now_s),
        tuple(t for t in memory.changes_s if now_s - HOUR_S < t <= now_s),
    )


def _since(before_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if before_s is None else min(before_s, now_s)


def _lasted(since_s: float | None, long_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= long_s


def _to_enable(settings: PoolSettings, cards: Sequence[Card]) -> list[Card]:
    """Idle cards out of MIG mode, first those on nodes with most MIG cards: whole nodes stay whole."""
    density = _density(cards)
    free = [c for c in cards if not c.mig_on and c.changeable(settings)]
    return sorted(free, key=lambda c: (-density.get(c.node, 0), c.node, c.index))


def _to_disable(settings: PoolSettings, cards: Sequence[Card]) -> list[Card]:
    """Idle cards in MIG mode, first those on nodes with fewest."""
    density = _density(cards)
    free = [c for c in cards if c.mig_on and c.changeable(settings)]
    return sorted(free, key=lambda c: (density[c.node], c.node, -c.index))


def _density(cards: Iterable[Card]) -> dict[str, int]:
    density: dict[str, int] = {}
    for card in cards:
        density[card.node] = density.get(card.node, 0) + card.mig_on
    return density


def _for_whole_jobs(settings: PoolSettings, cards: Sequence[Card], demand: PoolDemand) -> tuple[Card, ...]:
    """The fewest idle MIG cards on one node that, with its idle whole cards, serve the smallest ask."""
    if not demand.whole_asks:
        return ()
    ask = min(demand.whole_asks)
    options = []
    for node in sorted({c.node for c in cards}):
        here = [c for c in cards if c.node == node]
        missing = ask - sum(1 for c in here if not c.mig_on and c.idle)
        free = [c for c in here if c.mig_on and c.changeable(settings)]
        if 0 < missing <= len(free):
            options.append(tuple(sorted(free, key=lambda c: -c.index)[:missing]))
    return min(options, key=len, default=())


def _within_budget(
    enable: Sequence[Card], disable: Sequence[Card], budget: int, reason: str, memory: PoolMemory, now_s: float
) -> PoolDecision:
    """Cut the change down to the budget; a give-back that would be cut is of no use and still counts as begun."""
    budget = max(0, budget)
    enable, disable = tuple(enable)[:budget], tuple(disable)[:budget]
    made = len(enable) + len(disable)
    if not made:
        why = "the hourly budget is spent" if budget == 0 else "no idle card may be changed"
        return PoolDecision((), (), f"{reason}: {why}", memory)
    return PoolDecision(enable, disable, reason, replace(memory, changes_s=(*memory.changes_s, *[now_s] * made)))
