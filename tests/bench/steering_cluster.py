"""The ways around holes on a real Slurm: the same random jobs once for each, and how many were given back.

Run inside the testbed (`make bench-steering`). The cluster is kept full with a backlog; what counts is the share
of slice allocations that PrologSlurmctld gave back. The simulator compares more ways on longer runs: make bench-mig.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import time
from pathlib import Path

CONFIG = Path("/etc/hetsched/hetsched.toml")
OUT = Path("build/bench/steering_cluster.json")
SIZES = ("1g.10gb", "1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")
WAYS = {
    "hand back only": "enabled = false",
    "leave nodes open only to safe sets of jobs": "enabled = true",
    "the same, closed to all others (strict)": "enabled = true\nstrict = true",
}


def main() -> int:
    """Run every way on the same jobs; print and write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=150, help="jobs for each way")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = []
    for way, lines in WAYS.items():
        configure(lines)
        rows.append({"way": way, **run(options.jobs, options.seed)})
        print(json.dumps(rows[-1]), flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"jobs": options.jobs, "seed": options.seed, "ways": rows}, indent=1) + "\n")
    print(f"\n{'way':<45} {'allocations':>11} {'given back':>10} {'share':>8} {'wall_s':>7}")
    for row in rows:
        share = f"{row['given_back_share']:.2%}"
        print(f"{row['way']:<45} {row['allocations']:>11} {row['given_back']:>10} {share:>8} {row['wall_s']:>7.0f}")
    return 0


def configure(lines: str) -> None:
    """Put ``lines`` into [steering] and let the daemon read them."""
    text = re.sub(r"\n\[steering\]\n(?:[^\[].*\n?)*", "\n", CONFIG.read_text())
    CONFIG.write_text(f"{text.rstrip()}\n\n[steering]\n{lines}\n")
    subprocess.run(["testbedctl", "reload", "hetschedd"], check=True)
    time.sleep(2)


def run(jobs: int, seed: int) -> dict[str, float]:
    """Submit all jobs, wait for the last, count what was allocated and what was given back."""
    draw = random.Random(seed)
    before = outcomes()
    started_s = time.monotonic()
    for _ in range(jobs):
        size, seconds = draw.choice(SIZES), draw.uniform(4, 16)
        submit(size, seconds)
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout.strip():
        time.sleep(1)
    wall_s = time.monotonic() - started_s
    after = outcomes()
    given_back = after["give-back"] - before["give-back"]
    allocations = after["allocate"] - before["allocate"] + given_back
    return {
        "allocations": allocations, "given_back": given_back, "given_back_share": given_back / allocations,
        "wall_s": round(wall_s, 1),
    }  # fmt: skip


def submit(size: str, seconds: float) -> None:
    """Submit one job as alice; again where the daemon was late, as the user is told."""
    words = ["setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "sbatch", "-o", "/dev/null",
             f"--gres=gpu:{size}:1", "--wrap", f"sleep {seconds:.1f}"]  # fmt: skip
    for _ in range(20):
        if subprocess.run(words, capture_output=True, cwd="/tmp", check=False).returncode == 0:
            return
        time.sleep(1)
    raise SystemExit("hetschedd does not answer")


def outcomes() -> dict[str, int]:
    """How many decisions of each kind there are."""
    words = ["hetsched", "decisions", "-n", "10000", "-h", "-o", "kind"]
    kinds = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return {kind: kinds.count(kind) for kind in ("allocate", "give-back")}


if __name__ == "__main__":
    raise SystemExit(main())
