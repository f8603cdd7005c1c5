"""What hetsched asks of Slurm and tells it, and the gateway of the daemon's serving side."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Protocol

from pyhetsched.slurm.allocation import AllocatedJob
from pyhetsched.slurm.direct import DirectSlurm, find_conf
from pyhetsched.slurm.gpu_jobs import GpuJob
from pyhetsched.slurm.snapshot import PendingJob, RawNode, RawPartition
from pyhetsched.slurm.workers import Workers


class Gateway(Protocol):
    """Slurm as the daemon uses it. Methods raise `SlurmError`."""

    def version(self) -> str:
        """Return the version of the Slurm that answers."""
        ...

    def nodes(self) -> list[RawNode]:
        """Return all nodes."""
        ...

    def partitions(self) -> list[RawPartition]:
        """Return all partitions."""
        ...

    def jobs(self, job: str) -> list[AllocatedJob]:
        """Return the job that ``job`` names (``12``, ``12_3``, ``12+1``), all its elements if it has some."""
        ...

    def pending(self) -> list[PendingJob]:
        """Return the jobs that wait and that hetsched knows by their AdminComment."""
        ...

    def gpu_jobs(self) -> list[GpuJob]:
        """Return the jobs with GPUs that wait, run, or have ended well a short while ago."""
        ...

    def site_factors(self) -> dict[int, int]:
        """Return the site factors of the jobs that wait, where Slurm reckons priorities for them."""
        ...

    def order_by(self, job_id: int, site_factor: int) -> None:
        """Set the site factor of a pending job."""
        ...

    def exclude(self, job_id: int, nodes: Collection[str]) -> None:
        """Set the excluded nodes of a pending job."""
        ...

    def in_prolog(self) -> dict[int, int]:
        """Return the jobs whose prolog runs on their nodes, with their start (seconds since the epoch)."""
        ...

    def requeue(self, job_id: int) -> None:
        """Put a batch job back into the queue."""
        ...

    def cancel(self, job_id: int) -> None:
        """Cancel a job."""
        ...

    def update(self, job_id: int, fields: Mapping[str, str]) -> None:
        """Set fields of a job by scontrol's names; an empty value clears."""
        ...


class SlurmGateway:
    """The real Slurm, asked by worker processes.

    Raises `SlurmError` when no slurm.conf or no pyslurm can be found.
    """

    def __init__(self, conf: str = "", command_timeout_s: float = 10.0) -> None:
        self._workers = Workers(partial(DirectSlurm, find_conf(conf), command_timeout_s), command_timeout_s)

    def version(self) -> str:
        """Return the version of the Slurm that answers."""
        return str(self._workers.call("version"))

    def nodes(self) -> list[RawNode]:
        """Return all nodes."""
        return list(self._workers.call("nodes"))

    def partitions(self) -> list[RawPartition]:
        """Return all partitions."""
        return list(self._workers.call("partitions"))

    def jobs(self, job: str) -> list[AllocatedJob]:
        """Return the job that ``job`` names, with all its elements; all jobs for ""; none where it is not known."""
        return list(self._workers.call("jobs", job))

    def pending(self) -> list[PendingJob]:
        """Return the jobs that wait and that hetsched knows by their AdminComment."""
        return list(self._workers.call("pending"))

    def gpu_jobs(self) -> list[GpuJob]:
        """Return the jobs with GPUs that wait, run, or have ended well a short while ago."""
        return list(self._workers.call("gpu_jobs"))

    def site_factors(self) -> dict[int, int]:
        """Return the site factors of the jobs that wait, where Slurm reckons priorities for them."""
        return dict(self._workers.call("site_factors"))

    def order_by(self, job_id: int, site_factor: int) -> None:
        """Set the site factor of a pending job."""
        self._workers.call("order_by", job_id, site_factor)

    def exclude(self, job_id: int, nodes: Collection[str]) -> None:
        """Set the excluded nodes of a pending job."""
        self._workers.call("exclude", job_id, list(nodes))

    def in_prolog(self) -> dict[int, int]:
        """Return the jobs whose prolog runs on their nodes, with their start (seconds since the epoch)."""
        return dict(self._workers.call("in_prolog"))

    def requeue(self, job_id: int) -> None:
        """Put a batch job back into the queue."""
        self._workers.call("requeue", job_id)

    def cancel(self, job_id: int) -> None:
        """Cancel a job."""
        self._workers.call("cancel", job_id)

    def update(self, job_id: int, fields: Mapping[str, str]) -> None:
        """Set fields of a job by scontrol's names; an empty value clears."""
        self._workers.call("update", job_id, dict(fields))

    def close(self) -> None:
        """End the worker processes."""
        self._workers.close()
