"""Slurm's rules: arrivals at any time, preemption by consent, limits, slices."""

from __future__ import annotations

import numpy as np
import pytest

from pyhetsched.errors import ConfigError, DataError
from pyhetsched.simulator.cluster import parse_cluster
from pyhetsched.simulator.generator import Draw, draw_trace
from pyhetsched.simulator.pools import SlicedGpus, WholeGpus
from pyhetsched.simulator.result import summary
from pyhetsched.simulator.slurm_rules import SlurmRules, simulate_slurm
from pyhetsched.simulator.tables import load_table
from pyhetsched.simulator.trace import Trace, make_trace

NO_DELAY = SlurmRules(prolog_s=0.0, slice_s=0.0, restart_s=0.0, plan_s=1.0)


def work(*jobs: tuple[float, int, float], **columns: object) -> Trace:
    """Jobs of (arrival, GPUs, seconds) at speed 1 on one type."""
    arrival, gang, steps = zip(*jobs, strict=True)
    return make_trace(("a100",), arrival, gang, steps, [[1.0]] * len(jobs), **columns)


def test_jobs_start_when_they_arrive_and_pay_the_prolog() -> None:
    run = simulate_slurm(work((10.0, 1, 100.0), (20.5, 1, 50.0)), parse_cluster("a100:2"), "fifo")
    assert run.start_s.tolist() == [10.0, 20.5]
    assert run.finish_s.tolist() == [115.0, 75.5]


def test_nobody_is_preempted_who_did_not_opt_in() -> None:
    trace = work((0.0, 1, 10_000.0), (10.0, 1, 10.0))
    run = simulate_slurm(trace, parse_cluster("a100:1"), "min-jct", {"light": 0}, rules=NO_DELAY)
    assert run.finish_s.tolist() == [10_000.0, 10_010.0]
    assert run.preemptions == 0


def test_who_opted_in_makes_room_and_loses_no_work() -> None:
    trace = work((0.0, 1, 10_000.0), (10.0, 1, 10.0), preemptible=[True, False])
    run = simulate_slurm(trace, parse_cluster("a100:1"), "min-jct", {"light": 0}, rules=NO_DELAY)
    assert run.preemptions == 1
    assert run.finish_s.tolist() == pytest.approx([10_010.0, 20.0])


def test_restarts_cost_time() -> None:
    trace = work((0.0, 1, 10_000.0), (10.0, 1, 10.0), preemptible=[True, False])
    rules = SlurmRules(prolog_s=0.0, restart_s=60.0, plan_s=1.0)
    run = simulate_slurm(trace, parse_cluster("a100:1"), "min-jct", {"light": 0}, rules=rules)
    assert run.finish_s[0] == pytest.approx(10_070.0)


def test_time_limits_end_jobs() -> None:
    trace = work((0.0, 1, 7200.0), (0.0, 1, 7200.0), limit_s=[600.0, np.inf], partition=["", "short"])
    cluster = parse_cluster("a100:2", partitions=["short=a100@1"])
    run = simulate_slurm(trace, cluster, "fifo", rules=NO_DELAY)
    assert run.finish_s.tolist() == [600.0, 3600.0]


def test_partitions_keep_jobs_on_their_types() -> None:
    trace = make_trace(("v100", "k80"), [0.0, 0.0], [1, 1], [10.0, 10.0], [[2.0, 1.0]] * 2, partition=["", "old"])
    cluster = parse_cluster("v100:2,k80:2", partitions=["old=k80"])
    run = simulate_slurm(trace, cluster, "fifo", rules=NO_DELAY)
    assert run.finish_s.tolist() == [5.0, 10.0]


def test_account_limits_hold_jobs_back() -> None:
    trace = work((0.0, 2, 100.0), (0.0, 2, 100.0), account=[("physics", "ann"), ("physics", "bob")])
    cluster = parse_cluster("a100:8", gpu_limits=["physics=3"])
    run = simulate_slurm(trace, cluster, "fifo", rules=NO_DELAY)
    assert sorted(run.finish_s.tolist()) == [100.0, 200.0]


def test_what_the_limits_never_allow_is_told() -> None:
    cluster = parse_cluster("a100:8", gpu_limits=["physics=1"])
    trace = work((0.0, 2, 100.0), account=[("physics",)])
    with pytest.raises(DataError, match="never allow"):
        simulate_slurm(trace, cluster, "fifo", rules=NO_DELAY)
    with pytest.raises(DataError, match="nowhere"):
        simulate_slurm(work((0.0, 9, 1.0)), parse_cluster("a100:8"), "fifo")
    trace = work((0.0, 1, 1.0), partition=["nope"])
    with pytest.raises(ConfigError, match="no partition 'nope'"):
        simulate_slurm(trace, parse_cluster("a100:8", partitions=["gpu=a100"]), "fifo")


def test_slices_share_a_gpu_as_geometry_allows() -> None:
    # Seven 1g slices fill an A100; the eighth waits.
    trace = work(*[(0.0, 1, 100.0)] * 8, profile=["1g.10gb"] * 8)
    run = simulate_slurm(trace, parse_cluster("a100:1/A100-80GB"), "fifo", rules=NO_DELAY)
    assert sorted(run.finish_s.tolist()) == [100.0] * 7 + [200.0]
    # Eight slices of 4 of 31 shards.
    assert summary(run)["utilisation"] == pytest.approx(8 * 4 / 31 / 2, rel=0.01)


def test_whole_jobs_do_not_run_on_sliced_gpus() -> None:
    with pytest.raises(DataError, match="nowhere"):
        simulate_slurm(work((0.0, 1, 1.0)), parse_cluster("a100:1/A100-80GB"), "fifo")


def test_pools_give_back_what_they_took() -> None:
    whole = WholeGpus([4, 4])
    first, spread = whole.take(3, ""), whole.take(5, "")
    assert sorted(spread or []) == [(0, 1), (1, 4)]
    assert whole.take(1, "") is None
    whole.give_back(first)
    whole.give_back(spread)
    assert whole.free == whole.total == 8
    cluster = parse_cluster("a100:2/A100-80GB")
    assert cluster.models[0] is not None
    pool = SlicedGpus(2, cluster.models[0])
    held = [pool.take(pool.weight(name) or 0, name) for name in ("3g.40gb", "4g.40gb", "1g.10gb")]
    assert None not in held
    for one in held:
        pool.give_back(one)
    assert pool.free == 62


@pytest.mark.parametrize("policy", ["fifo", "min-jct", "max-min"])
def test_every_job_ends_on_a_busy_cluster(policy: str) -> None:
    table = load_table(None, ("v100", "p100", "k80"))
    trace = draw_trace(Draw(150, seed=3, gangs=True, mean_gap_s=600), table)
    cluster = parse_cluster("v100:16,p100:8,k80:8")
    run = simulate_slurm(trace, cluster, policy)
    assert np.isfinite(run.finish_s).all()
    assert (run.start_s >= trace.arrival_s).all()
    assert (run.finish_s - run.start_s >= trace.best_s * 0.999).all()
    assert (run.series.busy <= np.array(cluster.counts) + 1e-9).all()
    assert run.busy_gpu_s.sum() <= sum(cluster.counts) * run.end_s


def test_min_jct_shortens_the_queue() -> None:
    table = load_table(None, ("v100", "p100", "k80"))
    trace = draw_trace(Draw(200, seed=3, gangs=True, mean_gap_s=900), table)
    cluster = parse_cluster("v100:16,p100:8,k80:8")
    ours, first_come = (summary(simulate_slurm(trace, cluster, name))["avg_jct_h"] for name in ("min-jct", "fifo"))
    assert ours < 0.9 * first_come


@pytest.mark.parametrize("text", ["", "v100", "v100:x", "v100:0", "v100:1,v100:2", "v100:2xq", "a100:1/B9000"])
def test_wrong_clusters_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_cluster(text)


@pytest.mark.parametrize("partition", ["p", "=a100", "p=v100", "p=a100@soon"])
def test_wrong_partitions_are_refused(partition: str) -> None:
    if partition == "p":
        assert parse_cluster("a100:1", partitions=["p"]).partition("p").types == {"a100"}
        return
    with pytest.raises(ConfigError):
        parse_cluster("a100:1", partitions=[partition])
