"""Slurm's commands, run and read in processes of their own.

Starting a program stops every thread of the interpreter until the program runs, and reading its JSON holds
the interpreter's lock; a submit that is being answered must feel neither.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from pyhetsched.errors import DataError, SlurmError
from pyhetsched.slurm.allocation import AllocatedJob, parse_show_job
from pyhetsched.slurm.gpu_jobs import parse_site_factors

T = TypeVar("T")

class Commands:
    """Runs functions of this module in worker processes, made anew when one dies; or, with ``workers`` 0, here."""

    def __init__(self, timeout_s: float, workers: int = 2) -> None:
        self._timeout_s = timeout_s
        self._workers = workers
        self._lock = threading.Lock()
        self._pool = _new_pool(workers) if workers else None
        if self._pool:
            # Started now rather than when the first job waits for them.
            for future in [self._pool.submit(os.getpid) for _ in range(workers)]:
                future.result(timeout_s * 6)

    def show_jobs(self, job: str) -> list[AllocatedJob]:
        """Return the jobs that ``scontrol show job`` knows by this text; raises `SlurmError`."""
        return self._run(show_jobs, job, self._timeout_s)

    def in_prolog(self) -> dict[int, int]:
        """Return the jobs that wait for the prolog of their nodes, with their start; raises `SlurmError`."""
        return self._run(jobs_in_prolog, self._timeout_s)

    def site_factors(self) -> dict[int, int]:
        """Return the site factors of the jobs that wait; raises `SlurmError`."""
        return self._run(site_factors, self._timeout_s)

    def update(self, job_id: int, fields: dict[str, str]) -> None:
        """Set fields of a job; raises `SlurmError`."""
        self._run(update_job, job_id, fields, self._timeout_s)

    def close(self) -> None:
        """End the workers."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        for last in (False, True):
            pool = self._pool
            if pool is None:
                return function(*arguments)
            try:
                return pool.submit(function, *arguments).result(self._timeout_s * 2)
            except TimeoutError as error:
                raise SlurmError(function.__name__, f"no answer within {self._timeout_s * 2:g} s") from error
            except (BrokenProcessPool, RuntimeError) as error:
                if last:
                    raise SlurmError(function.__name__, f"the worker process ended: {error}") from error
                with self._lock:
                    if self._pool is pool:
                        pool.shutdown(wait=False)
                        self._pool = _new_pool(self._workers)
        raise AssertionError("the second try returns or raises")


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
            words, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise SlurmError(" ".join(words[:3]), f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise SlurmError(words[0], f"cannot be run: {error.strerror}") from error


def _none_or_error(text: str) -> list[AllocatedJob]:
    if "Invalid job id" in text:
        return []
    raise SlurmError("scontrol show job", text.strip() or "failed without a word")


def _new_pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_settle)


def _settle() -> None:
    """Workers stand behind the daemon, which answers slurmctld, and leave signals to it."""
    import signal

    os.nice(5)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with_parent, name="parent", daemon=True).start()


def _leave_with_parent() -> None:
    """End this worker when the daemon is gone; the pool's pipes stay open as long as one worker lives."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)

