"""A primal-dual interior-point method for share problems, with a certificate.

The problem, for G groups of ``size`` identical jobs and J GPU types::

    maximise   theta + sum_g sum_j reward[g, j] X[g, j]
    subject to T[g] . X[g] >= d_g(theta)                   (multiplier lam)
               sum_j X[g, j] <= time[g]                    (multiplier row)
               sum_g use[g] X[g, j] <= N[j]                (multiplier price)
               X >= 0                                      (multiplier low)

where ``use`` = size * gang. Groups meet only in the J capacity rows and in theta. So a Newton step
needs, for each group, the inverse of a diagonal plus two rank-one terms (closed form), and one dense
system of J + 1 unknowns: O(G J^2) per iteration, where a general solver factorises G rows. Method:
Mehrotra's predictor-corrector, SIAM J. Optim. 2 (1992). The complementarity products of a group are
weighted with its size, so that collapsing identical jobs does not move the central path.

Being interior, the answer lies in the middle of the optimal face: what is left over is shared among
the jobs that can use it, and a multiplier is positive exactly if its row is tight in EVERY
optimum. Water filling rests on the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pyhetsched.errors import SolverError
from pyhetsched.policies.contract import Floats
from pyhetsched.policies.demands import Demand
from pyhetsched.policies.newton import Newton, Point, Residuals, ScaledData, dot, over_groups

_MAX_ITERATIONS = 80
_TO_BOUNDARY = 0.995
_NEAR = 1e-3  # below this estimate the certificate is worth computing
_EXHAUSTED = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class ShareProblem:
    """Numbers of the problem above.

    ``throughput`` [G, J] steps/s, 0 where a group must not run; ``size``, ``gang`` [G]; ``counts`` [J];
    ``reward`` [G, J] per member or None; ``raise_theta`` False: theta is fixed at 0 and only reward counts;
    ``time`` [G] limit of a row's sum, normally 1; None: no limit (shares of devices, not of a job's time).
    """

    throughput: Floats
    size: Floats
    gang: Floats
    counts: Floats
    demand: Demand
    reward: Floats | None = None
    raise_theta: bool = True
    time: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ShareAnswer:
    """A feasible point and its certificate.

    ``shares`` [G, J] per member; ``value`` objective reached; ``bound`` proven upper bound;
    ``lam`` [G], ``row`` [G], ``price`` [J] multipliers of the demand, time and capacity rows (of the
    scaled problem; only their zero pattern and ratios matter); ``slack`` [G] of the demand
    rows relative to the group's best rate; ``iterations``; ``miss`` by how much, relative to the
    best rate, some demand at ``value`` is missed.
    """

    shares: Floats
    value: float
    bound: float
    lam: Floats
    row: Floats
    price: Floats
    slack: Floats
    iterations: int
    miss: float = 0.0

    @property
    def gap(self) -> float:
        """Return the proven relative distance to the optimum."""
        return max(self.bound - self.value, 0.0) / max(abs(self.value), 1e-12)


def solve(
    problem: ShareProblem, tolerance: float = 1e-8, accept: float = 2e-7, tick: Callable[[], object] | None = None
) -> ShareAnswer:
    """Return an answer whose proven gap is at most ``accept``; else raise SolverError.

    ``tolerance`` is the proven gap at which iterations stop; ``tick`` is called once an
    iteration and may raise to stop.
    """
    with np.errstate(all="ignore"):  # a step into infinity is seen by its gap
        return _iterate(_Core(problem), tolerance, accept, tick)


def _iterate(
    core: _Core, tolerance: float, accept: float, tick: Callable[[], object] | None
) -> ShareAnswer:
    best: ShareAnswer | None = None
    for iteration in range(_MAX_ITERATIONS):
        if tick is not None:
            tick()
        if core.gap_estimate() < _NEAR:
            answer = core.answer(iteration)
            if best is None or max(answer.gap, answer.miss) < max(best.gap, best.miss):
                best = answer
            if max(best.gap, best.miss) <= tolerance and core.gap_estimate() < math.sqrt(tolerance):
                return best
            if core.complementarity() < _EXHAUSTED and max(best.gap, best.miss) <= accept:
                return best  # the residuals that are left are rounding; more steps change nothing
        if not core.step():
            break
    if best is None or not max(best.gap, best.miss) <= accept:
        gap = float("inf") if best is None else max(best.gap, best.miss)
        raise SolverError(f"interior point stopped at a gap of {gap:.1e} (wanted {accept:.0e})")
    return best


class _Core:
    """One run of the method: scaled data and the current point. Matrices are [J, G] in here, so that numpy
    runs along the groups."""

    def __init__(self, problem: ShareProblem) -> None:
        self.problem = problem
        usable = ((problem.throughput > 0) & (problem.counts > 0)[None, :]).T
        rates = np.where(usable, problem.throughput.T, 0.0)
        self.best_rate = rates.max(axis=0)
        if not (self.best_rate > 0).all():
            raise SolverError("a job can run nowhere")
        self.reward_unit, reward = 1.0, np.zeros(rates.shape)
        if problem.reward is not None:
            self.reward_unit = max(float(np.abs(problem.reward.T[usable]).max()), 1e-300)
            reward = np.where(usable, problem.reward.T, 0.0) / self.reward_unit * problem.size
        self.data = ScaledData(
            open=np.ascontiguousarray(usable, dtype=np.float64),
            rates=np.ascontiguousarray(rates / self.best_rate),
            reward=np.ascontiguousarray(reward),
            size=problem.size,
            use=problem.size * problem.gang,
            counts=np.where(problem.counts > 0, problem.counts, 1.0),
            time=problem.time,
            raise_theta=problem.raise_theta,
        )
        self.theta_unit = self._theta_unit()
        self.demand = problem.demand.scaled(self.best_rate, self.theta_unit)
        self.theta_limit = self.demand.limit()
        self.products = (
            float(problem.size.sum()) * (1 + int(problem.time is not None))
            + len(self.data.counts)
            + dot(self.data.open.sum(axis=0), problem.size)
        )
        self.point = self._start()
        self.look()

    def _theta_unit(self) -> float:
        if not self.problem.raise_theta:
            return 1.0
        rates = (self._inner_shares() * self.data.rates).sum(axis=0) * self.best_rate
        level = float(self.problem.demand.level(rates).min())
        if not np.isfinite(level):
            raise SolverError("no demand rises with theta")
        return level if level > 0 else 1.0

    def _inner_shares(self) -> Floats:
        """Return shares [J, G] well inside time and capacity: a common part of every usable type."""
        data = self.data
        part = 0.9 * data.counts / np.maximum(over_groups(data.open, data.use), 1e-300)
        shares = data.open * np.minimum(part, 0.9)[:, None]
        if data.time is not None:
            shares = shares / np.maximum(shares.sum(axis=0) / (0.9 * data.time), 1.0)
        return shares

    def _start(self) -> Point:
        data = self.data
        inner = self._inner_shares()
        x, theta = inner + (1.0 - data.open), 0.0
        rates = (inner * data.rates).sum(axis=0)
        if data.raise_theta:
            level = float(self.demand.level(rates).min())
            theta = 0.8 * level if level > 0 else level - 0.1
            theta = min(theta, 0.9 * self.theta_limit)
        d, d1, _ = self.demand.at(theta)
        # A floor may exceed what the start gives (then the point is infeasible, which the method allows).
        s = np.maximum(rates - d, 0.05 * np.maximum(rates, 1e-3))
        r = np.ones(len(s))
        if data.time is not None:
            r = np.maximum(data.time - inner.sum(axis=0), 0.05 * data.time)
        q = np.maximum(data.counts - over_groups(inner, data.use), 0.05 * data.counts)
        mu = 1.0 / max(float((data.size * d1 / s).sum()), 1e-300) if data.raise_theta else 0.1
        row = np.zeros(len(s)) if data.time is None else mu * data.size / r
        low = data.open * (mu * data.size) / x
        return Point(x, theta, s, r, q, mu * data.size / s, row, mu / q, low)

    def look(self) -> None:
        """Take stock of the current point: shares, demand, residuals, mean complementarity."""
        p, data = self.point, self.data
        self.inner = p.x * data.open
        d, d1, d2 = self.demand.at(p.theta)
        need = (data.rates * self.inner).sum(axis=0) - d - p.s
        time = np.zeros_like(need) if data.time is None else data.time - self.inner.sum(axis=0) - p.r
        room = data.counts - over_groups(self.inner, data.use) - p.q
        self.residuals = Residuals(d, d1, d2, need, time, room)
        self.mu = self._total(p) / self.products

    def _total(self, p: Point) -> float:
        total = dot(p.lam, p.s) + dot(p.price, p.q) + dot(p.low, p.x)
        return total + dot(p.row, p.r) if self.data.time is not None else total

    def complementarity(self) -> float:
        """Return total complementarity relative to the objective."""
        value = abs(self.point.theta) if self.data.raise_theta else abs(dot(self.data.reward, self.inner))
        return self.mu * self.products / max(value, 1e-6)

    def gap_estimate(self) -> float:
        """Return the larger of relative complementarity and primal residual."""
        missing = self.residuals
        residual = max(
            float(np.abs(missing.need).max()),
            float(np.abs(missing.time).max()),
            float(np.abs(missing.room / self.data.counts).max()),
        )
        return max(self.complementarity(), residual)

    def step(self) -> bool:
        """Take one predictor-corrector step; False if it could not move."""
        newton = Newton(self.data, self.point, self.residuals)
        if not np.isfinite(newton.matrix).all():
            return False
        predictor = newton.direction(0.0, None)
        after = self.point.moved(predictor, *self._lengths(predictor, 1.0))
        ratio = max(self._total(after) / self.products, 0.0) / self.mu
        move = newton.direction(ratio**3 * self.mu, predictor)
        lengths = self._lengths(move, _TO_BOUNDARY)
        self.point = self.point.moved(move, *lengths)
        self.look()
        return bool(np.isfinite(self.mu)) and max(lengths) > 1e-10

    def _lengths(self, d: Point, part: float) -> tuple[float, float]:
        p = self.point
        primal = min(_to_boundary(p.x, d.x, part), _to_boundary(p.s, d.s, part), _to_boundary(p.q, d.q, part))
        # Multipliers of places that cannot be used are 0 and stay so.
        low = p.low + (1.0 - self.data.open)
        dual = min(
            _to_boundary(p.lam, d.lam, part), _to_boundary(p.price, d.price, part), _to_boundary(low, d.low, part)
        )
        if self.data.time is not None:
            primal = min(primal, _to_boundary(p.r, d.r, part))
            dual = min(dual, _to_boundary(p.row, d.row, part))
        if d.theta > 0 and np.isfinite(self.theta_limit):
            primal = min(primal, 0.9 * (self.theta_limit - p.theta) / d.theta)
            primal = dual = min(primal, dual)
        return primal, dual

    def answer(self, iterations: int) -> ShareAnswer:
        """Return the current point made exactly feasible, with a bound made exactly valid."""
        p, data = self.point, self.data
        x = np.maximum(self.inner, 0.0)
        if data.time is not None:
            x = x / np.maximum(x.sum(axis=0) / data.time, 1.0)
        x = x * np.minimum(1.0, data.counts / np.maximum(over_groups(x, data.use), 1e-300))[:, None]
        rates = (data.rates * x).sum(axis=0)
        value, theta = self.reward_unit * dot(data.reward, x), 0.0
        if data.raise_theta:
            theta = float(self.demand.level(rates).min())
            value = self.theta_unit * theta
        miss = max(float((self.demand.at(theta)[0] - rates).max()), 0.0)
        bound = min(self._bound(), self._ceiling())
        slack = rates - self.residuals.d
        return ShareAnswer(
            np.ascontiguousarray(x.T), value, bound, p.lam, p.row, p.price, slack, iterations, miss
        )

    def _ceiling(self) -> float:
        """Return the level at which some job would need all its time on its best type (inf: none)."""
        if not self.data.raise_theta or self.data.time is None:
            return float("inf")
        return self.theta_unit * float(self.demand.level(self.data.time).min())

    def _bound(self) -> float:
        """Return an upper bound that holds for any lam, price >= 0 (weak duality, d convex)."""
        p, data = self.point, self.data
        earned = p.lam * data.rates + data.reward
        if data.time is None:
            # Without a time limit no worth may be positive: raise prices until none is.
            paid = np.where(data.open > 0, earned / data.use, 0.0)
            total = dot(paid.max(axis=1), data.counts)
        else:
            worth = np.where(data.open > 0, earned - data.use * p.price[:, None], 0.0)
            total = dot(np.maximum(worth.max(axis=0), 0.0), data.time) + dot(p.price, data.counts)
        total -= dot(p.lam, self.residuals.d)
        if not data.raise_theta:
            return self.reward_unit * total
        return self.theta_unit * (p.theta + total / max(dot(p.lam, self.residuals.d1), 1e-300))


def _to_boundary(values: Floats, change: Floats, part: float) -> float:
    """Return the largest step in [0, 1] that keeps ``values`` positive, times ``part``."""
    steepest = -float((change / values).min())
    return 1.0 if steepest <= part else part / steepest
