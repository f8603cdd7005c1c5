"""The solvers below the policies: interior point, HiGHS with a kept basis, grouping, dealing of pairs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from pyhetsched.cli.bench_policy import bench_policy
from pyhetsched.clock import ManualClock, RealClock
from pyhetsched.errors import SolverError
from pyhetsched.policies import ClusterState, GpuType, allocate
from pyhetsched.policies.contract import changed
from pyhetsched.policies.demands import AffineDemand, FinishDemand
from pyhetsched.policies.groups import group_jobs, unique_rows
from pyhetsched.policies.instances import InstanceSpec, draw
from pyhetsched.policies.interior import ShareProblem, solve
from pyhetsched.policies.linear import INF, Labels, LinearProgram
from pyhetsched.policies.linear import solve as solve_linear
from pyhetsched.policies.registry import Context, SolverCache

CONTEXT = Context(RealClock(), float("inf"), SolverCache())


def one_group(demand: AffineDemand, **more: object) -> ShareProblem:
    one = np.ones(1)
    return ShareProblem(np.array([[2.0, 1.0]]), one, one, np.array([1.0, 1.0]), demand, **more)


def test_job_alone_reaches_its_best_type() -> None:
    answer = solve(one_group(AffineDemand(np.zeros(1), np.ones(1)), time=np.ones(1)))
    assert answer.value == pytest.approx(2.0, rel=1e-7)
    assert answer.gap < 1e-7


def test_without_a_time_limit_it_holds_all_types() -> None:
    assert solve(one_group(AffineDemand(np.zeros(1), np.ones(1)))).value == pytest.approx(3.0, rel=1e-7)


def test_bound_holds_and_is_met() -> None:
    state = draw(InstanceSpec(50, 4, gangs=True, distinct=True))
    groups = group_jobs(state)
    demand = AffineDemand(np.zeros(50), state.remaining)
    time = np.ones(50)
    answer = solve(ShareProblem(groups.throughput, groups.size, groups.gang, state.counts, demand, time=time))
    assert answer.value <= answer.bound <= answer.value * (1 + 1e-7)
    assert (answer.shares.sum(axis=1) <= 1).all()


def test_demand_that_never_rises_is_refused() -> None:
    with pytest.raises(SolverError, match="no demand rises"):
        solve(one_group(AffineDemand(np.ones(1), np.zeros(1)), time=np.ones(1)))


def test_floor_that_cannot_be_met_is_refused() -> None:
    problem = one_group(
        AffineDemand(np.array([5.0]), np.zeros(1)), time=np.ones(1), reward=np.ones((1, 2)), raise_theta=False
    )
    with pytest.raises(SolverError, match="interior point stopped"):
        solve(problem)


def test_time_budget_is_kept_between_iterations() -> None:
    clock = ManualClock()
    context = Context(clock, 1.0, SolverCache())

    def tick() -> None:
        clock.advance(0.3)
        context.left_s()

    with pytest.raises(SolverError, match="time budget"):
        solve(one_group(AffineDemand(np.zeros(1), np.ones(1)), time=np.ones(1)), tick=tick)


def test_demands_and_their_inverse_agree() -> None:
    demand = FinishDemand(np.array([100.0, 50.0]), np.array([10.0, 0.0]), np.array([30.0, 20.0]))
    level, slope, curve = demand.at(0.8)
    np.testing.assert_allclose(demand.level(level), 0.8)
    h = 1e-5
    np.testing.assert_allclose((demand.at(0.8 + h)[0] - demand.at(0.8 - h)[0]) / (2 * h), slope, rtol=1e-6)
    np.testing.assert_allclose((demand.at(0.8 + h)[1] - demand.at(0.8 - h)[1]) / (2 * h), curve, rtol=1e-5, atol=1e-6)
    assert demand.limit() == pytest.approx(3.0)
    scaled = demand.scaled(np.array([2.0, 5.0]), 0.5)
    np.testing.assert_allclose(scaled.at(1.6)[0] * [2.0, 5.0], level)
    assert FinishDemand(np.ones(1), np.zeros(1), np.ones(1)).limit() == float("inf")


def test_unique_rows_are_in_order_of_appearance() -> None:
    first, kind = unique_rows(np.array([[2.0, 0.0], [1.0, 1.0], [2.0, -0.0], [1.0, 1.0]]))
    assert first.tolist() == [0, 1]
    assert kind.tolist() == [0, 1, 0, 1]


def test_groups_leave_out_jobs_that_can_run_nowhere() -> None:
    state = ClusterState.from_arrays([GpuType("a", 2)], np.array([[1.0], [0.0], [1.0]]), [1, 1, 4])
    groups = group_jobs(state)
    assert groups.rows.tolist() == [0]


def test_basis_of_the_last_round_saves_iterations() -> None:
    state = draw(InstanceSpec(400, 3, pairs=True))
    cache = SolverCache()

    def iterations() -> int:
        solver = allocate("max-min", state, {"packed": True}, cache=cache).diagnostics.solver
        return int(solver.split()[1])

    cold = iterations()
    warm = iterations()
    assert warm < cold / 4
    grown = changed(state, types=tuple(GpuType(t.name, t.count + 1) for t in state.types))
    fresh = allocate("max-min", grown, {"packed": True}).objective
    assert allocate("max-min", grown, {"packed": True}, cache=cache).objective == pytest.approx(fresh, rel=1e-7)


def test_kept_basis_survives_new_columns_and_rows() -> None:
    context = Context(RealClock(), float("inf"), SolverCache())
    for names in (["a", "b"], ["b", "c", "d"], ["d"]):
        program = LinearProgram()
        columns = program.columns(np.ones(len(names)), upper=2.0)
        row = program.rows(-INF, 3.0)
        program.put(row, columns, 1.0)
        found = solve_linear(program, context, Labels("k", names, ["sum"]))
        assert found.value == pytest.approx(min(3.0, 2.0 * len(names)))


def test_infeasible_program_is_a_solver_error() -> None:
    program = LinearProgram()
    column = program.columns([1.0], upper=1.0)
    program.put(program.rows(2.0, INF), column, 1.0)
    with pytest.raises(SolverError, match="Infeasible"):
        solve_linear(program, CONTEXT)


@pytest.mark.parametrize("seed", range(5))
def test_dealt_pairs_give_every_job_what_its_group_was_given(seed: int) -> None:
    state = draw(InstanceSpec(60, 3, gangs=True, pairs=True, seed=seed))
    answer = allocate("max-min", state, {"packed": True})
    pairs = answer.pairs
    assert pairs is not None
    assert (pairs.a != pairs.b).all()
    assert (state.gang[pairs.a] == state.gang[pairs.b]).all()
    time = answer.time_shares().sum(axis=1)
    groups = group_jobs(state, state.weight, state.job_class)
    for group in range(groups.n_groups):
        members = groups.rows[groups.group_of == group]
        np.testing.assert_allclose(time[members], time[members[0]], atol=1e-9)


def test_water_filling_raises_those_who_can_still_rise() -> None:
    rates = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    state = ClusterState.from_arrays([GpuType("a", 1), GpuType("b", 1)], rates)
    rates_got = allocate("water-filling", state).steps_per_s(state)
    np.testing.assert_allclose(rates_got, [0.5, 0.5, 1.0], rtol=1e-6)


def test_hierarchy_splits_by_account_before_it_splits_by_job() -> None:
    accounts = (("root", "big"), ("root", "small"), ("root", "small"))
    state = ClusterState.from_arrays([GpuType("a", 1)], np.ones((3, 1)), accounts=accounts)
    np.testing.assert_allclose(allocate("hierarchical", state).shares[:, 0], [0.5, 0.25, 0.25], rtol=1e-6)
    heavy = changed(state, account_weights={("root", "big"): 3.0})
    np.testing.assert_allclose(allocate("hierarchical", heavy).shares[:, 0], [0.75, 0.125, 0.125], rtol=1e-6)
    fifo = allocate("hierarchical", state, {"within": "fifo"})
    np.testing.assert_allclose(fifo.shares[:, 0], [0.5, 0.5, 0.0], atol=1e-5)


def test_weight_of_an_idle_account_goes_to_its_sister_first() -> None:
    accounts = (("a", "x"), ("a", "x"), ("b",))
    weights = {("a",): 1.0, ("b",): 1.0, ("a", "x"): 1.0, ("a", "y"): 9.0}
    state = ClusterState.from_arrays(
        [GpuType("g", 1)], np.ones((3, 1)), accounts=accounts, account_weights=weights
    )
    np.testing.assert_allclose(allocate("hierarchical", state).shares[:, 0], [0.25, 0.25, 0.5], rtol=1e-6)


def test_jobs_of_a_parent_account_stand_beside_its_sub_accounts() -> None:
    accounts = (("a",), ("a", "x"), ("b",))
    state = ClusterState.from_arrays([GpuType("g", 1)], np.ones((3, 1)), accounts=accounts)
    np.testing.assert_allclose(allocate("hierarchical", state).shares[:, 0], [0.25, 0.25, 0.5], rtol=1e-6)


def test_instances_are_reproducible_and_as_asked() -> None:
    spec = InstanceSpec(40, 5, gangs=True, seed=9)
    one, two = draw(spec), draw(spec)
    np.testing.assert_array_equal(one.throughput, two.throughput)
    assert one.n_types == 5
    assert set(np.unique(one.gang)) <= {1, 2, 4, 8}
    assert [t.name for t in one.types[:3]] == ["v100", "p100", "k80"]


def test_bench_policy_prints_its_figures() -> None:
    result = CliRunner().invoke(bench_policy, ["max-min", "--jobs", "50", "--trials", "2", "--json"])
    assert result.exit_code == 0
    figures = json.loads(result.output)
    assert {"median_s", "objective", "peak_rss_mb", "jobs", "types"} <= set(figures)
    assert figures["rung"] == "max-min/interior point"
    wrong = CliRunner().invoke(bench_policy, ["max-min", "-o", "loud=1"])
    assert wrong.exit_code == 2
    assert "its options are" in wrong.output
    plain = CliRunner().invoke(bench_policy, ["ftf", "--jobs", "20", "--trials", "1"])
    assert "20 jobs, 3 types" in plain.output
