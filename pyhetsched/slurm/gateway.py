"""What hetsched asks of Slurm and tells it: the one place where pyslurm is imported.

pyslurm ends the process when no slurm.conf can be found, so it is imported when the gateway is made, after
looking for one. Two things go through ``scontrol``: the GPUs of an allocation, for which pyslurm has no safe
call on Slurm 26.05, and updates that clear a field, which pyslurm does not pass on.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pyhetsched.errors import DataError, SlurmError
from pyhetsched.slurm.allocation import AllocatedJob, parse_show_job
from pyhetsched.slurm.hosts import expand
from pyhetsched.slurm.snapshot import RawNode, RawPartition

_CONF_PLACES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


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
    """The real Slurm. Raises `SlurmError` when no slurm.conf or no pyslurm can be found."""

    def __init__(self, conf: str = "", command_timeout_s: float = 10.0) -> None:
        self._timeout_s = command_timeout_s
        path = conf or os.environ.get("SLURM_CONF") or next((p for p in _CONF_PLACES if Path(p).exists()), "")
        if not path or not Path(path).exists():
            places = ", ".join(_CONF_PLACES)
            raise SlurmError("slurm.conf", f"not found ({path or places}); set slurm.conf in hetsched.toml")
        os.environ["SLURM_CONF"] = path
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
        done = self._command("scontrol", "show", "job", *([job] if job else []), "-d", "--json")
        try:
            found = parse_show_job(json.loads(done.stdout))
        except (json.JSONDecodeError, DataError) as error:
            if done.returncode:
                return self._no_jobs(done.stderr)
            raise SlurmError("scontrol show job", str(error)) from error
        if not found and done.returncode:
            return self._no_jobs(done.stderr)
        return found

    def requeue(self, job_id: int) -> None:
        """Put a batch job back into the queue."""
        self._call("Job.requeue", self._pyslurm.Job(job_id).requeue)

    def cancel(self, job_id: int) -> None:
        """Cancel a job."""
        self._call("Job.cancel", self._pyslurm.Job(job_id).cancel)

    def update(self, job_id: int, fields: Mapping[str, str]) -> None:
        """Set fields of a job by scontrol's names; an empty value clears."""
        words = [f"{key}={value}" for key, value in fields.items()]
        done = self._command("scontrol", "update", f"JobId={job_id}", *words)
        if done.returncode:
            raise SlurmError("scontrol update", (done.stderr or done.stdout).strip())

    def _no_jobs(self, text: str) -> list[AllocatedJob]:
        if "Invalid job id" in text:
            return []
        raise SlurmError("scontrol show job", text.strip() or "failed without a word")

    def _call(self, name: str, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._pyslurm.RPCError as error:
            raise SlurmError(name, str(error), int(getattr(error, "errno", 0) or 0)) from error

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(words, capture_output=True, text=True, timeout=self._timeout_s, check=False,
                                  stdin=subprocess.DEVNULL)  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise SlurmError(" ".join(words[:3]), f"no answer within {self._timeout_s:g} s") from error
        except OSError as error:
            raise SlurmError(words[0], f"cannot be run: {error.strerror}") from error


def _minutes(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
