"""Printing: for every request what was asked, what it became, where it ran, on which slices, and why."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from cluster_view import Outcome, gpus_seen
from rich.console import Console
from rich.text import Text

WIDTH = max(80, min(110, shutil.get_terminal_size((100, 25)).columns))
LABEL = 10
console = Console(width=WIDTH, highlight=False, soft_wrap=True, no_color=None if sys.stdout.isatty() else True)


def heading(text: str, explanation: str) -> None:
    """The start of an act."""
    console.print()
    console.print(Text(f"== {text} ".ljust(WIDTH, "="), "bold"))
    paragraph(explanation)


def paragraph(text: str, style: str = "") -> None:
    """Wrapped text."""
    for line in textwrap.wrap(text, WIDTH):
        console.print(Text(line, style))


def field(label: str, text: str, style: str = "") -> None:
    """One labelled line of a request, wrapped under itself."""
    lines = textwrap.wrap(text, WIDTH - LABEL - 4, break_on_hyphens=False, break_long_words=False) or [""]
    for number, line in enumerate(lines):
        console.print(Text.assemble("  ", ((label if number == 0 else "").ljust(LABEL), "dim"), (line, style)))


def request(outcome: Outcome, problems: list[str]) -> None:
    """All about one request."""
    console.print()
    console.print(Text(f"{outcome.request.user}$ {command_line(outcome)}", "bold"))
    if outcome.times_submitted > 1:
        text = f"submitted {outcome.times_submitted} times: at first the machine was too busy to answer, and said so"
        field("busy", text)
    if outcome.request.wanted.refused or not outcome.jobs:
        field("refused", _plain(outcome.said), "yellow")
    else:
        for label, text in accepted(outcome):
            field(label, text)
    for problem in problems:
        field("WRONG", problem, "bold red")


def command_line(outcome: Outcome) -> str:
    """What the user typed, with the lines of the script that matter."""
    words = shlex.join(outcome.request.command)
    if outcome.request.command[0] == "srun":
        return words
    directives = [line for line in outcome.request.script if line.startswith("#HETSCHED")]
    return f"{words} job.sh" + "".join(f"    (job.sh has the line {line!r})" for line in directives)


def accepted(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """The labelled lines of a job that Slurm took."""
    explained = outcome.explained[0]
    submit = explained["decisions"][0]
    became = submit["became"]
    yield "became", "the request as it was" if became == "unchanged" else became
    yield "job", f"{_folded(outcome.jobs)} on {', '.join(outcome.nodes)}: {', '.join(sorted(set(outcome.states)))}"
    yield from _slices(outcome)
    if outcome.request.wanted.gpus:
        yield "gpus", "; ".join(model for output in outcome.outputs for model in gpus_seen(output))
    back = [d for each in outcome.explained for d in each["decisions"] if d["kind"] == "give-back"]
    for decision in back:
        yield "back", f"{decision['node']}: {decision['message']}"
    yield "why", _why(submit)
    starts = {d["policy"] for each in outcome.explained for d in each["decisions"] if d["kind"] == "allocate"}
    if starts - {""}:
        yield "", f"start: {'; '.join(sorted(starts))}"
    also = [item["name"] for item in submit["candidates"] if item["admissible"] and not item["chosen"]]
    if also:
        yield "or else", "; ".join(also)


def _slices(outcome: Outcome) -> Iterator[tuple[str, str]]:
    for explained in outcome.explained:
        reservations = explained["reservations"]
        last = max((item["restart_count"] for item in reservations), default=0)
        element = f", element {explained['job']['id_text'].partition('_')[2]}" if len(outcome.jobs) > 1 else ""
        for item in (item for item in reservations if item["restart_count"] == last):
            place = f"{item['profile']}@{item['start']} of {item['node']} GPU {item['gpu_index']}"
            yield "slice", f"{place}  {item['mig_uuid'][:12]}...{element}"


def _why(submit: dict[str, Any]) -> str:
    chosen = [f"{item['name']}: {item['reason']}" for item in submit["candidates"] if item["chosen"] and item["reason"]]
    if chosen:
        return "; ".join(chosen)
    return submit["message"].removeprefix("hetsched: ") or "nothing in it needs to be changed on this cluster"


def _folded(jobs: tuple[str, ...]) -> str:
    if len(jobs) == 1:
        return jobs[0]
    name, _, last = jobs[-1].partition("_")
    return f"{name}_[0-{last}]"


def _plain(said: str) -> str:
    return " ".join(line.partition("hetsched: ")[2] or line for line in said.splitlines())


def verbatim(user: str, command: str, output: str) -> None:
    """A command of a user, and all that it printed."""
    console.print()
    console.print(Text(f"{user}$ {command}", "bold"))
    for line in output.splitlines():
        console.print(Text(line))
