"""The daemons of a run: how each is started, found, stopped and known to be ready.

Every one runs in the foreground under the namespace's first process, with its process id in
/run/testbed/NAME.pid, so that the boot and the program testbedctl handle them alike.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster import Cluster, Node

RUN = Path("/run/testbed")
OUT = Path("/var/log/testbed")
LOGS = Path("/var/log/slurm")
BASE_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
POLL_S = 0.02


class DaemonError(Exception):
    """A daemon did not come up or go away in time; the message ends with the tail of its log."""


def always() -> bool:
    """The readiness check of a daemon that has none."""
    return True


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon: argv runs it in the foreground; log is the file that tells why it failed."""

    name: str
    argv: tuple[str, ...]
    log: Path
    user: str = "root"
    ready: Callable[[], bool] = always
    env: Mapping[str, str] = field(default_factory=dict)
    ready_within_s: float = 60.0

    @property
    def pid_file(self) -> Path:
        """Holds the process id while the daemon should be running."""
        return RUN / f"{self.name}.pid"

    def pid(self) -> int | None:
        """The process id of the running daemon, None if it does not run."""
        try:
            pid = int(self.pid_file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None
        return pid if process_lives(pid) else None

    def start(self) -> None:
        """Start it without waiting until it is ready."""
        if self.pid() is not None:
            raise DaemonError(f"{self.name} is already running")
        with open(OUT / f"{self.name}.out", "ab") as out:
            process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**BASE_ENV, **self.env},
                cwd="/",
                user=None if self.user == "root" else self.user,
                group=None if self.user == "root" else self.user,
                extra_groups=None if self.user == "root" else [],
                start_new_session=True,
            )
        self.pid_file.write_text(str(process.pid), encoding="ascii")

    def wait_ready(self) -> None:
        """Wait until it answers; DaemonError if it ends before or takes longer than ready_within_s."""
        deadline = time.monotonic() + self.ready_within_s
        while True:
            if self.pid() is None:
                raise DaemonError(f"{self.name} ended while starting\n{self.tail()}")
            if self.ready():
                return
            if time.monotonic() > deadline:
                raise DaemonError(f"{self.name} is not ready after {self.ready_within_s:.0f} s\n{self.tail()}")
            time.sleep(POLL_S)

    def send(self, number: int) -> None:
        """Send a signal; DaemonError if it does not run."""
        pid = self.pid()
        if pid is None:
            raise DaemonError(f"{self.name} is not running")
        os.kill(pid, number)

    def stop(self, number: int = signal.SIGTERM, within_s: float = 20.0) -> None:
        """Stop it and wait until it is gone; killed when it takes longer than within_s."""
        pid = self.pid()
        if pid is None:
            return
        deadline = time.monotonic() + within_s
        with contextlib.suppress(ProcessLookupError):  # it may be gone at any moment
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
            while process_lives(pid):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(POLL_S)

    def tail(self, lines: int = 25) -> str:
        """The end of what it printed (in the foreground Slurm's daemons print their log too), else of its log."""
        for path in (OUT / f"{self.name}.out", self.log):
            if path.exists() and path.stat().st_size:
                last = path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
                return f"--- {path}\n" + "\n".join(last) + "\n"
        return f"--- {self.name} wrote nothing\n"


def process_lives(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def port_open(port: int) -> bool:
    """Whether something listens on a TCP port of this host."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def unix_open(path: str) -> bool:
    """Whether something accepts on a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        return probe.connect_ex(path) == 0


def succeeds(*argv: str) -> Callable[[], bool]:
    """A readiness check that runs a program."""
    return lambda: subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def slurm_daemons(cluster: Cluster) -> list[Daemon]:
    """Every daemon of a cluster but hetschedd, in the order in which they are started."""
    return [
        Daemon(
            "munged",
            ("/usr/sbin/munged", "--foreground", "--log-file=/var/log/munge/munged.log"),
            Path("/var/log/munge/munged.log"),
            user="munge",
            ready=lambda: unix_open("/run/munge/munge.socket.2"),
        ),
        Daemon(
            "mariadbd",
            ("/usr/sbin/mariadbd", "--user=mysql"),
            OUT / "mariadbd.out",
            ready=lambda: unix_open("/run/mysqld/mysqld.sock"),
        ),
        Daemon(
            "slurmdbd",
            ("/usr/sbin/slurmdbd", "-D"),
            LOGS / "slurmdbd.log",
            user="slurm",
            ready=lambda: port_open(6819),
        ),
        Daemon(
            "slurmctld",
            # -i: one killed before it first saved the associations' usage would not start again.
            ("/usr/sbin/slurmctld", "-D", "-i"),
            LOGS / "slurmctld.log",
            user="slurm",
            ready=succeeds("scontrol", "ping"),
        ),
        *(slurmd(node) for node in cluster.nodes),
    ]


def slurmd(node: Node) -> Daemon:
    """The slurmd of one node."""
    return Daemon(
        f"slurmd@{node.name}",
        ("/usr/sbin/slurmd", "-D", "-N", node.name),
        LOGS / f"slurmd-{node.name}.log",
        ready=lambda: port_open(node.port),
    )
