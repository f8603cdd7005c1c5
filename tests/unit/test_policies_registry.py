"""Names, options and the ladder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from pyhetsched.clock import ManualClock
from pyhetsched.errors import ConfigError, DataError, SolverError
from pyhetsched.policies import ClusterState, GpuType, Job, allocate, names, resolve
from pyhetsched.policies.contract import Allocation, PairShares, changed
from pyhetsched.policies.registry import Context, PolicyInfo, SolverCache, parse_options

GAVEL_NAMES = {
    "fifo_perf": "fifo",
    "max_min_fairness": "max-min",
    "max_min_fairness_perf": "max-min",
    "max_min_fairness_packed": "max-min",
    "max_min_fairness_water_filling_perf": "water-filling",
    "finish_time_fairness": "finish-time",
    "finish_time_fairness_perf": "finish-time",
    "min_total_duration": "makespan",
    "min_total_duration_perf": "makespan",
    "max_sum_throughput_perf": "max-throughput",
    "max_sum_throughput_normalized_by_cost_perf": "min-cost",
}


@dataclass(frozen=True, slots=True)
class Sample:
    count: int = 1
    share: float | None = None
    loud: bool = False
    mode: Literal["a", "b"] = "a"


def two_types(jobs: int = 2) -> ClusterState:
    types = [GpuType("a100", 2), GpuType("v100", 1)]
    return ClusterState.from_jobs(types, [Job(i, 1, (2.0, 1.0), 100.0) for i in range(jobs)])


def test_every_policy_of_the_list_is_registered() -> None:
    wanted = (
        "fifo isolated max-min water-filling hierarchical finish-time themis makespan max-throughput min-cost "
        "min-cost-slo allox oef-coop oef-noncoop energy-floor"
    )
    assert set(wanted.split()) <= set(names())


@pytest.mark.parametrize(("alias", "name"), GAVEL_NAMES.items())
def test_gavel_names_stand_for_ours(alias: str, name: str) -> None:
    assert resolve(alias)[0].name == name


def test_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"'mx-min'; write one of allox, .*max-min"):
        allocate("mx-min", two_types())


def test_unknown_option_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match="its options are: aware, merge, packed"):
        allocate("max-min", two_types(), {"awre": True})


def test_options_are_read_from_text() -> None:
    options = parse_options("p", Sample, {"count": "3", "share": "0.5", "loud": "yes", "mode": "b"})
    assert options == Sample(3, 0.5, True, "b")
    assert parse_options("p", Sample, {"share": "none"}) == Sample()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", "many", "count must be a int"),
        ("loud", "perhaps", "loud must be true or false"),
        ("mode", "c", "mode must be one of a, b"),
    ],
)
def test_wrong_option_says_what_to_write(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options("p", Sample, {name: value})


def test_option_out_of_range_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="floor must be between 0 and 1"):
        allocate("max-throughput", two_types(), {"floor": 2})


def test_ladder_falls_to_the_next_rung_and_says_why() -> None:
    def fails(state: ClusterState, options: object, context: Context, /) -> Allocation:
        raise SolverError("no luck")

    def impossible(state: ClusterState, options: object, context: Context, /) -> Allocation:
        return Allocation(np.full((state.n_jobs, state.n_types), 0.9))

    info, _ = resolve("max-min")
    rungs = list(info.rungs)
    info.rungs[:] = [("first", fails), ("second", impossible), *rungs]
    try:
        told = allocate("max-min", two_types()).diagnostics
    finally:
        info.rungs[:] = rungs
    assert told.rung == "interior point"
    assert told.reasons[0] == "max-min/first: no luck"
    assert told.reasons[1].startswith("max-min/second: a job was given")


def test_blown_budget_falls_to_a_policy_that_always_answers() -> None:
    clock = ManualClock()
    answer = allocate("max-min", two_types(), clock=clock, budget_s=0.0)
    assert answer.diagnostics.policy == "isolated"
    assert all("time budget" in reason for reason in answer.diagnostics.reasons)


@pytest.mark.parametrize("name", ["max-min", "makespan", "finish-time", "water-filling", "hierarchical", "themis"])
def test_no_jobs_is_no_trouble(name: str) -> None:
    state = ClusterState.from_jobs([GpuType("a100", 2)], [])
    assert allocate(name, state).shares.shape == (0, 1)


@pytest.mark.parametrize("name", [n for n in names() if n != "min-jct"])
def test_job_that_can_run_nowhere_gets_nothing(name: str) -> None:
    types = [GpuType("a100", 2), GpuType("v100", 4)]
    rows = [Job(1, 1, (2.0, 1.0), 50.0), Job(2, 8, (9.0, 9.0), 50.0), Job(3, 1, (0.0, 0.0), 50.0)]
    answer = allocate(name, ClusterState.from_jobs(types, rows))
    if name != "isolated":
        assert answer.shares[1:].max() == 0
    assert answer.shares[0].sum() > 0


def test_state_refuses_columns_of_the_wrong_length() -> None:
    with pytest.raises(DataError, match=r"2 jobs need \(2,\)"):
        ClusterState.from_arrays([GpuType("a", 1)], np.ones((2, 1)), gang=np.ones(3, dtype=np.int64))
    with pytest.raises(DataError, match="throughput has shape"):
        changed(two_types(), throughput=np.ones((1, 1)))
    with pytest.raises(DataError, match="at least 1 GPU"):
        changed(two_types(), gang=np.array([0, 1]))


def test_state_names_its_types() -> None:
    assert two_types().type_index("v100") == 1
    with pytest.raises(DataError, match="the types are a100, v100"):
        two_types().type_index("h100")


def test_allocation_counts_pairs_once_on_devices_and_twice_on_jobs() -> None:
    state = two_types()
    pair = PairShares(np.array([0]), np.array([1]), np.array([[0.5, 0.0]]))
    answer = Allocation(np.array([[0.0, 0.25], [0.0, 0.0]]), pairs=pair)
    np.testing.assert_allclose(answer.time_shares(), [[0.5, 0.25], [0.5, 0.0]])
    np.testing.assert_allclose(answer.device_use(state), [0.5, 0.25])


def test_cache_is_optional_and_kept_by_the_caller() -> None:
    cache = SolverCache()
    first = allocate("oef-coop", two_types(), cache=cache)
    assert cache.entries
    again = allocate("oef-coop", two_types(), cache=cache)
    assert again.objective == pytest.approx(first.objective)


def test_policy_info_is_what_the_decorator_returns() -> None:
    from pyhetsched.policies.max_min import max_min

    assert isinstance(max_min, PolicyInfo)
    assert [name for name, _ in max_min.rungs] == ["interior point", "HiGHS simplex"]
