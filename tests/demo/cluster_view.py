"""What the demo does on the cluster: submit as a user, wait, and read what became of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenario import Request

MIG_NODES = ("a100-0", "a100-1", "h100-0", "a30-0")
FAILED = frozenset({"FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"})
ENDED = FAILED | {"COMPLETED"}
TRIES = 5
_POLL_S = 0.15
_MIG_LINE = re.compile(r"MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[0-9a-f-]+)\)")
_GPU_LINE = re.compile(r"GPU \d+: (.*?) \(UUID: GPU-")


class LateError(Exception):
    """Something did not happen in time."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    status: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request. ``jobs`` are the job ids, one for each element of an array."""

    request: Request
    said: str
    jobs: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    explained: tuple[dict[str, Any], ...] = ()
    status: int = 0
    times_submitted: int = 1


def run_as(user: str, *argv: str, stdin: str = "") -> Ran:
    """Run a command as a user in the user's home."""
    home = "/root" if user == "root" else f"/home/{user}"
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": home, "USER": user, "LANG": "C.UTF-8"}
    prefix = [] if user == "root" else ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--"]
    done = subprocess.run([*prefix, *argv], input=stdin, capture_output=True, text=True, env=env, cwd=home, timeout=120)
    return Ran(done.returncode, done.stdout, done.stderr)


def read_json(*argv: str) -> dict[str, Any]:
    """What a command prints as JSON, asked as root."""
    ran = run_as("root", *argv)
    if ran.status:
        raise LateError(f"{' '.join(argv)} failed: {ran.err.strip()}")
    found: dict[str, Any] = json.loads(ran.out)
    return found


def wait_until(holds: Callable[[], bool], within_s: float, what: str) -> None:
    """Wait until it holds; `LateError` otherwise."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise LateError(f"not within {within_s:.0f} s: {what}")
        time.sleep(_POLL_S)


def submit(request: Request) -> Outcome:
    """Submit a request; an interactive one has ended when this returns.

    "Try again shortly", which users are told while the daemon is too busy to answer in time, is followed.
    """
    number = 0
    while True:
        number += 1
        outcome = _submit_once(request, number)
        if "is not answering" not in outcome.said or number == TRIES:
            return outcome
        time.sleep(2.0 * number)


def _submit_once(request: Request, number: int) -> Outcome:
    if request.command[0] == "sbatch":
        text = "\n".join(("#!/bin/sh", *request.script, ""))
        output = "job-%j.out" if request.elements == 1 else "job-%A_%a.out"
        options = ("--parsable", "-o", output, *request.command[1:])
        ran = run_as(request.user, "sbatch", *options, stdin=text)
        job = ran.out.strip()
        return Outcome(request, _said(ran.err), (job,) if job else (), status=ran.status, times_submitted=number)
    ran = run_as(request.user, *request.command)
    newest = run_as("root", "squeue", "-h", "-t", "all", "-u", request.user, "-S", "-i", "-o", "%A").out.split()
    jobs = (newest[0],) if newest and not ran.status else ()
    return Outcome(request, _said(ran.err), jobs, outputs=(ran.out,), status=ran.status, times_submitted=number)


def _said(text: str) -> str:
    """The line that hetsched had Slurm's client print, else all that was printed."""
    lines = [line for line in text.splitlines() if "hetsched" in line]
    return "\n".join(lines or text.splitlines())


def job_ids(job: str, elements: int) -> tuple[str, ...]:
    """The ids by which the elements of a job are asked for."""
    return (job,) if elements == 1 else tuple(f"{job}_{number}" for number in range(elements))


def states_of(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """The state of every element of these requests, from one call of squeue."""
    wanted = {job for outcome in outcomes for job in outcome.jobs}
    if not wanted:
        return {}
    ran = run_as("root", "squeue", "-h", "-r", "-t", "all", "-j", ",".join(sorted(wanted)), "-o", "%i %T")
    return dict(line.split() for line in ran.out.splitlines())


def wait_ended(outcomes: list[Outcome], within_s: float = 90) -> None:
    """Wait until every job of these requests has ended, its epilog included."""
    started = [outcome for outcome in outcomes if outcome.jobs]
    wait_until(lambda: set(states_of(started).values()) <= ENDED, within_s, "the jobs end")


def wait_running(outcomes: list[Outcome], within_s: float = 90) -> None:
    """Wait until every job of these requests runs and has written what it sees."""
    started = [outcome for outcome in outcomes if outcome.jobs]

    def running() -> bool:
        states = states_of(started)
        if set(states.values()) & FAILED:
            raise LateError(f"a job failed: {states}")
        return set(states.values()) == {"RUNNING"} and all(_reported(outcome) for outcome in started)

    wait_until(running, within_s, "the jobs run")


def _reported(outcome: Outcome) -> bool:
    ids = job_ids(outcome.jobs[0], outcome.request.elements)
    return all("UUID" in output_of(outcome.request.user, job) for job in ids)


def output_of(user: str, job: str) -> str:
    """What a batch job has written so far."""
    path = Path(f"/home/{user}/job-{job}.out")
    return path.read_text(encoding="utf-8") if path.exists() else ""


def look(outcome: Outcome) -> Outcome:
    """Read what Slurm, the job's own output and hetsched say of a request that was accepted."""
    if not outcome.jobs:
        return outcome
    request = outcome.request
    ids = job_ids(outcome.jobs[0], request.elements)
    states = states_of([outcome])
    outputs = outcome.outputs or tuple(output_of(request.user, job) for job in ids)
    explained = tuple(read_json("hetsched", "explain", job, "--json") for job in ids)
    nodes = tuple(dict.fromkeys(found["job"]["nodes"] for found in explained))
    return Outcome(request, outcome.said, ids, tuple(states.get(job, "UNKNOWN") for job in ids), nodes, outputs,
                   explained, outcome.status, outcome.times_submitted)  # fmt: skip


def slices_seen(output: str) -> list[str]:
    """The profiles of the slices that nvidia-smi listed in a job."""
    return [match[1] for match in _MIG_LINE.finditer(output)]


def uuids_seen(output: str) -> list[str]:
    """The UUIDs of these slices."""
    return [match[2] for match in _MIG_LINE.finditer(output)]


def gpus_seen(output: str) -> list[str]:
    """The names of the GPUs that nvidia-smi listed in a job."""
    return _GPU_LINE.findall(output)


def forget_releases() -> None:
    """Remove what an earlier demo on this cluster has left in the homes."""
    for path in Path("/home").glob("*/release-*"):
        path.unlink()


def release(user: str, name: str) -> None:
    """Let the waiting jobs with this name end."""
    path = Path(f"/home/{user}/release-{name}")
    path.touch()
    os.chmod(path, 0o644)


def leftovers() -> list[str]:
    """What should not be there once all jobs have ended."""
    found = []
    for node in MIG_NODES:
        shown = read_json("fake-nvml-ctl", "--node", node, "show")
        found += [f"{node} still has an instance" for gpu in shown["gpus"] for _ in gpu["instances"]]
    used = run_as("root", "scontrol", "show", "node", "-d").out
    found += [f"Slurm still counts {part}" for part in re.findall(r"GresUsed=\S*(?:shard|gpu):\S*?:[1-9]\d*\S*", used)]
    states = run_as("root", "sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T").out.splitlines()
    found += [f"{line} in sinfo" for line in states if not line.endswith(" idle")]
    # The daemon looks at Slurm every few seconds: the map is of interest once it has seen the end, too.
    nodes = read_json("hetsched", "gpus", "--json")["nodes"]
    found += [f"{node['name']} is {node['state'].lower()} to hetsched" for node in nodes if node["state"] != "IDLE"]
    open_now = read_json("hetsched", "status", "--json")["reservations_open"]
    return found + ([f"{open_now} reservations are open"] if open_now else [])
