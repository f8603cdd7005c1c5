"""A steady stream of slice jobs of mixed sizes, and what became of each."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from conftest import run_as

SIZES = ("1g.10gb", "1g.10gb", "1g.20gb", "2g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.6gb", "2g.12gb",
         "4g.24gb")  # fmt: skip
USERS = ("alice", "bob")

# Each run of the job says what it sees; it fails unless it can open exactly what it asked for.
_SCRIPT = """\
#!/bin/sh
echo "begin ${{SLURM_RESTART_COUNT:-0}} $SLURMD_NODENAME $(date +%s.%N) [$CUDA_VISIBLE_DEVICES]"
fake-nvidia-smi -L
fake-cuda-hold --strict --expect {count} {seconds:.2f}
status=$?
echo "end ${{SLURM_RESTART_COUNT:-0}} $SLURMD_NODENAME $(date +%s.%N) $status"
exit $status
"""
_BEGIN = re.compile(r"^begin (\d+) (\S+) ([\d.]+) \[(\S*)\]$", re.MULTILINE)
_END = re.compile(r"^end (\d+) (\S+) ([\d.]+) (\d+)$", re.MULTILINE)


@dataclass(slots=True)
class Job:
    """One job of the campaign."""

    id: int
    user: str
    size: str
    count: int
    cancelled: bool = False

    def output(self) -> str:
        """What all its runs printed."""
        try:
            return Path(f"/home/{self.user}/chaos-{self.id}.out").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def wrong_views(self) -> list[str]:
        """Runs that saw something else than the slices asked for, though they were let run to their end."""
        text, wrong = self.output(), []
        runs = re.split(r"(?=^begin )", text, flags=re.MULTILINE)
        for run in runs:
            begin, end = _BEGIN.search(run), _END.search(run)
            if begin is None or end is None or end[4] != "0":
                continue
            seen = begin[4].split(",")
            profiles = re.findall(r"MIG (\S+)\s+Device", run)
            if not all(uuid.startswith("MIG-") for uuid in seen) or profiles != [self.size] * self.count:
                wrong.append(f"job {self.id} asked for {self.count} x {self.size} and saw {seen} {profiles}")
        return wrong

    def last_end(self) -> tuple[str, float, int] | None:
        """Node, time and status of its last run."""
        found = _END.findall(self.output())
        return (found[-1][1], float(found[-1][2]), int(found[-1][3])) if found else None


class Stream:
    """Submits jobs as alice and bob so that some always wait."""

    def __init__(self, rng: random.Random, backlog: int) -> None:
        self._rng = rng
        self._backlog = backlog
        self.open: dict[int, Job] = {}
        self.submitted = 0
        self.refused = 0

    def feed(self, most: int) -> None:
        """Submit up to ``most`` jobs while the queue is shorter than the backlog."""
        waiting = len(queue())
        for _ in range(min(most, self._backlog - waiting)):
            self._submit()

    def cancel_one(self) -> int | None:
        """A user changes her mind about a job; return its id."""
        ids = sorted(set(queue()) & set(self.open))
        if not ids:
            return None
        job = self.open[self._rng.choice(ids)]
        run_as(job.user, "scancel", str(job.id))
        job.cancelled = True
        return job.id

    def _submit(self) -> None:
        size = self._rng.choice(SIZES)
        count = 2 if size.startswith("1g.") and self._rng.random() < 0.15 else 1
        user = self._rng.choice(USERS)
        seconds = self._rng.choice((0.2, 0.5, 1.0, 2.0, 4.0)) * self._rng.uniform(0.5, 1.5)
        ran = run_as(
            user, "sbatch", "--parsable", "--open-mode=append", "-o", "chaos-%A.out", "-J", f"{size}x{count}",
            "-t", "5", f"--gres=gpu:{size}:{count}", stdin=_SCRIPT.format(count=count, seconds=seconds),
        )  # fmt: skip
        if ran.status:
            # Without an answer of the daemon a slice request is refused at once, with a word to the user.
            self.refused += 1
            return
        job = Job(int(ran.out.split(";")[0]), user, size, count)
        self.open[job.id] = job
        self.submitted += 1


def queue() -> list[int]:
    """Every job that has not ended."""
    return [int(word) for word in run_as("root", "squeue", "-h", "-o", "%A").out.split()]
