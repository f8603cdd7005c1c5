"""Slurm in memory, as far as the daemon talks to it: jobs with GPUs, requeues, updates, and outages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyhetsched.errors import SlurmError
from pyhetsched.model import JobAsk, SliceAsk
from pyhetsched.slurm.admin_comment import encode
from pyhetsched.slurm.allocation import AllocatedJob, NodeAllocation
from pyhetsched.slurm.snapshot import RawNode, RawPartition


@dataclass
class SimulatedSlurm:
    """Implements `pyhetsched.slurm.gateway.Gateway`. ``down`` makes every call fail as a dead slurmctld does.

    ``refuse`` names calls that fail with a text, as Slurm refuses an update of a job that has ended.
    """

    node_names: tuple[str, ...] = ("node0", "node1")
    down: bool = False
    refuse: dict[str, str] = field(default_factory=dict)
    known: dict[int, AllocatedJob] = field(default_factory=dict)
    updates: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    requeued: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)

    # What the daemon calls

    def version(self) -> str:
        self._answer("version")
        return "26.05.5"

    def nodes(self) -> list[RawNode]:
        self._answer("nodes")
        gres = {"gpu:a100": 2, "shard:a100": 62}
        return [RawNode(name, "IDLE", ("a100", "mig"), gres, {}, ("gpu",), 64, 262144) for name in self.node_names]

    def partitions(self) -> list[RawPartition]:
        self._answer("partitions")
        return [RawPartition("gpu", self.node_names, True)]

    def jobs(self, job: str) -> list[AllocatedJob]:
        self._answer("jobs")
        return [item for item in self.known.values() if job in ("", str(item.job_id))]

    def in_prolog(self) -> dict[int, int]:
        self._answer("in_prolog")
        return {job.job_id: int(job.start_s) for job in self.known.values() if job.reason == "Prolog"}

    def requeue(self, job_id: int) -> None:
        self._answer("requeue")
        self.requeued.append(job_id)
        self._to_queue(job_id)

    def cancel(self, job_id: int) -> None:
        self._answer("cancel")
        self.cancelled.append(job_id)
        self.end(job_id, "CANCELLED")

    def update(self, job_id: int, fields: Mapping[str, str]) -> None:
        self._answer("update")
        self.updates.append((job_id, dict(fields)))
        if "ExcNodeList" in fields and job_id in self.known:
            self._change(job_id, excluded_nodes=fields["ExcNodeList"])

    # What happens in Slurm

    def submit(self, job_id: int, *profiles: str, shards: int, batch: bool = True) -> None:
        """A job that may have one slice of each of ``profiles``, waiting."""
        slices = tuple(SliceAsk(profile, 1) for profile in profiles)
        ask = JobAsk("slices", slices, model_keys=("A100-80GB",), shards=shards)
        self.known[job_id] = AllocatedJob(
            job_id, str(job_id), "job", "alice", 1001, "PENDING", partition="gpu", batch=batch,
            admin_comment=encode(f"{job_id:016x}", ask),
        )  # fmt: skip

    def allocate(self, job_id: int, node: str = "node0", gpu: int = 0, shards: int = 4) -> None:
        """Slurm gives the job shards of one GPU; its prologs are next."""
        nodes = (NodeAllocation(node, (), {gpu: shards}),)
        self._change(job_id, state="CONFIGURING", reason="Prolog", node_list=node, nodes=nodes)

    def run(self, job_id: int) -> None:
        """The job's prologs are through."""
        self._change(job_id, state="RUNNING", reason="None")

    def end(self, job_id: int, state: str = "COMPLETED") -> None:
        """The job and its epilogs are over."""
        if job_id in self.known:
            self._change(job_id, state=state)

    def forget(self, job_id: int) -> None:
        """Slurm knows the job no more (MinJobAge)."""
        del self.known[job_id]

    def _to_queue(self, job_id: int) -> None:
        count = self.known[job_id].restart_count + 1
        self._change(job_id, state="PENDING", restart_count=count, node_list="", nodes=())

    def _change(self, job_id: int, **fields: object) -> None:
        self.known[job_id] = dataclasses.replace(self.known[job_id], **fields)  # type: ignore[arg-type]

    def _answer(self, call: str) -> None:
        if self.down:
            raise SlurmError(call, "Unable to contact slurm controller (connect failure)")
        if call in self.refuse:
            raise SlurmError(call, self.refuse[call])
