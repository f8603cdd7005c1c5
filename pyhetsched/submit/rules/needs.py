"""GPUs by need (``gpu:20gb:1``, ``min-vram=40G``, ``min-cc=8.0``, ``types=``): the smallest thing that satisfies it.

The score of a candidate is the GPU memory that it takes, in nominal gigabytes, plus its peak FP16 throughput in
PFLOP/s to break ties; smaller is better. All candidates are recorded with why they came behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyhetsched.errors import RequestError
from pyhetsched.mig.names import Meaning
from pyhetsched.mig.profiles import GpuModel, Profile
from pyhetsched.model import Candidate
from pyhetsched.submit.draft import Draft, Scope, Want, Wanted
from pyhetsched.submit.fleet import Offer, models_in, of_types_alone, types_of
from pyhetsched.submit.nearest import both, either
from pyhetsched.submit.placing import check_client, per_node, serve_slices, tasks_per_node, whole_fields
from pyhetsched.submit.registry import rule
from pyhetsched.submit.rules.named_slices import may_cut
from pyhetsched.submit.slicing import Fit, for_tasks, options
from pyhetsched.submit.speeds import speed_of
from pyhetsched.submit.suitability import Needs, needs_of
from pyhetsched.submit.whole import (
    corrected_fields,
    free_of_mig,
    least_on_a_node,
    most_on_a_node,
    served_whole,
    steer_whole,
)

SCORE = "smallest first: GPU memory taken in GB, ties by peak FP16 PFLOP/s"


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to serve: slices (``fit``) or whole GPUs of ``offers``; ``why_not`` is empty if it may be used.

    ``behind`` says why it comes after all others whatever its score, ``down`` that no such node is up.
    """

    name: str
    score: float
    why_not: str = ""
    behind: str = ""
    down: bool = False
    fit: Fit | None = None
    offers: tuple[Offer, ...] = ()


@rule("needs")
def by_need(draft: Draft) -> Draft:
    """Settle requests that say what is needed rather than what it is called."""
    each = _the_one(draft)
    if draft.settled or each is None:
        return draft
    needs = needs_of(draft.wishes, each.memory_gb)
    ways = sorted([*_slice_ways(draft, each, needs), *_whole_ways(draft, each, needs)], key=lambda way: way.score)
    usable = [way for way in ways if not way.why_not]
    best = min(usable, key=lambda way: (bool(way.behind), way.down, way.score), default=None)
    draft = draft.change(candidates=tuple(_candidate(way, best) for way in ways), score_means=SCORE)
    if best is None:
        return draft.refused(_refusal(draft, each, needs, ways))
    if best.fit is not None:
        return _with_slices(draft, each, best.fit)
    return _with_whole(draft, each, best, [way for way in usable if way.fit is None])


def _the_one(draft: Draft) -> Wanted | None:
    """The entry that is meant by need; None if the request is not of this kind."""
    by_memory = [each for each in draft.wanted if each.want is Want.MEMORY]
    if not by_memory and not draft.wishes.has_needs:
        return None
    if not draft.wanted and not draft.unreadable:
        return Wanted(Scope.NODE, Want.WHOLE, 1)
    if len(draft.wanted) > 1:
        raise RequestError(
            f"{both(map(str, draft.wanted))} cannot be combined with what the job needs; write one --gres=gpu:N"
        )
    return draft.wanted[0] if draft.wanted and draft.wanted[0].want is not Want.SHARD else None


def _slice_ways(draft: Draft, each: Wanted, needs: Needs) -> list[_Way]:
    """One way for each kind of slice that exists within reach."""
    barred = _no_slices(draft, each)
    only = draft.wishes.slices == "only"
    meanings: dict[str, list[Meaning]] = {}
    for model in models_in(draft.fleet.reachable):
        for profile in model.profiles:
            if not profile.variant and not profile.graphics and (only or profile != model.whole_profile):
                meanings.setdefault(profile.name, []).append(Meaning(model, profile))
    ways: list[_Way] = []
    for name, meant in meanings.items():
        ways += _ways_of_profile(draft, each, needs, name, tuple(meant), barred)
    return ways


def _ways_of_profile(
    draft: Draft, each: Wanted, needs: Needs, name: str, meant: tuple[Meaning, ...], barred: str
) -> list[_Way]:
    profiles = {meaning.model: meaning.profile for meaning in meant}
    offers = [o for o in draft.fleet.reachable if o.slices and o.models[0] in profiles and _typed(each, o)]
    good = [o for o in offers if not needs.why_not(o, profiles[o.models[0]])]
    score = min(_score(meaning.model, meaning.profile) for meaning in meant)
    title = f"{name} on {either(types_of(good or offers))}"
    if barred or not good:
        why = barred or next((needs.why_not(o, profiles[o.models[0]]) for o in offers), "of another type")
        return [_Way(title, score, why)]
    counts, _ = per_node(draft, each.scope, [each.count], "--gres")
    fits = [fit for fit in options(good, [(meant, counts[0])]) if may_cut(draft, fit, each.scope)]
    if not fits:
        return [_Way(title, score, f"{counts[0]} of them do not fit a node")]
    behind = _behind(draft, counts[0])
    return [
        _Way(f"{name} on {either(types_of(f.offers))}", score, behind=behind, down=not f.usable, fit=f) for f in fits
    ]


def _no_slices(draft: Draft, each: Wanted) -> str:
    """Why no slice may serve the request at all; empty if one may."""
    if (draft.wishes.slices or draft.policy.slices) == "no":
        return "slices=no"
    if each.want is Want.WHOLE and each.type and draft.wishes.slices is None:
        return f"a whole {each.type} is asked for; slices=ok would permit a slice of it"
    if draft.request.exclusive:
        return "--exclusive takes whole nodes"
    if draft.interactive and each.scope is not Scope.NODE:
        return f"srun and salloc keep {each.scope.option}; --gres would permit slices"
    if each.scope is Scope.SOCKET:
        return "slices cannot be tied to sockets"
    try:
        per_node(draft, each.scope, [each.count], "--gres")
    except RequestError as error:
        return str(error)
    return ""


def _behind(draft: Draft, count: int) -> str:
    """Why slices come after whole GPUs: several of one job on one card cannot reach each other."""
    if count < 2 or draft.wishes.slices in ("ok", "only") or draft.policy.many_by_need == "slices":
        return ""
    return "slices of one job cannot reach each other; slices=ok permits them"


def _whole_ways(draft: Draft, each: Wanted, needs: Needs) -> list[_Way]:
    """One way for each type of GPU within reach."""
    ways = []
    most = most_on_a_node(draft, [each])
    for name in types_of(draft.fleet.reachable):
        offers = [o for o in draft.fleet.reachable if o.gres_type == name]
        suited = [o for o in offers if not needs.why_not(o)]
        roomy = [o for o in suited if o.gpus >= least_on_a_node([each])]
        good = tuple(o for o in roomy if most < 2 or free_of_mig(o, (name,)))
        if each.scope is Scope.JOB and sum(offer.total_gpus for offer in good) < each.count:
            roomy, good = [], ()
        why = ""
        if draft.wishes.slices == "only":
            why = "slices=only"
        elif not _typed(each, offers[0]):
            why = "of another type"
        elif not good:
            why = "every one is in MIG mode" if roomy else "too few on a node"
            why = why if suited else needs.why_not(offers[0])
        score = min((_score(model) for offer in (good or offers) for model in offer.models), default=float("1e6"))
        down = not any(offer.usable for offer in good)
        ways.append(_Way(f"whole {name}", score, why, down=down, offers=good))
    return ways


def _typed(each: Wanted, offer: Offer) -> bool:
    return each.want is not Want.WHOLE or not each.type or offer.gres_type == each.type


def _score(model: GpuModel, profile: Profile | None = None) -> float:
    speed = speed_of(model, profile)
    memory_gb = model.memory_gb if profile is None else profile.memory_gb
    return round(memory_gb + (speed.tflops / 1000 if speed is not None else 0.0), 4)


def _with_slices(draft: Draft, each: Wanted, fit: Fit) -> Draft:
    name = fit.slices[0].profile
    check_client(draft, each.scope, f"--gres=gpu:{name}:{each.count}")
    _, changes = per_node(draft, each.scope, [each.count], f"--gres=gpu:{name}:{each.count}")
    if each.scope is Scope.TASK:
        fit = for_tasks(fit, tasks_per_node(draft))
    return serve_slices(draft, fit, each.scope, changes)


def _with_whole(draft: Draft, each: Wanted, best: _Way, others: Iterable[_Way]) -> Draft:
    """Whole GPUs of the best type, or of every type that the user listed and that satisfies the rest."""
    offers = best.offers
    if draft.wishes.types:
        offers = of_types_alone(offer for way in others for offer in way.offers) or offers
    types = types_of(offers)
    keep = each.implied or (each.want is Want.WHOLE and each.type)
    fields = corrected_fields(draft) if keep else whole_fields(draft, each.scope, types, each.count)
    named = types if len(types) == 1 and not each.implied else ()
    return served_whole(draft, [each], offers, {**fields, **steer_whole(draft, offers, named)})


def _candidate(way: _Way, best: _Way | None) -> Candidate:
    if way is best:
        return Candidate(way.name, True, True, way.score, "the smallest that satisfies the request")
    down = "every such node is down now" if way.down else ""
    reason = way.why_not or way.behind or down or "would do, but is larger"
    return Candidate(way.name, not way.why_not, False, way.score, reason)


def _refusal(draft: Draft, each: Wanted, needs: Needs, ways: list[_Way]) -> str:
    """Two clauses: what cannot be had and why, and the nearest request that works."""
    offers = draft.fleet.reachable
    largest = max((m.memory_gb for o in offers for m in o.models), default=0)
    if needs.memory_gb > largest:
        types = types_of(o for o in offers if any(m.memory_gb == largest for m in o.models))
        sizes = f"no GPU here has {needs.memory_gb:g} GB, the largest have {largest} GB ({both(types)})"
        return f"{sizes}; write --gres=gpu:{largest}gb:1"
    what = " ".join(draft.wishes.written) or str(each)
    reasons = "; ".join(f"{way.name}: {way.why_not}" for way in ways[-3:][::-1])
    if each.scope is not Scope.NODE and draft.interactive:
        return f"{each} with {what} cannot be served ({reasons}); write --gres={each}"
    one = Wanted(Scope.NODE, each.want, 1, each.type)
    nearest = "--gres=gpu:1 and fewer conditions" if each.count == 1 else f"--gres={one}"
    return f"nothing within reach satisfies {what} for {each} ({reasons}); write {nearest}"
