"""Gavel's rules: the published runs, exactly or within 1 %."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from pyhetsched.errors import DataError
from pyhetsched.simulator.cluster import parse_cluster
from pyhetsched.simulator.gavel_jobs import read_gavel_jobs
from pyhetsched.simulator.gavel_rules import GavelRules, simulate_gavel
from pyhetsched.simulator.generator import Draw, draw_trace
from pyhetsched.simulator.learning import Learned
from pyhetsched.simulator.result import summary
from pyhetsched.simulator.tables import load_table
from pyhetsched.simulator.trace import Trace, make_trace

DATA = Path(__file__).parents[1] / "data" / "gavel"
CLUSTER = parse_cluster("v100:12x1,p100:12x1,k80:12x1")
TYPES = ("v100", "p100", "k80")


def published(trace: str, policy: str) -> dict[str, float]:
    with (DATA / "results.csv").open() as lines:
        for row in csv.DictReader(lines):
            if (row["trace"], row["policy"]) == (trace, policy):
                return {k: float(v) for k, v in row.items() if k not in ("trace", "cluster", "window", "policy")}
    raise AssertionError((trace, policy))


def jobs(name: str) -> Trace:
    return read_gavel_jobs(DATA / "jobs" / f"{name}.csv")


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("static_single_n300_s0", Draw(300)),
        ("static_multi_n300_s0", Draw(300, gangs=True)),
        ("cont_single_s0_lam2700", Draw(700, mean_gap_s=2700)),
    ],
)
def test_generator_draws_the_published_lists(name: str, draw: Draw) -> None:
    recorded, drawn = jobs(name), draw_trace(draw, load_table(DATA / "throughputs_isolated.csv", TYPES))
    assert recorded.job_class == drawn.job_class
    assert (recorded.gang == drawn.gang).all()
    assert (recorded.total_steps == drawn.total_steps).all()
    assert np.allclose(recorded.arrival_s, drawn.arrival_s, atol=1e-5)
    assert np.allclose(recorded.throughput, drawn.throughput)


@pytest.mark.parametrize(
    ("name", "policy", "window"),
    [
        ("static_single_n300_s0", "fifo_perf", None),
        ("static_single_n300_s0", "isolated", None),
        ("static_single_n300_s0", "allox", None),
        ("static_single_n300_s0", "max_min_fairness_perf", None),
        ("static_multi_n300_s0", "max_min_fairness_perf", None),
        ("cont_single_s0_lam2700", "allox", (200, 400)),
    ],
)
def test_published_runs_are_reproduced(name: str, policy: str, window: tuple[int, int] | None) -> None:
    ours, theirs = summary(simulate_gavel(jobs(name), CLUSTER, policy, window=window)), published(name, policy)
    for figure, column in (("avg_jct_h", "avg_jct_h"), ("avg_rho", "avg_rho"), ("makespan_h", "makespan_h")):
        assert ours[figure] == pytest.approx(theirs[column], rel=0.01), figure


@pytest.mark.parametrize(
    ("name", "window", "limit_h"),
    [
        ("static_single_n300_s0", None, 27.8),
        ("static_multi_n300_s0", None, 39.2),
        ("cont_single_s0_lam2700", (200, 400), 13.05),
    ],
)
def test_min_jct_reaches_its_figures_and_stays_fair(name: str, window: tuple[int, int] | None, limit_h: float) -> None:
    found = summary(simulate_gavel(jobs(name), CLUSTER, "min-jct", window=window))
    assert found["avg_jct_h"] <= limit_h
    assert found["p95_rho"] <= 1.3


def test_unknown_throughputs_are_learned() -> None:
    trace = jobs("static_single_n300_s0").select(range(150)).on_types(TYPES)
    known = summary(simulate_gavel(trace, CLUSTER, "min-jct"))
    learned = summary(simulate_gavel(trace, CLUSTER, "min-jct", beliefs=Learned(trace)))
    assert learned["avg_jct_h"] <= known["avg_jct_h"] * 1.08


def one_job(arrival_s: float = 0.0, steps: float = 1000.0, gang: int = 1) -> Trace:
    return make_trace(("v100",), [arrival_s], [gang], [steps], [[1.0]])


def test_a_round_ends_early_when_all_are_done_and_late_arrivals_wait_for_it() -> None:
    trace = make_trace(("v100",), [0.0, 10.0], [1, 1], [100.0, 100.0], [[1.0], [1.0]])
    run = simulate_gavel(trace, parse_cluster("v100:2"), "fifo")
    # The first is done after 100 s; only then the second is seen.
    assert run.finish_s.tolist() == [100.0, 200.0]


def test_work_of_a_round_is_cut_to_whole_steps() -> None:
    trace = make_trace(("v100",), [0.0], [1], [6.0], [[0.0125]])
    run = simulate_gavel(trace, parse_cluster("v100:1"), "fifo")
    # floor(0.0125 * 360) = 4 steps = 320 s, then the other 2.
    assert run.finish_s.tolist() == pytest.approx([480.0])


def test_every_job_ends_and_gpu_time_is_work() -> None:
    trace = draw_trace(Draw(60, seed=4, gangs=True), load_table(None, TYPES))
    for policy in ("min-jct", "max-min", "fifo"):
        run = simulate_gavel(trace, CLUSTER, policy)
        assert np.isfinite(run.finish_s).all()
        assert (run.jct_s() >= trace.best_s * 0.999).all()
        assert run.busy_gpu_s.sum() <= sum(CLUSTER.counts) * run.end_s * (1 + 1e-9)
        assert (run.series.busy <= np.array(CLUSTER.counts)).all()


def test_a_run_is_repeatable() -> None:
    trace = draw_trace(Draw(50, seed=2), load_table(None, TYPES))
    first, second = (simulate_gavel(trace, CLUSTER, "max_min_fairness", rules=GavelRules(seed=3)) for _ in range(2))
    assert (first.finish_s == second.finish_s).all()


def test_a_job_that_fits_nowhere_is_named() -> None:
    with pytest.raises(DataError, match="job 0 .4 GPUs. can run on no type"):
        simulate_gavel(one_job(gang=4), parse_cluster("v100:2"), "fifo")


def test_two_jobs_may_share_a_gpu() -> None:
    from pyhetsched.simulator.tables import load_pairs

    table = load_table(None, TYPES)
    trace = draw_trace(Draw(80, seed=1), table)
    number = np.array([table.row(name, gang) for name, gang in zip(trace.job_class, trace.gang.tolist(), strict=True)])
    run = simulate_gavel(
        trace, CLUSTER, "max_min_fairness_packed", pairs=load_pairs(None, table), pair_class=number
    )
    alone = simulate_gavel(trace, CLUSTER, "max_min_fairness_perf")
    assert np.isfinite(run.finish_s).all()
    assert summary(run)["avg_jct_h"] < summary(alone)["avg_jct_h"]
