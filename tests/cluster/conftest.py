"""Fixtures of the tests that run inside the testbed, as root (tests/testbed/README.md)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SLURM_LOGS = Path("/var/log/slurm")
RUN_LOGS = Path("/var/log/testbed")
POLL_S = 0.05
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}
)
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say at once, rather than fail everywhere, that these tests need the testbed."""
    if items and os.environ.get("HETSCHED_TESTBED_RUN") != "1":
        pytest.exit("tests/cluster runs inside the testbed: tests/testbed/testbed run -- pytest tests/cluster", 2)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    status: int
    out: str
    err: str
    wall_s: float


class SubmitRefused(Exception):
    """Slurm refused a request; the message is what the user saw."""


def run_as(
    user: str, *argv: str, stdin: str = "", check: bool = False, cwd: str | None = None, timeout_s: float = 60
) -> Ran:
    """Run a command as a user with a login-like environment."""
    home = "/root" if user == "root" else f"/home/{user}"
    env = {"PATH": PATH, "HOME": home, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8"}
    prefix = [] if user == "root" else ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--"]
    started = time.monotonic()
    done = subprocess.run(
        [*prefix, *argv], input=stdin, capture_output=True, text=True, env=env, cwd=cwd or home, timeout=timeout_s
    )
    ran = Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
    if check and ran.status:
        raise AssertionError(f"{' '.join(argv)} as {user} gave {ran.status}: {ran.out}{ran.err}")
    return ran


def wait_until(holds: Callable[[], object], within_s: float, what: str) -> Any:
    """Poll until holds() is true and return it; AssertionError naming what was awaited when it stays false."""
    deadline = time.monotonic() + within_s
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:.0f} s: {what}")
        time.sleep(POLL_S)


class Slurm:
    """Submitting and watching jobs as the testbed's users."""

    def sbatch(self, user: str, *options: str, wrap: str = "true", script: str | None = None) -> int:
        """Submit a batch job and return its id; SubmitRefused with the user's error text."""
        ran = self.try_sbatch(user, *options, wrap=wrap, script=script)
        if ran.status:
            raise SubmitRefused(ran.err)
        return int(ran.out.split(";")[0])

    def try_sbatch(self, user: str, *options: str, wrap: str = "true", script: str | None = None) -> Ran:
        """Submit a batch job and return all that sbatch did."""
        text = script if script is not None else f"#!/bin/sh\n{wrap}\n"
        return run_as(user, "sbatch", "--parsable", "-o", "job-%A_%a.out", *options, stdin=text)

    def output(self, user: str, job: int, task: int | None = None) -> str:
        """What a batch job printed."""
        tail = "4294967294" if task is None else str(task)
        return Path(f"/home/{user}/job-{job}_{tail}.out").read_text(encoding="utf-8")

    def show(self, job: int) -> dict[str, Any]:
        """The job's record from scontrol --json (array and heterogeneous jobs: the first)."""
        return self.show_all(job)[0]

    def show_all(self, job: int) -> list[dict[str, Any]]:
        """Every record that scontrol --json has for a job id."""
        ran = run_as("root", "scontrol", "show", "job", "-d", str(job), "--json", check=True)
        records: list[dict[str, Any]] = json.loads(ran.out)["jobs"]
        return records

    def states(self, job: int) -> set[str]:
        """The state and its flags of a job, such as {'RUNNING'} or {'PENDING', 'REQUEUED'}."""
        return set(self.show(job)["job_state"])

    def wait_state(self, job: int, *wanted: str, within_s: float = 30) -> str:
        """Wait until the job is in one of the states and return it."""

        def reached() -> str | None:
            return next(iter(self.states(job) & set(wanted)), None)

        what = f"job {job} in {' or '.join(wanted)}"
        try:
            found: str = wait_until(reached, within_s, what)
        except AssertionError as late:
            record = run_as("root", "scontrol", "show", "job", "-d", str(job)).out
            raise AssertionError(f"{late}\n{record}") from None
        return found

    def wait_ended(self, job: int, within_s: float = 60) -> str:
        """Wait until the job has ended and its epilog is through; return the final state."""

        def final() -> str | None:
            states = self.states(job)
            return None if "COMPLETING" in states else next(iter(states & ENDED), None)

        try:
            found: str = wait_until(final, within_s, f"job {job} ended")
        except AssertionError as late:
            record = run_as("root", "scontrol", "show", "job", "-d", str(job)).out
            raise AssertionError(f"{late}\n{record}") from None
        return found

    def allocated_gres(self, job: int) -> list[str]:
        """Per node, what Slurm gave, such as 'shard:4(4/31,0/31,0/31,0/31)'."""
        detail: list[str] = self.show(job)["gres_detail"]
        return detail

    def node(self, name: str) -> dict[str, Any]:
        """A node's record from scontrol --json."""
        record: dict[str, Any] = json.loads(
            run_as("root", "scontrol", "-d", "show", "node", name, "--json", check=True).out
        )["nodes"][0]
        return record

    def node_states(self) -> dict[str, str]:
        """Every node's state as sinfo prints it."""
        lines = run_as("root", "sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T", check=True).out.splitlines()
        return dict(line.split() for line in lines)

    def accounted(self, job: int, field: str) -> str:
        """A field of the job's own row of sacct, waited for until it is there."""

        def value() -> str:
            ran = run_as("root", "sacct", "-n", "-X", "-P", "-j", str(job), "-o", field)
            return ran.out.strip()

        found: str = wait_until(value, 30, f"sacct {field} of job {job}")
        return found

    def cancel_everything(self) -> None:
        """Cancel all jobs and wait until the cluster is empty."""
        ids = run_as("root", "squeue", "-h", "-o", "%A").out.split()
        if ids:
            run_as("root", "scancel", *sorted(set(ids)))
        wait_until(lambda: not run_as("root", "squeue", "-h", "-o", "%A").out.split(), 60, "an empty queue")


class Daemons:
    """Starting and disturbing the daemons of the run; names as `testbedctl list` prints them."""

    def ctl(self, verb: str, *names: str) -> str:
        """Run testbedctl and return what it printed."""
        return run_as("root", "testbedctl", verb, *names, check=True, timeout_s=180).out

    def start(self, *names: str) -> None:
        """Start and wait until ready."""
        self.ctl("start", *names)

    def stop(self, *names: str) -> None:
        """Stop in good order and wait until gone."""
        self.ctl("stop", *names)

    def restart(self, *names: str) -> None:
        """Stop, start, wait until ready."""
        self.ctl("restart", *names)

    def kill(self, *names: str) -> None:
        """SIGKILL."""
        self.ctl("kill", *names)

    def pause(self, *names: str) -> None:
        """SIGSTOP."""
        self.ctl("pause", *names)

    def resume(self, *names: str) -> None:
        """SIGCONT."""
        self.ctl("resume", *names)

    def reload(self, *names: str) -> None:
        """SIGHUP."""
        self.ctl("reload", *names)

    def pid(self, name: str) -> int | None:
        """The process id, None if it does not run."""
        text = self.ctl("pid", name).strip()
        return int(text) if text else None

    def log(self, name: str) -> str:
        """The whole log so far."""
        path = Path(self.ctl("log", name).strip())
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def with_hetsched(self) -> bool:
        """Whether this run has hetschedd."""
        return "hetschedd" in self.ctl("list")

    def revive(self) -> None:
        """Start whatever a test left stopped or paused."""
        run_as("root", "testbedctl", "revive", check=True, timeout_s=180)


@pytest.fixture(scope="session")
def slurm() -> Slurm:
    """The cluster's jobs and nodes."""
    return Slurm()


@pytest.fixture(scope="session")
def daemons() -> Daemons:
    """The cluster's daemons."""
    return Daemons()


@pytest.fixture
def quiet_cluster(slurm: Slurm, daemons: Daemons) -> Iterator[Slurm]:
    """An empty queue before and after, and every daemon running again after."""
    slurm.cancel_everything()
    yield slurm
    daemons.revive()
    slurm.cancel_everything()


@pytest.fixture(scope="session")
def as_user() -> Callable[..., Ran]:
    """run_as, as a fixture: as_user("alice", "squeue", "--me")."""
    return run_as


def folded(nodes: Sequence[str]) -> str:
    """A Slurm host list of node names."""
    return run_as("root", "scontrol", "show", "hostlistsorted", ",".join(nodes), check=True).out.strip()
