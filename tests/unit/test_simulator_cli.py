"""`hetsched simulate`, sweeps and reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from pyhetsched.cli.simulate import simulate
from pyhetsched.errors import ConfigError
from pyhetsched.simulator.generator import Draw
from pyhetsched.simulator.plots import Line, chart, distribution, thin, ticks
from pyhetsched.simulator.result import isolated_times_s
from pyhetsched.simulator.scenario import Scenario, play
from pyhetsched.simulator.sweep import expand, run_local, run_slurm
from pyhetsched.simulator.trace import make_trace

DATA = Path(__file__).parents[1] / "data" / "gavel"
CLUSTER = "v100:4,p100:4,k80:4"
PROMISED = {
    "avg_jct_h", "p50_jct_h", "p95_jct_h", "p99_jct_h", "makespan_h", "utilisation", "cost_usd", "p95_rho",
    "max_rho", "jobs", "solve_ms_median",
}  # fmt: skip


def call(*arguments: str) -> str:
    done = CliRunner().invoke(simulate, ["--cluster", CLUSTER, *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_json_holds_what_is_promised() -> None:
    jobs = str(DATA / "jobs" / "static_single_n300_s0.csv")
    rates = str(DATA / "throughputs_isolated.csv")
    given = ("--rules", "gavel", "--jobs", jobs, "--throughputs", rates, "--policy", "fifo", "--window", "0:5")
    figures = json.loads(call(*given, "--json"))
    assert set(figures) >= PROMISED
    assert figures["jobs"] == 5


def test_report_of_two_policies_is_one_wellformed_page(tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    call("--draw", "jobs=30,seed=2,mean_gap_s=600", "--versus", "fifo", "--report", str(page))
    text = page.read_text()
    assert not re.search(r"<script|https?://", text)
    for title in ("Completion times", "Queue", "Utilisation, min-jct", "Fairness", "Who gains, who loses"):
        assert title in text
    plots = re.findall(r"<svg.*?</svg>", text)
    assert len(plots) >= 6
    for plot in plots:
        ElementTree.fromstring(plot)


def test_table_for_people() -> None:
    output = call("--draw", "jobs=10", "--policy", "fifo")
    assert "avg_jct_h" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "nonsense"], "no policy 'nonsense'"),
        (["--window", "5"], "FIRST:LAST"),
        (["--draw", "size=4"], "mean_gap_s"),
        (["--option", "light"], "NAME=VALUE"),
        (["--option", "dark=1"], "no option 'dark'"),
        (["--rule", "plan_s=x"], "not a number"),
        (["--rule", "nap_s=3"], "plan_s"),
        (["--speed", "h100=2"], "speed given for h100"),
        (["--sweep", "colour=red"], "cannot sweep"),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(simulate, ["--cluster", CLUSTER, "--draw", "jobs=5", *arguments])
    assert done.exit_code != 0
    # A usage error is boxed and wrapped by the width of the terminal.
    assert message in re.sub(r"\s+", " ", done.output) or "Invalid value" in done.output


def test_sweep_runs_all_combinations_side_by_side() -> None:
    arguments = ["--draw", "jobs=12", "--sweep", "policy=fifo,min-jct", "--sweep", "draw.seed=0,1", "--workers", "2"]
    found = json.loads(call(*arguments, "--json"))["runs"]
    assert [run["policy"] for run in found] == ["fifo", "fifo", "min-jct", "min-jct"]
    assert found[0]["avg_jct_h"] != found[1]["avg_jct_h"]


def test_sweep_through_submitit(tmp_path: Path) -> None:
    scenarios = expand(Scenario(CLUSTER, "fifo", draw=Draw(8)), {"seed": ["0", "1"]})
    # The same path as a job array, with submitit's own executor on this machine.
    found = dict(run_slurm(scenarios, tmp_path, {"cluster": "local"}))
    assert sorted(found) == [0, 1]
    here = dict(run_local(scenarios, 1))
    assert all(found[number]["avg_jct_h"] == here[number]["avg_jct_h"] for number in found)


def test_axes_reach_options_and_fields() -> None:
    base = Scenario(CLUSTER, "min-jct", options=(("light", "2"),))
    one, two = expand(base, {"option.light": ["1", "3"], "unknown": ["yes"]})
    assert one.options == (("light", "1"),)
    assert two.options == (("light", "3"),)
    assert one.unknown
    with pytest.raises(ConfigError, match="not int"):
        expand(base, {"draw.jobs": ["many"]})


def test_isolated_time_follows_the_number_of_jobs() -> None:
    # Two jobs on 2 devices: each has one, at speed 1; rho is 1 where nothing is shared.
    trace = make_trace(("a",), [0.0, 0.0], [1, 1], [100.0, 50.0], [[1.0], [1.0]])
    times = isolated_times_s(trace, np.array([100.0, 50.0]), (2,), np.arange(2))
    assert times.tolist() == pytest.approx([100.0, 50.0])
    # On one device each has half of it until the first is done.
    times = isolated_times_s(trace, np.array([150.0, 100.0]), (1,), np.arange(2))
    assert times.tolist() == pytest.approx([150.0, 100.0])


def test_packed_and_learned_scenarios_play() -> None:
    base = Scenario(CLUSTER, "max_min_fairness_packed", rules="gavel", draw=Draw(20), packed=True)
    assert np.isfinite(play(base).finish_s).all()
    learned = Scenario(CLUSTER, "min-jct", draw=Draw(20, mean_gap_s=100), unknown=True)
    assert np.isfinite(play(learned).finish_s).all()


def test_plots_stay_small_and_round() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(3, 3) == [3]
    line = Line("x", np.arange(5000.0), np.arange(5000.0))
    assert len(thin(line).x) <= 600
    assert thin(line).x[-1] == 4999
    assert distribution("y", np.array([3.0, 1.0])).x.tolist() == [1.0, 3.0]
    assert "nothing to show" in chart([], "x", "y")
