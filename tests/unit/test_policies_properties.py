"""Properties that hold on every instance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pyhetsched.policies import ClusterState, GpuType, allocate, names
from pyhetsched.policies.contract import changed
from pyhetsched.policies.groups import group_jobs
from pyhetsched.policies.reference import isolated_shares

SETTINGS = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
OURS = [name for name in names() if name != "min-jct"]
COLUMNS = (
    *("job_ids", "throughput", "gang", "weight", "remaining", "total", "age_s", "waited_s", "sigma"),
    *("deadline_s", "isolated_used_s", "job_class", "min_gang", "max_gang", "running_on"),
)
LEVELS = ["max-min", "makespan", "finish-time", "oef-noncoop"]


@st.composite
def states(draw: st.DrawFn, gangs: bool = True, zeros: bool = True, crowded: bool = False) -> ClusterState:
    n_types = draw(st.integers(1, 4))
    n_jobs = draw(st.integers(6 if crowded else 1, 14))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rates = np.exp(rng.uniform(-3, 3, (n_jobs, n_types)))
    if draw(st.booleans()):
        rates[n_jobs // 2 :] = rates[0]
    if zeros and draw(st.booleans()):
        rates[rng.random(rates.shape) < 0.25] = 0.0
    gang = rng.choice([1, 2, 4], n_jobs) if gangs else np.ones(n_jobs, dtype=np.int64)
    low = 1 if crowded else 4
    counts = rng.integers(low, 3 if crowded else 10, n_types)
    age = rng.uniform(0, 1e5, n_jobs)
    return ClusterState.from_arrays(
        [GpuType(f"t{j}", int(counts[j]), 0.1 + j, 100.0 + j, 10.0) for j in range(n_types)],
        rates,
        gang,
        rng.uniform(10, 1e6, n_jobs),
        weight=rng.choice([1.0, 2.0, 5.0], n_jobs),
        age_s=age,
        isolated_used_s=age * rng.uniform(0.5, 1.5, n_jobs),
        deadline_s=rng.uniform(1e3, 1e7, n_jobs),
        accounts=tuple(("root", f"a{rng.integers(3)}") for _ in range(n_jobs)),
    )


def permuted(state: ClusterState, order: np.ndarray) -> ClusterState:
    columns = {
        name: getattr(state, name)[order]
        for name in COLUMNS
    }
    return changed(state, **columns, accounts=tuple(state.accounts[i] for i in order))


@pytest.mark.parametrize("name", OURS)
@SETTINGS
@given(state=states())
def test_time_and_capacity_are_never_exceeded(name: str, state: ClusterState) -> None:
    answer = allocate(name, state)
    assert answer.diagnostics.policy == name, answer.diagnostics.reasons
    shares = answer.time_shares()
    assert shares.min(initial=0.0) >= 0
    assert (shares.sum(axis=1) <= 1 + 1e-7).all()
    assert (answer.device_use(state) <= state.counts * (1 + 1e-7)).all()
    if name != "isolated":
        assert (shares[~state.usable] == 0).all()


@pytest.mark.parametrize("name", [*LEVELS, "water-filling", "max-throughput", "min-cost", "energy-floor", "oef-coop"])
@SETTINGS
@given(state=states(), seed=st.integers(0, 1000))
def test_objective_does_not_depend_on_the_order_of_jobs(name: str, state: ClusterState, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(state.n_jobs)
    first, second = allocate(name, state), allocate(name, permuted(state, order))
    assert second.objective == pytest.approx(first.objective, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", LEVELS)
@SETTINGS
@given(state=states())
def test_simplex_and_interior_point_agree(name: str, state: ClusterState) -> None:
    from pyhetsched.clock import RealClock
    from pyhetsched.policies.registry import Context, SolverCache, resolve

    info, preset = resolve(name)
    answer = allocate(name, state)
    assert not answer.diagnostics.reasons
    assert not answer.diagnostics.gap > 1e-6
    if len(info.rungs) > 1:
        context = Context(RealClock(), float("inf"), SolverCache())
        other = info.rungs[1][1](state, info.options(preset), context)
        assert other.objective == pytest.approx(answer.objective, rel=1e-6)


@SETTINGS
@given(state=states(zeros=False))
def test_identical_jobs_made_one_change_nothing(state: ClusterState) -> None:
    merged, apart = allocate("max-min", state), allocate("max-min", state, {"merge": False})
    assert merged.objective == pytest.approx(apart.objective, rel=1e-6)


@SETTINGS
@given(state=states(gangs=False, crowded=True))
def test_max_min_gives_everybody_at_least_an_equal_part(state: ClusterState) -> None:
    """Sharing incentive: with equal weights nobody is below its 1/M of every type."""
    equal = changed(state, weight=np.ones(state.n_jobs))
    able = equal.usable.any(axis=1)
    answer = allocate("max-min", equal)
    isolated = (isolated_shares(equal) * equal.throughput).sum(axis=1)
    rates = answer.steps_per_s(equal)
    assert (rates[able] >= isolated[able] * (1 - 1e-6)).all()


@SETTINGS
@given(state=states(gangs=False, zeros=False))
def test_finish_time_is_never_worse_than_isolation(state: ClusterState) -> None:
    fresh = changed(state, age_s=np.zeros(state.n_jobs), isolated_used_s=np.zeros(state.n_jobs))
    assert allocate("finish-time", fresh).objective <= 1 + 1e-6


@SETTINGS
@given(state=states(crowded=True))
def test_oef_coop_is_free_of_envy(state: ClusterState) -> None:
    able = np.flatnonzero(state.usable.any(axis=1))
    answer = allocate("oef-coop", state)
    rates = np.where(state.usable, state.throughput, 0.0)
    bundles = answer.shares * (state.gang / state.weight)[:, None]
    worth = rates @ bundles.T
    own = np.diag(worth)
    assert (worth[np.ix_(able, able)] <= own[able][:, None] * (1 + 1e-5) + 1e-9).all()


@SETTINGS
@given(state=states(crowded=True))
def test_oef_noncoop_gives_equal_worth(state: ClusterState) -> None:
    able = state.usable.any(axis=1)
    assume(able.any())
    rates = np.where(state.usable, state.throughput, 0.0)
    slowest = np.where(rates > 0, rates, np.inf).min(axis=1)
    answer = allocate("oef-noncoop", state)
    worth = (rates * answer.shares).sum(axis=1)[able] * (state.gang / state.weight / slowest)[able]
    np.testing.assert_allclose(worth, worth[0], rtol=1e-6)


@pytest.mark.parametrize(("name", "sign"), [("max-min", 1), ("makespan", -1), ("max-throughput", 1)])
@SETTINGS
@given(state=states(zeros=False))
def test_more_gpus_never_hurt(name: str, sign: int, state: ClusterState) -> None:
    options = {"normalise": "none"} if name == "max-throughput" else {}
    more = changed(state, types=tuple(GpuType(t.name, 2 * t.count, t.usd_per_gpu_h) for t in state.types))
    assume(bool((more.usable == state.usable).all()))
    # Twice the GPUs of every type leave the equal split, and so the unit of max-min, as it is.
    before, after = allocate(name, state, options).objective, allocate(name, more, options).objective
    assert sign * after >= sign * before * (1 - sign * 1e-6)


@SETTINGS
@given(state=states(crowded=True, gangs=False))
def test_hierarchy_serves_equal_accounts_equally(state: ClusterState) -> None:
    one_kind = changed(
        state, throughput=np.ones_like(state.throughput), weight=np.ones(state.n_jobs)
    )
    answer = allocate("hierarchical", one_kind)
    rates = answer.steps_per_s(one_kind)
    accounts = sorted(set(one_kind.accounts))
    sums = np.array([rates[[a == account for a in one_kind.accounts]].sum() for account in accounts])
    sizes = np.array([one_kind.accounts.count(account) for account in accounts])
    capped = sums >= sizes * (1 - 1e-6)  # every job of the account runs all the time
    if (~capped).any():
        np.testing.assert_allclose(sums[~capped], sums[~capped][0], rtol=1e-5)
        assert (sums[capped] <= sums[~capped][0] * (1 + 1e-5)).all()


@pytest.mark.parametrize("fastest_first", [False, True])
def test_shares_of_equal_jobs_are_dealt_to_the_shortest_first(fastest_first: bool) -> None:
    rng = np.random.default_rng(5)
    rates = np.array([[2.0, 1.0], [3.0, 3.0]])[rng.integers(0, 2, 40)]
    state = ClusterState.from_arrays(
        types=(GpuType("a", 8), GpuType("b", 5)), throughput=rates, remaining=rng.uniform(1, 100, 40)
    )
    groups = group_jobs(state)
    shares = np.array([[0.3, 0.1], [0.2, 0.25]])[: groups.n_groups]
    dealt = groups.deal(state, shares, fastest_first)
    assert np.allclose(dealt.sum(axis=0), groups.expand(state, shares).sum(axis=0))
    assert dealt.sum(axis=1).max() <= 1 + 1e-12
    for group in range(groups.n_groups):
        mine = groups.rows[groups.group_of == group]
        line = dealt[mine[np.argsort(state.remaining[mine])]].sum(axis=1)
        assert (np.diff(line) <= 1e-12).all(), "nobody has more than a shorter one"
        assert np.count_nonzero((line > 1e-12) & (line < 1 - 1e-12)) <= 1, "one job at most has a part"
