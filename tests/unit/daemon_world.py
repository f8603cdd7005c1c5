"""The daemon's parts on a simulated Slurm and simulated nodes: it can die at any write and come back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from simulated_slurm import SimulatedSlurm

from pyhetsched.clock import ManualClock
from pyhetsched.config import Config, parse
from pyhetsched.daemon import auth
from pyhetsched.daemon.allocator import Allocator
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.giveback import GiveBack
from pyhetsched.daemon.hook_server import Hooks
from pyhetsched.daemon.housekeeping import Housekeeping
from pyhetsched.daemon.journal import Journal
from pyhetsched.daemon.node_service import NodeService
from pyhetsched.daemon.reconciler import Reconciler
from pyhetsched.daemon.tracker import Tracker
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.errors import SlurmError, StoreError
from pyhetsched.model import Decision, Mode, Reservation
from pyhetsched.rpc.gen import hook_pb2, services_pb2
from pyhetsched.rpc.munge import Credential
from pyhetsched.store.database import Database
from pyhetsched.store.decisions import DecisionStore
from pyhetsched.store.recorder import Recorder
from pyhetsched.store.reservations import ExclusionStore, NodeReportStore, ReservationStore

GPUS = 2


class Died(BaseException):
    """The daemon was killed; nothing catches this."""


class CallFailed(Exception):
    """What a client gets of an aborted call."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code


class _Context:
    def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise CallFailed(code, text)


class _Credentials:
    """Signs and believes everything."""

    def encode(self, payload: bytes) -> str:
        return payload.hex()

    def decode(self, credential: str) -> Credential:
        return Credential(0, 0, bytes.fromhex(credential))


@dataclass
class Deadly:
    """Where the daemon dies: at transaction number ``at`` (from 0), ``after`` it or before; or the database fails.

    The database is ``full`` until further notice, or for three transactions ``full_from`` on.
    """

    at: int = -1
    after: bool = False
    full: bool = False
    full_from: int = 1_000_000
    writes: int = 0
    dead: bool = False

    def wrap(self, database: Database) -> None:
        real = database.transaction

        @contextlib.contextmanager
        def transaction() -> Iterator[Any]:
            if self.dead:
                raise Died
            if self.full:
                raise StoreError("the database is full")
            number, self.writes = self.writes, self.writes + 1
            if self.full_from <= number < self.full_from + 3:
                raise StoreError("the database is full")
            if number == self.at and not self.after:
                self.dead = True
                raise Died
            with real() as connection:
                yield connection
            if number == self.at:
                self.dead = True
                raise Died

        database.transaction = transaction  # type: ignore[method-assign]


@dataclass
class Running:
    """The parts of one daemon process."""

    slurm: SimulatedSlurm
    url: str
    clock: ManualClock
    config: Config
    deadly: Deadly = field(default_factory=Deadly)

    def __post_init__(self) -> None:
        self.database = Database(self.url)
        self.deadly.wrap(self.database)
        decisions = DecisionStore(self.database)
        self.reservations = ReservationStore(self.database)
        self.decisions: list[Decision] = []
        recorder = Recorder(decisions, 1000)
        recorder.listeners.append(self.decisions.append)
        journal = Journal(recorder, self.clock)
        slurm, config, clock = self.slurm, self.config, self.clock
        self.watcher = Watcher(slurm, NodeReportStore(self.database), config, clock)
        with contextlib.suppress(SlurmError):
            self.watcher.refresh()
        self.book = Book(self.reservations, clock)
        self.giveback = GiveBack(slurm, ExclusionStore(self.database), config.allocation, clock)
        self.allocator = Allocator(
            slurm, self.book, self.watcher, self.giveback, decisions, journal, config.allocation, clock
        )
        tracker = Tracker(self.allocator, self.book, self.giveback, decisions, journal)
        no_submit: Any = None  # the rules of submit are not at stake here
        root = auth.Caller(0, "root", True, True)
        self.hooks = Hooks(no_submit, self.allocator, tracker, lambda: Mode.ENFORCE, lambda uid: root, self.clock)
        self.node = NodeService(
            self.book, self.allocator, self.giveback, self.watcher, Reconciler(self.book, self.allocator, journal),
            journal, _Credentials(), lambda: Mode.ENFORCE, clock,
        )  # fmt: skip
        self.housekeeping = Housekeeping(
            slurm, self.allocator, self.book, self.giveback, decisions, self.reservations, config, clock
        )

    def allocate(self, job_id: int, node: str = "node0") -> int:
        """What PrologSlurmctld asks; returns the action, 0 where the daemon has failed (the hook then goes on)."""
        request = hook_pb2.AllocateRequest(job_id=job_id, node_list=node)
        reply = self.hooks.answer(hook_pb2.HookRequest(version=1, allocate=request))
        return int(reply.allocate.action)

    def finish(self, job_id: int) -> None:
        """What EpilogSlurmctld tells."""
        self.hooks.answer(hook_pb2.HookRequest(version=1, finish=hook_pb2.FinishRequest(job_id=job_id)))

    def call(self, name: str, request: Any, reply: Any) -> Any:
        """Make one call of a node as root; raises `CallFailed`."""
        request.nonce = b"n" * 32
        token = auth._caller.set(auth.Caller(0, "root", True, True))
        try:
            signed = getattr(self.node, name)(request, _Context())
        finally:
            auth._caller.reset(token)
        reply.ParseFromString(signed.body)
        return reply


class World:
    """One cluster whose daemon can die."""

    def __init__(self, folder: Path, nodes: tuple[str, ...] = ("node0", "node1")) -> None:
        self.slurm = SimulatedSlurm(nodes)
        self.clock = ManualClock(1_000_000.0)
        self.config = parse('[gpus.a100]\nmodel = "A100-80GB"\n[slurm]\nuser = "root"\n')
        self._url = f"sqlite:///{folder}/hetsched.db"
        self.deadly = Deadly()
        self.daemon = self._start()
        self.nodes = {name: SimulatedNode(name, self) for name in nodes}

    def restart(self) -> None:
        """A new daemon on the same database, as after kill -9."""
        self.daemon.database.close()
        self.deadly = Deadly()
        self.daemon = self._start()

    def _start(self) -> Running:
        return Running(self.slurm, self._url, self.clock, self.config, self.deadly)


class SimulatedNode:
    """The node's side, reduced to what it tells the daemon: instances by place, and records by job."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self._world = world
        self.made: dict[tuple[int, int], services_pb2.SlicePlan] = {}
        self.records: dict[int, list[services_pb2.SlicePlan]] = {}
        self.mig_mode = "on"

    def prepare(self, job_id: int) -> services_pb2.PreparePlan:
        """Ask what to make for a job."""
        request = services_pb2.PrepareRequest(node=self.name, job_id=job_id, uid=1001)
        plan: services_pb2.PreparePlan = self._call("Prepare", request, services_pb2.PreparePlan())
        return plan

    def make(self, plan: services_pb2.PreparePlan) -> None:
        """Make what the plan says; a place that is taken is a bug of the daemon."""
        for item in plan.slices:
            for start in range(item.start, item.start + item.size):
                taken = [key for key, other in self.made.items() if key[0] == item.gpu_index
                         and other.start <= start < other.start + other.size]  # fmt: skip
                assert not taken, f"job {plan.job_id}: {item.profile} at {item.start} is taken"
            self.made[item.gpu_index, item.start] = item
        self.records[plan.job_id] = list(plan.slices)

    def report(self, job_id: int, state: str, plans: list[services_pb2.SlicePlan] | None = None) -> None:
        """Tell what became of a job's slices."""
        slices = [
            services_pb2.SliceReport(
                reservation_id=item.reservation_id, state=state, mig_uuid=f"MIG-{item.start}", gi_id=1
            )
            for item in (self.records.get(job_id, []) if plans is None else plans)
        ]
        request = services_pb2.ReportRequest(node=self.name, job_id=job_id, slices=slices)
        self._call("Report", request, services_pb2.Ack())

    def unmake(self, job_id: int) -> list[services_pb2.SlicePlan]:
        """Destroy what was made for a job and forget it; return what it was."""
        gone = self.records.pop(job_id, [])
        for item in gone:
            self.made.pop((item.gpu_index, item.start), None)
        return gone

    def inventory(self) -> services_pb2.GpuInventory:
        """The node as it is now."""
        gpus = []
        for index in range(GPUS):
            slices = [services_pb2.Slice(profile=i.profile, start=i.start, size=i.size, uuid=f"MIG-{i.start}", gi_id=1)
                      for (gpu, _), i in self.made.items() if gpu == index]  # fmt: skip
            gpus.append(services_pb2.Gpu(index=index, model="A100-80GB", mig_mode=self.mig_mode, slices=slices))
        return services_pb2.GpuInventory(gpus=gpus, boot_id="b")

    def reconcile(
        self, booted: bool = False, inventory: services_pb2.GpuInventory | None = None
    ) -> services_pb2.ReconcilePlan:
        """Compare with the daemon and destroy what it names."""
        request = services_pb2.ReconcileRequest(
            node=self.name, inventory=inventory or self.inventory(), booted=booted, running_job_ids=list(self.records)
        )
        plan: services_pb2.ReconcilePlan = self._call("Reconcile", request, services_pb2.ReconcilePlan())
        claimed = {(item.gpu_index, item.start) for items in self.records.values() for item in items}
        for named in plan.destroy:
            for key, item in list(self.made.items()):
                if (item.profile, item.start) == (named.profile, named.start) and key not in claimed:
                    del self.made[key]
        return plan

    def _call(self, name: str, request: Any, reply: Any) -> Any:
        return self._world.daemon.call(name, request, reply)


def states(reservations: list[Reservation]) -> list[str]:
    """The states of reservations."""
    return [item.state.value for item in reservations]
