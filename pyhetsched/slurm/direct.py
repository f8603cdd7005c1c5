"""Slurm, asked from this very process: the one place where pyslurm is imported.

A call of pyslurm holds the interpreter's lock until slurmctld answers, so the serving side of the daemon never makes
one: it asks its workers (`pyhetsched.slurm.workers`). pyslurm ends the process when no slurm.conf can be found, so it
is imported when `DirectSlurm` is made, after looking for one. What concerns the GPUs of an allocation, for which
pyslurm has no safe call on Slurm 26.05, and updates that clear a field, which it does not pass on, go through
Slurm's commands.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pyhetsched.errors import SlurmError
from pyhetsched.slurm import commands
from pyhetsched.slurm.admin_comment import PREFIX
from pyhetsched.slurm.allocation import AllocatedJob
from pyhetsched.slurm.gpu_jobs import GpuJob, gpu_job
from pyhetsched.slurm.hosts import expand, fold
from pyhetsched.slurm.snapshot import PendingJob, RawNode, RawPartition

_CONF_PLACES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


def find_conf(conf: str = "") -> str:
    """Return the path of slurm.conf: ``conf``, $SLURM_CONF or a usual place; raises `SlurmError` without one."""
    path = conf or os.environ.get("SLURM_CONF") or next((p for p in _CONF_PLACES if Path(p).exists()), "")
    if not path or not Path(path).exists():
        places = ", ".join(_CONF_PLACES)
        raise SlurmError("slurm.conf", f"not found ({path or places}); set slurm.conf in hetsched.toml")
    return path


class DirectSlurm:
    """The real Slurm; a `pyhetsched.slurm.gateway.Gateway`.

    Raises `SlurmError` when no slurm.conf or no pyslurm can be found.
    """

    def __init__(self, conf: str = "", command_timeout_s: float = 10.0) -> None:
        self._timeout_s = command_timeout_s
        os.environ["SLURM_CONF"] = find_conf(conf)
        try:
            import pyslurm
        except ImportError as error:
            raise SlurmError("pyslurm", f"cannot be imported ({error}); see docs/install.md") from error
        self._pyslurm = pyslurm

    def version(self) -> str:
        """Return the version of the Slurm that answers."""
        return str(self._call("Config.load", self._pyslurm.slurmctld.Config.load).version)

    def nodes(self) -> list[RawNode]:
        """Return all nodes."""
        loaded = self._call("Nodes.load", self._pyslurm.Nodes.load)
        return [
            RawNode(
                name=node.name,
                state=str(node.state or "UNKNOWN"),
                features=tuple(node.active_features or ()),
                gres={str(k): int(v) for k, v in (node.configured_gres or {}).items()},
                gres_used={str(k): int(v) for k, v in (node.allocated_gres or {}).items()},
                partitions=tuple(node.partitions or ()),
                cpus=int(node.total_cpus or 0),
                memory_mib=int(node.real_memory or 0),
            )
            for node in loaded.values()
        ]

    def partitions(self) -> list[RawPartition]:
        """Return all partitions."""
        loaded = self._call("Partitions.load", self._pyslurm.Partitions.load)
        return [
            RawPartition(p.name, expand(p.nodes or ""), bool(p.is_default), _minutes(p.max_time))
            for p in loaded.values()
        ]

    def jobs(self, job: str) -> list[AllocatedJob]:
        """Return the job that ``job`` names, with all its elements; all jobs for "".

        The list is empty where Slurm knows the job no more.
        """
        return commands.show_jobs(job, self._timeout_s)

    def pending(self) -> list[PendingJob]:
        """Return the jobs that wait and that hetsched knows by their AdminComment."""
        loaded = self._call("Jobs.load", self._pyslurm.Jobs.load)
        return [
            PendingJob(
                job_id=int(job.id),
                admin_comment=job.admin_comment or "",
                priority=int(job.priority or 0),
                partitions=tuple((job.partition or "").split(",")),
                reason=str(job.state_reason or ""),
                excluded_nodes=_hostlist(job.excluded_nodes),
                required_nodes=_hostlist(job.required_nodes),
                array=bool(job.array_tasks_waiting),
            )
            for job in loaded.values()
            if job.state == "PENDING" and PREFIX in (job.admin_comment or "")
        ]

    def gpu_jobs(self) -> list[GpuJob]:
        """Return the jobs with GPUs that wait, run, or have ended well a short while ago."""
        loaded = self._call("Jobs.load", self._pyslurm.Jobs.load)
        return [found for job in loaded.values() if (found := gpu_job(job)) is not None]

    def site_factors(self) -> dict[int, int]:
        """Return the site factors of the jobs that wait, where Slurm reckons priorities for them."""
        return commands.site_factors(self._timeout_s)

    def order_by(self, job_id: int, site_factor: int) -> None:
        """Set the site factor of a pending job."""
        if not site_factor:
            # pyslurm takes 0 for "not given".
            self.update(job_id, {"SiteFactor": "0"})
            return
        description = self._pyslurm.JobSubmitDescription(site_factor=site_factor)
        self._call("Job.modify", self._pyslurm.Job(job_id).modify, description)

    def exclude(self, job_id: int, nodes: Collection[str]) -> None:
        """Set the excluded nodes of a pending job."""
        if not nodes:
            self.update(job_id, {"ExcNodeList": ""})
            return
        description = self._pyslurm.JobSubmitDescription(excluded_nodes=fold(nodes))
        self._call("Job.modify", self._pyslurm.Job(job_id).modify, description)

    def in_prolog(self) -> dict[int, int]:
        """Return the jobs whose prolog runs on their nodes, with their start (seconds since the epoch)."""
        return commands.jobs_in_prolog(self._timeout_s)

    def requeue(self, job_id: int) -> None:
        """Put a batch job back into the queue."""
        self._call("Job.requeue", self._pyslurm.Job(job_id).requeue)

    def cancel(self, job_id: int) -> None:
        """Cancel a job."""
        self._call("Job.cancel", self._pyslurm.Job(job_id).cancel)

    def update(self, job_id: int, fields: Mapping[str, str]) -> None:
        """Set fields of a job by scontrol's names; an empty value clears."""
        commands.update_job(job_id, dict(fields), self._timeout_s)

    def _call(self, name: str, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._pyslurm.RPCError as error:
            raise SlurmError(name, str(error), int(getattr(error, "errno", 0) or 0)) from error


def _hostlist(value: Any) -> str:
    """pyslurm gives a host list as text or as a list of names, by version."""
    return fold(value) if isinstance(value, list | tuple) else str(value or "")


def _minutes(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
