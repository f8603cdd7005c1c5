"""From what a round wants to the fewest updates that bring Slurm there. Pure.

Two fields of waiting jobs are touched and no other: ``Prefer``, which Slurm passes over at once when the preferred
nodes are busy, and the site factor, which Slurm adds to a priority that age and fairshare still make. Nothing is held,
no node is closed, and whatever somebody else has written into either field is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyhetsched.daemon.modes import ModeTable
from pyhetsched.daemon.round_plan import RoundPlan, Wish
from pyhetsched.model import Mode
from pyhetsched.slurm.gpu_jobs import PENDING, GpuJob

#: Ranks are told apart in so many steps up and down; within a step Slurm's own priority decides.
STEPS = 10
MOST_PREFERENCES = 100
MOST_REORDERED = 500
_STRENGTH = {Mode.OFF: 0, Mode.SHADOW: 1, Mode.ENFORCE: 2}


@dataclass(frozen=True, slots=True)
class Applied:
    """What rounds have set (or in shadow would have) on a job, as of its start number ``restarts``."""

    prefer: str = ""
    site_factor: int = 0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One job's update: None leaves a field; ``after`` is what rounds will then have set. ``wish`` None: withdrawn."""

    job: GpuJob
    mode: Mode
    prefer: str | None
    site_factor: int | None
    before: Applied
    after: Applied
    wish: Wish | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """What is set: by rounds (``applied``; ``told`` in shadow), and in Slurm; ``factors`` None: not to be had."""

    applied: Mapping[int, Applied]
    told: Mapping[int, Applied]
    factors: Mapping[int, int] | None


def changes(
    plan: RoundPlan, mode: Mode, modes: ModeTable, picture: Picture, order_points: int, keep: int = 1
) -> list[Change]:
    """Return the updates, most urgent jobs first; each field is changed for a bounded number of jobs a round.

    The narrower of ``mode`` (the rounds') and the mode of a job's user, account and partition holds for it. Where
    ranks share a step, a step moves only by more than ``keep``.
    """
    found: list[Change] = []
    left = {"prefer": MOST_PREFERENCES, "order": MOST_REORDERED}
    of = len(plan.wishes)
    keep = keep if of > 2 * STEPS + 1 else 0
    for wish in plan.wishes:
        job = wish.job
        scope = min(mode, modes.of(job.user, job.account, ",".join(job.partitions)), key=_STRENGTH.__getitem__)
        have = picture.applied.get(job.job_id)
        if scope is not Mode.ENFORCE and have is not None:
            found.extend(_withdrawn(job, have, picture, scope))
        if scope is Mode.OFF:
            continue
        before = _standing(job, have, picture) if scope is Mode.ENFORCE else _told(job, picture)
        factor = _factor(wish.rank, of, order_points, before.site_factor, keep)
        prefer = wish.prefer if wish.prefer != before.prefer and _may_prefer(job, have) else None
        order = factor if factor != before.site_factor and _may_order(job, have, picture) else None
        prefer = prefer if left["prefer"] > 0 else None
        order = order if left["order"] > 0 else None
        if prefer is None and order is None:
            continue
        left["prefer"] -= prefer is not None
        left["order"] -= order is not None
        after = Applied(
            before.prefer if prefer is None else prefer, before.site_factor if order is None else order, job.restarts
        )
        found.append(Change(job, scope, prefer, order, before, after, wish))
    return found


def withdrawals(jobs: Iterable[GpuJob], picture: Picture) -> list[Change]:
    """Return the updates that take back all that rounds have set on waiting jobs."""
    found: list[Change] = []
    for job in jobs:
        have = picture.applied.get(job.job_id)
        if have is not None and job.state == PENDING:
            found.extend(_withdrawn(job, have, picture, Mode.OFF))
    return found


def _withdrawn(job: GpuJob, have: Applied, picture: Picture, mode: Mode) -> Iterable[Change]:
    before = _standing(job, have, picture)
    prefer = "" if before.prefer and _may_prefer(job, have) else None
    order = 0 if before.site_factor and _may_order(job, have, picture) else None
    if prefer is not None or order is not None:
        yield Change(job, mode, prefer, order, before, Applied(restarts=job.restarts))


def _standing(job: GpuJob, have: Applied | None, picture: Picture) -> Applied:
    """Return what stands of what was set: a start uses a preference up, and a factor may have been taken off."""
    if have is None:
        return Applied(restarts=job.restarts)
    gone = picture.factors is not None and picture.factors.get(job.job_id) == 0
    return Applied(_preference(job, have), 0 if gone else have.site_factor, job.restarts)


def _told(job: GpuJob, picture: Picture) -> Applied:
    told = picture.told.get(job.job_id)
    return Applied(_preference(job, told), told.site_factor if told else 0, job.restarts)


def _preference(job: GpuJob, have: Applied | None) -> str:
    return have.prefer if have is not None and have.restarts == job.restarts else ""


def _may_prefer(job: GpuJob, have: Applied | None) -> bool:
    """Whether the field is as we left it: neither an owner's own preference nor ours, taken off by the owner."""
    return job.prefer == _preference(job, have)


def _may_order(job: GpuJob, have: Applied | None, picture: Picture) -> bool:
    """Whether the site factor is nobody's or ours."""
    if picture.factors is None:
        return False
    return picture.factors.get(job.job_id, 0) in (0, have.site_factor if have is not None else 0)


def _factor(rank: int, of: int, order_points: int, now: int, keep: int) -> int:
    """Return the site factor of a rank: from ``order_points`` for the first to minus that for the last."""
    if of < 2 or not order_points:
        return 0
    step = round(STEPS * (1 - 2 * (rank - 1) / (of - 1)))
    points = round(step * order_points / STEPS)
    return now if abs(points - now) <= keep * order_points / STEPS else points
