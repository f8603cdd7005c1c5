"""What the hooks add to the start of a job: each hook is run by Slurm inside a shell that notes the time."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SLURM_CONF = Path("/etc/slurm/slurm.conf")
HOOKS = Path("/usr/lib/hetsched/hooks")
FAKE_NVML = Path("/run/fakenvml")
NOTES = Path("/run/hetsched-bench")
TIMED = {"Prolog": "prolog", "PrologSlurmctld": "prolog-slurmctld"}
SLICE_JOBS, PLAIN_JOBS = 30, 60
SLICE_NODE, PLAIN_NODE = "a100-0", "v100-0"

# EPOCHREALTIME is the shell's own: no other process is started to read the clock.
_WRAPPER = """\
#!/bin/bash
before=$EPOCHREALTIME
{hook}
status=$?
echo "$SLURM_JOB_ID $before $EPOCHREALTIME" >>{notes}
exit $status
"""


@dataclass(frozen=True, slots=True)
class Span:
    """When a hook ran for a job."""

    job_id: int
    began_s: float
    ended_s: float

    @property
    def wall_s(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s


def measure() -> tuple[list[float], list[float], list[float]]:
    """Seconds that were added to each slice job beyond NVML, seconds in NVML, and those added to each plain job."""
    wrap_hooks()
    plain = run_jobs(PLAIN_JOBS, "-w", PLAIN_NODE, "--gres=gpu:1")
    slices = run_jobs(SLICE_JOBS, "-w", SLICE_NODE, "--gres=gpu:1g.10gb:1")
    prologs, controller = spans("prolog"), spans("prolog-slurmctld")
    nvml_s = [nvml_seconds(SLICE_NODE, prologs[job]) for job in slices]
    added = [prologs[job].wall_s - spent for job, spent in zip(slices, nvml_s, strict=True)]
    return added, nvml_s, [prologs[job].wall_s + controller[job].wall_s for job in plain]


def wrap_hooks() -> None:
    """Put the timing shell around the hooks in slurm.conf."""
    NOTES.mkdir(exist_ok=True)
    shutil.chown(NOTES, "slurm", "slurm")
    NOTES.chmod(0o1777)
    text = SLURM_CONF.read_text()
    for key, name in TIMED.items():
        wrapper = NOTES / f"{name}.sh"
        wrapper.write_text(_WRAPPER.format(hook=HOOKS / name, notes=NOTES / f"{name}.times"))
        wrapper.chmod(0o755)
        text = text.replace(f"{key}={HOOKS / name}\n", f"{key}={wrapper}\n")
    SLURM_CONF.write_text(text)
    reconfigure()


def reconfigure() -> None:
    """Have Slurm read slurm.conf again, and wait until it and its nodes are there."""
    subprocess.run(["scontrol", "reconfigure"], check=True, capture_output=True)
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        done = subprocess.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"], capture_output=True, text=True)
        if done.returncode == 0 and set(done.stdout.split()) == {"idle"}:
            return
        time.sleep(0.1)
    raise TimeoutError("the nodes are not idle a minute after scontrol reconfigure")


def run_jobs(count: int, *options: str) -> list[int]:
    """Run ``count`` jobs one after the other as alice; their ids."""
    found = []
    for _ in range(count):
        argv = ["setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "--", "srun", "-Q", *options]
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/home/alice"}
        done = subprocess.run([*argv, "printenv", "SLURM_JOB_ID"], capture_output=True, text=True, check=True,
                              env=environment, cwd="/home/alice")  # fmt: skip
        found.append(int(done.stdout))
        wait_for_epilog()
    return found


def wait_for_epilog() -> None:
    """Wait until the job before is gone, so that no two hooks run at once."""
    while subprocess.run(["squeue", "-h", "-o", "%A"], capture_output=True, text=True).stdout.strip():
        time.sleep(0.02)


def spans(name: str) -> dict[int, Span]:
    """When a hook ran, by job."""
    lines: Iterable[str] = (NOTES / f"{name}.times").read_text().splitlines()
    found = (line.split() for line in lines)
    return {int(job): Span(int(job), float(began), float(ended)) for job, began, ended in found}


def nvml_seconds(node: str, span: Span) -> float:
    """The seconds that NVML calls took on a node within a span, from the log of the fake library."""
    total_us = 0.0
    for line in (FAKE_NVML / f"{node}.calls").read_text().splitlines():
        fields = line.split()
        if span.began_s <= float(fields[0]) <= span.ended_s:
            total_us += float(fields[-1])
    return total_us / 1e6


def load() -> float:
    """The machine's load average of the last minute."""
    return os.getloadavg()[0]
