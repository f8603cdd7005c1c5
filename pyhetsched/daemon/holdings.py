"""Which job holds which GPU, as Slurm told us when each was allocated."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass

from pyhetsched.slurm.allocation import AllocatedJob

_MOST_ENDED = 10_000
RUNNING = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "STAGE_OUT"})


@dataclass(frozen=True, slots=True)
class Holder:
    """A job on one GPU: the whole of it, or ``shards``."""

    job_id: int
    uid: int
    user: str
    shards: int = 0
    id_text: str = ""


class Holdings:
    """Jobs that hold GPUs, kept from their allocation to their end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[int, AllocatedJob] = {}
        # Job and restart count of ends that were told: a look at Slurm that began before may be noted after.
        self._ended: dict[int, int] = {}

    def note(self, job: AllocatedJob) -> None:
        """Take in a job as Slurm has it now, or had it shortly before its end."""
        with self._lock:
            over = job.restart_count <= self._ended.get(job.job_id, -1)
            if job.state in RUNNING and not over and any(item.gpus or item.shards for item in job.nodes):
                self._jobs[job.job_id] = job
            else:
                self._jobs.pop(job.job_id, None)

    def ended(self, job_id: int, restart_count: int = 0) -> None:
        """Forget a job whose run number ``restart_count`` is over; its next run is another matter."""
        with self._lock:
            self._jobs.pop(job_id, None)
            self._ended.pop(job_id, None)
            self._ended[job_id] = restart_count
            if len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]

    def has_ended(self, job_id: int) -> bool:
        """Return whether a run of the job is known to be over."""
        with self._lock:
            return job_id in self._ended

    def released(self, job_id: int, node: str) -> None:
        """A job's slices on ``node`` are gone; its shards there will be free as soon as the Epilog has ended."""
        with self._lock:
            job = self._jobs.get(job_id)
            if job is not None:
                left = tuple(item for item in job.nodes if item.node != node)
                self._jobs[job_id] = dataclasses.replace(job, nodes=left)

    def on(self, node: str, gpu_index: int) -> list[Holder]:
        """Return who holds one GPU."""
        found: list[Holder] = []
        with self._lock:
            for job in self._jobs.values():
                held = job.on(node)
                if gpu_index in held.gpus:
                    found.append(Holder(job.job_id, job.uid, job.user, id_text=job.id_text))
                elif gpu_index in held.shards:
                    found.append(Holder(job.job_id, job.uid, job.user, held.shards[gpu_index], job.id_text))
        return found

    def id_text(self, job_id: int) -> str:
        """Return a job's id as squeue shows it, ``12_3`` for an element of an array."""
        with self._lock:
            job = self._jobs.get(job_id)
        return job.id_text if job is not None else str(job_id)
