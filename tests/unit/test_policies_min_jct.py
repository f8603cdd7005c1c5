"""min-jct: small optima by brute force, properties, and the figures on Gavel's rules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyhetsched.errors import ConfigError
from pyhetsched.policies.contract import ClusterState, GpuType
from pyhetsched.policies.min_jct import assign_positions, best_response, match_gangs
from pyhetsched.policies.registry import SolverCache, allocate


def state_of(
    rates: np.ndarray, counts: list[int], remaining: np.ndarray, gang: np.ndarray | None = None, **more: object
) -> ClusterState:
    types = tuple(GpuType(f"t{j}", count) for j, count in enumerate(counts))
    return ClusterState.from_arrays(types, rates, gang, remaining, **more)


def sum_of_completions(columns: tuple[int, ...], run_s: np.ndarray) -> float:
    """Best sum with one device a type: shortest first on each."""
    total = 0.0
    for j in range(run_s.shape[1]):
        total += np.cumsum(np.sort(run_s[[m for m, c in enumerate(columns) if c == j], j])).sum()
    return total


@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_positions_are_optimal_for_single_gpu_jobs(n_jobs: int, n_types: int, seed: int) -> None:
    run_s = np.random.default_rng(seed).uniform(1, 100, (n_jobs, n_types))
    column = assign_positions(run_s, np.ones(n_jobs), np.ones(n_types))
    best = min(sum_of_completions(c, run_s) for c in itertools.product(range(n_types), repeat=n_jobs))
    assert sum_of_completions(tuple(column.tolist()), run_s) == pytest.approx(best)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_answer_is_feasible_ranks_all_and_ignores_the_names_of_types(n_jobs: int, n_types: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rates = random.choice([0.0, 1.0, 2.0, 5.0], (n_jobs, n_types))
    rates[:, 0] = np.maximum(rates[:, 0], 0.5)
    counts = random.integers(4, 9, n_types).tolist()
    gang = random.choice([1, 1, 2, 4], n_jobs)
    state = state_of(rates, counts, random.uniform(1, 1e4, n_jobs), gang)
    answer = allocate("min-jct", state)
    assert answer.diagnostics.rung == "plan"
    assert sorted(answer.order.tolist()) == list(range(n_jobs))
    assert ((gang @ answer.shares) <= np.array(counts)).all()
    assert state.usable[np.arange(n_jobs), answer.wanted].all()
    assert answer.order[0] in np.flatnonzero(answer.shares.any(axis=1))


def test_best_response_comes_close_to_the_matching() -> None:
    from pyhetsched.policies.min_jct import _Work

    random = np.random.default_rng(3)
    run_s = random.lognormal(8, 1.5, (250, 1)) * random.uniform(1, 6, (250, 3))
    gang = random.choice([1.0, 1.0, 2.0, 4.0], 250)
    nobody, nothing = np.empty(0, dtype=np.int64), np.zeros(3)
    work = _Work(np.arange(250), run_s, gang, np.ones(250), np.full(3, 8.0), nobody, nothing, nothing)

    def cost(column: np.ndarray) -> float:
        total = 0.0
        for j in range(3):
            here = np.flatnonzero(column == j)
            area = np.sort(work.area_s[here, j])
            total += (np.cumsum(area) - area / 2).sum() + run_s[here, j].sum() / 2
        return total

    exact = cost(assign_positions(run_s, gang, work.counts))
    assert cost(best_response(work)) <= exact * 1.01


def test_weighted_jobs_go_first() -> None:
    state = state_of(np.ones((3, 1)), [1], np.array([100.0, 100.0, 100.0]), weight=[1.0, 5.0, 1.0])
    assert allocate("min-jct", state, {"light": 0}).order[0] == 1


def test_last_answer_helps_but_is_not_needed() -> None:
    random = np.random.default_rng(5)
    rates, remaining = random.uniform(0.5, 4, (60, 3)), random.uniform(10, 1e4, 60)
    state = state_of(rates, [2, 2, 2], remaining)
    cache = SolverCache()
    cold = allocate("min-jct", state, cache=cache)
    warm = allocate("min-jct", state, {"exact_jobs": 0}, cache=cache)
    assert warm.objective <= cold.objective * 1.01


def test_gangs_with_most_to_lose_choose_first() -> None:
    value = np.array([[1.0, 0.9], [1.0, 0.1]])
    assert match_gangs(value, np.array([1.0, 1.0]), np.array([1.0, 1.0])).tolist() == [1, 0]


def test_bound_on_rho_puts_late_jobs_first() -> None:
    remaining = np.array([10.0, 5000.0])
    ages = [0.0, 40_000.0]
    plain = allocate("min-jct", state_of(np.ones((2, 1)), [1], remaining, age_s=ages), {"light": 0})
    bound = allocate(
        "min-jct", state_of(np.ones((2, 1)), [1], remaining, age_s=ages), {"light": 0, "rho_limit": 1.3}
    )
    assert plain.order.tolist() == [0, 1]
    assert bound.order.tolist() == [1, 0]


def test_nobody_can_run() -> None:
    answer = allocate("min-jct", state_of(np.zeros((2, 1)), [1], np.ones(2)))
    assert answer.order.tolist() == []


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="rho_limit"):
        allocate("min-jct", state_of(np.ones((1, 1)), [1], np.ones(1)), {"rho_limit": -1})


def test_running_jobs_that_must_stay_hold_their_devices() -> None:
    rates = np.array([[1.0, 1.0], [4.0, 1.0], [4.0, 1.0]])
    state = state_of(
        rates, [1, 1], np.array([1000.0, 10.0, 10.0]), running_on=[0, -1, -1], movable=np.array([False, True, True])
    )
    answer = allocate("min-jct", state)
    assert answer.shares[0].tolist() == [1.0, 0.0]
    # 10 s on the free slow type beat 1000 s of waiting for the fast one.
    assert answer.wanted.tolist() == [0, 1, 1]
    assert answer.shares[:, 0].sum() == 1.0


def test_a_short_wait_beats_a_slow_idle_type() -> None:
    state = state_of(
        np.array([[1.0, 1.0], [10.0, 0.1]]), [1, 1], np.array([1.0, 100.0]), running_on=[0, -1],
        movable=np.array([False, True]),
    )  # fmt: skip
    assert allocate("min-jct", state).wanted.tolist() == [0, 0]
