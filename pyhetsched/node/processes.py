"""Naming the processes that hold an instance."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def describe(pids: Iterable[int], proc: Path = Path("/proc")) -> str:
    """Return ``pid 123 (python, uid 1001)`` for each process, joined by commas; "" for none."""
    return ", ".join(_describe(pid, proc / str(pid)) for pid in pids)


def _describe(pid: int, entry: Path) -> str:
    try:
        command = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
        return f"pid {pid} ({command}, uid {entry.stat().st_uid})"
    except OSError:
        return f"pid {pid} (not visible from here)"
