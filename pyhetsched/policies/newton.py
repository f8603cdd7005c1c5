"""The Newton step of :mod:`pyhetsched.policies.interior`: closed form per group, one small dense system.

All matrices are [J, G], J GPU types by G groups. For each group the step needs the inverse of

    K = diag(low / x) + (lam / s) T T' + (row / r) 1 1'

which is a diagonal with two rank-one terms (Sherman and Morrison). B below is K without its T T' term.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyhetsched.policies.contract import Floats


def dot(a: Floats, b: Floats) -> float:
    """Return sum of a * b over all places.

    This and the next two go by einsum and not by BLAS: on arrays as thin as ours, waking BLAS's threads takes
    longer than the work, many times longer on a busy machine.
    """
    return float(np.einsum("i,i->", a.ravel(), b.ravel()))


def over_groups(matrix: Floats, vector: Floats) -> Floats:
    """Return [J]: sum over groups of matrix[j, g] vector[g]."""
    result: Floats = np.einsum("jg,g->j", matrix, vector)
    return result


def cross(a: Floats, b: Floats) -> Floats:
    """Return [J, J]: sum over groups of a[j, g] b[k, g]."""
    result: Floats = np.einsum("jg,kg->jk", a, b)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class ScaledData:
    """The problem with each group's best rate as its unit.

    ``open`` [J, G] 1 where a group may run, else 0; ``rates``, ``reward`` [J, G]; ``size``, ``use`` [G];
    ``counts`` [J]; ``time`` [G] or None; ``raise_theta`` as in the problem.
    """

    open: Floats
    rates: Floats
    reward: Floats
    size: Floats
    use: Floats
    counts: Floats
    time: Floats | None
    raise_theta: bool


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """Shares x [J, G], theta, slacks s [G] (demand), r [G] (time), q [J] (capacity) and the multipliers lam,
    row, price, low of demand, time, capacity and x >= 0; or a direction of all these."""

    x: Floats
    theta: float
    s: Floats
    r: Floats
    q: Floats
    lam: Floats
    row: Floats
    price: Floats
    low: Floats

    def moved(self, d: Point, primal: float, dual: float) -> Point:
        """Return the point after steps of these lengths along ``d``."""
        return Point(
            self.x + primal * d.x,
            self.theta + primal * d.theta,
            self.s + primal * d.s,
            self.r + primal * d.r,
            self.q + primal * d.q,
            self.lam + dual * d.lam,
            self.row + dual * d.row,
            self.price + dual * d.price,
            self.low + dual * d.low,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Demand d and its derivatives d1, d2 [G] at theta; what demand, time and capacity rows lack."""

    d: Floats
    d1: Floats
    d2: Floats
    need: Floats
    time: Floats
    room: Floats


class Newton:
    """The factored Newton system at one point."""

    def __init__(self, data: ScaledData, point: Point, missing: Residuals) -> None:
        self.data, self.point, self.missing = data, point, missing
        p = point
        self.timed = data.time is not None
        self.diag = p.x * data.open / (p.low + (1.0 - data.open))
        self.mean = np.zeros_like(p.s)
        centred = data.rates
        if self.timed:
            inv_beta = p.r / p.row
            self.row_total = self.diag.sum(axis=0) + inv_beta
            self.mean = (self.diag * data.rates).sum(axis=0) / self.row_total
            centred = data.rates - self.mean
        self.f = self.diag * centred
        tau = (self.f * centred).sum(axis=0)
        if self.timed:
            tau = tau + self.mean**2 * inv_beta
        self.inv_t = 1.0 / (p.s / p.lam + tau)
        self.rd_x = data.use * p.price[:, None] - p.lam * data.rates - data.reward - p.low
        if self.timed:
            self.rd_x = self.rd_x + p.row
        self.rd_theta = dot(p.lam, missing.d1) - (1.0 if data.raise_theta else 0.0)
        self.matrix = self._assemble()

    def _assemble(self) -> Floats:
        """Return the system in (price, theta) that is left when shares are eliminated."""
        data, p, d1 = self.data, self.point, self.missing.d1
        square = data.use**2
        schur = np.diag(over_groups(self.diag, square) + p.q / p.price)
        if self.timed:
            schur -= cross(self.diag * (square / self.row_total), self.diag)
        schur -= cross(self.f * (square * self.inv_t), self.f)
        n = len(data.counts)
        matrix = np.zeros((n + 1, n + 1))
        matrix[:n, :n] = schur
        matrix[n, n] = 1.0
        if data.raise_theta:
            y = over_groups(self.f, data.use * d1 * self.inv_t)
            matrix[:n, n], matrix[n, :n] = -y, y
            matrix[n, n] = dot(self.inv_t, d1**2) + dot(p.lam, self.missing.d2)
        return matrix

    def direction(self, target: float, predictor: Point | None) -> Point:
        """Return the direction towards products of ``target`` (times group size), corrected by ``predictor``.

        Nothing is divided by a slack that goes to 0: ``push`` is what a row must still move, and
        multipliers come before the shares that follow from them.
        """
        data, p, d1 = self.data, self.point, self.missing.d1
        c_s, c_r, c_q, c_x = self._products(target, predictor)
        push = c_s / p.lam - self.missing.need
        push_row = c_r / p.row - self.missing.time if self.timed else c_r
        force = c_x / p.x - self.rd_x
        along = ((self.f * force).sum(axis=0) - self.mean * push_row) * self.inv_t
        pulled = push * self.inv_t - along
        z = self._respond(force, push_row) + self.f * pulled
        rhs = np.zeros(len(data.counts) + 1)
        rhs[:-1] = over_groups(z, data.use) - self.missing.room + c_q / p.price
        if data.raise_theta:
            rhs[-1] = -self.rd_theta - dot(d1, pulled)
        solution = _solve(self.matrix, rhs)
        d_price, d_theta = solution[:-1], float(solution[-1])
        d_lam = pulled + (d1 * d_theta + data.use * np.einsum("j,jg->g", d_price, self.f)) * self.inv_t
        force = force - data.use * d_price[:, None] + data.rates * d_lam
        d_row, d_r = np.zeros_like(push), np.zeros_like(push)
        if self.timed:
            d_row = (push_row + (self.diag * force).sum(axis=0)) / self.row_total
            d_r = (c_r - p.r * d_row) / p.row
            force = force - d_row
        d_x = self.diag * force
        return Point(
            x=d_x,
            theta=d_theta,
            s=(c_s - p.s * d_lam) / p.lam,
            r=d_r,
            q=(c_q - p.q * d_price) / p.price,
            lam=d_lam,
            row=d_row,
            price=d_price,
            low=(c_x - p.low * d_x) / p.x,
        )

    def _products(self, target: float, d: Point | None) -> tuple[Floats, Floats, Floats, Floats]:
        """Return what the four kinds of complementarity products must still change by."""
        data, p = self.data, self.point
        aim = target * data.size
        c_s, c_q = aim - p.lam * p.s, target - p.price * p.q
        c_x = data.open * aim - p.low * p.x
        c_r = aim - p.row * p.r if self.timed else np.zeros_like(p.s)
        if d is None:
            return c_s, c_r, c_q, c_x
        return c_s - d.s * d.lam, c_r - d.r * d.row, c_q - d.q * d.price, c_x - d.x * d.low

    def _respond(self, force: Floats, push_row: Floats) -> Floats:
        """Return B^-1 force for every group, with the time row's own push."""
        if self.timed:
            force = force - ((self.diag * force).sum(axis=0) + push_row) / self.row_total
        return self.diag * force


def _solve(matrix: Floats, rhs: Floats) -> Floats:
    """Return the solution of a small dense system; its least-squares one if it has become singular."""
    try:
        return np.asarray(np.linalg.solve(matrix, rhs), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(matrix, rhs, rcond=None)[0], dtype=np.float64)
