"""Whole GPUs: how many may meet on one node, on which nodes that is allowed, and the fields that keep them there."""

from __future__ import annotations

from collections.abc import Sequence

from pyhetsched.errors import NeverError, RequestError
from pyhetsched.model import JobAsk, JobField, Verdict
from pyhetsched.slurm.gres import GresEntry, format_gres, parse_gres
from pyhetsched.submit.draft import Draft, Scope, Wanted
from pyhetsched.submit.fleet import Offer, types_of
from pyhetsched.submit.nearest import both, either
from pyhetsched.submit.placing import TYPED_ENVIRONMENT, tasks_per_node
from pyhetsched.submit.steering import keep_to

SOCKETS = 2


def most_on_a_node(draft: Draft, wanted: Sequence[Wanted]) -> int:
    """The most whole GPUs that Slurm may give the job on one node."""
    counts = {scope: sum(each.count for each in wanted if each.scope is scope) for scope in Scope}
    if counts[Scope.NODE]:
        return counts[Scope.NODE]
    if counts[Scope.JOB]:
        return max(counts[Scope.JOB] - max(draft.request.min_nodes, 1) + 1, 1)
    return max(counts[Scope.TASK] * tasks_per_node(draft), counts[Scope.SOCKET] * SOCKETS)


def least_on_a_node(wanted: Sequence[Wanted]) -> int:
    """The fewest whole GPUs that a node must have to be of any use to the job."""
    counts = {scope: sum(each.count for each in wanted if each.scope is scope) for scope in Scope}
    return counts[Scope.NODE] or max(counts[Scope.TASK], counts[Scope.SOCKET], 1)


def free_of_mig(offer: Offer, types: Sequence[str]) -> bool:
    """Whether no GPU that the job may get there is in MIG mode, but for those that the pool can take out of it."""
    return not any(g.mig_enabled and not g.switchable for g in offer.neighbours if not types or g.gres_type in types)


def gpus_on_a_node(offer: Offer, types: Sequence[str]) -> int:
    """The GPUs of such a node that the job may get."""
    return sum(group.count for group in offer.neighbours if not types or group.gres_type in types)


def steer_whole(draft: Draft, good: Sequence[Offer], types: Sequence[str]) -> dict[JobField, str]:
    """Changes that keep whole GPUs on the nodes of ``good``; ``types`` are those that the GRES itself names."""
    return dict(
        keep_to(draft, good, lambda offer: not types or offer.gres_type in types, name_types=False)
        if types or _all_good(draft, good)
        else keep_to(draft, good, lambda _: True)
    )


def _all_good(draft: Draft, good: Sequence[Offer]) -> bool:
    """Whether the MIG marks alone tell ``good`` from the rest, so that no type need be named."""
    names = {name for offer in good for name in offer.nodes}
    rest = [offer for offer in draft.fleet.reachable if not offer.nodes <= names]
    mark = draft.view.whole_feature
    return all(mark in o.features for o in good) and not any(mark in o.features for o in rest)


def served_whole(draft: Draft, wanted: Sequence[Wanted], good: Sequence[Offer], changes: dict[JobField, str]) -> Draft:
    """The draft settled with whole GPUs of ``good``; unchanged where ``changes`` says nothing new.

    Raises :class:`RequestError` where srun or salloc would ask again in the old words.
    """
    for each in draft.spelled:
        if draft.interactive and each.scope is not Scope.NODE and each.scope.value in changes:
            written = parse_gres(changes[each.scope.value])
            instead = ",".join(f"gpu:{e.type}:{e.amount}" if e.type else f"gpu:{e.amount}" for e in written)
            raise RequestError(f"srun and salloc keep {each.scope.option} for their steps; write --gres={instead}")
    models = tuple(dict.fromkeys(model.key for offer in good for model in offer.models))
    where = either(types_of(good)) or "any GPU"
    if changes and not any(offer.mig for offer in good) and any(offer.mig for offer in draft.fleet.reachable):
        where += " without MIG"
    count = most_on_a_node(draft, wanted)
    return draft.change(
        verdict=Verdict.REWRITTEN if changes else Verdict.UNCHANGED,
        ask=JobAsk("whole", gpus_per_node=count, model_keys=models),
        changes={**draft.changes, **changes},
        drop_environment=TYPED_ENVIRONMENT if any(scope.value in changes for scope in Scope) else (),
        became=f"{count} whole GPU{'s' if count > 1 else ''} on {where}" if changes else "unchanged",
        settled=True,
    )


def only_in_mig_mode(draft: Draft, wanted: Sequence[Wanted], types: Sequence[str]) -> NeverError:
    """The refusal of several whole GPUs per node where every such card is in MIG mode, with what would work."""
    count = most_on_a_node(draft, wanted)
    offers = [o for o in draft.fleet.in_partition if free_of_mig(o, (o.gres_type,)) and o.gpus >= count]
    works = [f"--gres=gpu:{name}:{count}" for name in types_of(offers)]
    one = f"one GPU with --gres=gpu:{types[0]}:1" if types else "one GPU with --gres=gpu:1"
    nodes = _nodes_with(draft.fleet.reachable, types)
    if wanted[0].scope is Scope.JOB and count <= len(nodes):
        one = f"one GPU on each of {count} nodes with -N {count} --gres=gpu:{f'{types[0]}:' if types else ''}1"
    kept = _kept_to(draft)
    if kept and works and not _nodes_with(offers, ()) & {name for o in draft.fleet.reachable for name in o.nodes}:
        # What works elsewhere does not work beside the options that keep the job here.
        instead = f"write {one}, or leave out {both(option[:2] for option in kept)} and write {either(works)}"
    else:
        instead = f"write {either([*works, one])}"
    whole = nodes == _nodes_with(draft.fleet.in_partition, types)
    where = "here" if whole or not kept else f"that {both(kept)} leaves"
    return NeverError(
        f"every {either(types) if types else 'GPU'} {where} is in MIG mode, where GPUs of a node cannot reach each "
        f"other, so {count} on a node cannot be had; {instead}"
    )


def _nodes_with(offers: Sequence[Offer], types: Sequence[str]) -> set[str]:
    return {name for offer in offers if not types or offer.gres_type in types for name in offer.nodes}


def _kept_to(draft: Draft) -> list[str]:
    """The options of the request that keep it to some nodes."""
    request = draft.request
    given = (("-C", request.features), ("-w", request.required_nodes), ("-x", request.excluded_nodes))
    return [f"{option} {value[:100]}" for option, value in given if value]


def corrected_fields(draft: Draft) -> dict[JobField, str]:
    """The fields whose types were written in another way than the site's, in the site's way."""
    changes: dict[JobField, str] = {}
    for scope in Scope:
        mine = [each for each in draft.wanted if each.scope is scope and not each.implied]
        written = [e.type or "" for e in parse_gres(scope.text(draft.request)) if e.name == "gpu" and e.amount]
        if [each.type for each in mine] != written:
            entries = [GresEntry("gpu", each.type or None, each.count) for each in mine]
            changes[scope.value] = format_gres((*draft.others.get(scope, ()), *entries))
    return changes
