"""Draw job lists as Gavel's generator does, for any seed, length and load.

The order of draws follows the published repository (stanford-futuredata/gavel at c4fa400,
scheduler/utils.py and job_table.py), so seed 0 gives the very lists in tests/data/gavel.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from pyhetsched.simulator.trace import Trace, make_trace
from pyhetsched.throughput.tables import ThroughputTable

_MODELS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("ResNet-18", (16, 32, 64, 128, 256)),
    ("ResNet-50", (16, 32, 64, 128)),
    ("Transformer", (16, 32, 64, 128, 256)),
    ("LM", (5, 10, 20, 40, 80)),
    ("Recommendation", (512, 1024, 2048, 4096, 8192)),
)
JOB_TYPES: tuple[str, ...] = (
    *(f"{model} (batch size {size})" for model, sizes in _MODELS for size in sizes),
    "A3C",
    "CycleGAN",
)
SINGLE_GPU_ONLY = frozenset(name for name in JOB_TYPES if name.split()[0] in ("Recommendation", "A3C", "CycleGAN"))


@dataclass(frozen=True, slots=True)
class Draw:
    """What to draw: ``jobs`` how many, ``seed``, ``gangs`` (1/2/4/8 GPUs with probability 0.70/0.10/0.15/0.05, else
    all 1), ``mean_gap_s`` mean time between arrivals (exponential; 0: all at the start)."""

    jobs: int = 300
    seed: int = 0
    gangs: bool = False
    mean_gap_s: float = 0.0


def draw_trace(draw: Draw, table: ThroughputTable) -> Trace:
    """Return a drawn list; ``table`` must know v100.

    Durations are 10^U(1.5, 3) minutes on V100 with probability 0.8, else 10^U(3, 4).
    """
    jobs, gaps = random.Random(draw.seed + 2), random.Random(draw.seed + 3)
    now_s, reference = 0.0, table.types.index("v100")
    arrival, gang, steps, classes = [], [], [], []
    for _ in range(draw.jobs):
        size = _gang(jobs)
        size = size if draw.gangs else 1
        duration_s = _duration_s(jobs)
        name = jobs.choice(JOB_TYPES)
        while size > 1 and name in SINGLE_GPU_ONLY:
            name = jobs.choice(JOB_TYPES)
        arrival.append(now_s)
        gang.append(size)
        classes.append(name)
        steps.append(float(int(duration_s * table.rates[table.row(name, size), reference])))
        if draw.mean_gap_s:
            now_s -= math.log(1.0 - gaps.random()) * draw.mean_gap_s
    rates = table.rates[np.array([table.row(name, size) for name, size in zip(classes, gang, strict=True)])]
    source = f"drawn list (seed {draw.seed})"
    return make_trace(table.types, arrival, gang, steps, rates, job_class=classes, source=source)


def _gang(stream: random.Random) -> int:
    value = stream.uniform(0, 1)
    if value >= 0.95:
        return 8
    if value > 0.8:
        return 4
    return 2 if value >= 0.7 else 1


def _duration_s(stream: random.Random) -> float:
    if stream.random() >= 0.8:
        return float(60 * 10 ** stream.uniform(3, 4))
    return float(60 * 10 ** stream.uniform(1.5, 3))
