"""The daemon's parts, put together, started, reloaded and stopped."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pyhetsched.clock import Clock
from pyhetsched.config import Config
from pyhetsched.daemon.allocator import Allocator
from pyhetsched.daemon.auth import Authenticator, uid_of
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.explain import Explainer
from pyhetsched.daemon.giveback import GiveBack
from pyhetsched.daemon.gpu_map import GpuMap
from pyhetsched.daemon.hook_server import Hooks, HookServer
from pyhetsched.daemon.housekeeping import Housekeeping
from pyhetsched.daemon.journal import Journal
from pyhetsched.daemon.metrics import Figures, serve
from pyhetsched.daemon.modes import Modes
from pyhetsched.daemon.node_service import NodeService
from pyhetsched.daemon.policy_service import PolicyService
from pyhetsched.daemon.pools import Pools
from pyhetsched.daemon.reconciler import Reconciler
from pyhetsched.daemon.rounds import Rounds
from pyhetsched.daemon.services import ControlService, MigService, PlacementService, SubmitService
from pyhetsched.daemon.steerer import Steerer
from pyhetsched.daemon.submitter import Submitter
from pyhetsched.daemon.tracker import Tracker
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.errors import ConfigError
from pyhetsched.rpc.gen import services_pb2, services_pb2_grpc
from pyhetsched.rpc.identity import Credentials
from pyhetsched.slurm.gateway import Gateway
from pyhetsched.store.database import Database
from pyhetsched.store.decisions import DecisionStore
from pyhetsched.store.recorder import Recorder
from pyhetsched.store.reservations import ExclusionStore, ModeStore, NodeReportStore, ReservationStore

log = logging.getLogger(__name__)

_STOP_S = 5.0
_FIRST_LOOK_S = 2.0
_FLUSH_S = 0.5


class Daemon:
    """hetschedd: made of its parts, with everything that touches the world handed in."""

    def __init__(self, config: Config, gateway: Gateway, credentials: Credentials, clock: Clock) -> None:
        self.config = config
        self._database = Database(config.store_url)
        decisions = DecisionStore(self._database)
        reservations = ReservationStore(self._database)
        self._recorder = Recorder(decisions, config.store.queue_length)
        journal = Journal(self._recorder, clock)
        self._watcher = Watcher(gateway, NodeReportStore(self._database), config, clock)
        self._book = Book(reservations, clock)
        self._giveback = GiveBack(gateway, ExclusionStore(self._database), config.allocation, clock)
        self._allocator = Allocator(
            gateway, self._book, self._watcher, self._giveback, decisions, journal, config.allocation, clock
        )
        self._tracker = Tracker(self._allocator, self._book, self._giveback, decisions, journal)
        self._modes = Modes(ModeStore(self._database), config.mode)
        self._steerer = Steerer(self._watcher, self._book, self._allocator, self._giveback, config, clock)
        self._submitter = Submitter(self._watcher, self._steerer, self._modes, journal, config, clock)
        self._authenticator = Authenticator(credentials, config)
        self._housekeeping = Housekeeping(
            gateway, self._allocator, self._book, self._giveback, decisions, reservations, config, clock
        )
        enabled = self._modes.cluster
        hooks = Hooks(
            self._submitter, self._allocator, self._tracker, enabled, self._authenticator.identify, clock
        )
        self._repeated = hooks.repeated
        self._steerer.on_seen = hooks.repeated.used
        self._allocator.on_seen = lambda decision_id: hooks.repeated.used((decision_id,))
        self._hook_server = HookServer(config.daemon.hook_socket, hooks, {0, uid_of(config.slurm.user), os.geteuid()})
        node = NodeService(
            self._book, self._allocator, self._giveback, self._watcher,
            Reconciler(self._book, self._allocator, journal), journal, credentials, enabled, clock,
        )  # fmt: skip
        node.before_release = self._steerer.plan_now
        self._pools = Pools(
            self._watcher, self._book, journal, decisions, config, clock, lambda: self._steerer.waiting
        )
        self._steerer.pools = node.pools = self._pools
        self._rounds = Rounds(self._watcher, self._modes, journal, config)
        gpu_map = GpuMap(self._watcher, self._book, self._allocator.holdings, self._pools)
        self._server = grpc.server(
            ThreadPoolExecutor(config.daemon.threads, "grpc"), interceptors=[self._authenticator]
        )
        explainer = Explainer(gateway, self._allocator, decisions, reservations)
        explainer.on_seen = self._record_used
        placement = PlacementService(explainer, decisions, journal)
        control = ControlService(
            self._watcher, self._book, self._modes, self._submitter, self._allocator, journal, clock
        )
        control.pools = self._pools
        add: Any = services_pb2_grpc
        add.add_SubmitServicer_to_server(SubmitService(self._submitter), self._server)
        add.add_PlacementServicer_to_server(placement, self._server)
        add.add_MigServicer_to_server(MigService(gpu_map, self._book, reservations, self._pools), self._server)
        add.add_NodeServicer_to_server(node, self._server)
        add.add_ControlServicer_to_server(control, self._server)
        add.add_PolicyServicer_to_server(PolicyService(self._rounds, journal), self._server)
        self._figures = Figures(self._watcher, self._book, self._submitter, self._allocator, journal)
        self._health = health.HealthServicer(experimental_non_blocking=False)
        self._add_health_and_reflection()

    def start(self) -> None:
        """Bind and serve; raises `ConfigError` for an address that cannot be bound."""
        threading.Thread(target=self._watcher.run, name="watcher", daemon=True).start()
        self._watcher.wait_first(_FIRST_LOOK_S)
        self._submitter.warm_up()
        socket = self.config.daemon.socket
        Path(socket).unlink(missing_ok=True)
        for address in (f"unix:{socket}", *self.config.daemon.listen):
            try:
                self._server.add_insecure_port(address)
            except RuntimeError as error:
                raise ConfigError(f"cannot listen on {address}: {error}") from error
        if self.config.daemon.metrics_listen:
            serve(self.config.daemon.metrics_listen, self._figures)
        self._recorder.start()
        self._tracker.start()
        for name, run in (
            ("housekeeping", self._housekeeping.run), ("steerer", self._steerer.run),
            ("pool", self._pools.run), ("rounds", self._rounds.run),
        ):  # fmt: skip
            threading.Thread(target=run, name=name, daemon=True).start()
        self._server.start()
        # Everybody may knock: who may see what is decided by the credential of each call.
        os.chmod(socket, 0o666)
        threading.Thread(target=self._hook_server.run, name="hook-server", daemon=True).start()

    def alive(self) -> bool:
        """Whether the parts that must run do."""
        return self._recorder.alive()

    def reload(self, config: Config) -> None:
        """Take over a new configuration; raises `ConfigError` and keeps the old one if it cannot be used.

        Addresses, the database and the state directory are only read at start.
        """
        self._authenticator.set_config(config)
        self.config = config
        self._watcher.config = config
        self._submitter.config = config
        self._steerer.config = config
        self._housekeeping.config = config
        self._pools.config = config
        self._rounds.take(config)
        self._modes.config = config.mode
        self._allocator.config = config.allocation
        self._giveback.config = config.allocation
        self._watcher.poke()
        self._steerer.poke()

    def stop(self) -> None:
        """Stop serving, write what is left, close the database."""
        self._hook_server.stop()
        self._server.stop(_STOP_S).wait(_STOP_S)
        self._watcher.stop()
        self._steerer.stop()
        self._housekeeping.stop()
        self._pools.stop()
        self._rounds.stop()
        self._recorder.stop(_STOP_S)
        self._database.close()
        Path(self.config.daemon.socket).unlink(missing_ok=True)

    def _record_used(self, decision_id: str) -> None:
        """Record a decision that was given ahead, now that somebody wants to read it."""
        if self._repeated.used((decision_id,)):
            self._recorder.flush(_FLUSH_S)

    def _add_health_and_reflection(self) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        services = [f"hetsched.v1.{name}" for name in services_pb2.DESCRIPTOR.services_by_name]
        for name in ("", *services):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
