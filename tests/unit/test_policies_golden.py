"""Golden vectors: small instances whose optimum is known exactly."""

from __future__ import annotations

import numpy as np
import pytest

from pyhetsched.clock import RealClock
from pyhetsched.policies import ClusterState, GpuType, Job, allocate
from pyhetsched.policies.demands import AffineDemand
from pyhetsched.policies.groups import group_jobs
from pyhetsched.policies.interior import ShareProblem, solve
from pyhetsched.policies.oef import envy_free
from pyhetsched.policies.reference import equal_shares, isolated_shares
from pyhetsched.policies.registry import Context, SolverCache, resolve

RATES = np.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0]])
CONTEXT = Context(RealClock(), float("inf"), SolverCache())


def three_jobs(**columns: object) -> ClusterState:
    types = [GpuType("fast", 1), GpuType("slow", 1)]
    return ClusterState.from_arrays(types, RATES, remaining=np.full(3, 1000.0), **columns)


def by_every_rung(name: str, state: ClusterState) -> list[object]:
    info, preset = resolve(name)
    return [function(state, info.options(preset), CONTEXT) for _, function in info.rungs]


def test_reference_shares() -> None:
    state = three_jobs()
    np.testing.assert_allclose(equal_shares(state), np.full((3, 2), 0.5))
    np.testing.assert_allclose(isolated_shares(state), np.full((3, 2), 1 / 3))


def test_isolated_rows_are_cut_to_one_only_if_they_exceed_it() -> None:
    state = ClusterState.from_arrays([GpuType("a", 6), GpuType("b", 3)], np.ones((3, 2)), gang=[1, 2, 8])
    np.testing.assert_allclose(isolated_shares(state), [[2 / 3, 1 / 3], [2 / 3, 1 / 3], [0.25, 0.125]])


def test_max_min() -> None:
    for answer in by_every_rung("max-min", three_jobs()):
        assert answer.objective == pytest.approx(8 / 11, rel=1e-7)
        rates = answer.steps_per_s(three_jobs())
        np.testing.assert_allclose(rates, [20 / 11, 16 / 11, 12 / 11], rtol=1e-6)


def test_max_min_without_looking_at_types() -> None:
    assert allocate("max_min_fairness", three_jobs()).objective == pytest.approx(2 / 3, rel=1e-7)


def test_makespan() -> None:
    for answer in by_every_rung("makespan", three_jobs()):
        assert answer.objective == pytest.approx(750.0, rel=1e-7)
        np.testing.assert_allclose(answer.steps_per_s(three_jobs()), np.full(3, 4 / 3), rtol=1e-6)


def test_finish_time() -> None:
    for answer in by_every_rung("finish-time", three_jobs()):
        assert answer.objective == pytest.approx(11 / 12, rel=1e-7)


def test_finish_time_with_ages_by_bisection() -> None:
    age, used = np.array([100.0, 500.0, 50.0]), np.array([150.0, 300.0, 60.0])
    state = three_jobs(age_s=age, isolated_used_s=used)
    ideal = used + 1000.0 / (RATES @ [1 / 3, 1 / 3])
    for answer in by_every_rung("finish-time", state):
        rho = (age + 1000.0 / answer.steps_per_s(state)) / ideal
        assert rho.max() == pytest.approx(answer.objective, rel=1e-6)
    assert by_every_rung("finish-time", state)[0].objective == pytest.approx(
        by_every_rung("finish-time", state)[1].objective, rel=1e-6
    )


def test_isolated_is_its_own_yardstick() -> None:
    answer = allocate("isolated", three_jobs())
    assert answer.objective == 1.0
    np.testing.assert_allclose(answer.shares, isolated_shares(three_jobs()))


OEF_SPEEDUPS = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 4.0]])


def test_oef_cooperative() -> None:
    state = ClusterState.from_arrays([GpuType("slow", 3), GpuType("fast", 3)], OEF_SPEEDUPS)
    groups = group_jobs(state, state.weight)
    shares, total, _ = envy_free(state, groups, np.ones(3), CONTEXT, limit_time=False)
    assert total == pytest.approx(13.5)
    np.testing.assert_allclose((OEF_SPEEDUPS * shares).sum(axis=1), [3.0, 4.5, 6.0], rtol=1e-7)


def test_oef_non_cooperative() -> None:
    one = np.ones(3)
    problem = ShareProblem(OEF_SPEEDUPS, one, one, np.array([3.0, 3.0]), AffineDemand(0 * one, one))
    answer = solve(problem)
    assert 3 * answer.value == pytest.approx(162 / 13, rel=1e-7)
    # No sharing incentive: the third user would have 5 from an equal split.
    assert answer.value < 5


def test_max_throughput_puts_each_gpu_where_it_does_most() -> None:
    answer = allocate("max-throughput", three_jobs(), {"normalise": "none"})
    assert answer.objective == pytest.approx(5.0, rel=1e-6)
    floors = allocate("max-throughput", three_jobs(), {"normalise": "none", "floor": 1.0})
    isolated = (RATES * isolated_shares(three_jobs())).sum(axis=1)
    assert (floors.steps_per_s(three_jobs()) >= isolated * (1 - 1e-6)).all()
    assert floors.objective <= answer.objective


def test_min_cost_prefers_the_cheap_type() -> None:
    types = [GpuType("fast", 1, usd_per_gpu_h=8.0), GpuType("slow", 1, usd_per_gpu_h=1.0)]
    state = ClusterState.from_arrays(types, np.array([[4.0, 1.0]]), remaining=[1000.0])
    np.testing.assert_allclose(allocate("min-cost", state).shares, [[0.0, 1.0]], atol=1e-6)


def test_deadline_overrides_cost() -> None:
    types = [GpuType("fast", 1, usd_per_gpu_h=8.0), GpuType("slow", 1, usd_per_gpu_h=1.0)]
    state = ClusterState.from_arrays(
        types, np.array([[4.0, 1.0]]), remaining=[1000.0], deadline_s=[400.0]
    )
    answer = allocate("min-cost-slo", state)
    np.testing.assert_allclose(answer.shares, [[0.5, 0.5]], atol=1e-5)
    late = allocate("min-cost-slo", ClusterState.from_arrays(
        types, np.array([[4.0, 1.0]]), remaining=[1000.0], deadline_s=[100.0]
    ))
    assert "can no longer be met" in late.diagnostics.notes[0]


def test_energy_floor_uses_the_frugal_type_and_says_when_it_guesses() -> None:
    types = [GpuType("fast", 2, busy_w=400.0, idle_w=50.0), GpuType("slow", 2, busy_w=100.0, idle_w=20.0)]
    state = ClusterState.from_arrays(types, np.array([[2.0, 1.0]]), remaining=[1000.0])
    answer = allocate("energy-floor", state, {"floor": 0.5})
    # Isolated: half on each type, 1.5 steps/s; the floor of 0.75 is cheapest on the slow type.
    assert answer.objective == pytest.approx(0.75 * 80.0, rel=1e-5)
    bare = ClusterState.from_arrays([GpuType("fast", 2)], np.array([[2.0]]))
    assert "counts 1 W" in allocate("energy-floor", bare).diagnostics.notes[0]


def test_allox_is_shortest_first_on_one_device() -> None:
    rows = [Job(i, 1, (1.0,), steps) for i, steps in enumerate([300.0, 100.0, 200.0])]
    state = ClusterState.from_jobs([GpuType("a", 1)], rows)
    answer = allocate("allox", state)
    assert answer.order is not None
    assert answer.order.tolist() == [1]
    assert answer.objective == pytest.approx((3 * 100 + 2 * 200 + 300) / 3)


def test_allox_plans_all_devices_if_told_to() -> None:
    rows = [
        Job(0, 1, (1.0, 0.1), 50.0, running_on=0),
        Job(1, 1, (1.0, 0.01), 100.0),
        Job(2, 1, (1.0, 0.6), 100.0),
    ]
    state = ClusterState.from_jobs([GpuType("fast", 1), GpuType("slow", 1)], rows)
    patient = allocate("allox", state, {"devices": "all"})
    assert patient.wanted is not None
    assert patient.wanted.tolist() == [0, -1, 1]


def test_allox_with_gangs_falls_to_shortest_first() -> None:
    rows = [Job(0, 2, (1.0,), 300.0), Job(1, 1, (1.0,), 100.0), Job(2, 2, (1.0,), 10.0)]
    answer = allocate("allox", ClusterState.from_jobs([GpuType("a", 3)], rows))
    assert answer.diagnostics.rung == "shortest first"
    assert answer.order is not None
    assert answer.order.tolist() == [1, 2]


def test_fifo_keeps_running_jobs_and_stops_at_the_first_that_does_not_fit() -> None:
    rows = [
        Job(0, 2, (1.0, 2.0), 1.0, running_on=0),
        Job(1, 2, (1.0, 2.0), 1.0),
        Job(2, 1, (1.0, 2.0), 1.0),
    ]
    state = ClusterState.from_jobs([GpuType("a", 3), GpuType("b", 1)], rows)
    assert allocate("fifo", state).wanted.tolist() == [0, -1, -1]
    assert allocate("fifo", state, {"skip": True}).wanted.tolist() == [0, -1, 1]


def test_fifo_takes_the_fastest_free_type_only_if_aware() -> None:
    state = ClusterState.from_jobs([GpuType("a", 3), GpuType("b", 1)], [Job(0, 1, (1.0, 2.0), 1.0)])
    assert allocate("fifo_perf", state).wanted.tolist() == [1]
    assert allocate("fifo_agnostic", state).wanted.tolist() == [0]


def test_themis_serves_the_worst_treated_job_first() -> None:
    rows = [Job(0, 1, (1.0,), 100.0, age_s=0.0), Job(1, 1, (1.0,), 100.0, age_s=5000.0)]
    state = ClusterState.from_jobs([GpuType("a", 1)], rows)
    for answer in by_every_rung("themis", state):
        assert answer.wanted.tolist() == [-1, 0]


def test_themis_gives_what_is_left_to_the_others() -> None:
    rows = [Job(i, 2, (2.0, 1.0), 100.0, age_s=100.0 * i) for i in range(4)]
    state = ClusterState.from_jobs([GpuType("a", 4), GpuType("b", 2)], rows)
    answer = allocate("themis", state)
    assert (answer.wanted >= 0).sum() == 3
    assert answer.wanted[0] == -1
