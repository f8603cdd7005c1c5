"""Policies on Gavel's machine, Gavel's published figures beside ours, and what min-jct must reach.

Run: make bench-policies, or python tests/bench/policies.py [--quick] [--out FILE] [--workers N]. Everything runs
in one go on the same machine; exit status 1 if a limit is missed. --quick leaves out other seeds, the month and
the solve times.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from pyhetsched.simulator.generator import Draw, draw_trace
from pyhetsched.simulator.result import summary
from pyhetsched.simulator.scenario import Scenario, load_cluster, load_trace, play
from pyhetsched.simulator.slurm_rules import simulate_slurm
from pyhetsched.simulator.tables import load_table
from pyhetsched.simulator.trace import Trace

DATA = Path(__file__).parents[1] / "data" / "gavel"
CLUSTER = "v100:12x1,p100:12x1,k80:12x1"
TYPES = ("v100", "p100", "k80")
SINGLE, MULTI, CONT = "static_single_n300_s0", "static_multi_n300_s0", "cont_single_s0_lam2700"
WINDOWS = {CONT: (200, 400)}
# List -> (limit for min-jct, floor), hours of average completion time.
TARGETS = {SINGLE: (27.8, 27.62), MULTI: (39.2, 37.3), CONT: (13.05, 12.93)}

# Policies that were published for a list under the same name. Where ours differ by more than 1 %, why.
PUBLISHED = (
    "fifo_perf", "isolated", "max_min_fairness", "max_min_fairness_perf", "finish_time_fairness",
    "finish_time_fairness_perf", "min_total_duration_perf", "max_sum_throughput_perf",
    "max_sum_throughput_normalized_by_cost_perf", "max_min_fairness_water_filling_perf", "allox",
)  # fmt: skip
REASONS = {
    "fifo_perf": "a job waits for a type that can run it; Gavel's gives some gangs a type on which their rate is 0",
    "min_total_duration_perf": "solved exactly, not to 5 %: devices do not idle for a looser makespan",
    "finish_time_fairness_perf": "only the worst-off jobs' shares are determined; the rest is free, in both",
    "finish_time_fairness": "only the worst-off jobs' shares are determined, and a random order of types in each round",
    "max_min_fairness_perf": "many optimal shares: the linear program has no single answer beyond the worst-off jobs",
    "max_min_fairness": "many optimal shares, and a random order of types in each round",
    "max_min_fairness_water_filling_perf": "no slack factor in the bottleneck test, so shares are exactly leximin",
    "max_sum_throughput_perf": "of jobs that the sum cannot tell apart the shortest is served first, not all a little",
    "max_sum_throughput_normalized_by_cost_perf": "of equal jobs the shortest is served first, not all a little",
    "isolated": "a random order of types in each round",
}


@dataclass(frozen=True)
class Case:
    """One simulation of the table."""

    name: str
    scenario: Scenario


def gavel(trace: str, policy: str, **more: Any) -> Scenario:
    """A scenario of one of the published lists."""
    return Scenario(
        CLUSTER, policy, rules="gavel", jobs=str(DATA / "jobs" / f"{trace}.csv"), window=WINDOWS.get(trace),
        throughputs=str(DATA / "throughputs_isolated.csv"), pairs=str(DATA / "throughputs_pairs.csv.gz"), **more,
    )  # fmt: skip


def drawn(policy: str, draw: Draw, **more: Any) -> Scenario:
    """A scenario of another list from the same generator."""
    return Scenario(CLUSTER, policy, rules="gavel", draw=draw, **more)


def cases(quick: bool, published: dict[tuple[str, str], dict[str, float]]) -> list[Case]:
    """All simulations, longest first, so that the last ones to run are short."""
    found = [
        Case(f"{trace} {policy}", gavel(trace, policy))
        for trace in (MULTI, SINGLE, CONT)
        for policy in PUBLISHED
        if (trace, policy) in published
    ]
    for trace in (MULTI, SINGLE, CONT):
        found.append(Case(f"{trace} min-jct", gavel(trace, "min-jct")))
        found.append(Case(f"{trace} min-jct rho_limit", gavel(trace, "min-jct", options=(("rho_limit", 1.3),))))
        for policy in ("min-jct", "max_min_fairness_perf"):
            found.append(Case(f"{trace} {policy} unknown", gavel(trace, policy, unknown=True)))
    if not quick:
        for seed in (1, 2, 3):
            for kind, draw, rival in OTHERS:
                for policy in ("min-jct", rival):
                    window = (200, 400) if draw.mean_gap_s else None
                    scenario = drawn(policy, replace(draw, seed=seed), window=window)
                    found.append(Case(f"{kind} seed {seed} {policy}", scenario))
    return found


OTHERS = (
    ("single", Draw(300), "allox"),
    ("multi", Draw(300, gangs=True), "max_min_fairness_water_filling_perf"),
    ("cont single", Draw(700, mean_gap_s=2700), "max_sum_throughput_perf"),
    ("cont multi", Draw(700, gangs=True, mean_gap_s=7200), "max_min_fairness_water_filling_perf"),
)


def figures(case: Case) -> tuple[str, dict[str, Any]]:
    """Run one case."""
    found: dict[str, Any] = summary(play(case.scenario))
    return case.name, found


def read_published() -> dict[tuple[str, str], dict[str, float]]:
    """Return Gavel's own figures by (list, policy)."""
    with (DATA / "results.csv").open() as lines:
        return {
            (row["trace"], row["policy"]): {k: float(v) for k, v in row.items() if k.endswith(("_h", "rho", "util"))}
            for row in csv.DictReader(lines)
        }


def makespan_bound_h(trace: Trace, counts: tuple[int, ...]) -> float:
    """Return the least makespan of any schedule in which jobs may be moved at any time: a linear program, h."""
    n_jobs, n_types = trace.throughput.shape
    rows, columns, values = [], [], []
    for m in range(n_jobs):
        for j in range(n_types):
            at = m * n_types + j
            rows += [m, n_jobs + m, 2 * n_jobs + j]
            columns += [at] * 3
            values += [-trace.throughput[m, j] / trace.total_steps[m] * 3600.0, 1.0, float(trace.gang[m])]
    last = n_jobs * n_types
    rows += [n_jobs + m for m in range(n_jobs)] + [2 * n_jobs + j for j in range(n_types)]
    columns += [last] * (n_jobs + n_types)
    values += [-1.0] * n_jobs + [-float(count) for count in counts]
    matrix = csr_array((values, (rows, columns)))
    bound = np.concatenate([-np.ones(n_jobs), np.zeros(n_jobs + n_types)])
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    return float(linprog(cost, A_ub=matrix, b_ub=bound, method="highs").fun)


class Sheet:
    """Prints lines, keeps them for JSON, counts misses."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.missed = 0

    def head(self, text: str) -> None:
        """Print a section's title."""
        print(f"\n{text}")

    def add(self, name: str, value: float, limit: float | None = None, beside: str = "", **more: Any) -> None:
        """Note one figure; more than its limit is a miss."""
        over = limit is not None and not value <= limit
        self.missed += over
        bound = f"<= {limit:g}" if limit is not None else ""
        print(f"  {name:66} {value:9.3f} {bound:>10} {beside}{'  MISSED' if over else ''}", flush=True)
        self.rows.append({"name": name, "value": value, "limit": limit, "missed": over, **more})


def compare(sheet: Sheet, found: dict[str, dict[str, Any]], published: dict[tuple[str, str], dict[str, float]]) -> None:
    """Gavel's policies: our figure, Gavel's, and the reason where they differ by more than 1 %."""
    for trace in (SINGLE, MULTI, CONT):
        sheet.head(f"{trace}: ours, Gavel's (average completion time h | makespan h | 95th percentile of rho)")
        for policy in PUBLISHED:
            if (trace, policy) not in published:
                continue
            ours, theirs = found[f"{trace} {policy}"], published[trace, policy]
            change = {k: ours[k] / theirs[k] - 1.0 for k in ("avg_jct_h", "makespan_h", "p95_rho")}
            worse = max(change.values())
            note = REASONS.get(policy, "") if max(map(abs, change.values())) > 0.01 else ""
            cells = " ".join(f"{ours[k]:8.3f}/{theirs[k]:8.3f} {100 * change[k]:+6.2f} %" for k in change)
            print(f"  {policy:46} {cells}  {note}")
            sheet.rows.append({"name": f"{trace} {policy}", "ours": {k: ours[k] for k in change},
                               "gavel": {k: theirs[k] for k in change}, "worst": worse, "reason": note})  # fmt: skip


def targets(sheet: Sheet, found: dict[str, dict[str, Any]], published: dict[tuple[str, str], dict[str, float]]) -> None:
    """What min-jct, makespan and unknown throughputs must reach."""
    sheet.head("min-jct, average completion time h (Gavel's best policy, floor)")
    for trace, (limit, floor) in TARGETS.items():
        best, name = min((row["avg_jct_h"], policy) for (t, policy), row in published.items() if t == trace)
        ours = found[f"{trace} min-jct"]
        beside = f"Gavel's best {best:.2f} ({name}), floor {floor}"
        sheet.add(f"{trace} min-jct", ours["avg_jct_h"], limit, beside)
        sheet.add("  95th percentile of rho", ours["p95_rho"], 1.3, f"largest {ours['max_rho']:.2f}")
        bound = found[f"{trace} min-jct rho_limit"]
        cost = f"largest {bound['max_rho']:.2f}; average {bound['avg_jct_h']:.2f} h"
        cost += f" ({100 * (bound['avg_jct_h'] / ours['avg_jct_h'] - 1):+.2f} %)"
        sheet.add("  95th percentile of rho with rho_limit=1.3", bound["p95_rho"], 1.3, cost)
    sheet.head("makespan h against the bound of the linear program")
    for trace in (SINGLE, MULTI):
        scenario = gavel(trace, "fifo")
        cluster = load_cluster(scenario)
        bound_h = makespan_bound_h(load_trace(scenario, cluster), cluster.counts)
        ours_h = found[f"{trace} min_total_duration_perf"]["makespan_h"]
        sheet.add(f"{trace} makespan / bound", ours_h / bound_h, 1.005, f"{ours_h:.2f} h, bound {bound_h:.2f} h")
    sheet.head("unknown throughputs, average completion time / the same with known ones")
    for trace in TARGETS:
        for policy in ("min-jct", "max_min_fairness_perf"):
            ratio = found[f"{trace} {policy} unknown"]["avg_jct_h"] / found[f"{trace} {policy}"]["avg_jct_h"]
            sheet.add(f"{trace} {policy}", ratio, 1.05)


def other_lists(sheet: Sheet, found: dict[str, dict[str, Any]]) -> None:
    """Lists that nothing was tuned on: min-jct / the best of Gavel's policies on that kind of list."""
    sheet.head("other seeds: average completion time of min-jct / of Gavel's best policy for such lists")
    for seed in (1, 2, 3):
        for kind, _, rival in OTHERS:
            ours, theirs = found[f"{kind} seed {seed} min-jct"], found[f"{kind} seed {seed} {rival}"]
            ratio = ours["avg_jct_h"] / theirs["avg_jct_h"]
            beside = f"{ours['avg_jct_h']:.2f} h, {rival} {theirs['avg_jct_h']:.2f} h"
            sheet.add(f"{kind}, seed {seed}", ratio, 1.0, beside)


def month(sheet: Sheet) -> None:
    """50,000 jobs in 30 days on 500 GPUs under Slurm's rules, with 84 % and with 95 % of the V100s busy."""
    sheet.head("a simulated month, s of one core")
    drawn_month = draw_trace(Draw(50_000, 0, True, 30 * 86_400 / 50_000), load_table(None, TYPES))
    cluster = load_cluster(Scenario("v100:168x8,p100:168x4,k80:164x4", "fifo"))
    for policy, length in (("min-jct", 0.13), ("min-jct", 0.15), ("max-min", 0.13)):
        trace = replace(drawn_month, total_steps=np.maximum(np.floor(drawn_month.total_steps * length), 1.0))
        started, cpu = time.perf_counter(), time.process_time()
        found = summary(simulate_slurm(trace, cluster, policy))
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        busy: Any = found["utilisation_by_type"]
        beside = f"{wall_s:.1f} s of clock; {100 * busy['v100']:.0f} % of V100s busy; mean {found['avg_jct_h']:.2f} h"
        sheet.add(f"50,000 jobs, 500 GPUs, {policy}", cpu_s, 60.0, beside)


def solve_times(sheet: Sheet, out: Path) -> None:
    """The times of single calls, by the script that measures each in a process of its own."""
    sheet.head("calls of the policies")
    path = out.with_name("policies_solve.json")
    done = subprocess.run([sys.executable, Path(__file__).with_name("policies_solve.py"), "--out", path], check=False)
    sheet.missed += done.returncode != 0
    sheet.rows.append({"name": "solve times", "cases": json.loads(path.read_text(encoding="utf-8"))})


def main() -> int:
    """Run all, print the tables, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/bench/policies.json"))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    chosen = parser.parse_args()
    published = read_published()
    started = time.perf_counter()
    with ProcessPoolExecutor(chosen.workers) as pool:
        found = dict(pool.map(figures, cases(chosen.quick, published)))
    sheet = Sheet()
    compare(sheet, found, published)
    targets(sheet, found, published)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    if not chosen.quick:
        other_lists(sheet, found)
        month(sheet)
        solve_times(sheet, chosen.out)
    wall_s = time.perf_counter() - started
    chosen.out.write_text(
        json.dumps({"wall_s": wall_s, "missed": sheet.missed, "rows": sheet.rows, "runs": found}, indent=1) + "\n",
        encoding="utf-8",
    )
    print(f"\n{sheet.missed} limits missed; {wall_s:.0f} s; written to {chosen.out}")
    return 1 if sheet.missed else 0


if __name__ == "__main__":
    sys.exit(main())
