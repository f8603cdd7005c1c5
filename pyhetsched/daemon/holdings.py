"""Which job holds which GPU, as Slurm told us when each was allocated."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass

from pyhetsched.slurm.allocation import AllocatedJob

RUNNING = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "STAGE_OUT"})


@dataclass(frozen=True, slots=True)
class Holder:
    """A job on one GPU: the whole of it, or ``shards``."""

    job_id: int
    uid: int
    user: str
    shards: int = 0


class Holdings:
    """Jobs that hold GPUs, kept from their allocation to their end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[int, AllocatedJob] = {}

    def note(self, job: AllocatedJob) -> None:
        """Take in a job as Slurm has it now."""
        with self._lock:
            if job.state in RUNNING and any(item.gpus or item.shards for item in job.nodes):
                self._jobs[job.job_id] = job
            else:
                self._jobs.pop(job.job_id, None)

    def ended(self, job_id: int) -> None:
        """Forget a job."""
        with self._lock:
            self._jobs.pop(job_id, None)

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
                    found.append(Holder(job.job_id, job.uid, job.user))
                elif gpu_index in held.shards:
                    found.append(Holder(job.job_id, job.uid, job.user, held.shards[gpu_index]))
        return found
