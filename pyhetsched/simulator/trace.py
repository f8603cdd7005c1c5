"""The work of a simulation as columns, one row a job, in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyhetsched.errors import DataError
from pyhetsched.policies.contract import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Jobs to simulate; n jobs, J types (``types`` names the columns of ``throughput``).

    ``arrival_s`` seconds since the start; ``gang`` GPUs; ``total_steps`` work; ``throughput`` [n, J] steps/s of
    the whole gang, 0 where the job cannot run; ``job_class`` text key of the job's kind (model and batch
    size, or user and job name); ``account`` path of the Slurm account; ``partition`` name, ""
    for the default; ``limit_s`` time limit (inf: none); ``preemptible`` the job opted in to preemption
    (``--requeue`` and a checkpoint signal); ``profile`` MIG profile the job asks for, "" for whole GPUs.
    """

    types: tuple[str, ...]
    job_ids: Ints
    arrival_s: Floats
    gang: Ints
    total_steps: Floats
    throughput: Floats
    weight: Floats
    deadline_s: Floats
    job_class: tuple[str, ...]
    account: tuple[tuple[str, ...], ...]
    partition: tuple[str, ...]
    limit_s: Floats
    preemptible: np.ndarray
    profile: tuple[str, ...]
    source: str = field(default="")

    def __len__(self) -> int:
        return len(self.job_ids)

    @property
    def best_s(self) -> Floats:
        """Return [n]: run time alone on the fastest type, inf where the job runs nowhere."""
        best = self.throughput.max(axis=1, initial=0.0)
        with np.errstate(divide="ignore"):
            seconds: Floats = np.where(best > 0, self.total_steps / best, np.inf)
        return seconds

    def select(self, rows: Sequence[int] | Ints | np.ndarray) -> Trace:
        """Return the trace of some rows only."""
        keep = np.asarray(rows)

        def texts(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[row] for row in keep.tolist())

        return replace(
            self,
            job_ids=self.job_ids[keep],
            arrival_s=self.arrival_s[keep],
            gang=self.gang[keep],
            total_steps=self.total_steps[keep],
            throughput=self.throughput[keep],
            weight=self.weight[keep],
            deadline_s=self.deadline_s[keep],
            job_class=texts(self.job_class),
            account=texts(self.account),
            partition=texts(self.partition),
            limit_s=self.limit_s[keep],
            preemptible=self.preemptible[keep],
            profile=texts(self.profile),
        )

    def on_types(self, names: Sequence[str]) -> Trace:
        """Return the trace with its throughput columns put in the order of ``names``."""
        missing = [name for name in names if name not in self.types]
        if missing:
            raise DataError(
                f"{self.source or 'trace'}: no throughput on {', '.join(missing)}; it knows {', '.join(self.types)}"
            )
        columns = [self.types.index(name) for name in names]
        return replace(self, types=tuple(names), throughput=np.ascontiguousarray(self.throughput[:, columns]))


def make_trace(
    types: Sequence[str],
    arrival_s: Sequence[float] | Floats,
    gang: Sequence[int] | Ints,
    total_steps: Sequence[float] | Floats,
    throughput: Sequence[Sequence[float]] | Floats,
    **columns: object,
) -> Trace:
    """Build a trace; columns left out get neutral values, rows are sorted by arrival.

    Raises DataError where a job has no GPU, no work, or arrives before the start.
    """
    arrival = np.asarray(arrival_s, dtype=np.float64)
    n_jobs = len(arrival)
    source = str(columns.get("source", "trace"))
    filled = Trace(
        types=tuple(types),
        job_ids=np.asarray(columns.get("job_ids", np.arange(n_jobs)), dtype=np.int64),
        arrival_s=arrival,
        gang=np.asarray(gang, dtype=np.int64),
        total_steps=np.asarray(total_steps, dtype=np.float64),
        throughput=np.asarray(throughput, dtype=np.float64).reshape(n_jobs, len(types)),
        weight=_numbers(columns.get("weight"), n_jobs, 1.0),
        deadline_s=_numbers(columns.get("deadline_s"), n_jobs, np.inf),
        job_class=_texts(columns.get("job_class"), n_jobs, ""),
        account=_texts(columns.get("account"), n_jobs, ()),
        partition=_texts(columns.get("partition"), n_jobs, ""),
        limit_s=_numbers(columns.get("limit_s"), n_jobs, np.inf),
        preemptible=np.asarray(columns.get("preemptible", np.zeros(n_jobs, dtype=bool)), dtype=bool),
        profile=_texts(columns.get("profile"), n_jobs, ""),
        source=source,
    )
    _check(filled)
    order = np.argsort(filled.arrival_s, kind="stable")
    return filled if (order == np.arange(n_jobs)).all() else filled.select(order)


def _numbers(values: object, n_jobs: int, default: float) -> Floats:
    return np.full(n_jobs, default) if values is None else np.asarray(values, dtype=np.float64)


def _texts(values: object, n_jobs: int, default: object) -> tuple:  # type: ignore[type-arg]
    return (default,) * n_jobs if values is None else tuple(values)  # type: ignore[arg-type]


def _check(trace: Trace) -> None:
    wrong = {
        "gang must be at least 1 GPU": trace.gang < 1,
        "work must be more than nothing": ~(trace.total_steps > 0),
        "arrival must not be before the start (0)": ~(trace.arrival_s >= 0),
        "throughput must not be negative": (trace.throughput < 0).any(axis=1),
    }
    for text, rows in wrong.items():
        if rows.any():
            raise DataError(f"{trace.source}: job {int(trace.job_ids[int(rows.argmax())])}: {text}")
