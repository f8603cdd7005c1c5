"""What must hold once the cluster has settled, whatever has been done to it."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from conftest import run_as
from site_control import NODE_RUN, NODE_STATE, Site
from stream import Job, Stream, queue

USES = Path("/run/fakenvml")
_BAD_STATES = ("DRAIN", "DOWN", "FAIL", "NOT_RESPONDING", "INVAL")
_EXPLAINED_EACH_TIME = 4


@dataclass(slots=True)
class Tally:
    """What the campaign counts; every list holds one line for each violation."""

    run: int = 0
    cancelled: int = 0
    died_with_their_gpu: int = 0
    lost: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)

    def violations(self) -> list[str]:
        """All of them, each with its kind."""
        kinds = ("lost", "held", "drained", "leaked", "shared", "untold")
        return [f"{kind}: {line}" for kind in kinds for line in getattr(self, kind)]

    def summary(self, faults: int) -> str:
        """The last line of the campaign."""
        return (
            f"chaos: faults {faults}, jobs run {self.run}, jobs lost {len(self.lost)}, jobs held {len(self.held)}, "
            f"nodes drained {len(self.drained)}, slices leaked {len(self.leaked)}, slices shared {len(self.shared)}"
        )


class Invariants:
    """Judges the settled cluster and adds to a tally."""

    def __init__(self, site: Site, stream: Stream, tally: Tally, rng: random.Random) -> None:
        self._site = site
        self._stream = stream
        self._tally = tally
        self._rng = rng
        self._seen_uses: set[str] = set()

    def check(self) -> list[str]:
        """Judge; return the new violations."""
        before = len(self._tally.violations())
        self._held()
        self._jobs()
        self._nodes()
        self._leaks()
        self._sharing()
        return self._tally.violations()[before:]

    def _held(self) -> None:
        """Jobs that still wait although all has been mended for a while: held, or blocked for ever."""
        left = queue()
        for job_id in left:
            record = run_as("root", "scontrol", "show", "job", "-d", str(job_id)).out
            self._tally.held.append(f"job {job_id}: {' '.join(record.split())}")
            self._stream.open.pop(job_id, None)
        if left:
            run_as("root", "scancel", *map(str, left))
            _within(30, lambda: not queue())

    def _jobs(self) -> None:
        jobs = self._stream.open
        ended: dict[int, tuple[str, str]] = {}

        def all_told() -> bool:
            ended.update(accounted(set(jobs) - set(ended)))
            return set(ended) >= set(jobs)

        _within(30, all_told)
        for job_id in set(jobs) - set(ended):
            # The accounting loses a job that is cancelled while it is being requeued; slurmctld still knows it.
            shown = run_as("root", "scontrol", "show", "job", str(job_id), "-o").out
            found = re.search(r" JobState=(\S+) ", shown)
            ended[job_id] = (found[1] if found else "unknown", "")
        for job in list(jobs.values()):
            self._judge(job, *ended.get(job.id, ("unknown to sacct", "")))
            del jobs[job.id]
        for job_id in self._rng.sample(sorted(ended), min(_EXPLAINED_EACH_TIME, len(ended))):
            self._told(job_id)

    def _judge(self, job: Job, state: str, nodes: str) -> None:
        self._tally.run += 1
        self._tally.shared += job.wrong_views()
        if state == "COMPLETED":
            return
        if job.cancelled and state.startswith("CANCELLED"):
            self._tally.cancelled += 1
            return
        last = job.last_end()
        if state == "FAILED" and last is not None and last[1] < self._site.hurt_until_s.get(last[0], 0.0):
            # The program could not open its slice for the GPU was off the bus just then.
            self._tally.died_with_their_gpu += 1
            return
        self._tally.lost.append(f"job {job.id} ({job.size} x {job.count}) on {nodes} is {state}: {job.output()!r}")

    def _told(self, job_id: int) -> None:
        """The record of a job must say what was asked and what became of each slice."""
        ran = run_as("root", "hetsched", "explain", str(job_id), "--json")
        try:
            said = json.loads(ran.out)
        except json.JSONDecodeError:
            self._tally.untold.append(f"job {job_id}: {ran.out}{ran.err}")
            return
        if not said.get("events") and not said.get("decisions"):
            self._tally.untold.append(f"job {job_id}: no events in {sorted(said)}")

    def _nodes(self) -> None:
        for line in run_as("root", "sinfo", "-h", "-N", "-o", "%N %T %E", check=True).out.splitlines():
            name, state, reason = line.split(" ", 2)
            if any(bad in state.upper() for bad in _BAD_STATES):
                self._tally.drained.append(f"{name} is {state}: {reason}")
                run_as("root", "scontrol", "update", f"NodeName={name}", "State=RESUME")

    def _leaks(self) -> None:
        if _within(40, lambda: not self.leftovers()):
            return
        found = self.leftovers()
        self._tally.leaked += found
        # So that one leak is not counted again at every later settling.
        for node in {line.split()[0] for line in found} & set(self._site.nodes):
            self._site.reboot(node)

    def leftovers(self) -> list[str]:
        """What should not be there on an empty cluster, one line each, the node first."""
        found = [
            f"{node} GPU {gpu} has {item['profile']} at {item['start']}"
            for node in self._site.nodes
            for gpu, item in self._site.instances(node)
        ]
        found += [f"{path.parent.name} has {path.name}" for path in NODE_STATE.glob("*/job-*.json")]
        found += [f"{path.parent.name} has {path.name}" for path in NODE_RUN.glob("*/job-*.env")]
        gpus = json.loads(run_as("root", "hetsched", "gpus", "--json").out or '{"nodes": []}')
        found += [
            f"{node['name']} GPU {gpu['index']} in the book: {item['profile']} {item['state']} {item.get('job_id')}"
            for node in gpus["nodes"]
            for gpu in node["gpus"]
            for item in gpu["slices"]
        ]
        for line in run_as("root", "sinfo", "-h", "-N", "-O", "NodeList:30,GresUsed:200").out.splitlines():
            name, used = line.split()[:2]
            found += [f"{name} uses {part}" for part in re.findall(r"(?:shard|gpu)[^(,]*:[1-9]\d*", used)]
        off = [
            (node, gpu["index"]) for node in self._site.nodes for gpu in self._site.driver(node)["gpus"]
            if gpu["mode"] != 1
        ]  # fmt: skip
        return found + [f"{node} GPU {gpu} has lost MIG mode" for node, gpu in off]

    def _sharing(self) -> None:
        for line in sharing():
            if line not in self._seen_uses:
                self._seen_uses.add(line)
                self._tally.shared.append(line)


def sharing() -> list[str]:
    """Every instance that processes of two jobs have ever had, one line each."""
    found = []
    for log in sorted(USES.glob("*.uses")):
        users: dict[str, set[str]] = {}
        for line in log.read_text(encoding="ascii").splitlines():
            _, event, _, _, job, gpu, gi, ci, serial, uuid = line.split()
            if job == "-":
                continue
            if event == "conflict":
                found.append(f"{log.stem}: job {job} on GPU {gpu} instance {gi}/{ci} beside another: {line}")
            if event == "open" and serial != "0":
                users.setdefault(f"{uuid} serial {serial}", set()).add(job)
        found += [f"{log.stem}: {which}: jobs {sorted(jobs)}" for which, jobs in users.items() if len(jobs) > 1]
    return found


def accounted(jobs: set[int]) -> dict[int, tuple[str, str]]:
    """State and nodes of each of these jobs that has ended, as the accounting has them."""
    if not jobs:
        return {}
    names = ",".join(map(str, sorted(jobs)))
    rows = run_as("root", "sacct", "-n", "-X", "-P", "-j", names, "-o", "JobID,State,NodeList").out.split("\n")
    found = {}
    for row in rows:
        number, _, rest = row.partition("|")
        state, _, nodes = rest.partition("|")
        if number.isdigit() and state not in ("", "RUNNING", "PENDING", "REQUEUED"):
            found[int(number)] = (state, nodes)
    return found


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.5)
    return True
