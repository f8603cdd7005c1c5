"""The throughput tables of rounds: the one that is shipped, and the site's own file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyhetsched.errors import DataError
from pyhetsched.throughput.tables import ThroughputTable, gavel_isolated, read_isolated

_SHIPPED = ("v100", "p100", "k80")


class Tables:
    """Reads each table once, and the site's again when its file changes."""

    def __init__(self) -> None:
        self._kept: tuple[object, list[ThroughputTable], list[str]] = (None, [], [])

    def of(self, types: Sequence[str], path: str) -> tuple[list[ThroughputTable], list[str]]:
        """Return the tables for gres ``types``, the site's last (it overrules), and what is wrong with its file."""
        here = tuple(sorted(name.casefold() for name in types))
        key = (here, path, _changed_ns(path))
        if self._kept[0] != key:
            tables, said = [], []
            shipped = tuple(name for name in _SHIPPED if name in here)
            if shipped:
                tables.append(open_cells(gavel_isolated(shipped)))
            if path:
                try:
                    tables.append(read_site(path, here))
                except (OSError, DataError, UnicodeDecodeError) as error:
                    said.append(f"policy.throughputs cannot be used: {error}")
            self._kept = (key, tables, said)
        return self._kept[1], self._kept[2]


def read_site(path: str, types: Sequence[str]) -> ThroughputTable:
    """Return the site's table, reduced to the types that it speaks of; raises `DataError` or `OSError`."""
    lines = Path(path).read_text(encoding="utf-8").casefold().splitlines()
    there = {row.get("worker_type") or "" for row in csv.DictReader(lines)}
    return open_cells(read_isolated(lines, tuple(name for name in types if name in there), path))


def open_cells(table: ThroughputTable) -> ThroughputTable:
    """Return the table with 0, which may mean not measured, as unknown."""
    return ThroughputTable(table.classes, table.types, np.where(table.rates > 0, table.rates, np.nan))


def _changed_ns(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns if path else 0
    except OSError:
        return 0
