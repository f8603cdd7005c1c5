"""Keeps a request on the nodes that may serve it: with features where that can be said, with excluded nodes else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyhetsched.model import JobField
from pyhetsched.slurm.features import add_features, is_special, parse_features, satisfies
from pyhetsched.slurm.hosts import fold
from pyhetsched.submit.draft import Draft
from pyhetsched.submit.fleet import Offer, host_names, types_of


def keep_to(
    draft: Draft, good: Iterable[Offer], could_land: Callable[[Offer], bool], name_types: bool = True
) -> Mapping[JobField, str]:
    """Changes that keep the job on the nodes of ``good``.

    ``could_land`` tells where Slurm might put the request as rewritten. With ``name_types`` the GPU types of
    ``good`` are required as features even if no other node could take the job today, so that the expression
    stays right when nodes are added. What the user wrote is always kept.
    """
    good = tuple(good)
    names = frozenset(name for offer in good for name in offer.nodes)
    bad = tuple(o for o in draft.fleet.reachable if could_land(o) and not o.nodes <= names)
    types = _types_as_features(good) if name_types else ()
    if draft.fleet.unreadable_features or is_special(draft.fleet.expression):
        return _exclude(draft, (name for offer in bad for name in offer.nodes - names))
    changes: dict[JobField, str] = {}
    also = _marks(draft, good, bad, types)
    if types or also:
        changes[JobField.FEATURES] = add_features(draft.request.features, types, also)
    left = (name for offer in bad if _passes(offer, types, also) for name in offer.nodes - names)
    return {**changes, **_exclude(draft, left)}


def _types_as_features(good: tuple[Offer, ...]) -> tuple[str, ...]:
    """The types of ``good``, if each is a feature of each of its nodes; none otherwise."""
    types = types_of(good)
    return types if all(offer.gres_type in offer.features for offer in good) else ()


def _marks(draft: Draft, good: tuple[Offer, ...], bad: tuple[Offer, ...], types: tuple[str, ...]) -> tuple[str, ...]:
    """The site's mark for nodes in MIG mode, or the one for nodes that are not, where it tells good from bad."""
    still_bad = [offer for offer in bad if _passes(offer, types, ())]
    marks = (draft.view.mig_feature, draft.view.whole_feature)
    useful = (
        mark
        for mark in marks
        if mark and all(mark in o.features for o in good) and any(mark not in o.features for o in still_bad)
    )
    first = next(useful, None)
    return () if first is None else (first,)


def _passes(offer: Offer, types: tuple[str, ...], also: tuple[str, ...]) -> bool:
    text = add_features("", types, also)
    return satisfies(parse_features(text), offer.features, offer.features | set(types) | set(also))


def _exclude(draft: Draft, names: Iterable[str]) -> dict[JobField, str]:
    unwanted = set(names)
    if not unwanted:
        return {}
    own = host_names(draft.request.excluded_nodes)
    if draft.request.excluded_nodes and not own:
        return {}
    return {JobField.EXCLUDED_NODES: fold(sorted(unwanted | own))}
