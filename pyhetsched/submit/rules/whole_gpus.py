"""Whole GPUs: left as they are, but two or more of a node never come from cards in MIG mode."""

from __future__ import annotations

from collections.abc import Sequence

from pyhetsched.errors import NeverError
from pyhetsched.submit.draft import Draft, Scope, Want, Wanted
from pyhetsched.submit.fleet import Offer, types_of
from pyhetsched.submit.nearest import either
from pyhetsched.submit.registry import rule
from pyhetsched.submit.whole import (
    corrected_fields,
    free_of_mig,
    gpus_on_a_node,
    least_on_a_node,
    most_on_a_node,
    only_in_mig_mode,
    served_whole,
    steer_whole,
)


@rule("whole-gpus")
def whole_gpus(draft: Draft) -> Draft:
    """Settle requests for whole GPUs by count or type."""
    wanted = [each for each in draft.wanted if each.want is Want.WHOLE]
    if draft.settled or not wanted or len(wanted) < len(draft.wanted):
        return draft
    typed = all(each.type for each in wanted)
    types = tuple(dict.fromkeys(each.type for each in wanted)) if typed else ()
    offers = [o for o in draft.fleet.reachable if not types or o.gres_type in types]
    if not offers:
        raise _contradiction(draft, wanted[0])
    _check_counts(draft, wanted, offers, types)
    changes = corrected_fields(draft)
    most = most_on_a_node(draft, wanted)
    good = [o for o in offers if free_of_mig(o, types) and gpus_on_a_node(o, types) >= least_on_a_node(wanted)]
    alone = draft.request.exclusive and bool(good)
    if (most >= 2 or alone) and not all(free_of_mig(offer, types) for offer in offers):
        if not good:
            raise only_in_mig_mode(draft, wanted, types)
        return served_whole(draft, wanted, good, {**changes, **steer_whole(draft, good, types)})
    return served_whole(draft, wanted, offers, changes)


def _check_counts(draft: Draft, wanted: Sequence[Wanted], offers: Sequence[Offer], types: Sequence[str]) -> None:
    """Refuse more GPUs than any node, or for a job-wide count all nodes, can give."""
    for each in wanted:
        mine = [offer for offer in offers if not each.type or offer.gres_type == each.type]
        if not mine:
            raise _contradiction(draft, each)
        there = tuple([each.type] if each.type else ())
        if each.scope is Scope.JOB:
            nodes = {name: gpus_on_a_node(offer, there) for offer in mine for name in offer.nodes}
            most, where = sum(nodes.values()), "all nodes together have"
        else:
            most, where = max(gpus_on_a_node(offer, there) for offer in mine), "no node has more than"
        if each.count > most:
            kind = f"{each.type} " if each.type else ""
            free = [gpus_on_a_node(offer, there) for offer in mine if free_of_mig(offer, there)]
            nearest_count = min(most, max(free)) if free else 1
            typed = f"{each.type}:" if each.type else ""
            nearest = f"--gres=gpu:{typed}{nearest_count}"
            raise NeverError(f"{each.count} {kind}GPUs are too many: {where} {most}; write {nearest}")


def _contradiction(draft: Draft, each: Wanted) -> NeverError:
    types = types_of(draft.fleet.reachable)
    if draft.request.features and not draft.fleet.unreadable_features:
        what = f"{each} and -C {draft.request.features[:100]} contradict each other"
    else:
        what = f"{each} cannot be had on the nodes that -p, -w and -x leave"
    instead = f"write --gres=gpu:{types[0]}:{each.count} there" if types else "no node with a GPU is left there"
    others = f"; {either(types)} can" if len(types) > 1 else ""
    return NeverError(f"{what}{others}; {instead}, or leave them out")
