"""Throughput tables: steps/s by job type, gang size and GPU type, alone and in pairs."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from pyhetsched.errors import DataError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ThroughputTable:
    """Rates of job classes; a class is a job type at one gang size.

    ``classes`` (job type, gang) of each row; ``types`` GPU type of each column; ``rates`` [C, J] steps/s of
    the whole gang, 0 where it does not fit or was not measured.
    """

    classes: tuple[tuple[str, int], ...]
    types: tuple[str, ...]
    rates: Floats

    def row(self, job_type: str, gang: int) -> int:
        """Return the row of a class; a DataError if the table lacks it."""
        try:
            return self.classes.index((job_type, gang))
        except ValueError:
            raise DataError(f"the throughput table has no {job_type!r} on {gang} GPUs") from None

    def at_gang(self, gang: int) -> list[int]:
        """Return the rows of all classes with this gang size."""
        return [row for row, (_, size) in enumerate(self.classes) if size == gang]


def read_isolated(lines: Iterable[str], types: Sequence[str], name: str = "table") -> ThroughputTable:
    """Return the rates of ``types`` (in that order) from CSV lines in the form of gavel_isolated.csv."""
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for number, row in _rows(lines, name, ("job_type", "scale_factor", "worker_type", "steps_per_s")):
        if row["worker_type"] not in types:
            continue
        try:
            key = (row["job_type"], int(row["scale_factor"]))
            cells.setdefault(key, {})[row["worker_type"]] = float(row["steps_per_s"])
        except ValueError as error:
            raise DataError(f"{name}, line {number}: {error}") from None
    classes = tuple(sorted(cells, key=lambda c: (c[1], c[0])))
    rates = np.array([[cells[c].get(t, 0.0) for t in types] for c in classes]).reshape(-1, len(types))
    return ThroughputTable(classes, tuple(types), rates)


def read_pairs(lines: Iterable[str], table: ThroughputTable, name: str = "pairs") -> Floats:
    """Return pair rates [J, C, C] over the classes of ``table``: rate of the first beside the second."""
    index = {c: row for row, c in enumerate(table.classes)}
    column = {t: j for j, t in enumerate(table.types)}
    rates = np.zeros((len(table.types), len(index), len(index)))
    wanted = ("worker_type", "scale_factor", "job_type_a", "job_type_b", "steps_per_s_a", "steps_per_s_b")
    for number, row in _rows(lines, name, wanted):
        j = column.get(row["worker_type"])
        gang = int(row["scale_factor"])
        a, b = index.get((row["job_type_a"], gang)), index.get((row["job_type_b"], gang))
        if j is None or a is None or b is None:
            continue
        try:
            rates[j, a, b], rates[j, b, a] = float(row["steps_per_s_a"]), float(row["steps_per_s_b"])
        except ValueError as error:
            raise DataError(f"{name}, line {number}: {error}") from None
    return rates


def gavel_isolated(types: Sequence[str] = ("v100", "p100", "k80")) -> ThroughputTable:
    """Return the shipped table of Gavel's measurements (data/README.md)."""
    text = resources.files("pyhetsched.throughput").joinpath("data/gavel_isolated.csv").read_text("utf-8")
    return read_isolated(io.StringIO(text), types, "gavel_isolated.csv")


def gavel_pairs(table: ThroughputTable) -> Floats:
    """Return the shipped pair rates [J, C, C] over the classes of ``table``."""
    packed = resources.files("pyhetsched.throughput").joinpath("data/gavel_pairs.csv.gz").read_bytes()
    return read_pairs(io.StringIO(gzip.decompress(packed).decode("utf-8")), table, "gavel_pairs.csv.gz")


def _rows(lines: Iterable[str], name: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(lines)
    missing = [column for column in wanted if column not in (reader.fieldnames or ())]
    if missing:
        raise DataError(f"{name}, line 1: no column {', '.join(missing)}")
    yield from enumerate(reader, start=2)
