"""The daemon's picture of the cluster: refreshed in its own thread, read without waiting."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from pyhetsched.clock import Clock
from pyhetsched.config import Config
from pyhetsched.errors import HetschedError, RequestError
from pyhetsched.mig.profiles import GpuModel
from pyhetsched.model import ClusterView, GpuReport, NodeView
from pyhetsched.slurm.gateway import Gateway
from pyhetsched.slurm.hosts import expand
from pyhetsched.slurm.snapshot import RawNode, RawPartition, build_view, gpu_models
from pyhetsched.store.reservations import NodeReport, NodeReportStore

log = logging.getLogger(__name__)

# How long a Slurm that does not answer is left alone.
_AGAIN_S = 1.0


class Watcher:
    """Keeps the newest `ClusterView`; nothing here is ever asked of Slurm while a submit waits.

    slurmctld holds its locks while the plugin asks us, so a question back to it would wait for ourselves.
    """

    def __init__(self, gateway: Gateway, reports: NodeReportStore, config: Config, clock: Clock) -> None:
        self._gateway = gateway
        self._store = reports
        self._clock = clock
        self.config = config
        self._reports = {report.node: report for report in reports.all()}
        self._raw: dict[str, RawNode] = {}
        self._partitions: tuple[RawPartition, ...] = ()
        self._as_of_s = 0.0
        self._view = ClusterView(mig_feature=config.slurm.mig_feature, whole_feature=config.slurm.whole_feature)
        self._standing = self._view
        self.listeners: list[Callable[[], None]] = []
        self._wake = threading.Event()
        self._seen = threading.Event()
        self._stopping = False
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self.failing = "Slurm has not been asked yet"
        self.slurm_version = ""

    @property
    def view(self) -> ClusterView:
        """The cluster as of the last successful refresh."""
        return self._view

    @property
    def standing_view(self) -> ClusterView:
        """The first of the latest views that are equal: what was decided on it holds as long as it stands."""
        return self._standing

    def require(self, names: Iterable[str]) -> None:
        """Take a picture now if one of these nodes is not in it yet; raises `SlurmError`.

        A daemon that has just started must not take a node that it has not seen for one without GPUs.
        """
        names = tuple(names)
        if any(self.node(name) is None for name in names):
            with self._asking:
                if any(self.node(name) is None for name in names):
                    self.refresh()

    def node(self, name: str) -> NodeView | None:
        """Return one node of the view."""
        return next((node for node in self._view.nodes if node.name == name), None)

    def raw(self, name: str) -> RawNode | None:
        """Return one node as Slurm reported it."""
        return self._raw.get(name)

    def report(self, name: str) -> NodeReport | None:
        """Return what a node last said of itself."""
        return self._reports.get(name)

    def offered(self, name: str) -> dict[int, GpuModel]:
        """Return the GPUs of a node on which Slurm offers shards, by Slurm's index, whatever their mode is."""
        node = self.node(name)
        return gpu_models(node) if node else {}

    def mig_gpus(self, name: str) -> dict[int, GpuModel]:
        """Return the GPUs of a node that are in MIG mode, by Slurm's index.

        A node's own report overrules Slurm's shards where it says that the mode is off.
        """
        found = self.offered(name)
        report = self._reports.get(name)
        if report is None:
            return found
        off = {gpu.index for gpu in report.gpus if gpu.mig_mode in ("off", "none", "pending-on")}
        return {index: model for index, model in found.items() if index not in off}

    def note_report(self, report: NodeReport) -> None:
        """Take in what a node says of its GPUs; raises `StoreError` if it cannot be kept."""
        self._store.save(report)
        with self._lock:
            self._reports = {**self._reports, report.node: report}
            self._rebuild()

    def refresh(self) -> None:
        """Ask Slurm now; raises `SlurmError`."""
        if not self.slurm_version:
            self.slurm_version = self._gateway.version()
        nodes, partitions = self._gateway.nodes(), self._gateway.partitions()
        with self._lock:
            self._raw = {node.name: node for node in nodes}
            self._partitions = tuple(partitions)
            self._as_of_s = self._clock.now_s()
            self._rebuild()

    def wait_first(self, at_most_s: float) -> None:
        """Wait for the first picture, but not for long: slurmctld may be starting, and nothing of it waits for us."""
        self._seen.wait(at_most_s)

    def run(self) -> None:
        """Refresh until `stop`; a Slurm that does not answer is waited for."""
        while not self._stopping:
            try:
                self.refresh()
                if self.failing:
                    log.info("slurmctld answers")
                self.failing = ""
                self._seen.set()
            except HetschedError as error:
                if self.failing != str(error):
                    log.warning("slurmctld does not answer, keeping the last picture: %s", error)
                self.failing = str(error)
            except Exception:  # noqa: BLE001 - a bug met in one picture must not stop the next from being taken
                log.exception("the picture of the cluster could not be made")
                self.failing = "the picture of the cluster could not be made; see the log"
            period_s = self.config.slurm.snapshot_s
            self._wake.wait(min(period_s, _AGAIN_S) if self.failing else period_s)
            self._wake.clear()

    def poke(self) -> None:
        """Refresh soon."""
        self._wake.set()

    def stop(self) -> None:
        """End `run`."""
        self._stopping = True
        self._wake.set()

    def _rebuild(self) -> None:
        reports: dict[str, Sequence[GpuReport]] = {name: report.gpus for name, report in self._reports.items()}
        models = {gres_type: entry.model for gres_type, entry in self.config.gpus.items()}
        slurm, nodes = self.config.slurm, list(self._raw.values())
        self._view = build_view(
            nodes, self._partitions, models, reports, self._as_of_s, slurm.mig_feature, slurm.whole_feature,
            {name for name in self.pool_nodes if self.config.pool.enabled or self.all_modes(name) == "off"},
        )  # fmt: skip
        if self._view != self._standing:
            self._standing = self._view
            for listener in self.listeners:
                listener()

    @property
    def pool_nodes(self) -> frozenset[str]:
        """The nodes whose MIG mode may be changed; none where the hostlist cannot be read."""
        return _names(self.config.pool.nodes)

    def all_modes(self, name: str) -> str:
        """Return on or off where all GPUs of a node are so, as it has reported, else mixed."""
        report = self._reports.get(name)
        modes = {gpu.mig_mode for gpu in report.gpus} if report else set()
        return modes.pop() if modes in ({"on"}, {"off"}) else "mixed"

    def age_s(self) -> float:
        """Return the age of the view."""
        return self._clock.now_s() - self._view.as_of_s


@functools.lru_cache(maxsize=4)
def _names(hostlist: str) -> frozenset[str]:
    try:
        return frozenset(expand(hostlist))
    except RequestError as error:
        log.error("pool.nodes: %s", error)
        return frozenset()
