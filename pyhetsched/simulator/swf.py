"""Read the Standard Workload Format of the Parallel Workloads Archive (version 2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pyhetsched.errors import DataError
from pyhetsched.simulator.trace import Trace, make_trace

# Fields of a line, counted from 0.
_JOB, _SUBMIT, _RUN, _PROCESSORS, _ASKED_PROCESSORS, _ASKED_S, _USER, _GROUP, _PROGRAM, _PARTITION = (
    0, 1, 3, 4, 7, 8, 11, 12, 13, 15,
)  # fmt: skip
_FIELDS = 18


def read_swf(path: Path, types: Mapping[str, float], processors_per_gpu: int = 1) -> Trace:
    """Read a trace; a job's processors (divided by ``processors_per_gpu``, rounded up) become its GPUs.

    ``types`` gives the relative speed of each type; work is the run time at speed 1. Jobs without run time or
    processors (-1: unknown) are left out. Raises DataError with file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        fields = line.split(";")[0].split()
        if not fields:
            continue
        try:
            values = [float(field) for field in fields]
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from error
        if len(values) < _FIELDS:
            raise DataError(f"{path}:{number}: {len(values)} fields; SWF has {_FIELDS}")
        processors = values[_PROCESSORS] if values[_PROCESSORS] > 0 else values[_ASKED_PROCESSORS]
        if values[_RUN] > 0 and processors > 0:
            rows.append((values, -(-int(processors) // processors_per_gpu)))
    if not rows:
        raise DataError(f"{path}: holds no job that ran")
    start_s = min(values[_SUBMIT] for values, _ in rows)
    return make_trace(
        tuple(types),
        [values[_SUBMIT] - start_s for values, _ in rows],
        [gpus for _, gpus in rows],
        [values[_RUN] for values, _ in rows],
        np.tile(np.array(list(types.values())), (len(rows), 1)),
        job_ids=[int(values[_JOB]) for values, _ in rows],
        job_class=[f"program {int(values[_PROGRAM])}" for values, _ in rows],
        account=[(f"group{int(values[_GROUP])}", f"user{int(values[_USER])}") for values, _ in rows],
        partition=[f"{int(values[_PARTITION])}" if values[_PARTITION] > 0 else "" for values, _ in rows],
        limit_s=[values[_ASKED_S] if values[_ASKED_S] > 0 else float("inf") for values, _ in rows],
        source=str(path),
    )
