"""Estimates of how fast a job runs on each GPU type, with error bars, from what has been seen so far.

Each cell (class of jobs, GPU type) rests on one of four grounds, best first:

* *known*: a table or the user says so; no error bar.
* *measured*: the class ran there; exponential moving average, alpha 0.5 (as in Gavel's scheduler).
* *inferred*: the class ran elsewhere, and other classes ran on both; their ratio carries over, nearest
  classes first (nearest reference rows as in Gavel, OSDI'20, section 6; weights over similar jobs
  and correction by measured ratios in the spirit of GOGH).
* *assumed*: nothing is known of the class; the mean ratios of the types, or none.

A class is what jobs have in common: job type (model, script hash) and gang size.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyhetsched.errors import DataError
from pyhetsched.throughput.tables import ThroughputTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Ground(enum.IntEnum):
    """What an estimate rests on; a smaller number is better ground."""

    KNOWN = 0
    MEASURED = 1
    INFERRED = 2
    ASSUMED = 3


@dataclass(frozen=True, slots=True, order=True)
class JobClass:
    """Jobs that run at the same speed: ``job_type`` text (``family (variant)``) at ``gang`` GPUs."""

    job_type: str
    gang: int

    @property
    def family(self) -> str:
        """Return the job type without its variant in parentheses: other batch sizes of one model are kin."""
        return self.job_type.partition("(")[0].strip()


@dataclass(frozen=True, slots=True)
class EstimatorOptions:
    """How estimates are made.

    ``alpha`` weight of a new measurement; ``measured_sigma`` least relative error bar of a measured cell;
    ``inferred_sigma`` least one of an inferred cell; ``assumed_sigma`` that of an assumed one;
    ``same_type``, ``same_family`` weight of a class of the same job type or family beside 1 for others.
    """

    alpha: float = 0.5
    measured_sigma: float = 0.02
    inferred_sigma: float = 0.1
    assumed_sigma: float = 1.0
    same_type: float = 30.0
    same_family: float = 5.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell for storage: class, GPU type, ``steps_per_s``, relative ``sigma``, number of measurements."""

    job_class: JobClass
    gpu_type: str
    steps_per_s: float
    sigma: float
    count: int
    ground: Ground


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Rows for a policy: ``rates`` [M, J] steps/s, ``sigma`` [M, J] relative, ``ground`` [M, J]."""

    rates: Floats
    sigma: Floats
    ground: Ints


# Mean speed ratios carry this much spread (natural log) where one class is compared with few others.
_RATIO_SPREAD = 0.7
_NEGLIGIBLE = 1e-9


class Estimator:
    """A growing table of classes by GPU types; :meth:`observe` adds to it, :meth:`estimate` reads it."""

    def __init__(self, types: Sequence[str], options: EstimatorOptions | None = None) -> None:
        self.types = tuple(types)
        self.options = options or EstimatorOptions()
        self._column = {name: j for j, name in enumerate(self.types)}
        self._row: dict[JobClass, int] = {}
        self._classes: list[JobClass] = []
        width = len(self.types)
        self._log = np.full((0, width), np.nan)  # log steps/s; -inf: cannot run there
        self._sigma = np.zeros((0, width))
        self._count = np.zeros((0, width), dtype=np.int64)
        self._known = np.zeros((0, width), dtype=bool)
        self._revision = 0
        self._cache: dict[JobClass, tuple[int, Floats, Floats, Ints]] = {}

    def know(self, job_class: JobClass, rates: Sequence[float]) -> None:
        """Take rates [J] in steps/s as true (nan: leave that type open; 0: cannot run there)."""
        if len(rates) != len(self.types):
            raise DataError(f"{job_class}: {len(rates)} rates for {len(self.types)} GPU types")
        row = self._row_of(job_class)
        for j, rate in enumerate(rates):
            if not math.isnan(rate):
                self._log[row, j] = _log(rate)
                self._known[row, j] = True
        self._revision += 1

    def know_table(self, table: ThroughputTable) -> None:
        """Take every class of a table as known, for the GPU types they share."""
        at = [table.types.index(t) if t in table.types else None for t in self.types]
        for (job_type, gang), row in zip(table.classes, table.rates, strict=True):
            self.know(JobClass(job_type, gang), [float("nan") if k is None else float(row[k]) for k in at])

    def observe(self, job_class: JobClass, gpu_type: str, steps_per_s: float) -> None:
        """Learn that a job of this class ran at this rate on this type (0: it could not run)."""
        if gpu_type not in self._column:
            raise DataError(f"no GPU type {gpu_type!r}; the types are {', '.join(self.types)}")
        if not steps_per_s >= 0 or math.isinf(steps_per_s):
            raise DataError(f"a rate of {steps_per_s} steps/s cannot be")
        row, j = self._row_of(job_class), self._column[gpu_type]
        if self._known[row, j]:
            return
        new, old = _log(steps_per_s), self._log[row, j]
        options = self.options
        if self._count[row, j] == 0 or math.isinf(old) or math.isinf(new):
            mean, sigma = new, options.measured_sigma
        else:
            mean = _log((1 - options.alpha) * math.exp(old) + options.alpha * steps_per_s)
            spread = math.sqrt((1 - options.alpha) * self._sigma[row, j] ** 2 + options.alpha * (new - old) ** 2)
            sigma = max(options.measured_sigma, spread)
        if self._count[row, j] == 0 or abs(mean - old) > _NEGLIGIBLE:
            self._revision += 1
        self._log[row, j], self._sigma[row, j] = mean, sigma
        self._count[row, j] += 1

    def estimate(self, classes: Iterable[JobClass], hints: Sequence[float] | None = None) -> Estimates:
        """Return estimates for jobs of these classes, one row each.

        ``hints``: steps/s expected of each job on a middling type, e.g. its steps over its time limit; used for
        classes of which nothing is known (nan: no hint).
        """
        rows = [self._of(job_class) for job_class in classes]
        width = len(self.types)
        rates = np.array([r[1] for r in rows]).reshape(-1, width)
        sigma = np.array([r[2] for r in rows]).reshape(-1, width)
        ground = np.array([r[3] for r in rows], dtype=np.int64).reshape(-1, width)
        if hints is not None:
            hint = np.asarray(hints, dtype=np.float64)
            blind = (ground == Ground.ASSUMED).all(axis=1) & np.isfinite(hint)
            middle = np.exp(np.log(rates[blind]).mean(axis=1)) if blind.any() else np.ones(0)
            rates[blind] *= (hint[blind] / middle)[:, None]
        return Estimates(rates, sigma, ground)

    def cells(self) -> list[Cell]:
        """Return all known and measured cells, for storage."""
        found = []
        for job_class, row in self._row.items():
            for j, gpu_type in enumerate(self.types):
                if not math.isnan(self._log[row, j]):
                    ground = Ground.KNOWN if self._known[row, j] else Ground.MEASURED
                    rate = float(np.exp(self._log[row, j]))
                    sigma, count = float(self._sigma[row, j]), int(self._count[row, j])
                    found.append(Cell(job_class, gpu_type, rate, sigma, count, ground))
        return found

    def restore(self, cells: Iterable[Cell]) -> None:
        """Take over stored cells; those of GPU types that are no longer there are left out."""
        for cell in cells:
            j = self._column.get(cell.gpu_type)
            if j is None:
                continue
            row = self._row_of(cell.job_class)
            self._log[row, j], self._sigma[row, j] = _log(cell.steps_per_s), cell.sigma
            self._count[row, j], self._known[row, j] = cell.count, cell.ground == Ground.KNOWN
        self._revision += 1

    def _row_of(self, job_class: JobClass) -> int:
        if job_class not in self._row:
            self._row[job_class] = len(self._classes)
            self._classes.append(job_class)
            width = len(self.types)
            self._log = np.vstack([self._log, np.full((1, width), np.nan)])
            self._sigma = np.vstack([self._sigma, np.zeros((1, width))])
            self._count = np.vstack([self._count, np.zeros((1, width), dtype=np.int64)])
            self._known = np.vstack([self._known, np.zeros((1, width), dtype=bool)])
        return self._row[job_class]

    def _of(self, job_class: JobClass) -> tuple[int, Floats, Floats, Ints]:
        kept = self._cache.get(job_class)
        if kept is None or kept[0] != self._revision:
            kept = (self._revision, *self._infer(job_class))
            self._cache[job_class] = kept
        return kept

    def _infer(self, job_class: JobClass) -> tuple[Floats, Floats, Ints]:
        width = len(self.types)
        row = self._row.get(job_class)
        log = self._log[row].copy() if row is not None else np.full(width, np.nan)
        sigma, ground = np.zeros(width), np.full(width, int(Ground.MEASURED))
        if row is not None:
            sigma = self._sigma[row].copy()
            ground[self._known[row]] = int(Ground.KNOWN)
        kin = self._kinship(job_class)
        have = np.isfinite(log)
        for j in np.flatnonzero(np.isnan(log)):
            log[j], sigma[j], ground[j] = self._cell(row, log, have, kin, int(j))
        return np.exp(log), sigma, ground

    def _kinship(self, job_class: JobClass) -> Floats:
        options, family = self.options, job_class.family
        return np.array(
            [
                options.same_type
                if other.job_type == job_class.job_type
                else options.same_family if other.family == family else 1.0
                for other in self._classes
            ]
        )

    def _cell(
        self, row: int | None, log: Floats, have: NDArray[np.bool_], kin: Floats, j: int
    ) -> tuple[float, float, int]:
        """Return (log rate, sigma, ground) of a type the class has not run on."""
        finite = np.isfinite(self._log)
        shared = finite & have[None, :]
        usable = finite[:, j] & shared.any(axis=1)
        if row is not None:
            usable[row] = False
        if usable.any():
            n_shared = shared[usable].sum(axis=1)
            offset = np.where(shared[usable], log[None, :] - self._log[usable], 0.0)
            mean = offset.sum(axis=1) / n_shared
            # How far the two classes' profiles differ where both are measured.
            misfit = (np.where(shared[usable], offset - mean[:, None], 0.0) ** 2).sum(axis=1)
            variance = (misfit + _RATIO_SPREAD**2) / n_shared
            weight = kin[usable] / variance
            guess = self._log[usable, j] + mean
            centre = float(weight @ guess / weight.sum())
            around = float(weight @ (guess - centre) ** 2 / weight.sum())
            few = float(_RATIO_SPREAD**2 / kin[usable].sum())
            return centre, max(self.options.inferred_sigma, math.sqrt(around + few)), int(Ground.INFERRED)
        return self._assume(log, have, kin, j), self.options.assumed_sigma, int(Ground.ASSUMED)

    def _assume(self, log: Floats, have: NDArray[np.bool_], kin: Floats, j: int) -> float:
        """Return the log rate of a cell that nothing can be carried over to."""
        if have.any():
            return float(log[have].mean())
        finite = np.isfinite(self._log[:, j])
        if not finite.any():
            return 0.0
        return float(kin[finite] @ self._log[finite, j] / kin[finite].sum())


def _log(rate: float) -> float:
    return math.log(rate) if rate > 0 else -math.inf
