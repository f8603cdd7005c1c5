"""One stage of filling: raise the active groups together until one of them can rise no further.

Gavel (OSDI'20, section 4.3) finds the jobs that are stuck with a mixed-integer program in every iteration.
Two facts replace it. A group whose time is all spent on its best type is stuck (it is *capped*). Among
the others, a group is stuck exactly if the multiplier of its demand row is positive in the strictly
complementary optimum, which is the one an interior-point method converges to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyhetsched.errors import SolverError
from pyhetsched.policies import interior
from pyhetsched.policies.contract import ClusterState, Floats
from pyhetsched.policies.demands import AffineDemand
from pyhetsched.policies.groups import Groups
from pyhetsched.policies.interior import ShareAnswer, ShareProblem
from pyhetsched.policies.levels import raise_level_highs
from pyhetsched.policies.registry import Context

Mask = NDArray[np.bool_]

# What a stuck group holds is demanded back a little short, so that the next stage has an interior.
_GIVE = 1e-8
_CLOSE = 1e-6
_TIGHT = 1e-9
_ACCEPT = 1e-7


@dataclass(slots=True)
class Tub:
    """The state of filling: what each group has, who still rises, who has all it can use.

    ``held`` [G] steps/s secured so far; ``best`` [G] rate on the best type; ``active`` and ``capped`` [G].
    """

    state: ClusterState
    groups: Groups
    held: Floats
    best: Floats
    active: Mask
    capped: Mask
    shares: Floats
    solves: int = 0

    @classmethod
    def empty(cls, state: ClusterState, groups: Groups) -> Tub:
        """Return the state in which nobody has anything."""
        n = groups.n_groups
        return cls(
            state,
            groups,
            held=np.zeros(n),
            best=groups.throughput.max(axis=1),
            active=np.ones(n, dtype=bool),
            capped=np.zeros(n, dtype=bool),
            shares=np.zeros_like(groups.throughput),
        )

    def solve(
        self, floor: Floats, slope: Floats, capped: Mask, context: Context, tolerance: float = _TIGHT
    ) -> ShareAnswer:
        """Raise theta with thr >= floor + slope theta; capped groups use their best types alone.

        A capped group needs its whole time, which leaves no interior; so it may use up to twice its time
        and is cut back to once afterwards.
        """
        self.solves += 1
        rates = self.groups.throughput
        on_best = rates >= self.best[:, None] * (1 - 1e-12)
        problem = ShareProblem(
            throughput=np.where(capped[:, None] & ~on_best, 0.0, rates),
            size=self.groups.size,
            gang=self.groups.gang,
            counts=self.state.counts,
            demand=AffineDemand(floor, slope),
            time=np.where(capped, 2.0, 1.0),
        )
        try:
            return interior.solve(problem, tolerance, accept=max(tolerance, _ACCEPT), tick=context.left_s)
        except SolverError:
            # What is held may leave next to no interior; simplex does not need one.
            context.left_s()
            narrowed = replace(self.groups, throughput=problem.throughput)
            return raise_level_highs(self.state, narrowed, AffineDemand(floor, slope), context)

    def keep(self, answer: ShareAnswer) -> None:
        """Take over the shares of an answer, no job with more than all of its time."""
        over = np.maximum(answer.shares.sum(axis=1, keepdims=True), 1.0)
        self.shares = answer.shares / over

    def fits(self, level: float, slope: Floats, context: Context) -> float:
        """Return how much of "active groups at min(slope level, best), others as held" can be served."""
        wanted = np.where(self.active, np.minimum(slope * level, self.best), self.held)
        full = self.capped | (wanted >= self.best * (1 - 1e-9))
        answer = self.solve(np.zeros_like(wanted), np.maximum(wanted, 1e-9 * self.best), full, context, _CLOSE / 4)
        if answer.value >= 1 - _CLOSE:
            self.keep(answer)
        return answer.value

    def rise(self, slope: Floats, context: Context) -> float:
        """Raise active groups by slope theta above what they hold; freeze those that are stuck.

        Returns theta. At least one group leaves ``active``.
        """
        active_slope = np.where(self.active, slope, 0.0)
        floor = np.where(self.capped, self.best, self.held * (1 - _GIVE))
        answer = self.solve(floor, active_slope, self.capped, context)
        self.keep(answer)
        theta = max(answer.value, 0.0)
        self.held = np.where(self.active, np.minimum(self.held + slope * theta, self.best), self.held)
        self.freeze(answer, active_slope, theta)
        return theta

    def freeze(self, answer: ShareAnswer, slope: Floats, theta: float) -> None:
        """Move groups that cannot rise out of ``active``."""
        reached = self.active & (slope > 0) & (self.held >= self.best * (1 - _CLOSE))
        self.capped |= reached
        # Strict complementarity: of multiplier and slack one vanishes; compare them in like units.
        force = answer.lam * slope / (self.best * self.groups.size)
        force = force / max(float(force.max()), 1e-300)
        slack = answer.slack * self.best / np.maximum(slope * max(theta, 1e-300), 1e-300)
        stuck = self.active & (slope > 0) & (force > slack) & (force > 1e-5)
        if not (reached | stuck).any():
            rising = np.where(self.active & (slope > 0), force, -1.0)
            stuck[int(rising.argmax())] = True
        self.active &= ~(reached | stuck)


def serve_caps(tub: Tub, slope: Floats, context: Context) -> None:
    """Cap all groups that reach their best rate below the level at which capacity runs out.

    Expects that nothing is held by the active groups beyond slope * level. The level is found by
    bisection over the distinct caps, sped up by the guess that demand grows with the level.
    """
    caps = np.unique(tub.best[tub.active] / slope[tub.active])
    low, high = 0, len(caps)  # caps[:low] are known to be served, caps[high - 1:] with high < len not to be
    at = high
    while True:
        served = tub.fits(float(caps[at - 1]), slope, context)
        if served >= 1 - _CLOSE:
            low = at
        else:
            high = at - 1
        if low >= high:
            break
        guess = int(np.searchsorted(caps, caps[at - 1] * served, side="right"))
        at = min(max(guess, low + 1), high) if served < 1 else (low + high + 1) // 2
    if low == 0:
        raise SolverError("no cap can be served")
    reached = tub.active & (tub.best / slope <= caps[low - 1] * (1 + 1e-12))
    tub.held = np.where(reached, tub.best, tub.held)
    tub.capped |= reached
    tub.active &= ~reached
