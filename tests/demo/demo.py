"""``make demo``: a scenario of ordinary users on a mixed cluster of real Slurm daemons.

Runs inside the testbed as root. Exit status 0 only if every request ended as it had to and nothing is left.
"""

from __future__ import annotations

import os
import sys
import time

import scenario
import show
from cluster_view import (
    LateError,
    Outcome,
    forget_releases,
    leftovers,
    look,
    release,
    run_as,
    submit,
    wait_ended,
    wait_running,
    wait_until,
)
from judge import problems

INTRODUCTION = (
    "A cluster of seven nodes: two of 4 A100-80GB and one of 4 H100-80GB in MIG mode, one of 4 H100-80GB that is not, "
    "one of 2 A30 in MIG mode, two of 4 V100. Slurm, munge, slurmdbd and hetsched are real; only the NVIDIA driver is "
    "a stand-in that keeps NVML's rules. alice and bob are ordinary users."
)
HOLE = (
    "The array's slices at both ends of GPU 0 stay, the others end. Slurm counts enough free shards there for a "
    "3g.40gb, but no legal start is free. hetsched keeps the job away from that node, so it starts elsewhere at once; "
    "had it been allocated there, it would have gone back to the queue, and nothing be drained or held."
)


class Play:
    """Plays acts and keeps count."""

    def __init__(self) -> None:
        self.requests = 0
        self.wrong: list[str] = []

    def check(self, outcome: Outcome) -> None:
        """Show one request, and remember what is wrong with it."""
        found = problems(outcome)
        show.request(outcome, found)
        self.requests += 1
        self.wrong += [f"{outcome.request.user}$ {show.command_line(outcome)}: {problem}" for problem in found]

    def act(self, act: scenario.Act) -> None:
        """Submit all requests of an act, wait for their end, show each."""
        show.heading(act.heading, act.text)
        outcomes = [submit(request) for request in act.requests]
        wait_ended(outcomes)
        for outcome in outcomes:
            self.check(look(outcome))

    def busy_cluster(self) -> None:
        """Run many jobs at once, show the map, then take some away and have one moved."""
        act = scenario.TOGETHER
        show.heading(act.heading, act.text)
        outcomes = [submit(request) for request in act.requests]
        wait_running(outcomes)
        seen = [look(outcome) for outcome in outcomes]
        for outcome in seen:
            self.check(outcome)
        show_map()
        for user in ("alice", "bob"):
            release(user, "mix")
        wait_ended([outcome for outcome in outcomes if "mix" in outcome.request.command])
        self.hole(seen[0])
        for element in range(act.requests[0].elements):
            release("alice", str(element))
        wait_ended(outcomes)

    def hole(self, array: Outcome) -> None:
        """Leave two slices of the array so that a 3g.40gb has no start between them."""
        show.heading("A hole in the layout", HOLE)
        starts = {job.partition("_")[2]: found["reservations"][0]["start"]
                  for job, found in zip(array.jobs, array.explained, strict=True)}  # fmt: skip
        low = min(starts, key=lambda element: starts[element])
        high = max(starts, key=lambda element: starts[element])
        for element in set(starts) - {low, high}:
            release("alice", element)
        kept = {f"{array.jobs[0].partition('_')[0]}_{element}" for element in (low, high)}
        wait_until(lambda: running(array) == kept, 60, "five elements of the array ended")
        show_map("-w", "a100-0")
        outcome = submit(scenario.HOLE)
        wait_ended([outcome])
        outcome = look(outcome)
        self.check(outcome)
        command = ("hetsched", "explain", *outcome.jobs)
        show.verbatim("bob", " ".join(command), run_as("bob", *command).out)


def running(array: Outcome) -> set[str]:
    """The elements of an array that have not ended, their epilogs included."""
    name = array.jobs[0].partition("_")[0]
    return set(run_as("root", "squeue", "-h", "-r", "-j", name, "-o", "%i").out.split())


def show_map(*options: str) -> None:
    """The GPUs as an operator sees them; to others the jobs of other people are only "in use"."""
    command = ("hetsched", "gpus", *options)
    show.verbatim("oper", " ".join(command), run_as("oper", *command).out)


def nothing_left() -> list[str]:
    """What is left at the end, once there was time for it to go."""
    try:
        wait_until(lambda: not leftovers(), 30, "nothing is left")
    except LateError:
        return leftovers()
    return []


def main() -> int:
    """Play everything; 0 if all is well."""
    if os.environ.get("HETSCHED_TESTBED_RUN") != "1":
        sys.stderr.write("the demo needs its cluster: make demo\n")
        return 2
    started_s = time.monotonic()
    play = Play()
    forget_releases()
    show.paragraph(INTRODUCTION)
    try:
        for act in (scenario.BY_NAME, scenario.BY_NEED, scenario.WHOLE, scenario.REFUSED):
            play.act(act)
        play.busy_cluster()
        play.wrong += nothing_left()
    except LateError as error:
        play.wrong.append(str(error))
        show.verbatim("root", "squeue", run_as("root", "squeue", "-a").out)
    show.heading("The end", "All jobs have ended; this is what is left.")
    show_map()
    return verdict(play, time.monotonic() - started_s)


def verdict(play: Play, took_s: float) -> int:
    """Say how it went."""
    show.console.print()
    for line in play.wrong:
        show.paragraph(f"NOT AS EXPECTED: {line}", "bold red")
    if play.wrong:
        return 1
    text = f"{play.requests} requests in {took_s:.0f} s, each ended as expected"
    show.paragraph(f"{text}; no instance, shard or reservation is left.", "bold green")
    return 0


if __name__ == "__main__":
    sys.exit(main())
