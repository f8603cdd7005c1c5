"""``make bench-mig``: ways of keeping slice jobs off holes on the same arrivals, and the planner's quality and speed.

Prints what the targets speak of and writes ``build/bench/mig.json``. ``BENCH_HOURS`` (default 24) sets the
simulated time, ``BENCH_SEEDS`` (default 1) the number of random workloads of each mix.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections import Counter
from pathlib import Path

from pyhetsched.mig.inventory import GpuSlices
from pyhetsched.mig.layout import Layout, fits
from pyhetsched.mig.packing import compact_exactly
from pyhetsched.mig.planner import compact, deploy, kind_counts, reconfigure
from pyhetsched.mig.profiles import model_by_key, space_of_model
from pyhetsched.mig.steering import PickRule
from pyhetsched.mig.workload import Outcome, Way, arrivals, run

OUT = Path(__file__).parents[2] / "build" / "bench" / "mig.json"
HOURS = float(os.environ.get("BENCH_HOURS", "24"))
SEEDS = int(os.environ.get("BENCH_SEEDS", "1"))
INSTANCES = 40
NODES, GPUS_PER_NODE = 4, 8

MIXES: dict[str, dict[str, float]] = {
    "mostly small": {"1g.10gb": 60, "1g.20gb": 5, "2g.20gb": 20, "3g.40gb": 10, "4g.40gb": 3, "7g.80gb": 2},
    "all alike": {"1g.10gb": 1, "1g.20gb": 1, "2g.20gb": 1, "3g.40gb": 1, "4g.40gb": 1, "7g.80gb": 1},
    "mostly large": {"1g.10gb": 15, "1g.20gb": 5, "2g.20gb": 20, "3g.40gb": 35, "4g.40gb": 15, "7g.80gb": 10},
    "1g, 2g and 3g": {"1g.10gb": 40, "2g.20gb": 30, "3g.40gb": 30},
}
WAYS = [
    (Way.EXACT, PickRule.FIRST_FIT),
    (Way.PIN, PickRule.FIRST_FIT),
    (Way.HAND_BACK, PickRule.FIRST_FIT),
    (Way.NEXT_START, PickRule.FIRST_FIT),
    (Way.STEER, PickRule.FIRST_FIT),
    (Way.STEER, PickRule.LEAST_LOADED),
    (Way.STEER_CLOSED, PickRule.FIRST_FIT),
    (Way.STEER_LATE, PickRule.FIRST_FIT),
    (Way.STEER_CLOSED_LATE, PickRule.FIRST_FIT),
]


def compare(mix: dict[str, float], way: Way, rule: PickRule) -> list[Outcome]:
    """One way on all workloads of a mix."""
    model, horizon_s = model_by_key("A100-80GB"), HOURS * 3600
    results = []
    for seed in range(1, SEEDS + 1):
        jobs = arrivals(model, mix, NODES * GPUS_PER_NODE, horizon_s, random.Random(seed))
        results.append(run(way, model, jobs, NODES, GPUS_PER_NODE, horizon_s, horizon_s / 10, rule))
    return results


def record(outcomes: list[Outcome], exact_hours: float) -> dict[str, float]:
    """The figures of one way."""
    hours = sum(o.slice_hours for o in outcomes)
    allocations = sum(o.allocations for o in outcomes)
    return {
        "slice_hours": round(hours, 1),
        "slice_hours_over_exact": round(hours / exact_hours, 4),
        "utilisation": round(statistics.mean(o.utilisation for o in outcomes), 4),
        "allocations": allocations,
        "handed_back": sum(o.handed_back for o in outcomes),
        "handed_back_share": round(sum(o.handed_back for o in outcomes) / max(allocations, 1), 6),
        "updates_per_start": round(
            sum(o.steered_updates for o in outcomes) / max(sum(o.started for o in outcomes), 1), 1
        ),
    }


def bench_steering() -> dict[str, dict[str, dict[str, float]]]:
    """All ways on all mixes, printed as they come."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name, mix in MIXES.items():
        print(f"mix: {name}")
        exact_hours = 0.0
        results[name] = {}
        for way, rule in WAYS:
            outcomes = compare(mix, way, rule)
            exact_hours = exact_hours or sum(o.slice_hours for o in outcomes)
            label = f"{way.value} ({rule.value})" if rule is PickRule.LEAST_LOADED else way.value
            results[name][label] = row = record(outcomes, exact_hours)
            print(
                f"  {label:<62} slice-hours/exact {row['slice_hours_over_exact']:.4f}  "
                f"in use {row['utilisation']:.1%}  handed back {row['handed_back_share']:.3%}",
                flush=True,
            )
    return results


def random_gpus(rng: random.Random, nodes: int, per_node: int, busy: float) -> list[GpuSlices]:
    """GPUs of which a share ``busy`` holds up to four random slices of running jobs."""
    model = model_by_key("A100-80GB")
    profiles, gpus = [p for p in model.profiles if not p.variant], []
    for i in range(nodes * per_node):
        layout = Layout.empty(model)
        for _ in range(rng.randint(1, 4) if rng.random() < busy else 0):
            profile = rng.choice(profiles)
            starts = fits(layout, profile)
            if starts:
                layout = layout.with_placement(profile, rng.choice(starts))
        holders = {p.start: 1 for p in layout}
        gpus.append(GpuSlices(f"n{i // per_node}", i % per_node, model, layout, holders))
    return gpus


def bench_planner() -> dict[str, float]:
    """GPU counts against the integer program on random instances of up to 40 GPUs."""
    used: dict[str, int] = dict.fromkeys(("deploy", "deploy exact", "compact", "compact greedy", "compact exact"), 0)
    worst = 1.0
    space = space_of_model(model_by_key("A100-80GB"))
    for seed in range(INSTANCES):
        rng = random.Random(seed)
        per_node = rng.choice([1, 2, 4])
        gpus = random_gpus(rng, rng.randint(2, 40 // per_node), per_node, rng.random())
        demand = {p.name: rng.randint(0, max(1, len(gpus) // 4)) for p in gpus[0].model.profiles if not p.variant}
        quick, exact = deploy(gpus, demand), deploy(gpus, demand, 60.0)
        if not quick.unplaced and not exact.unplaced:
            used["deploy"] += quick.gpus_used
            used["deploy exact"] += exact.gpus_used
            worst = max(worst, quick.gpus_used / max(exact.gpus_used, 1))
        held = [tuple(kind_counts(space, g.held)) for g in gpus]
        dry = compact_exactly(space, [g.held.state for g in gpus], held, [g.node for g in gpus], 60.0)
        moving = Counter(p.profile.name for g in gpus if g.node in dry for p in g.held)
        used["compact exact"] += deploy([g for g in gpus if g.node not in dry], moving, 60.0).gpus_used
        used["compact"] += compact(gpus, 2.0).gpus_used
        used["compact greedy"] += compact(gpus).gpus_used
    return {
        "instances": INSTANCES,
        "deploy_over_oracle": round(used["deploy"] / used["deploy exact"], 4),
        "deploy_over_oracle_worst": round(worst, 4),
        "compact_over_oracle": round(used["compact"] / used["compact exact"], 4),
        "compact_greedy_over_oracle": round(used["compact greedy"] / used["compact exact"], 4),
    }


def bench_speed() -> dict[str, float]:
    """Seconds for plans of 1,000 GPUs and 5,000 slices, tables warm, best of three."""
    rng = random.Random(1)
    gpus = random_gpus(rng, 250, 4, 0.1)
    names = {"1g.10gb": 3400, "1g.20gb": 400, "2g.20gb": 800, "3g.40gb": 300, "4g.40gb": 80, "7g.80gb": 20}
    figures: dict[str, float] = {"gpus": len(gpus), "slices": sum(names.values())}
    for label, plan in (("deploy", deploy), ("reconfigure", reconfigure)):
        wall, cpu = [], []
        for _ in range(3):
            begun, begun_cpu = time.perf_counter(), time.process_time()
            made = plan(gpus, names)
            wall.append(time.perf_counter() - begun)
            cpu.append(time.process_time() - begun_cpu)
        figures |= {f"{label}_s": round(min(wall), 3), f"{label}_cpu_s": round(min(cpu), 3)}
        figures[f"{label}_unplaced"] = sum(made.unplaced.values())
    return figures


def main() -> None:
    """Run everything and write the record."""
    begun = time.perf_counter()
    speed, planner = bench_speed(), bench_planner()
    print("plan of {gpus} GPUs and {slices} slices: deploy {deploy_s} s, reconfigure {reconfigure_s} s".format(**speed))
    print(
        "GPUs used over oracle, {instances} instances: deploy {deploy_over_oracle} (worst "
        "{deploy_over_oracle_worst}), compact {compact_over_oracle}".format(**planner),
        flush=True,
    )
    result: dict[str, object] = {"hours": HOURS, "seeds": SEEDS, "gpus": NODES * GPUS_PER_NODE}
    result |= {"planner": planner, "speed": speed, "mixes": bench_steering()}
    result["took_s"] = round(time.perf_counter() - begun, 1)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {OUT.relative_to(OUT.parents[2])}")


if __name__ == "__main__":
    main()
