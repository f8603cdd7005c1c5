"""Giving a job back to Slurm from its own prolog, when the daemon cannot do it.

A batch job is requeued. An interactive one cannot be ("Only batch jobs are accepted"), so it is cancelled;
both leave the node up, as long as the prolog exits 0 (Slurm's prolog guide; tried on 26.05).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

log = logging.getLogger("hetsched.node")

_STEP_S = 8.0
_SEARCH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/opt/slurm/bin"

#: Runs a command; returns its exit status and what it wrote.
Runner = Callable[[Sequence[str]], tuple[int, str]]


def run_command(command: Sequence[str]) -> tuple[int, str]:
    """Run one of Slurm's commands, for 8 seconds at most; return its status, and its output or complaint."""
    import subprocess  # late: hardly any prolog comes here

    environment = {name: value for name, value in os.environ.items() if name in ("SLURM_CONF", "LANG")}
    environment["PATH"] = os.environ.get("PATH", "") + ":" + _SEARCH
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_STEP_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr.strip()


def give_back(job_id: int, why: str, run: Runner = run_command) -> bool:
    """Requeue the job, or cancel it if it cannot be requeued; return whether Slurm took either."""
    job = str(job_id)
    attempts: tuple[tuple[str, Sequence[Sequence[str]]], ...] = (
        ("requeued", [["scontrol", "requeue", job]]),
        ("requeued", [["scontrol", "update", f"job={job}", "Requeue=1"], ["scontrol", "requeue", job]]),
        ("cancelled", [["scancel", job]]),
    )
    for outcome, commands in attempts:
        results = [run(command) for command in commands]
        if all(status == 0 for status, _ in results):
            log.warning("job %d: %s, since %s", job_id, outcome, why)
            return True
        log.info("job %d: %s: %s", job_id, " ".join(commands[-1]), results[-1][1])
    log.error("job %d: Slurm takes neither requeue nor scancel; its tasks see no GPU: %s", job_id, why)
    return False


def is_over(job_id: int, run: Runner = run_command) -> bool:
    """Return whether Slurm says that a job has no processes anywhere; False when Slurm cannot be asked."""
    status, text = run(["squeue", "--noheader", "--jobs", str(job_id), "--format", "%T"])
    if status != 0:
        return "Invalid job id" in text
    return text.strip() in ("", "PENDING")
