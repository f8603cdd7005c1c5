"""Measured throughputs by job type, gang size and GPU type, read from CSV."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyhetsched.errors import DataError
from pyhetsched.policies.contract import PairTable


@dataclass(frozen=True, slots=True)
class ThroughputTable:
    """Rates in steps/s of a whole gang, alone on its GPUs: ``rates[job type, gang size, GPU type]``."""

    types: tuple[str, ...]
    rates: dict[tuple[str, int, str], float]
    source: str = ""

    def rate(self, job_type: str, gang: int, gpu_type: str) -> float:
        """Return one rate; DataError if the table does not have it."""
        try:
            return self.rates[job_type, gang, gpu_type]
        except KeyError:
            raise DataError(f"{self.source}: no rate of {job_type!r} with {gang} GPUs on {gpu_type}") from None

    def row(self, job_type: str, gang: int) -> list[float]:
        """Return the rates on all types, in their order."""
        return [self.rate(job_type, gang, gpu_type) for gpu_type in self.types]


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, row) of a CSV file with a header, plain or ``.gz``."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    reader = csv.DictReader(io.StringIO(text))
    for row in reader:
        yield reader.line_num, row


def read_throughputs(path: Path) -> ThroughputTable:
    """Read columns job_type, scale_factor, worker_type, steps_per_s; ``*_unconsolidated`` types are left out."""
    rates: dict[tuple[str, int, str], float] = {}
    types: dict[str, None] = {}
    for line, row in read_rows(path):
        try:
            if row["worker_type"].endswith("_unconsolidated"):
                continue
            rates[row["job_type"], int(row["scale_factor"]), row["worker_type"]] = float(row["steps_per_s"])
            types.setdefault(row["worker_type"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}:{line}: columns job_type,scale_factor,worker_type,steps_per_s: {error}") from error
    if not rates:
        raise DataError(f"{path}: holds no rate")
    return ThroughputTable(tuple(types), rates, str(path))


def read_pairs(path: Path, types: tuple[str, ...], known: set[tuple[str, int]]) -> tuple[PairTable, dict[tuple[str, int], int]]:
    """Read rates of two jobs that share GPUs, for the (job type, gang size) in ``known``.

    Columns worker_type, scale_factor, job_type_a, job_type_b, steps_per_s_a, steps_per_s_b. Returns the table
    and the class number of each (job type, gang size).
    """
    number = {key: index for index, key in enumerate(sorted(known))}
    rates = np.zeros((len(types), len(number), len(number)))
    column = {name: index for index, name in enumerate(types)}
    for line, row in read_rows(path):
        try:
            size = int(row["scale_factor"])
            a, b = number.get((row["job_type_a"], size)), number.get((row["job_type_b"], size))
            if a is None or b is None or row["worker_type"] not in column:
                continue
            rates[column[row["worker_type"]], a, b] = float(row["steps_per_s_a"])
            rates[column[row["worker_type"]], b, a] = float(row["steps_per_s_b"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}:{line}: {error}") from error
    names = tuple(f"{name} x{size}" for name, size in number)
    return PairTable(names, rates), number
