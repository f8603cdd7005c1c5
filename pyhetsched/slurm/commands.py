"""Slurm's commands, run and read, where pyslurm has no safe call."""

from __future__ import annotations

import json
import subprocess

from pyhetsched.errors import DataError, SlurmError
from pyhetsched.slurm.allocation import AllocatedJob, parse_show_job
from pyhetsched.slurm.gpu_jobs import parse_site_factors


def show_jobs(job: str, timeout_s: float) -> list[AllocatedJob]:
    """Return the jobs that scontrol knows as ``job`` ("" for all), with the GPUs that they hold."""
    done = run("scontrol", "show", "job", *([job] if job else []), "-d", "--json", timeout_s=timeout_s)
    try:
        found = parse_show_job(json.loads(done.stdout))
    except (json.JSONDecodeError, DataError) as error:
        if done.returncode:
            return _none_or_error(done.stderr)
        raise SlurmError("scontrol show job", str(error)) from error
    return found if found or not done.returncode else _none_or_error(done.stderr)


def jobs_in_prolog(timeout_s: float) -> dict[int, int]:
    """Return the jobs that squeue shows as running with reason Prolog, with their start."""
    words = ("squeue", "--noheader", "--states=RUNNING,CONFIGURING", "--format=%A|%r|%S")
    done = run("env", "SLURM_TIME_FORMAT=%s", *words, timeout_s=timeout_s)
    if done.returncode:
        raise SlurmError("squeue", done.stderr.strip() or "failed without a word")
    return parse_in_prolog(done.stdout)


def parse_in_prolog(text: str) -> dict[int, int]:
    """Return job and start of the lines that have the reason Prolog.

    >>> parse_in_prolog("6|Prolog|1796074931\\n7|None|1796074931\\n")
    {6: 1796074931}
    """
    fields = [line.split("|") for line in text.splitlines()]
    return {int(job): int(start) for job, reason, start in fields if reason == "Prolog" and start.isdigit()}


def site_factors(timeout_s: float) -> dict[int, int]:
    """Return what sprio says of each waiting job; raises `SlurmError` where priorities are not multifactor."""
    done = run("sprio", "--noheader", "--format=%i|%S", timeout_s=timeout_s)
    if done.returncode:
        raise SlurmError("sprio", done.stderr.strip() or "failed without a word")
    return parse_site_factors(done.stdout)


def update_job(job_id: int, fields: dict[str, str], timeout_s: float) -> None:
    """Set fields of a job by scontrol's names; an empty value clears."""
    words = [f"{key}={value}" for key, value in fields.items()]
    done = run("scontrol", "update", f"JobId={job_id}", *words, timeout_s=timeout_s)
    if done.returncode:
        raise SlurmError("scontrol update", (done.stderr or done.stdout).strip())


def run(*words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; raises `SlurmError` when it cannot be run or takes too long."""
    try:
        return subprocess.run(
            words, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
            # Slurm passes on the bytes of a job's name as its owner wrote them.
            encoding="utf-8", errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmError(" ".join(words[:3]), f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise SlurmError(words[0], f"cannot be run: {error.strerror}") from error


def _none_or_error(text: str) -> list[AllocatedJob]:
    if "Invalid job id" in text:
        return []
    raise SlurmError("scontrol show job", text.strip() or "failed without a word")
