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

_MAX_ITERATIONS = 80
_TO_BOUNDARY = 0.995
_NEAR = 1e-3  # below this estimate the certificate is worth computing


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


@dataclass(slots=True)
class _Point:
    x: Floats
    theta: float
    s: Floats
    r: Floats
    q: Floats
    lam: Floats
    row: Floats
    price: Floats
    low: Floats


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
        if not core.step():
            break
    if best is None or not max(best.gap, best.miss) <= accept:
        gap = float("inf") if best is None else max(best.gap, best.miss)
        raise SolverError(f"interior point stopped at a gap of {gap:.1e} (wanted {accept:.0e})")
    return best


class _Core:
    """One run of the method: scaled data and the current point."""

    def __init__(self, problem: ShareProblem) -> None:
        self.problem = problem
        self.usable = (problem.throughput > 0) & (problem.counts > 0)[None, :]
        self.best_rate = np.where(self.usable, problem.throughput, 0.0).max(axis=1)
        if not (self.best_rate > 0).all():
            raise SolverError("a job can run nowhere")
        self.rates = np.where(self.usable, problem.throughput, 0.0) / self.best_rate[:, None]
        self.size = problem.size
        self.use = problem.size * problem.gang
        self.counts = np.where(problem.counts > 0, problem.counts, 1.0)
        self.theta_unit = self._theta_unit()
        self.demand = problem.demand.scaled(self.best_rate, self.theta_unit)
        self.theta_limit = self.demand.limit()
        self.reward_unit = 1.0
        self.reward = np.zeros_like(self.rates)
        if problem.reward is not None:
            self.reward_unit = max(float(np.abs(problem.reward[self.usable]).max()), 1e-300)
            self.reward = np.where(self.usable, problem.reward, 0.0) / self.reward_unit * self.size[:, None]
        self.weight_theta = 1.0 if problem.raise_theta else 0.0
        self.products = (
            float(self.size.sum()) * (1 + int(problem.time is not None))
            + len(self.counts)
            + float((self.usable * self.size[:, None]).sum())
        )
        self.point = self._start()
        self.mu = self._mu()

    def _theta_unit(self) -> float:
        if not self.problem.raise_theta:
            return 1.0
        start = self._inner_shares()
        levels = self.problem.demand.level(np.einsum("gj,gj->g", start, self.problem.throughput))
        level = float(levels.min())
        if not np.isfinite(level):
            raise SolverError("no demand rises with theta")
        return level if level > 0 else 1.0

    def _inner_shares(self) -> Floats:
        """Return shares well inside time and capacity: a common part of every usable type."""
        wanted = self.usable * self.use[:, None]
        part = 0.9 * self.counts / np.maximum(wanted.sum(axis=0), 1e-300)
        shares = np.where(self.usable, np.minimum(part, 0.9)[None, :], 0.0)
        if self.problem.time is not None:
            shares = shares / np.maximum(shares.sum(axis=1) / (0.9 * self.problem.time), 1.0)[:, None]
        return shares

    def _start(self) -> _Point:
        x = np.where(self.usable, self._inner_shares(), 1.0)
        theta = 0.0
        rates = np.einsum("gj,gj->g", np.where(self.usable, x, 0.0), self.rates)
        if self.problem.raise_theta:
            level = float(self.demand.level(rates).min())
            theta = 0.8 * level if level > 0 else level - 0.1
            theta = min(theta, 0.9 * self.theta_limit)
        d, d1, _ = self.demand.at(theta)
        # A floor may exceed what the start gives (then the point is infeasible, which the method allows).
        s = np.maximum(rates - d, 0.05 * np.maximum(rates, 1e-3))
        inner = np.where(self.usable, x, 0.0)
        limit = self.problem.time
        r = np.ones(len(s)) if limit is None else np.maximum(limit - inner.sum(axis=1), 0.05 * limit)
        q = np.maximum(self.counts - self.use @ inner, 0.05 * self.counts)
        mu = 1.0 / max(float((self.size * d1 / s).sum()), 1e-300) if self.problem.raise_theta else 0.1
        low = np.where(self.usable, mu * self.size[:, None] / x, 0.0)
        row = np.zeros(len(s)) if limit is None else mu * self.size / r
        return _Point(x, theta, s, r, q, mu * self.size / s, row, mu / q, low)

    def _mu(self) -> float:
        p = self.point
        total = float(p.lam @ p.s + p.price @ p.q + (p.low * p.x).sum())
        if self.problem.time is not None:
            total += float(p.row @ p.r)
        return total / self.products

    def gap_estimate(self) -> float:
        """Return total complementarity and primal residual, relative to the objective."""
        value = self.weight_theta * abs(self.point.theta) + abs(float((self.reward * self._inner_x()).sum()))
        scale = max(value, 1e-6)
        residual = max(float(np.abs(a).max()) for a in self._primal_residuals())
        return max(self.mu * self.products / scale, residual)

    def _inner_x(self) -> Floats:
        return np.where(self.usable, self.point.x, 0.0)

    def _primal_residuals(self) -> tuple[Floats, Floats, Floats]:
        p, x = self.point, self._inner_x()
        d, _, _ = self.demand.at(p.theta)
        res_s = np.einsum("gj,gj->g", self.rates, x) - d - p.s
        limit = self.problem.time
        res_r = np.zeros(len(p.s)) if limit is None else limit - x.sum(axis=1) - p.r
        res_q = self.counts - self.use @ x - p.q
        return res_s, res_r, res_q / self.counts

    def step(self) -> bool:
        """Take one predictor-corrector step; False if it could not move."""
        newton = _Newton(self)
        zero = np.zeros(1)
        if not np.isfinite(newton.matrix).all():
            return False
        predictor = newton.direction(0.0, (zero, zero, zero, zero))
        alpha_p, alpha_d = self._lengths(predictor, 1.0)
        sigma = self._centring(predictor, alpha_p, alpha_d)
        correction = (
            predictor.s * predictor.lam,
            predictor.r * predictor.row,
            predictor.q * predictor.price,
            predictor.x * predictor.low,
        )
        move = newton.direction(sigma * self.mu, correction)
        alpha_p, alpha_d = self._lengths(move, _TO_BOUNDARY)
        self._move(move, alpha_p, alpha_d)
        self.mu = self._mu()
        return bool(np.isfinite(self.mu)) and max(alpha_p, alpha_d) > 1e-10

    def _lengths(self, d: _Point, part: float) -> tuple[float, float]:
        p = self.point
        primal = min(
            _to_boundary(p.x, d.x, part), _to_boundary(p.s, d.s, part), _to_boundary(p.q, d.q, part)
        )
        dual = min(
            _to_boundary(p.lam, d.lam, part), _to_boundary(p.price, d.price, part), _to_boundary(p.low, d.low, part)
        )
        if self.problem.time is not None:
            primal = min(primal, _to_boundary(p.r, d.r, part))
            dual = min(dual, _to_boundary(p.row, d.row, part))
        if d.theta > 0 and np.isfinite(self.theta_limit):
            primal = min(primal, 0.9 * (self.theta_limit - p.theta) / d.theta)
            primal = dual = min(primal, dual)
        return primal, dual

    def _centring(self, d: _Point, alpha_p: float, alpha_d: float) -> float:
        p = self.point
        total = float((p.lam + alpha_d * d.lam) @ (p.s + alpha_p * d.s))
        total += float((p.price + alpha_d * d.price) @ (p.q + alpha_p * d.q))
        total += float(((p.low + alpha_d * d.low) * (p.x + alpha_p * d.x)).sum())
        if self.problem.time is not None:
            total += float((p.row + alpha_d * d.row) @ (p.r + alpha_p * d.r))
        ratio = max(total / self.products, 0.0) / self.mu
        return float(ratio**3)

    def _move(self, d: _Point, alpha_p: float, alpha_d: float) -> None:
        p = self.point
        p.x = p.x + alpha_p * d.x
        p.theta = p.theta + alpha_p * d.theta
        p.s = p.s + alpha_p * d.s
        p.q = p.q + alpha_p * d.q
        p.lam = p.lam + alpha_d * d.lam
        p.price = p.price + alpha_d * d.price
        p.low = p.low + alpha_d * d.low
        if self.problem.time is not None:
            p.r = p.r + alpha_p * d.r
            p.row = p.row + alpha_d * d.row

    def answer(self, iterations: int) -> ShareAnswer:
        """Return the current point made exactly feasible, with a bound made exactly valid."""
        p = self.point
        x = np.maximum(self._inner_x(), 0.0)
        if self.problem.time is not None:
            x = x / np.maximum(x.sum(axis=1) / self.problem.time, 1.0)[:, None]
        x = x * np.minimum(1.0, self.counts / np.maximum(self.use @ x, 1e-300))
        rates = np.einsum("gj,gj->g", self.rates, x)
        d, d1, _ = self.demand.at(p.theta)
        value, theta = self.reward_unit * float((self.reward * x).sum()), 0.0
        if self.problem.raise_theta:
            theta = float(self.demand.level(rates).min())
            value += self.theta_unit * theta
        miss = max(float((self.demand.at(theta)[0] - rates).max()), 0.0)
        bound = min(self._bound(d, d1), self._ceiling())
        return ShareAnswer(x, value, bound, p.lam, p.row, p.price, rates - d, iterations, miss)

    def _ceiling(self) -> float:
        """Return the level at which some job would need all its time on its best type (inf: none)."""
        if not self.problem.raise_theta or self.problem.time is None:
            return float("inf")
        return self.theta_unit * float(self.demand.level(self.problem.time).min())

    def _bound(self, d: Floats, d1: Floats) -> float:
        """Return an upper bound that holds for any lam, price >= 0 (weak duality, d convex)."""
        p = self.point
        worth = p.lam[:, None] * self.rates + self.reward - self.use[:, None] * p.price
        worth = np.where(self.usable, worth, -np.inf).max(axis=1)
        if self.problem.time is None:
            # Without a time limit the worth must not be positive: raise prices until it is not.
            paid = np.where(self.usable, (p.lam[:, None] * self.rates + self.reward) / self.use[:, None], 0.0)
            total = float(paid.max(axis=0) @ self.counts)
        else:
            total = float(np.maximum(worth, 0.0) @ self.problem.time + p.price @ self.counts)
        if not self.problem.raise_theta:
            return self.reward_unit * (total - float(p.lam @ d))
        return self.theta_unit * (p.theta + (total - float(p.lam @ d)) / max(float(p.lam @ d1), 1e-300))


class _Newton:
    """The factored Newton system at one point; see the module's docstring for its structure."""

    def __init__(self, core: _Core) -> None:
        self.core = core
        p = core.point
        self.whole = core.problem.time is not None
        self.inner = core._inner_x()
        self.d, self.d1, d2 = core.demand.at(p.theta)
        self.diag = np.where(core.usable, p.x / np.where(core.usable, p.low, 1.0), 0.0)
        self.inv_beta = p.r / p.row if self.whole else None
        self.inv_alpha = p.s / p.lam
        self.row_total = self.diag.sum(axis=1)
        if self.inv_beta is not None:
            self.row_total = self.row_total + self.inv_beta
        self.mean = np.einsum("gj,gj->g", self.diag, core.rates) / self.row_total if self.whole else 0.0 * p.s
        centred = core.rates - self.mean[:, None]
        self.f = self.diag * centred
        self.tau = np.einsum("gj,gj->g", self.f, centred)
        if self.inv_beta is not None:
            self.tau = self.tau + self.mean**2 * self.inv_beta
        self.inv_t = 1.0 / (self.inv_alpha + self.tau)
        self.residuals()
        self.assemble(d2)

    def residuals(self) -> None:
        core, p = self.core, self.core.point
        self.rp_s, self.rp_r, rp_q = core._primal_residuals()
        self.rp_q = rp_q * core.counts
        self.rd_x = core.use[:, None] * p.price - p.lam[:, None] * core.rates - core.reward - p.low
        if self.whole:
            self.rd_x = self.rd_x + p.row[:, None]
        self.rd_theta = -core.weight_theta + float(p.lam @ self.d1)

    def assemble(self, d2: Floats) -> None:
        core, p = self.core, self.core.point
        square = core.use**2
        schur = np.diag(square @ self.diag + p.q / p.price)
        if self.whole:
            schur -= (self.diag * (square / self.row_total)[:, None]).T @ self.diag
        schur -= (self.f * (square * self.inv_t)[:, None]).T @ self.f
        n = len(core.counts)
        self.matrix = np.zeros((n + 1, n + 1))
        self.matrix[:n, :n] = schur
        y = (core.use * self.d1 * self.inv_t) @ self.f
        self.matrix[:n, n] = -y
        self.matrix[n, :n] = y
        corner = float(self.inv_t @ self.d1**2) + float(p.lam @ d2)
        self.matrix[n, n] = corner if core.problem.raise_theta else 1.0
        if not core.problem.raise_theta:
            self.matrix[:n, n] = self.matrix[n, :n] = 0.0

    def direction(self, target: float, correction: tuple[Floats, Floats, Floats, Floats]) -> _Point:
        """Return the Newton direction towards products of ``target`` (times group size).

        Every quantity is formed without dividing by a slack that goes to 0: ``push`` is what a row must
        still move, and multipliers come before the shares that follow from them.
        """
        core, p = self.core, self.core.point
        aim = target * core.size
        c_s = aim - p.lam * p.s - correction[0]
        c_q = target - p.price * p.q - correction[2]
        c_x = np.where(core.usable, aim[:, None] - p.low * p.x - correction[3], 0.0)
        push = c_s / p.lam - self.rp_s
        force = -self.rd_x + c_x / p.x
        c_r = push_row = np.zeros_like(push)
        if self.whole:
            c_r = aim - p.row * p.r - correction[1]
            push_row = c_r / p.row - self.rp_r
        along: Floats = (np.einsum("gj,gj->g", self.f, force) - self.mean * push_row) * self.inv_t
        z = self.respond(force, push_row) + self.f * (push * self.inv_t - along)[:, None]
        rhs = np.empty(len(core.counts) + 1)
        rhs[:-1] = core.use @ z - self.rp_q + c_q / p.price
        rhs[-1] = -self.rd_theta - float(self.d1 @ (push * self.inv_t - along)) if core.weight_theta else 0.0
        solution = self.solve(rhs)
        d_price, d_theta = solution[:-1], float(solution[-1])
        d_lam = (push + self.d1 * d_theta + core.use * (self.f @ d_price)) * self.inv_t - along
        force = force - core.use[:, None] * d_price + core.rates * d_lam[:, None]
        d_row: Floats = np.zeros_like(push)
        if self.whole:
            d_row = (push_row + np.einsum("gj,gj->g", self.diag, force)) / self.row_total
        d_x = self.diag * (force - d_row[:, None])
        d_low = np.where(core.usable, (c_x - p.low * d_x) / p.x, 0.0)
        d_r: Floats = (c_r - p.r * d_row) / p.row if self.whole else np.zeros_like(push)
        d_q = (c_q - p.q * d_price) / p.price
        d_s = (c_s - p.s * d_lam) / p.lam
        point = _Point(d_x, d_theta, d_s, d_r, d_q, d_lam, d_row, np.asarray(d_price), d_low)
        return point

    def solve(self, rhs: Floats) -> Floats:
        """Return the solution of the small dense system; its least-squares one if it has become singular."""
        try:
            return np.asarray(np.linalg.solve(self.matrix, rhs), dtype=np.float64)
        except np.linalg.LinAlgError:
            return np.asarray(np.linalg.lstsq(self.matrix, rhs, rcond=None)[0], dtype=np.float64)

    def respond(self, force: Floats, push_row: Floats) -> Floats:
        """Return B^-1 force for every group, B = diag + beta 1 1', with the time row's own push."""
        if not self.whole:
            plain: Floats = self.diag * force
            return plain
        mean = (np.einsum("gj,gj->g", self.diag, force) + push_row) / self.row_total
        centred: Floats = self.diag * (force - mean[:, None])
        return centred


def _to_boundary(values: Floats, change: Floats, part: float) -> float:
    """Return the largest step in [0, 1] that keeps ``values`` positive, times ``part``."""
    steepest = float((-change / np.where(values > 0, values, 1.0)).max())
    return 1.0 if steepest <= part else part / steepest
