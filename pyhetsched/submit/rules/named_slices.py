"""Slices by name (``gpu:1g.10gb:1``): untyped shards, weighed exactly, on the GPU types that have the profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyhetsched.errors import NeverError, RequestError
from pyhetsched.mig.names import Meaning, resolve, suggest
from pyhetsched.mig.profiles import GpuModel
from pyhetsched.model import Candidate
from pyhetsched.submit.draft import Draft, Scope, Want, Wanted
from pyhetsched.submit.fleet import Offer, models_in, types_of
from pyhetsched.submit.nearest import both, either
from pyhetsched.submit.placing import check_client, per_node, serve_slices, tasks_per_node
from pyhetsched.submit.registry import rule
from pyhetsched.submit.slicing import Fit, for_tasks, most_that_fit, options
from pyhetsched.submit.suitability import needs_of

Meant = list[tuple[tuple[Meaning, ...], int]]


@rule("named-slices")
def slices_by_name(draft: Draft) -> Draft:
    """Settle requests that name a slice."""
    named = draft.slices_wanted
    if draft.settled or not named:
        return draft
    _check_company(draft, named)
    scope, remedy = named[0].scope, gres_option([for_a_node(draft, each) for each in named])
    check_client(draft, scope, remedy)
    meanings = [_meanings(each, draft) for each in named]
    counts, changes = per_node(draft, scope, [each.count for each in named], remedy)
    meant = list(zip(meanings, counts, strict=True))
    fits = [fit for fit in options(_suitable(draft, named), meant) if may_cut(draft, fit, scope)]
    if not fits:
        raise too_much(draft, meant, named)
    draft = draft.change(candidates=_candidates(fits), score_means="share of one GPU's shards that the slices take")
    fit = fits[0] if scope is not Scope.TASK else for_tasks(fits[0], tasks_per_node(draft))
    return serve_slices(draft, fit, scope, changes)


def gres_option(named: Sequence[Wanted]) -> str:
    """The ``--gres`` that asks the same for each node."""
    return "--gres=" + ",".join(map(str, named))


def for_a_node(draft: Draft, each: Wanted) -> Wanted:
    """The same for each node as ``--gres`` would ask for it: a node's share, rounded up."""
    if each.scope is Scope.TASK:
        return replace(each, count=each.count * tasks_per_node(draft))
    if each.scope is Scope.JOB:
        return replace(each, count=-(-each.count // max(draft.request.min_nodes, 1)))
    return each


def may_cut(draft: Draft, fit: Fit, scope: Scope) -> bool:
    """Whether slices on several GPUs of a node may be had for ``scope``."""
    return fit.gpus == 1 or (scope is not Scope.TASK and draft.policy.allow_cut_whole)


def _check_company(draft: Draft, named: Sequence[Wanted]) -> None:
    """Refuse slices beside whole GPUs, in two fields, per socket, against the user's own wishes, on whole nodes."""
    for other in draft.wanted:
        if other.want is not Want.SLICE:
            raise RequestError(f"{named[0]} and {other} cannot be had in one job; ask for slices or for GPUs, not both")
    scopes = dict.fromkeys(each.scope for each in named)
    if len(scopes) > 1:
        used = both(scope.option for scope in scopes)
        raise RequestError(f"slices are asked for by {used} at once; write {gres_option(named[:1])} alone")
    if named[0].scope is Scope.SOCKET:
        raise RequestError(f"slices cannot be tied to sockets; write {gres_option(named)} for each node instead")
    if draft.wishes.slices == "no":
        raise RequestError(f"{named[0]} is a slice, which slices=no forbids; leave out one of the two")
    if draft.request.exclusive:
        raise RequestError(f"--exclusive takes every GPU of a node; leave it out and keep {gres_option(named)}")


def _meanings(each: Wanted, draft: Draft) -> tuple[Meaning, ...]:
    """What a slice name means within reach; raises with the reason where it means nothing."""
    fleet = draft.fleet
    here = models_in(fleet.cluster)
    if not here:
        raise NeverError(f"{each}: no GPU of this cluster can be cut into slices; ask for a whole one, --gres=gpu:1")
    everywhere = _resolved(each, here, draft)
    for offers, reason in ((fleet.in_partition, _partition_reason), (fleet.reachable, _constraint_reason)):
        if not any(meaning.model in models_in(offers) for meaning in everywhere):
            raise NeverError(reason(each, everywhere, draft))
    return tuple(meaning for meaning in everywhere if meaning.model in models_in(fleet.reachable))


def _resolved(each: Wanted, here: Sequence[GpuModel], draft: Draft) -> tuple[Meaning, ...]:
    try:
        return resolve(each.type, here, draft.fleet.site_types)
    except (NeverError, RequestError) as error:
        near = suggest(each.type, here, most=1) if "write " not in str(error) else ()
        hint = f"; write --gres=gpu:{near[0]}:{each.count}" if near else ""
        raise type(error)(f"{error}{hint}") from error


def _partition_reason(each: Wanted, everywhere: Sequence[Meaning], draft: Draft) -> str:
    offers = [o for o in draft.fleet.cluster if o.slices and o.models[0] in {m.model for m in everywhere}]
    where = sorted({p.name for p in draft.view.partitions for o in offers if p.nodes & o.nodes})
    where = where or sorted({p for n in draft.view.nodes for o in offers if n.name in o.nodes for p in n.partitions})
    hint = f"submit with -p {where[0]}" if where else "ask for a GPU with --gres=gpu:1"
    title = f"partition {draft.fleet.partition}" if draft.fleet.partition else "the partition"
    return f"{each} cannot be had in {title}, only on {either(types_of(offers))}; {hint}"


def _constraint_reason(each: Wanted, everywhere: Sequence[Meaning], draft: Draft) -> str:
    models = {meaning.model for meaning in everywhere}
    types = types_of(o for o in draft.fleet.in_partition if o.slices and o.models[0] in models)
    if draft.request.features:
        own = f"-C {draft.request.features[:100]!r}".replace("'", "")
        instead = f"leave out -C, or ask for a whole GPU there with --gres=gpu:1 {own}"
        return f"{each} and {own} contradict each other: that slice is had on {either(types)}; {instead}"
    return f"{each} cannot be had on the nodes that -w and -x leave, only on {either(types)}; leave out -w and -x"


def _suitable(draft: Draft, named: Sequence[Wanted]) -> list[Offer]:
    """The reachable offers on which every named slice satisfies the job's wishes; raises where that is none."""
    needs = needs_of(draft.wishes)
    good: list[Offer] = []
    reason = ""
    for offer in draft.fleet.reachable:
        if not offer.slices:
            continue
        profiles = [p for n in named for m in _safe(n, offer, draft) for p in [m.profile]]
        if len(profiles) < len(named):
            continue
        reasons = [why for p in profiles if (why := needs.why_not(offer, p))]
        reason = reasons[0] if reasons else reason
        good += [] if reasons else [offer]
    if not good and reason:
        raise NeverError(f"{named[0]} does not satisfy what the job needs: {reason}; drop the one or the other")
    return good


def _safe(named: Wanted, offer: Offer, draft: Draft) -> tuple[Meaning, ...]:
    try:
        return resolve(named.type, offer.models, draft.fleet.site_types)[:1]
    except RequestError:
        return ()


def too_much(draft: Draft, meant: Meant, named: Sequence[Wanted]) -> NeverError:
    """The refusal of more slices than a node, or for tasks one GPU, can hold; it names what does fit."""
    scope = named[0].scope
    if len(named) > 1:
        return NeverError(
            f"{gres_option(named)} cannot be had on one {'GPU' if scope is Scope.TASK else 'node'}; "
            f"ask for fewer, such as --gres={named[0]}"
        )
    most, offer, profile = max(_most(draft, meant[0][0], scope), key=lambda item: item[0])
    each = named[0]
    if scope is Scope.TASK:
        tasks = max(most // each.count, 0)
        if tasks:
            nodes = -(-max(draft.request.num_tasks, 1) // tasks)
            return NeverError(
                f"{tasks_per_node(draft)} tasks with {each.count} x {profile} each do not fit one GPU, {tasks} do; "
                f"write -N {nodes} --ntasks-per-node={tasks}"
            )
        instead = f"write --gpus-per-task={profile}:{most}"
        return NeverError(f"{each.count} x {profile} for one task do not fit one GPU; {instead}")
    on = f"{offer.gpus if draft.policy.allow_cut_whole else 1} {offer.gres_type}"
    return NeverError(
        f"{meant[0][1]} x {profile} do not fit one node: at most {most} do, on a node with {on}; "
        f"write --gres=gpu:{each.type}:{most}, or more nodes with -N"
    )


def _most(draft: Draft, meanings: Sequence[Meaning], scope: Scope) -> list[tuple[int, Offer, str]]:
    by_model = {meaning.model: meaning.profile.name for meaning in meanings}
    several = scope is not Scope.TASK and draft.policy.allow_cut_whole
    return [
        (most_that_fit(o.models[0], by_model[o.models[0]], o.gpus if several else 1), o, by_model[o.models[0]])
        for o in draft.fleet.reachable
        if o.slices and o.models[0] in by_model
    ]


def _candidates(fits: Sequence[Fit]) -> tuple[Candidate, ...]:
    best = fits[0]
    return tuple(
        Candidate(
            name=f"{fit.text} on {either(types_of(fit.offers))}",
            admissible=True,
            chosen=fit is best,
            score=round(fit.share, 4),
            reason=_reason(fit, best),
        )
        for fit in fits
    )


def _reason(fit: Fit, best: Fit) -> str:
    cost = f"{fit.shards} of {fit.shards_per_gpu} shards"
    return f"takes {cost} of a GPU" if fit is best else f"one job has one count of shards, and here it takes {cost}"
