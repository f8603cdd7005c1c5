"""Objectives against programs written down naively and solved by cvxpy or scipy."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

from pyhetsched.policies import ClusterState, GpuType, PairTable, allocate
from pyhetsched.policies.contract import changed
from pyhetsched.policies.finish_time import ideal_s
from pyhetsched.policies.instances import InstanceSpec, draw
from pyhetsched.policies.max_min import fair_slope

CASES = [
    InstanceSpec(60, 3, seed=1),
    InstanceSpec(60, 3, gangs=True, seed=2),
    InstanceSpec(80, 5, gangs=True, distinct=True, seed=3),
    InstanceSpec(200, 3, distinct=True, seed=4),
]


def base(state: ClusterState) -> tuple[cp.Variable, list[cp.Constraint], cp.Expression]:
    x = cp.Variable(state.throughput.shape, nonneg=True)
    rules = [cp.sum(x, axis=1) <= 1, state.gang @ x <= state.counts]
    if (~state.usable).any():
        rules.append(cp.multiply(x, (~state.usable).astype(float)) == 0)
    return x, rules, cp.sum(cp.multiply(x, state.throughput), axis=1)


def relative(found: float, wanted: float) -> float:
    return abs(found - wanted) / abs(wanted)


@pytest.mark.parametrize("spec", CASES)
def test_max_min(spec: InstanceSpec) -> None:
    state = draw(spec)
    _, rules, rates = base(state)
    best = cp.Problem(cp.Maximize(cp.min(cp.multiply(rates, 1 / fair_slope(state)))), rules).solve(solver=cp.HIGHS)
    assert relative(allocate("max-min", state).objective, best) < 1e-6


@pytest.mark.parametrize("spec", CASES)
def test_makespan(spec: InstanceSpec) -> None:
    state = draw(spec)
    _, rules, rates = base(state)
    level = cp.Problem(cp.Maximize(cp.min(cp.multiply(rates, 1e5 / state.remaining))), rules).solve(solver=cp.HIGHS)
    assert relative(allocate("makespan", state).objective, 1e5 / level) < 1e-6


@pytest.mark.parametrize("spec", CASES)
def test_finish_time(spec: InstanceSpec) -> None:
    state = draw(spec)
    ideal = ideal_s(state)
    answer = allocate("finish-time", state)
    rho = (state.age_s + state.remaining / answer.steps_per_s(state)) / ideal
    assert rho.max() <= answer.objective * (1 + 1e-6)
    _, rules, rates = base(state)
    for factor, feasible in ((1 + 1e-6, True), (1 - 1e-6, False)):
        need = state.remaining / (answer.objective * factor * ideal - state.age_s)
        level = cp.Problem(cp.Maximize(cp.min(cp.multiply(rates, 1 / need))), rules).solve(solver=cp.HIGHS)
        assert (level >= 1) == feasible


@pytest.mark.parametrize("spec", CASES)
@pytest.mark.parametrize("normalise", ["best", "none"])
def test_max_throughput(spec: InstanceSpec, normalise: str) -> None:
    state = draw(spec)
    unit = np.where(state.usable, state.throughput, 0).max(axis=1) if normalise == "best" else np.ones(state.n_jobs)
    _, rules, rates = base(state)
    best = cp.Problem(cp.Maximize(cp.sum(cp.multiply(rates, 1 / unit))), rules).solve(solver=cp.HIGHS)
    assert relative(allocate("max-throughput", state, {"normalise": normalise}).objective, best) < 1e-6


@pytest.mark.parametrize("spec", CASES[:3])
def test_energy_floor(spec: InstanceSpec) -> None:
    from pyhetsched.policies.reference import isolated_shares

    state = draw(spec)
    x, rules, rates = base(state)
    watts = np.array([t.busy_w - t.idle_w for t in state.types])
    floor = 0.7 * (isolated_shares(state) * state.throughput * state.usable).sum(axis=1)
    least = cp.Problem(cp.Minimize(state.gang @ x @ watts), [*rules, rates >= floor]).solve(solver=cp.HIGHS)
    assert relative(allocate("energy-floor", state, {"floor": 0.7}).objective, least) < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_oef_coop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = np.sort(rng.uniform(1, 5, (9, 3)), axis=1)
    state = ClusterState.from_arrays([GpuType(f"t{j}", 2) for j in range(3)], rates)
    x, rules, _ = base(state)
    w = rates / rates.min(axis=1, keepdims=True)
    envy = [w[i] @ x[i] >= w[i] @ x[k] for i in range(9) for k in range(9) if i != k]
    best = cp.Problem(cp.Maximize(cp.sum(cp.multiply(w, x))), rules + envy).solve(solver=cp.HIGHS)
    assert relative(allocate("oef-coop", state).objective, best) < 1e-6


def test_oef_coop_adds_only_the_rows_it_needs() -> None:
    state = draw(InstanceSpec(90, 3, distinct=True, seed=5))
    answer = allocate("oef-coop", state, budget_s=60)
    assert answer.diagnostics.rows < 90 * 89
    bundles = answer.shares * state.gang[:, None]
    worth = state.throughput @ bundles.T
    assert (worth <= np.diag(worth)[:, None] * (1 + 1e-5)).all()


def leximin(state: ClusterState) -> np.ndarray:
    """Return the leximin levels by brute force: who can rise is found by one program for each job."""
    m, j = state.throughput.shape
    value = np.where(state.usable, state.throughput, 0.0) / fair_slope(state)[:, None]
    time, room = np.kron(np.eye(m), np.ones(j)), np.kron(state.gang, np.eye(j))
    per_job = np.kron(np.eye(m), np.ones(j)) * value.ravel()
    limits = np.hstack([np.vstack([time, room]), np.zeros((m + j, 1))])
    right = np.concatenate([np.ones(m), state.counts])
    level, done = np.zeros(m), np.zeros(m, dtype=bool)
    while not done.all():
        rows = np.hstack([-per_job, np.where(done, 0.0, 1.0)[:, None]])
        needs = np.where(done, -level * (1 - 1e-9), 0.0)
        common = {"A_ub": np.vstack([limits, rows]), "b_ub": np.concatenate([right, needs])}
        top = linprog(np.eye(m * j + 1)[-1] * -1, **common).x[-1]
        bounds = [(0, None)] * (m * j) + [(top * (1 - 1e-9), None)]
        for job in np.flatnonzero(~done):
            alone = -linprog(-np.append(per_job[job], 0.0), bounds=bounds, **common).fun
            if alone <= top * (1 + 1e-6):
                done[job], level[job] = True, top
    return level


@pytest.mark.parametrize("seed", range(14))
def test_water_filling_is_leximin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, j = int(rng.integers(2, 8)), int(rng.integers(1, 4))
    rates = rng.uniform(0.1, 5, (m, j))
    if seed % 2:
        rates[:, 1:][rng.random((m, j - 1)) < 0.4] = 0.0
    counts = rng.integers(2, 6, j)
    state = ClusterState.from_arrays(
        [GpuType(f"t{k}", int(counts[k])) for k in range(j)],
        rates,
        rng.choice([1, 2], m),
        weight=rng.choice([1.0, 2.0], m),
    )
    answer = allocate("water-filling", state)
    got = answer.steps_per_s(state) / fair_slope(state)
    assert answer.diagnostics.policy == "water-filling"
    assert answer.diagnostics.notes == ()
    wanted = leximin(state)
    assert relative(got.min(), wanted.min()) < 1e-6
    np.testing.assert_allclose(np.sort(got), np.sort(wanted), rtol=5e-5)


def pair_level(state: ClusterState, slope: np.ndarray) -> float:
    """Return max-min with a variable for every pair of jobs, as Gavel has it."""
    m = state.n_jobs
    table = state.pairs.rates
    x, rules, rates = base(state)
    time = [cp.sum(x[i]) for i in range(m)]
    use = state.gang @ x
    rate = [rates[i] for i in range(m)]
    for a in range(m):
        for b in range(a + 1, m):
            if state.gang[a] != state.gang[b]:
                continue
            mine = table[:, state.job_class[a], state.job_class[b]]
            other = table[:, state.job_class[b], state.job_class[a]]
            y = cp.Variable(state.n_types, nonneg=True)
            rules.append(cp.multiply(y, ((mine <= 0) | (other <= 0)).astype(float)) == 0)
            time[a], time[b] = time[a] + cp.sum(y), time[b] + cp.sum(y)
            rate[a], rate[b] = rate[a] + mine @ y, rate[b] + other @ y
            use = use + state.gang[a] * y
    rules = [*rules[2:], *[t <= 1 for t in time], use <= state.counts]
    goal = cp.min(cp.hstack([rate[i] / slope[i] for i in range(m)]))
    return float(cp.Problem(cp.Maximize(goal), rules).solve(solver=cp.HIGHS))


@pytest.mark.parametrize(("gangs", "weights"), [(False, False), (True, False), (True, True)])
def test_packed_max_min_equals_the_program_over_all_pairs(gangs: bool, weights: bool) -> None:
    state = draw(InstanceSpec(14, 3, gangs=gangs, pairs=True, seed=6))
    state = changed(state, types=tuple(GpuType(t.name, 8) for t in state.types))
    few = np.array([t.count for t in state.types])
    assert few.min() == 8
    state = changed(state, types=tuple(GpuType(t.name, 8 if gangs else 2) for t in state.types))
    if weights:
        state = changed(state, weight=np.linspace(1.0, 3.0, 14))
    answer = allocate("max-min", state, {"packed": True})
    assert answer.diagnostics.reasons == ()
    wanted = pair_level(state, fair_slope(state))
    assert relative(answer.objective, wanted) < 1e-6
    # The shares that were dealt to pairs deliver it.
    got = (answer.steps_per_s(state) / fair_slope(state)).min()
    assert relative(got, wanted) < 1e-5


def test_packing_never_lowers_the_objective() -> None:
    state = draw(InstanceSpec(100, 3, pairs=True, seed=7))
    for name, better in (("max-min", 1), ("makespan", -1), ("finish-time", -1), ("max-throughput", 1)):
        alone, shared = allocate(name, state), allocate(name, state, {"packed": True})
        assert shared.diagnostics.reasons == ()
        assert better * shared.objective >= better * alone.objective * (1 - better * 1e-6), name


def test_a_lone_job_of_its_class_is_not_its_own_partner() -> None:
    types = [GpuType("a", 1)]
    table = PairTable(("solo",), np.full((1, 1, 1), 0.9))
    state = ClusterState.from_arrays(types, np.ones((1, 1)), job_class=[0], pairs=table)
    answer = allocate("max-min", state, {"packed": True})
    assert answer.pairs is not None
    assert len(answer.pairs.a) == 0
    assert answer.objective == pytest.approx(1.0)
