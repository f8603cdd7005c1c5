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
from pathlib import Path

from pyhetsched.mig.profiles import model_by_key
from pyhetsched.mig.steering import PickRule
from pyhetsched.mig.workload import Outcome, Way, arrivals, run

OUT = Path(__file__).parents[2] / "build" / "bench" / "mig.json"
HOURS = float(os.environ.get("BENCH_HOURS", "24"))
SEEDS = int(os.environ.get("BENCH_SEEDS", "1"))
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


def main() -> None:
    """Run everything and write the record."""
    begun = time.perf_counter()
    result = {"hours": HOURS, "seeds": SEEDS, "gpus": NODES * GPUS_PER_NODE, "mixes": bench_steering()}
    result["took_s"] = round(time.perf_counter() - begun, 1)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {OUT.relative_to(OUT.parents[2])}")


if __name__ == "__main__":
    main()
