"""Shards by hand: where shards stand for MIG slices, only hetsched may ask for them."""

from __future__ import annotations

from collections.abc import Iterator

from pyhetsched.errors import RequestError
from pyhetsched.mig.profiles import weights_by_name
from pyhetsched.submit.draft import Draft, Want, Wanted
from pyhetsched.submit.fleet import models_in
from pyhetsched.submit.registry import rule


@rule("hand-shards")
def no_shards_by_hand(draft: Draft) -> Draft:
    """Refuse ``gres/shard`` where any shard belongs to a MIG card; a count of shards says nothing of a profile."""
    asked = [each for each in draft.wanted if each.want is Want.SHARD]
    if draft.settled or not asked or not any(offer.slices for offer in draft.fleet.cluster):
        return draft
    raise RequestError(
        f"shards stand for MIG slices here and cannot be asked for by number ({asked[0]}); "
        f"ask for a slice by name, --gres=gpu:{_nearest(draft, asked[0])}:1"
    )


def _nearest(draft: Draft, asked: Wanted) -> str:
    """The smallest slice that costs at least as many shards; the largest if none does."""
    costs = sorted(_costs(draft))
    return next((name for cost, name in costs if cost >= asked.count), costs[-1][1])


def _costs(draft: Draft) -> Iterator[tuple[int, str]]:
    for model in models_in(draft.fleet.reachable) or models_in(draft.fleet.cluster):
        for name, cost in weights_by_name(model).items():
            if not model.profile(name).variant:
                yield cost, name
