"""What each GPU type is worth to each job of a round, from the best ground there is. Pure.

Best first: a table says so for the class that the job names; past runs of the same user and job name on that
type; past runs or the table elsewhere, carried over by ratios (`pyhetsched.throughput.estimator`); else the types'
memory bandwidth, damped, which is a guess and never reason enough to prefer a type.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyhetsched.mig.profiles import catalogue
from pyhetsched.store.runs import Run
from pyhetsched.submit.speeds import speed_of, speed_of_type
from pyhetsched.throughput.estimator import Cell, Estimator, EstimatorOptions, Ground, JobClass
from pyhetsched.throughput.tables import ThroughputTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNLIMITED_S = 86400.0
_KEPT = 20
_REFERENCES = 300
_LONE_SIGMA = 0.5
_LEAST_SIGMA = 0.05
# Most training is bound by memory bandwidth, few jobs by it alone: a root keeps a guess from looking like knowledge.
_DAMPED = 0.5

Key = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Workload:
    """Whose job it is, its name, GPUs, the class it names (or ""), and its time limit in s (0: none)."""

    user: str
    name: str
    gpus: int
    job_class: str = ""
    limit_s: float = 0.0

    @property
    def key(self) -> Key:
        """What runs are taken together by: numbers in a name (``train_017``) tell nothing."""
        return self.user, re.sub(r"\d+", "#", self.name), self.gpus


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """``rates``, ``sigma``, ``ground`` [M, J] as of the estimator; ``work`` [M]: a whole job, in the rates' units."""

    rates: Floats
    sigma: Floats
    ground: Ints
    work: Floats


class PastRuns:
    """The last runs of each job by GPU type."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._times: dict[Key, dict[str, deque[float]]] = defaultdict(dict)
        for run in runs:
            self.add(run)

    def add(self, run: Run) -> None:
        """Take in one run."""
        key = Workload(run.user, run.name, run.gpus).key
        # Moved to the end: the classes seen last are the references to infer from.
        times = self._times.pop(key, {})
        times.setdefault(run.gpu_type.casefold(), deque(maxlen=_KEPT)).append(max(run.elapsed_s, 1.0))
        self._times[key] = times

    def of(self, key: Key) -> Mapping[str, Sequence[float]]:
        """Return the run times of a job, in s, by GPU type."""
        return self._times.get(key, {})

    def on_several_types(self, limit: int) -> list[Key]:
        """Return the jobs that ran on two types or more, newest first: what ratios can be learned from."""
        found = [key for key, times in reversed(self._times.items()) if len(times) > 1]
        return found[:limit]


class Appraiser:
    """Appraises jobs on ``types`` (gres types), of which ``models`` (catalogue keys) are known."""

    def __init__(
        self, types: Sequence[str], models: Mapping[str, str], tables: Iterable[ThroughputTable], runs: PastRuns
    ) -> None:
        self._types = tuple(name.casefold() for name in types)
        self._guess = guessed_speeds(types, models)
        self._runs = runs
        self._tables = [_lower(table) for table in tables]
        self._classes: dict[str, dict[int, str]] = defaultdict(dict)
        for table in self._tables:
            for name, gang in table.classes:
                self._classes[slug(name)].setdefault(gang, name)

    def appraise(self, loads: Sequence[Workload]) -> Worth:
        """Return what is known of each job, one row each; no rate is below 0, and every row has one above 0."""
        classes = [self._class_of(load) for load in loads]
        wanted = sorted({found for found in classes if found is not None})
        row_of = {found: row for row, found in enumerate(wanted)}
        known = self._estimate(wanted, {load.key for load in loads})
        blind = (self._guess, np.ones(len(self._types)), np.full(len(self._types), int(Ground.ASSUMED)))
        rows = [blind if found is None else known[row_of[found]] for found in classes]
        shape = (-1, len(self._types))
        rates = np.array([row[0] for row in rows]).reshape(shape)
        sigma = np.array([row[1] for row in rows]).reshape(shape)
        ground = np.array([row[2] for row in rows], dtype=np.int64).reshape(shape)
        work = np.array([self._work(load, rate) for load, rate in zip(loads, rates, strict=True)])
        return Worth(rates, sigma, ground, work)

    def _class_of(self, load: Workload) -> JobClass | None:
        gangs = self._classes.get(slug(load.job_class)) if load.job_class else None
        if gangs:
            gang = min(gangs, key=lambda size: (abs(size - load.gpus), size))
            return JobClass(gangs[gang], gang)
        return _own_class(load.key) if self._runs.of(load.key) else None

    def _estimate(self, wanted: Sequence[JobClass], keys: Iterable[Key]) -> list[tuple[Floats, Floats, Ints]]:
        if not wanted:
            return []
        estimator = Estimator(self._types, EstimatorOptions())
        for table in self._tables:
            estimator.know_table(table)
        needed = set(wanted)
        of_jobs = [key for key in keys if _own_class(key) in needed]
        estimator.restore(
            cell for key in {*of_jobs, *self._runs.on_several_types(_REFERENCES)} for cell in self._cells(key)
        )
        found = estimator.estimate(wanted)
        return [self._fill(*row) for row in zip(found.rates, found.sigma, found.ground, strict=True)]

    def _cells(self, key: Key) -> Iterable[Cell]:
        for gpu_type, times in self._runs.of(key).items():
            if gpu_type in self._types:
                middle = statistics.median(times)
                yield Cell(_own_class(key), gpu_type, 1.0 / middle, _sigma(times), len(times), Ground.MEASURED)

    def _fill(self, rates: Floats, sigma: Floats, ground: Ints) -> tuple[Floats, Floats, Ints]:
        """Put guesses in place of what nothing can be said of, relative to what something can."""
        open_cells = ground == int(Ground.ASSUMED)
        firm = ~open_cells & (rates > 0)
        if not firm.any():
            return self._guess, np.ones_like(sigma), np.full_like(ground, int(Ground.ASSUMED))
        scale = float(np.exp(np.mean(np.log(rates[firm]) - np.log(self._guess[firm]))))
        return np.where(open_cells, scale * self._guess, rates), sigma, ground

    def _work(self, load: Workload, rates: Floats) -> float:
        times = self._runs.of(load.key)
        at = [(statistics.median(times[t]), rates[j]) for j, t in enumerate(self._types) if t in times and rates[j] > 0]
        if at:
            return float(np.exp(np.mean([np.log(seconds * rate) for seconds, rate in at])))
        return (load.limit_s or UNLIMITED_S) * float(np.exp(np.mean(np.log(rates[rates > 0]))))


def guessed_speeds(types: Sequence[str], models: Mapping[str, str]) -> Floats:
    """Return [J]: relative speeds of which nothing but memory bandwidth is known; 1 for types of no known model."""
    found = []
    for gpu_type in types:
        model = catalogue().get(models.get(gpu_type, ""))
        speed = speed_of(model) if model is not None else speed_of_type(gpu_type)
        found.append(speed.gb_per_s**_DAMPED if speed is not None else np.nan)
    speeds = np.array(found, dtype=np.float64)
    there = np.isfinite(speeds)
    middle = float(np.exp(np.log(speeds[there]).mean())) if there.any() else 1.0
    return np.where(there, speeds / middle, 1.0)


def slug(name: str) -> str:
    """Return a class name as it can be written behind ``class=``.

    >>> slug("ResNet-18 (batch size 16)")
    'resnet-18-batch-size-16'
    """
    return re.sub(r"[^a-z0-9_.]+", "-", name.casefold()).strip("-")


def _own_class(key: Key) -> JobClass:
    return JobClass(f"{key[0]}/{key[1]}", key[2])


def _sigma(times: Sequence[float]) -> float:
    spread = statistics.stdev([float(np.log(seconds)) for seconds in times]) if len(times) > 2 else _LONE_SIGMA
    return max(_LEAST_SIGMA, spread / math.sqrt(len(times)))


def _lower(table: ThroughputTable) -> ThroughputTable:
    return ThroughputTable(table.classes, tuple(name.casefold() for name in table.types), table.rates)
