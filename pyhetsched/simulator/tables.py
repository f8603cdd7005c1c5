"""Throughput tables and other CSV files, plain or gzipped, from disk or as shipped."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyhetsched.errors import DataError
from pyhetsched.policies.contract import PairTable
from pyhetsched.throughput.tables import (
    ThroughputTable,
    gavel_isolated,
    gavel_pairs,
    read_isolated,
    read_pairs,
)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, unpacked if it ends in ``.gz``; DataError if it cannot be read."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return raw.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, row) of a CSV file with a header."""
    reader = csv.DictReader(read_lines(path))
    for row in reader:
        yield reader.line_num, row


def load_table(path: Path | None, types: Sequence[str]) -> ThroughputTable:
    """Return the rates of ``types``, in that order, from a file or (None) from the measurements that are shipped."""
    table = gavel_isolated(types) if path is None else read_isolated(read_lines(path), types, str(path))
    for column, name in enumerate(types):
        if not table.rates[:, column].any():
            raise DataError(f"{path or 'shipped table'}: holds no rate of type {name}")
    return table


def load_pairs(path: Path | None, table: ThroughputTable) -> PairTable:
    """Return the rates of two classes of ``table`` that share GPUs."""
    rates = gavel_pairs(table) if path is None else read_pairs(read_lines(path), table, str(path))
    return PairTable(tuple(f"{name} x{gang}" for name, gang in table.classes), rates)
