"""What a round tells of itself: a record for each job it changed, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyhetsched.clock import Clock
from pyhetsched.daemon.journal import new_id
from pyhetsched.daemon.round_changes import Change
from pyhetsched.daemon.round_plan import RoundPlan
from pyhetsched.model import Decision, Mode
from pyhetsched.store.runs import ROUND_KIND


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """One round in figures.

    ``reasons`` say why rungs of the policy's ladder before ``rung`` did not answer; ``refused`` updates were not taken
    by Slurm; times in ms.
    """

    time_s: float
    policy: str
    rung: str
    reasons: tuple[str, ...]
    mode: str
    pending: int
    running: int
    preferences: int
    reordered: int
    refused: int
    solve_ms: float
    total_ms: float
    notes: tuple[str, ...] = ()


def summary_of(
    plan: RoundPlan, mode: str, now_s: float, started_s: float, clock: Clock, notes: Sequence[str],
    done: Sequence[Change] = (), refused: int = 0,
) -> RoundSummary:  # fmt: skip
    """Return the summary of a round that began at monotonic ``started_s``."""
    return RoundSummary(
        now_s, plan.policy, plan.rung, plan.reasons, mode, plan.pending, plan.running,
        sum(change.prefer is not None for change in done), sum(change.site_factor is not None for change in done),
        refused, plan.solve_ms, 1e3 * (clock.monotonic_s() - started_s), tuple(notes),
    )  # fmt: skip


def decision_of(change: Change, plan: RoundPlan | None, now_s: float) -> Decision:
    """Return the record of one job's change; its detail is what rounds have set on the job now."""
    job, wish = change.job, change.wish
    of = len(plan.wishes) if plan else 0
    outcome = "withdrawn" if wish is None else "preferred" if change.prefer is not None else "ordered"
    place = f"; place {wish.rank} of {of}" if wish is not None else ""
    message = f"{wish.why}{place}" if wish is not None else "rounds no longer hold for this job"
    detail = {
        "prefer": change.after.prefer, "site_factor": change.after.site_factor, "restarts": change.after.restarts,
        "rank": wish.rank if wish else 0, "of": of, "wanted": wish.wanted if wish else "",
        "class": plan.classes.get(job.job_id, "") if plan else "", "reasons": list(plan.reasons) if plan else [],
        "waiting": plan.pending if plan else 0, "running": plan.running if plan else 0,
    }  # fmt: skip
    return Decision(
        id=new_id(), time_s=now_s, kind=ROUND_KIND, job_id=job.job_id, uid=job.uid, user=job.user,
        mode=(change.mode if wish is not None else Mode.ENFORCE).value, asked=_asked(change),
        became=_became(change), outcome=outcome, message=message,
        candidates=plan.candidates(wish) if plan and wish else (),
        policy=f"{plan.policy} ({plan.rung}); score: seconds to run" if plan else "", account=job.account,
        partition=",".join(job.partitions), detail=detail,
    )  # fmt: skip


def event_of(summary: RoundSummary) -> Decision:
    """Return the record of a round as a whole."""
    text = (
        f"{summary.pending} waiting, {summary.running} running: {summary.preferences} preferences and "
        f"{summary.reordered} places changed in {summary.total_ms:.0f} ms"
    )
    fallen = "".join(f"; {reason}" for reason in (*summary.reasons, *summary.notes))
    return Decision(
        id=new_id(), time_s=summary.time_s, kind=ROUND_KIND, job_id=0, uid=0, user="root", mode=summary.mode, asked="",
        became="", outcome="fell back" if summary.reasons else "planned", message=text + fallen,
        policy=f"{summary.policy} ({summary.rung})", detail={"reasons": list(summary.reasons)},
    )  # fmt: skip


def _asked(change: Change) -> str:
    job = change.job
    kind = f"{job.gpus} {job.gres_type or 'whole'} GPU{'s' if job.gpus > 1 else ''}" if job.gpus else "slices"
    return f"{kind} within {job.features}" if job.features else kind


def _became(change: Change) -> str:
    parts = []
    if change.prefer is not None:
        parts.append(f"prefers {change.prefer}" if change.prefer else "prefers nothing")
    if change.site_factor is not None:
        parts.append(f"priority {change.site_factor:+d}")
    return ", ".join(parts)
