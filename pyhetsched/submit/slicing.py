"""How many GPUs a set of slices takes, and how many shards: the arithmetic of :mod:`pyhetsched.submit.rules`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyhetsched.mig.layout import shape_index
from pyhetsched.mig.names import Meaning
from pyhetsched.mig.profiles import GpuModel, shards_per_gpu, space_of_model, weight
from pyhetsched.model import SliceAsk
from pyhetsched.submit.fleet import Offer, of_types_alone


@dataclass(frozen=True, slots=True)
class Fit:
    """Slices on the GPUs of ``offers``, all of which count them alike.

    ``shards`` is their sum; ``gpus`` how many GPUs of one node they take (one: served by shards).
    """

    slices: tuple[SliceAsk, ...]
    shards: int
    shards_per_gpu: int
    gpus: int
    offers: tuple[Offer, ...]

    @property
    def models(self) -> tuple[GpuModel, ...]:
        """The GPU models, each once."""
        return tuple(dict.fromkeys(offer.models[0] for offer in self.offers))

    @property
    def share(self) -> float:
        """The part of one GPU's shards that they take."""
        return self.shards / self.shards_per_gpu

    @property
    def usable(self) -> bool:
        """Whether any node that could serve is up."""
        return any(offer.usable for offer in self.offers)

    @property
    def text(self) -> str:
        """The slices for a sentence: ``2 slices 1g.10gb``."""
        return slices_text(self.slices)


def slices_text(slices: Iterable[SliceAsk]) -> str:
    """``1 slice 1g.10gb``, ``2 slices 1g.10gb``, ``slices 1 x 3g.40gb, 2 x 2g.20gb``."""
    items = tuple(slices)
    if len(items) == 1:
        return f"{items[0].count} slice{'s' if items[0].count > 1 else ''} {items[0].profile}"
    return "slices " + ", ".join(f"{item.count} x {item.profile}" for item in items)


def merge(slices: Iterable[SliceAsk]) -> tuple[SliceAsk, ...]:
    """Slices of one profile added up, in the order of first mention."""
    sums: dict[str, int] = {}
    for item in slices:
        sums[item.profile] = sums.get(item.profile, 0) + item.count
    return tuple(SliceAsk(profile, count) for profile, count in sums.items())


def shards_of(model: GpuModel, slices: Iterable[SliceAsk]) -> int:
    """The shards that ``slices`` cost on ``model``."""
    return sum(item.count * weight(model, item.profile) for item in slices)


def largest_first(model: GpuModel, slices: Iterable[SliceAsk]) -> tuple[SliceAsk, ...]:
    """``slices`` in the order in which they are dealt over several GPUs."""
    return tuple(sorted(slices, key=lambda item: -weight(model, item.profile)))


def gpus_needed(model: GpuModel, slices: Sequence[SliceAsk], most: int) -> int | None:
    """How many empty GPUs of ``model`` hold ``slices`` (first fit, largest first); None if more than ``most``."""
    room = shards_per_gpu(model)
    if most < 1 or shards_of(model, slices) > room * most:
        return None
    return _gpus_needed(model, merge(slices), most)


@functools.lru_cache(maxsize=4096)
def _gpus_needed(model: GpuModel, slices: tuple[SliceAsk, ...], most: int) -> int | None:
    names = [item.profile for item in largest_first(model, slices) for _ in range(item.count)]
    bins: list[list[int]] = []
    space = space_of_model(model)
    for name in names:
        shape = shape_index(model, model.profile(name))
        for held in bins:
            if space.best_starts(0, [*held, shape]) is not None:
                held.append(shape)
                break
        else:
            if len(bins) == most:
                return None
            bins.append([shape])
    return len(bins)


def most_that_fit(model: GpuModel, profile: str, gpus: int) -> int:
    """The largest number of slices ``profile`` that ``gpus`` GPUs hold."""
    count = 0
    while gpus_needed(model, (SliceAsk(profile, count + 1),), 1) is not None:
        count += 1
    return count * gpus


def options(offers: Iterable[Offer], wanted: Sequence[tuple[tuple[Meaning, ...], int]]) -> list[Fit]:
    """The ways to serve slices on one node, cheapest share of a GPU first, then most GPUs.

    ``wanted`` holds what each entry can mean and its count. Offers whose nodes are too small are left out.
    """
    alike: dict[tuple[tuple[SliceAsk, ...], int, int, int], list[Offer]] = {}
    for offer in offers:
        slices = _on(offer, wanted)
        if slices is None:
            continue
        model = offer.models[0]
        gpus = gpus_needed(model, slices, offer.gpus)
        if gpus is not None:
            alike.setdefault((slices, shards_of(model, slices), shards_per_gpu(model), gpus), []).append(offer)
    fits = (
        Fit(slices, shards, room, gpus, of_types_alone(of) if gpus > 1 else tuple(of))
        for (slices, shards, room, gpus), of in alike.items()
    )
    return sorted((fit for fit in fits if fit.offers), key=_preference)


def _preference(fit: Fit) -> tuple[bool, float, int, int]:
    return not fit.usable, fit.share, fit.gpus, -sum(offer.total_gpus for offer in fit.offers)


def _on(offer: Offer, wanted: Sequence[tuple[tuple[Meaning, ...], int]]) -> tuple[SliceAsk, ...] | None:
    """The slices under the names that the offer's model has for them; None if it lacks one."""
    if not offer.slices:
        return None
    slices = []
    for meanings, count in wanted:
        mine = [meaning.profile.name for meaning in meanings if meaning.model is offer.models[0]]
        if not mine:
            return None
        slices.append(SliceAsk(mine[0], count))
    return merge(slices)


def for_tasks(fit: Fit, tasks: int) -> Fit:
    """The share of one of ``tasks`` equal tasks in slices that were counted for a whole node."""
    slices = tuple(SliceAsk(item.profile, item.count // tasks) for item in fit.slices)
    return replace(fit, slices=slices, shards=fit.shards // tasks)
