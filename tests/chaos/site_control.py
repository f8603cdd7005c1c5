"""The cluster as the campaign handles it: daemons, nodes, their drivers, disks and hooks, and what to mend when."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_TESTS / name) for name in ("testbed/inside", "cluster") if str(_TESTS / name) not in sys.path]

import hetsched_part  # noqa: E402
from cluster import Node, load_cluster  # noqa: E402
from conftest import run_as  # noqa: E402
from daemons import Daemon, DaemonError, slurm_daemons  # noqa: E402

CONFIG = Path("/etc/hetsched/hetsched.toml")
DATABASE_DIR = Path("/var/lib/hetsched/database")
NODE_STATE = Path("/var/lib/hetsched/node")
NODE_RUN = Path("/run/hetsched/node")
HOOKS = Path("/usr/lib/hetsched/hooks")
FLAGS = Path("/run/chaos")
_DISK = "size=32m"
_SILENT: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
                           "cwd": "/"}  # fmt: skip

_HOOK = """\
#!/bin/sh
# A hook that can be made to run not at all, twice, or twice at the same time.
real={real}
flag={flags}/{name}-$SLURMD_NODENAME
case $(cat "$flag" 2>/dev/null) in
never) exit 0 ;;
twice) "$real"; "$real" ;;
together) "$real" & "$real"; wait ;;
*) exec "$real" ;;
esac
exit 0
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Mend:
    """What undoes a fault, and when (seconds of the monotonic clock)."""

    due_s: float
    what: str
    act: Callable[[], object]


class Site:
    """The running cluster, disturbed and mended."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {node.name: node for node in load_cluster().nodes if node.mig}
        self._daemons = {daemon.name: daemon for daemon in [*slurm_daemons(load_cluster()), hetsched_part.hetschedd()]}
        self._mends: list[Mend] = []
        self.armed = 0
        #: Until when jobs on a node may have died with their GPU or their node.
        self.hurt_until_s: dict[str, float] = {}
        self._config = CONFIG.read_text(encoding="utf-8")
        self._small_disks()
        self._switchable_hooks()

    def restore(self) -> None:
        """Leave the cluster as it was before the campaign."""
        self.heal()
        for name in ("prolog", "epilog"):
            (HOOKS / f"{name}.real").rename(HOOKS / name)
        self._daemons["hetschedd"].stop()
        CONFIG.write_text(self._config, encoding="utf-8")
        for folder in (DATABASE_DIR, NODE_STATE):
            run_as("root", "umount", "-l", str(folder), check=True)
        self.start("hetschedd")
        self._compare_all()

    # Daemons

    def daemon(self, name: str) -> Daemon:
        """One daemon by its name in testbedctl."""
        return self._daemons[name]

    def up(self, name: str) -> bool:
        """Whether a daemon runs and is ready."""
        daemon = self._daemons[name]
        return daemon.pid() is not None and not self._stopped(daemon.pid()) and daemon.ready()

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._daemons[name].stop(signal.SIGKILL)

    def send(self, name: str, number: int) -> None:
        """Send a signal to a daemon that may have ended."""
        with contextlib.suppress(DaemonError, ProcessLookupError):
            self._daemons[name].send(number)

    def launch(self, name: str) -> None:
        """Start a daemon if it does not run, and do not wait for it."""
        if self._daemons[name].pid() is None:
            self._daemons[name].start()

    def start(self, name: str, *more: str) -> None:
        """Start a daemon that does not run, with ``more`` arguments; a second try if it dies at once."""
        daemon = self._daemons[name]
        if more:
            daemon = dataclasses.replace(daemon, argv=(*daemon.argv, *more))
        for attempt in (1, 2):
            if daemon.pid() is None:
                daemon.start()
            try:
                daemon.wait_ready()
                return
            except DaemonError:
                if attempt == 2:
                    raise

    @staticmethod
    def _stopped(pid: int | None) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    # Mending

    def later(self, seconds: float, what: str, act: Callable[[], object]) -> None:
        """Undo something after a while, or when the cluster is to settle."""
        self._mends.append(Mend(time.monotonic() + seconds, what, act))

    def waits(self, what: str) -> bool:
        """Whether something of this kind is still to be mended."""
        return any(mend.what == what for mend in self._mends)

    def mend(self, everything: bool = False) -> None:
        """Do what is due, or all that is left to do."""
        now_s = time.monotonic()
        due = [mend for mend in self._mends if everything or mend.due_s <= now_s]
        self._mends = [mend for mend in self._mends if mend not in due]
        for mend in due:
            mend.act()

    def heal(self) -> int:
        """End every disturbance; return how many armed faults had not struck."""
        self.mend(everything=True)
        left = 0
        for node in self.nodes:
            left += sum(fault["count"] in _UNTOUCHED for fault in self.driver(node)["faults"])
            self.nvml(node, "fault", "clear")
            self.nvml(node, "unhold", "--all")
            for gpu in range(self.nodes[node].gpus):
                self.nvml(node, "lost", "--gpu", str(gpu), "--clear")
        for name in self._daemons:
            self.send(name, signal.SIGCONT)
            self.start(name)
        return left

    # Nodes

    def nvml(self, node: str, *words: str) -> str:
        """Run fake-nvml-ctl for a node."""
        return run_as("root", "fake-nvml-ctl", "--node", node, *words, check=True).out

    def driver(self, node: str) -> dict[str, Any]:
        """A node's GPUs as its driver has them."""
        state: dict[str, Any] = json.loads(self.nvml(node, "show"))
        return state

    def instances(self, node: str) -> list[tuple[int, dict[str, Any]]]:
        """GPU index and instance, of every instance on a node."""
        return [(gpu["index"], item) for gpu in self.driver(node)["gpus"] for item in gpu["instances"]]

    def arm(self, node: str, call: str, *action: str, gpu: int | None = None) -> None:
        """Let a later call into a node's driver go wrong."""
        where = [] if gpu is None else ["--gpu", str(gpu)]
        self.nvml(node, "fault", "add", "--call", call, *where, *action)
        self.armed += 1

    def reconcile(self, timeout_s: float = 150) -> None:
        """What each node does now and then by itself: compare its instances with the reservations."""
        running = [subprocess.Popen(_on_node(node, "reconcile"), **_SILENT) for node in self.nodes]
        for process in running:
            process.wait(timeout_s)

    def reboot(self, node: str) -> None:
        """A node loses power and comes back: no process, no instance, on Hopper no MIG mode either."""
        self.kill(f"slurmd@{node}")
        # As slurmctld sees it once a node has been silent for SlurmdTimeout; its jobs are requeued.
        run_as("root", "scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")
        for pid in self.processes_of(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.nvml(node, "reboot")
        for path in (NODE_RUN / node).glob("*"):
            path.unlink(missing_ok=True)
        run_as("root", *_on_node(node, "boot", "--rebooted"), timeout_s=150)
        self.start(f"slurmd@{node}", "-b")

    def processes_of(self, node: str) -> set[int]:
        """All processes that live on a node: hooks, jobs, and the slurmstepd of each step."""
        sockets = Path(f"/var/spool/slurmd/{node}").glob(f"{node}_*")
        jobs = {path.name.removeprefix(f"{node}_").split(".")[0] for path in sockets}
        found = set()
        for pid, title, environment in processes():
            steps = any(f"slurmstepd: [{job}." in title for job in jobs)
            if steps or f"SLURMD_NODENAME={node}" in environment:
                found.add(pid)
        return found

    def hooks_at_work(self, verb: str) -> list[tuple[int, str]]:
        """Process id and node of each ``hetsched-node prolog`` or ``epilog`` that runs."""
        found = []
        for pid, title, environment in processes():
            if "hetsched-node" in title and f" {verb} " in f" {title} " and "python" in title:
                node = next((word.partition("=")[2] for word in environment if word.startswith("SLURMD_NODENAME=")), "")
                found.append((pid, node))
        return found

    def flag_hook(self, name: str, node: str, how: str) -> None:
        """Make a node's hook run ``never``, ``twice`` or ``together`` until it is unflagged ("")."""
        flag = FLAGS / f"{name}-{node}"
        if how:
            flag.write_text(how, encoding="ascii")
        else:
            flag.unlink(missing_ok=True)

    # Disks

    def fill(self, folder: Path) -> None:
        """Leave no room in one of the two small file systems."""
        with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(65536))
        with contextlib.suppress(OSError), open(folder / "ballast", "ab", buffering=0) as ballast:
            while True:
                ballast.write(bytes(512))

    def make_room(self, folder: Path) -> None:
        """Take the ballast away."""
        (folder / "ballast").unlink(missing_ok=True)

    def _small_disks(self) -> None:
        """Put the daemon's database and the nodes' records on file systems that can be filled."""
        self._daemons["hetschedd"].stop()
        text = self._config
        for folder, owner in ((DATABASE_DIR, "slurm"), (NODE_STATE, "root")):
            folder.mkdir(parents=True, exist_ok=True)
            run_as("root", "mount", "-t", "tmpfs", "-o", f"{_DISK},mode=700", "chaos", str(folder), check=True)
            run_as("root", "chown", owner, str(folder), check=True)
        CONFIG.write_text(text + f'\n[store]\nurl = "sqlite:///{DATABASE_DIR}/hetsched.db"\n', encoding="utf-8")
        self.start("hetschedd")
        self._compare_all()

    def _compare_all(self) -> None:
        for node in self.nodes:
            run_as("root", *_on_node(node, "boot", "--rebooted"), check=True, timeout_s=150)

    def _switchable_hooks(self) -> None:
        FLAGS.mkdir(exist_ok=True)
        for name in ("prolog", "epilog"):
            hook, real = HOOKS / name, HOOKS / f"{name}.real"
            if not real.exists():
                hook.rename(real)
                hook.write_text(_HOOK.format(real=real, flags=FLAGS, name=name), encoding="ascii")
                hook.chmod(0o755)


#: How often a fault may still strike while it has not yet struck at all (see the faults that are armed).
_UNTOUCHED = (1, 3, 50)


def _on_node(node: str, *words: str) -> list[str]:
    """The command ``hetsched-node`` as a node's own service runs it; the fake NVML must be told whose GPUs to show."""
    return ["env", f"SLURMD_NODENAME={node}", "hetsched-node", *words, "--node", node]


def processes() -> Iterator[tuple[int, str, list[str]]]:
    """Process id, command line and environment of every process."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        yield int(folder.name), title, environment
