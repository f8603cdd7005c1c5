"""Boots the cluster of /etc/hetsched-testbed/cluster.toml and runs the command in it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import hetsched_part
import slurmfiles
from cluster import Cluster, ClusterFileError, load_cluster
from daemons import OUT, RUN, Daemon, DaemonError, slurm_daemons

SOURCE = Path("/opt/hetsched-src")
BOOT_FAILED = 125
ALL_IDLE_WITHIN_S = 60.0


def main(command: list[str]) -> int:
    """Boot, run command and return its exit status; BOOT_FAILED when the cluster did not come up."""
    started = time.monotonic()
    try:
        cluster = load_cluster()
        with_hetsched = os.environ["TESTBED_HETSCHED"] == "1"
        boot(cluster, with_hetsched)
    except (DaemonError, ClusterFileError, hetsched_part.PartError) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return BOOT_FAILED
    nodes = len(cluster.nodes)
    print(f"testbed: {nodes} nodes up in {time.monotonic() - started:.1f} s", file=sys.stderr)
    return run_command(command)


class Timeline:
    """Notes how long each part of the boot took, in boot.out among the logs."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def note(self, what: str) -> None:
        """What has just been done."""
        now_s = time.monotonic()
        with open(OUT / "boot.out", "a", encoding="utf-8") as file:
            file.write(f"{now_s - self._last_s:7.3f} s  {what}\n")
        self._last_s = now_s


def boot(cluster: Cluster, with_hetsched: bool) -> None:
    """Write every file and start every daemon, as much as possible at the same time."""
    timeline = Timeline()
    prepare_host(cluster)
    timeline.note("host")
    daemons = {daemon.name: daemon for daemon in slurm_daemons(cluster)}
    early = [daemons["munged"], daemons["mariadbd"]]
    for daemon in early:
        daemon.start()
    # The build of this tree's parts overlaps the start of the database.
    if with_hetsched:
        hetsched_part.install(cluster)
        timeline.note("make install, fake NVML")
    slurmfiles.write_slurm_files(cluster, hetsched_part.SLURM_CONF if with_hetsched else "")
    for daemon in early:
        daemon.wait_ready()
    timeline.note("munged, mariadbd")
    bring_up([daemons["slurmdbd"]])
    timeline.note("slurmdbd")
    lay_accounts(cluster)
    timeline.note("accounts")
    # The order of the systemd units: hetschedd before slurmctld, the nodes' reconcile before slurmd.
    if with_hetsched:
        hetschedd = hetsched_part.hetschedd()
        bring_up([hetschedd])
        timeline.note("hetschedd")
    daemons["slurmctld"].start()
    if with_hetsched:
        hetsched_part.boot_nodes(cluster)
        timeline.note("hetsched-node boot")
    daemons["slurmctld"].wait_ready()
    timeline.note("slurmctld")
    slurmds = [daemons[f"slurmd@{node.name}"] for node in cluster.nodes]
    bring_up(slurmds)
    wait_all_idle(cluster, [daemons["slurmctld"], *slurmds])
    timeline.note("slurmd")
    if with_hetsched:
        hetsched_part.look_at_cluster(hetschedd)
        timeline.note("hetschedd's look at the cluster")


def bring_up(daemons: list[Daemon]) -> None:
    """Start daemons together and wait until all are ready."""
    for daemon in daemons:
        daemon.start()
    for daemon in daemons:
        daemon.wait_ready()


def prepare_host(cluster: Cluster) -> None:
    """Host name, loopback, users, run-time folders, the control program."""
    socket.sethostname(slurmfiles.CONTROLLER)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # Slurm's resolver ignores IPv4 on a host whose only address is 127.0.0.1.
    subprocess.run(["ip", "address", "add", "192.0.2.1/32", "dev", "lo"], check=True)
    slurmfiles.write_hosts(cluster)
    slurmfiles.add_users(cluster)
    for folder in (RUN, OUT):
        slurmfiles.make_dir(str(folder), "root")
    for path, owner in (("/run/munge", "munge"), ("/var/log/munge", "munge"), ("/run/mysqld", "mysql")):
        slurmfiles.make_dir(path, owner)
    if OUT.is_mount():
        # Logs are to be kept: the folder of Slurm's logs moves there, without an earlier run's.
        shutil.rmtree(OUT / "slurm", ignore_errors=True)
        for old in OUT.glob("*.out"):
            old.unlink()
        shutil.rmtree("/var/log/slurm")
        slurmfiles.make_dir(str(OUT / "slurm"), "slurm")
        os.symlink(OUT / "slurm", "/var/log/slurm")
    slurmfiles.make_dir("/var/log/slurm", "slurm")
    slurmfiles.make_dir("/run/slurm", "slurm")
    link = Path("/usr/local/bin/testbedctl")
    link.symlink_to(SOURCE / "tests/testbed/inside/testbedctl.py")


def lay_accounts(cluster: Cluster) -> None:
    """Tell slurmdbd the cluster, the accounts and the users."""
    sacctmgr("add", "cluster", cluster.name)
    sacctmgr("add", "account", ",".join(cluster.accounts), "Description=testbed", "Organization=testbed")
    for account in cluster.accounts:
        names = ",".join(user.name for user in cluster.users if user.account == account)
        sacctmgr("add", "user", names, f"Account={account}")
    for user in cluster.users:
        if user.admin_level != "None":
            sacctmgr("modify", "user", user.name, "set", f"AdminLevel={user.admin_level}")


def sacctmgr(*arguments: str) -> None:
    """Run one sacctmgr command; DaemonError with its words when it fails."""
    done = subprocess.run(["sacctmgr", "-i", "-Q", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise DaemonError(f"sacctmgr {' '.join(arguments)}: {done.stdout}{done.stderr}")


def wait_all_idle(cluster: Cluster, daemons: Sequence[Daemon]) -> None:
    """Wait until every node has registered."""
    deadline = time.monotonic() + ALL_IDLE_WITHIN_S
    sinfo = ["sinfo", "-h", "-N", "-p", cluster.partitions[0].name, "-o", "%N %T"]
    while True:
        for daemon in daemons:
            if daemon.pid() is None:
                raise DaemonError(f"{daemon.name} ended while starting\n{daemon.tail()}")
        done = subprocess.run(sinfo, capture_output=True, text=True)
        states = dict(line.split() for line in done.stdout.splitlines())
        if states and set(states.values()) == {"idle"}:
            return
        late = [name for name, state in states.items() if state != "idle"]
        if time.monotonic() > deadline:
            blamed = [d for d in daemons if d.name == "slurmctld" or d.name.partition("@")[2] in late]
            tails = "".join(daemon.tail() for daemon in blamed[:3])
            raise DaemonError(f"not idle after {ALL_IDLE_WITHIN_S:.0f} s: {done.stdout}{done.stderr}\n{tails}")
        time.sleep(0.05)


def run_command(command: list[str]) -> int:
    """Run the command in the source folder; a signal death gives 128 + its number, as in a shell."""
    # A handler rather than SIG_IGN: the command must start with the default action.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TESTBED_")}
    try:
        process = subprocess.Popen(command, cwd=SOURCE, env=environment)
    except OSError as error:
        print(f"testbed: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    status = process.wait()
    return status if status >= 0 else 128 - status
