"""Random cluster states for benchmarks and tests, drawn as Gavel's sweep over policy run times does.

Job types are drawn uniformly from the shipped table, every GPU type has a quarter as many devices as
there are jobs (with more than three types: three quarters of the jobs' number in all).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from pyhetsched.policies.contract import ClusterState, Floats, GpuType, PairTable
from pyhetsched.throughput.tables import ThroughputTable, gavel_isolated, gavel_pairs

_MEASURED = (("v100", 0.74, 300.0, 40.0), ("p100", 0.43, 250.0, 30.0), ("k80", 0.135, 150.0, 30.0))
_GANGS, _GANG_ODDS = (1, 2, 4, 8), (0.70, 0.10, 0.15, 0.05)


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What to draw: numbers of jobs and GPU types, gangs or single GPUs, pair rates or not, seed.

    ``distinct``: every job has rates of its own (no two alike); ``accounts``: number of Slurm accounts.
    """

    jobs: int
    types: int = 3
    gangs: bool = False
    pairs: bool = False
    distinct: bool = False
    accounts: int = 8
    seed: int = 0


def draw(spec: InstanceSpec) -> ClusterState:
    """Return a state of ``spec.jobs`` jobs at random ages and with random work left."""
    rng = random.Random(spec.seed)
    numbers = np.random.default_rng(spec.seed)
    table = gavel_isolated()
    sizes = rng.choices(_GANGS, _GANG_ODDS, k=spec.jobs) if spec.gangs else [1] * spec.jobs
    by_gang = {gang: table.at_gang(gang) for gang in _GANGS}
    classes = np.array([rng.choice(by_gang[size]) for size in sizes], dtype=np.int64)
    per_class = _all_types(table, spec.types)
    rates = per_class[classes]
    if spec.distinct:
        rates = rates * numbers.uniform(0.7, 1.4, rates.shape)
    age_s = numbers.uniform(0.0, 86400.0, spec.jobs)
    return ClusterState.from_arrays(
        gpu_types(spec.jobs, spec.types),
        rates,
        np.array(sizes, dtype=np.int64),
        numbers.uniform(0.5, 50.0, spec.jobs) * 3600.0 * per_class[classes].max(axis=1),
        age_s=age_s,
        isolated_used_s=age_s * numbers.uniform(0.5, 1.5, spec.jobs),
        deadline_s=numbers.uniform(50.0, 500.0, spec.jobs) * 3600.0,
        job_class=classes,
        accounts=tuple(("root", f"account{rng.randrange(spec.accounts)}") for _ in range(spec.jobs)),
        pairs=_pair_table(table, spec.types) if spec.pairs else None,
    )


def gpu_types(jobs: int, types: int) -> list[GpuType]:
    """Return the GPU types of a drawn cluster; those beyond the third are made up."""
    count = max(8, jobs // 4 if types <= 3 else 3 * jobs // (4 * types))
    found = []
    for index in range(types):
        name, usd, busy_w, idle_w = _MEASURED[index % 3]
        if index >= 3:
            name = f"made-up-{index}"
        found.append(GpuType(name, count, usd, busy_w, idle_w))
    return found


def _all_types(table: ThroughputTable, types: int) -> Floats:
    """Return [C, types]: measured columns, then mixtures of them that depend on the column number alone."""
    columns = [table.rates[:, j] for j in range(min(types, 3))]
    for index in range(3, types):
        mix = np.random.default_rng(index)
        part = mix.uniform(0.0, 1.0)
        a, b = (table.rates[:, j] for j in mix.choice(3, size=2, replace=False))
        columns.append(a**part * b ** (1 - part) * mix.uniform(0.6, 1.7, len(a)))
    return np.stack(columns, axis=1)


def _pair_table(table: ThroughputTable, types: int) -> PairTable:
    measured = gavel_pairs(table)
    alone = table.rates.T
    kept = measured / np.where(alone > 0, alone, np.inf)[:, :, None]
    every = _all_types(table, types).T
    rates = np.stack([kept[j % 3] * every[j][:, None] for j in range(types)])
    names = tuple(f"{job_type} x{gang}" for job_type, gang in table.classes)
    return PairTable(names, rates)
