"""Submits jobs through pyslurm from one process, as an ordinary user; told what to do line by line on stdin.

Each line is "plugin COUNT" or "bare COUNT"; the answer is one line of JSON: the seconds of all submits together,
and of each kind of job the seconds of each.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pyslurm

#: Ten jobs of the mix: five without a GPU, three with whole GPUs, two with a slice.
MIX = ("cpu", "gpu:1", "cpu", "slice", "cpu", "gpu:v100:2", "cpu", "gpu:a100:1", "cpu", "slice")
SLICE = "1g.10gb"
SHARDS, FEATURES = 4, "a100|h100"


def description(kind: str, arm: str) -> Any:
    """One job that will not start. What the plugin makes of a slice is what a bare Slurm is asked for."""
    options: dict[str, Any] = {
        "name": "bench", "partitions": "gpu", "time_limit": "1:00:00", "begin_time": "now+1days",
        "script": "#!/bin/sh\ntrue\n", "working_directory": "/tmp", "environment": {"PATH": "/usr/bin"},
    }  # fmt: skip
    if kind == "slice" and arm == "plugin":
        options["gres_per_node"] = f"gpu:{SLICE}:1"
    elif kind == "slice":
        options |= {"gres_per_node": f"shard:{SHARDS}", "constraints": FEATURES}
    elif kind != "cpu":
        options["gres_per_node"] = kind
    return pyslurm.JobSubmitDescription(**options)


def submit(arm: str, count: int) -> dict[str, Any]:
    """Submit ``count`` jobs of the mix."""
    jobs = [(MIX[number % len(MIX)], description(MIX[number % len(MIX)], arm)) for number in range(count)]
    each: dict[str, list[float]] = {}
    started_s = time.perf_counter()
    for kind, job in jobs:
        before_s = time.perf_counter()
        job.submit()
        each.setdefault(kind, []).append(time.perf_counter() - before_s)
    return {"total_s": time.perf_counter() - started_s, "each_s": each}


def main() -> None:
    """Serve lines until stdin ends."""
    for line in sys.stdin:
        arm, count = line.split()
        sys.stdout.write(json.dumps(submit(arm, int(count))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
