"""GPU types that do not exist here, or not in the job's partition: refused with the nearest that does."""

from __future__ import annotations

import re
from dataclasses import replace

from pyhetsched.errors import NeverError
from pyhetsched.mig.names import suggest
from pyhetsched.mig.profiles import models_of_type
from pyhetsched.submit.draft import Draft, Want, Wanted
from pyhetsched.submit.fleet import models_in, types_of
from pyhetsched.submit.nearest import gpus_here, nearest_type
from pyhetsched.submit.registry import rule

_SLICE = re.compile(r"(?:^|[_:-])\d+g", re.IGNORECASE)


@rule("typos")
def know_the_types(draft: Draft) -> Draft:
    """Turn each type of a whole GPU into the site's own spelling of it; refuse types there are not."""
    if draft.settled or draft.unreadable:
        return draft
    wanted = tuple(
        replace(each, type=_site_type(each, draft)) if each.want is Want.WHOLE and each.type else each
        for each in draft.wanted
    )
    types = tuple(dict.fromkeys(_known_type(name, draft, f"types={name}", name) for name in draft.wishes.types))
    return draft.change(wanted=wanted, wishes=replace(draft.wishes, types=types))


def _site_type(each: Wanted, draft: Draft) -> str:
    name = _known_type(each.type, draft, str(each), f"--gres=gpu:{{}}:{each.count}")
    if name not in types_of(draft.fleet.in_partition):
        has = [offer for offer in draft.fleet.cluster if offer.gres_type == name]
        partitions = sorted({p for offer in has for p in _partitions_of(draft, offer.nodes)})
        there = f"; submit with -p {partitions[0]}" if partitions else ""
        here = gpus_here(draft.fleet.in_partition)
        raise NeverError(f"partition {draft.fleet.partition} has no {name}, its GPUs are {here}{there}")
    return name


def _partitions_of(draft: Draft, nodes: frozenset[str]) -> set[str]:
    by_list = {p.name for p in draft.view.partitions if p.nodes & nodes}
    return by_list | {name for node in draft.view.nodes if node.name in nodes for name in node.partitions}


def _known_type(name: str, draft: Draft, asked: str, remedy: str) -> str:
    """The site's type that ``name`` means: exact, in another case, or a device name of its model."""
    types = types_of(draft.fleet.cluster)
    if name in types:
        return name
    same = [known for known in types if known.casefold() == name.casefold()]
    if same:
        return same[0]
    meant = {model.key for model in models_of_type(name)}
    by_model = [t for t in types if meant & set(draft.fleet.site_types.get(t, ()))]
    if len(by_model) == 1 and set(draft.fleet.site_types[by_model[0]]) <= meant:
        return by_model[0]
    slices = suggest(name, models_in(draft.fleet.in_partition), most=1) if _SLICE.search(name) else ()
    if slices:
        raise NeverError(f"{name!r} ({asked}) is no slice here; did you mean --gres=gpu:{slices[0]}:1?")
    near = nearest_type(name, types_of(draft.fleet.in_partition) or types)
    hint = f"did you mean {_remedy(remedy, near, asked)}?" if near else "ask --gres=gpu:1 for any of them"
    raise NeverError(f"no GPU here is of type {name!r} ({asked}); there are {gpus_here(draft.fleet.cluster)}; {hint}")


def _remedy(remedy: str, near: str, asked: str) -> str:
    return remedy.format(near) if "{}" in remedy else asked.replace(remedy, near)
