"""Time one fresh call of each policy on random states and set Gavel's figures beside ours.

Run: python tests/bench/policies_solve.py [--quick] [--out FILE]. Every case has a process of its own, so
that its peak memory is its own. Gavel's figures are for the same kind of states (its sweep over run
times, ECOS, on a machine with two cores); they are quoted, not measured here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

COMMAND = "from pyhetsched.cli.bench_policy import bench_policy; bench_policy()"

# (arguments, Gavel's median in s or None, limit in s, limit in MB)
CASES: list[tuple[str, float | None, float | None, float | None]] = [
    ("max-min --jobs 2048", 0.040, 0.020, None),
    ("makespan --jobs 2048", 0.159, 0.080, None),
    ("finish-time --jobs 2048", 5.71, 0.200, None),
    ("water-filling --jobs 2048", 85.6, 0.500, None),
    ("max-throughput --jobs 2048 -o normalise=none", 0.027, None, None),
    ("max-min --jobs 1024 --packed", 290.0, 2.0, 1024.0),
    ("max-min --jobs 2048 --gangs", 0.042, 0.020, None),
    ("makespan --jobs 2048 --gangs", 0.152, 0.080, None),
    ("max-min --jobs 2048 --gangs --distinct", None, None, None),
    ("finish-time --jobs 2048 --gangs --distinct", None, None, None),
    ("water-filling --jobs 2048 --gangs --distinct", None, None, None),
]
CASES += [
    (f"{name} --jobs 20000 --types 8 --trials 3", None, 2.0, None)
    for name in (
        *("max-min", "water-filling", "hierarchical", "finish-time", "themis"),
        *("makespan", "max-throughput", "oef-coop", "oef-noncoop", "energy-floor"),
    )
]


def run(arguments: str) -> dict[str, object]:
    """Return the figures of one case."""
    line = [sys.executable, "-c", COMMAND, *arguments.split(), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    figures: dict[str, object] = json.loads(done.stdout)
    return figures


def main() -> int:
    """Print the table; return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the states of 20,000 jobs")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    chosen = parser.parse_args()
    rows, missed = [], 0
    print(f"{'case':58} {'ours ms':>9} {'Gavel ms':>9} {'limit ms':>9} {'MB':>6}  rung")
    for arguments, gavel_s, limit_s, limit_mb in CASES:
        if chosen.quick and "20000" in arguments:
            continue
        figures = run(arguments)
        median_s, peak_mb = float(str(figures["median_s"])), float(str(figures["peak_rss_mb"]))
        over = (limit_s is not None and median_s > limit_s) or (limit_mb is not None and peak_mb > limit_mb)
        missed += over
        shown = [f"{x * 1e3:9.1f}" if x is not None else f"{'-':>9}" for x in (median_s, gavel_s, limit_s)]
        print(f"{arguments:58} {' '.join(shown)} {peak_mb:6.0f}  {figures['rung']}{'  MISSED' if over else ''}")
        rows.append({**figures, "case": arguments, "gavel_s": gavel_s, "limit_s": limit_s, "missed": over})
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
