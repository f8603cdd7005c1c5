"""Giving a job back to Slurm from its own prolog, when the daemon cannot do it.

A batch job is requeued. An interactive one cannot be ("Only batch jobs are accepted"), so it is cancelled;
both leave the node up, as long as the prolog exits 0 (Slurm's prolog guide; tried on 26.05).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence

log = logging.getLogger("hetsched.node")

_STEP_S = 8.0
_TRIES = 5
_PAUSE_S = 2.0
#: What Slurm says of a job that is back in the queue or over, and of one that srun or salloc started.
_NOT_HERE = ("pending execution", "already completing", "already finished", "Invalid job id")
_INTERACTIVE = "Only batch jobs"
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
            encoding="utf-8",
            errors="replace",
            timeout=_STEP_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr.strip()


def give_back(
    job_id: int, why: str, run: Runner = run_command, sleep_s: Callable[[float], None] = time.sleep
) -> bool:
    """Requeue the job, or cancel it if it is an interactive one; return whether it will not go on here.

    A batch job is never cancelled: it may be back in the queue already, or slurmctld may be restarting.
    """
    job = str(job_id)
    text = ""
    for attempt in range(_TRIES):
        if attempt > 1:
            sleep_s(_PAUSE_S)
        status, text = run(["scontrol", "requeue", job])
        if status == 0 or any(words in text for words in _NOT_HERE):
            log.warning("job %d: %s, since %s", job_id, text or "requeued", why)
            return True
        if _INTERACTIVE in text:
            status, text = run(["scancel", job])
            log.warning("job %d: cancelled, since %s: %s", job_id, why, text or "ok")
            return status == 0
        log.info("job %d: requeue: %s", job_id, text)
        run(["scontrol", "update", f"job={job}", "Requeue=1"])
    log.error("job %d: Slurm does not take it back (%s); its tasks see no GPU: %s", job_id, text, why)
    return False


def is_over(job_id: int, run: Runner = run_command) -> bool:
    """Return whether Slurm says that a job has no processes anywhere; False when Slurm cannot be asked."""
    status, text = run(["squeue", "--noheader", "--jobs", str(job_id), "--format", "%T"])
    if status != 0:
        return "Invalid job id" in text
    return text.strip() in ("", "PENDING")
