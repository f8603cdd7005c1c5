"""Finish-time fairness: what the worst ratio leaves open, and the variant that does not look at types."""

from __future__ import annotations

import numpy as np
import pytest

from pyhetsched.policies import ClusterState, GpuType, allocate
from pyhetsched.policies.finish_time import ideal_s
from pyhetsched.policies.instances import InstanceSpec, draw
from pyhetsched.policies.max_min import reference_rates


def ratios(state: ClusterState, shares: np.ndarray) -> np.ndarray:
    rates = (state.throughput * shares).sum(axis=1)
    return (state.age_s + state.remaining / rates) / ideal_s(state)


@pytest.mark.parametrize("rest", ["central", "throughput", "shortest"])
def test_the_rest_never_worsens_the_worst_ratio(rest: str) -> None:
    state = draw(InstanceSpec(60, 3, gangs=True, seed=1))
    answer = allocate("finish-time", state, {"rest": rest})
    assert answer.diagnostics.reasons == ()
    assert ratios(state, answer.shares).max() == pytest.approx(answer.objective, rel=1e-5)


def test_the_rest_goes_where_it_is_asked_to() -> None:
    state = draw(InstanceSpec(60, 3, seed=1))
    best = state.throughput.max(axis=1)

    def figures(rest: str) -> tuple[float, float]:
        rates = allocate("finish-time", state, {"rest": rest}).steps_per_s(state)
        return float((rates / best).sum()), float((rates / state.remaining).sum())

    central, most, short = figures("central"), figures("throughput"), figures("shortest")
    assert most[0] >= max(central[0], short[0]) * (1 - 1e-6)
    assert short[1] >= max(central[1], most[1]) * (1 - 1e-6)


def test_reference_is_the_type_that_is_fastest_on_the_whole() -> None:
    rates = np.array([[4.0, 1.0], [3.0, 1.0], [0.0, 2.0], [0.0, 0.0]])
    state = ClusterState.from_arrays([GpuType("a", 1), GpuType("b", 1)], rates)
    np.testing.assert_allclose(reference_rates(state), [4.0, 3.0, 2.0, 1.0])


def test_agnostic_finish_time_is_blind_to_the_order_of_types() -> None:
    state = draw(InstanceSpec(40, 3, seed=2))
    answer = allocate("finish_time_fairness", state)
    assert answer.diagnostics.reasons == ()
    assert answer.objective > 0
    aware = allocate("finish_time_fairness_perf", state)
    assert ratios(state, aware.shares).max() <= ratios(state, answer.shares).max() * (1 + 1e-6)
