"""``hetsched simulate``: policies on recorded or drawn work, without touching a cluster."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pyhetsched.errors import HetschedError
from pyhetsched.simulator.generator import Draw
from pyhetsched.simulator.report import write_report
from pyhetsched.simulator.result import Run, summary
from pyhetsched.simulator.scenario import FORMATS, Scenario, play
from pyhetsched.simulator.sweep import Figures, expand, run_local, run_slurm

SHOW_PROGRESS_AFTER_S = 2.0
_FILE = click.Path(exists=True, dir_okay=False)


@click.command("simulate")
@click.option("--jobs", type=_FILE, default=None, help="Job list: Gavel's CSV, sacct --json, sacct -P, or SWF.")
@click.option("--format", "form", type=click.Choice(FORMATS), default=None, help="Format of --jobs, if not plain.")
@click.option("--draw", default="", metavar="K=V,...", help="Draw jobs instead: jobs=,seed=,gangs=yes,mean_gap_s=.")
@click.option("--throughputs", type=_FILE, default=None, help="steps/s by job type, GPUs and type (default: shipped).")
@click.option("--pairs", type=_FILE, default=None, help="steps/s of two jobs on the same GPUs (default: shipped).")
@click.option("--cluster", required=True, metavar="SPEC", help="v100:12,p100:12x4,a100:8/A100-80GB; fastest first.")
@click.option("--policy", default="min-jct", show_default=True)
@click.option("--option", "options", multiple=True, metavar="K=V", help="Option of the policy.")
@click.option("--versus", default=None, metavar="POLICY", help="Run a second policy on the same work.")
@click.option("--rules", type=click.Choice(["slurm", "gavel"]), default="slurm", show_default=True)
@click.option("--rule", "rule_values", multiple=True, metavar="K=V", help="A number of the rules, such as plan_s=60.")
@click.option("--window", default=None, metavar="A:B", help="Figures of jobs A to B-1 only.")
@click.option("--unknown", is_flag=True, help="Throughputs are learned as the simulation runs.")
@click.option("--packed", is_flag=True, help="Policies may put two jobs on a GPU (Gavel's rules).")
@click.option("--speed", "speeds", multiple=True, metavar="TYPE=X", help="Relative speed of a type (sacct, SWF).")
@click.option("--partition", "partitions", multiple=True, metavar="NAME=TYPE+TYPE[@HOURS]")
@click.option("--gpu-limit", "gpu_limits", multiple=True, metavar="ACCOUNT=GPUS")
@click.option("--seed", default=0, show_default=True)
@click.option("--sweep", "sweeps", multiple=True, metavar="FIELD=V,V,...", help="Run all combinations.")
@click.option("--workers", type=click.IntRange(1), default=None, help="Processes for a sweep (default: usable cores).")
@click.option("--slurm", "array", is_flag=True, help="Run the sweep as a Slurm job array (submitit).")
@click.option("--slurm-option", "array_options", multiple=True, metavar="K=V", help="Parameter of submitit.")
@click.option("--folder", type=click.Path(file_okay=False), default="hetsched-sweep", show_default=True)
@click.option("--report", type=click.Path(dir_okay=False, writable=True), default=None, help="Write an HTML page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(**given: Any) -> None:
    """Run a scheduling policy on a simulated cluster and print what came of it."""
    try:
        if given["sweeps"]:
            _sweep(given)
        else:
            _single(given)
    except HetschedError as error:
        raise click.ClickException(str(error)) from error


def _scenario(given: dict[str, Any]) -> Scenario:
    return Scenario(
        cluster=given["cluster"],
        policy=given["policy"],
        rules=given["rules"],
        jobs=given["jobs"] or "",
        format=given["form"] or "",
        draw=_draw(given["draw"]),
        throughputs=given["throughputs"] or "",
        pairs=given["pairs"] or "",
        speeds=tuple((name, _number(name, value)) for name, value in _pairs(given["speeds"], "--speed")),
        options=tuple(_pairs(given["options"], "--option")),
        window=_window(given["window"]),
        unknown=given["unknown"],
        packed=given["packed"],
        seed=given["seed"],
        partitions=given["partitions"],
        gpu_limits=given["gpu_limits"],
        rule_values=tuple((name, _number(name, value)) for name, value in _pairs(given["rule_values"], "--rule")),
    )


def _pairs(items: tuple[str, ...], flag: str) -> list[tuple[str, str]]:
    found = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE", param_hint=flag)
        found.append((name, value))
    return found


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{name}: {value!r} is not a number") from None


def _window(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise click.BadParameter(f"{text!r} is not FIRST:LAST, such as 200:400", param_hint="--window")
    return int(first), int(last)


def _draw(text: str) -> Draw:
    draw = Draw()
    for name, value in _pairs(tuple(item for item in text.split(",") if item), "--draw"):
        if name not in ("jobs", "seed", "gangs", "mean_gap_s"):
            raise click.BadParameter(f"no {name!r}; write jobs, seed, gangs or mean_gap_s", param_hint="--draw")
        if name == "gangs":
            draw = replace(draw, gangs=value.lower() in ("1", "yes", "true"))
        else:
            number = _number(name, value)
            typed: dict[str, Any] = {name: number if name == "mean_gap_s" else int(number)}
            draw = replace(draw, **typed)
    return draw


def _single(given: dict[str, Any]) -> None:
    scenario = _scenario(given)
    runs = [_run(scenario)]
    if given["versus"]:
        runs.append(_run(replace(scenario, policy=given["versus"], options=())))
    if given["report"]:
        Path(given["report"]).write_text(write_report(runs), encoding="utf-8")
    found = [summary(run) for run in runs]
    if given["as_json"]:
        click.echo(json.dumps(_plain(found[0] if len(found) == 1 else {"runs": found}), allow_nan=False))
    else:
        Console().print(_figures_table(found))
        if given["report"]:
            click.echo(f"report: {given['report']}")


def _run(scenario: Scenario) -> Run:
    with _progress(scenario.label()) as tell:
        return play(scenario, tell)


class _Bar:
    """A progress bar that appears only on a terminal, and only when work takes longer than 2 s."""

    def __init__(self, label: str) -> None:
        self._label, self._started_s = label, time.monotonic()
        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task: Any = None

    def __enter__(self) -> Callable[[int, int], None]:
        return self._tell

    def _tell(self, done: int, total: int) -> None:
        if self._task is None:
            if time.monotonic() - self._started_s < SHOW_PROGRESS_AFTER_S:
                return
            self._progress.start()
            self._task = self._progress.add_task(self._label, total=total)
        self._progress.update(self._task, completed=done)

    def __exit__(self, *exc: object) -> None:
        if self._task is not None:
            self._progress.stop()


def _progress(label: str) -> AbstractContextManager[Callable[[int, int], None] | None]:
    return _Bar(label) if sys.stderr.isatty() else nullcontext()


def _sweep(given: dict[str, Any]) -> None:
    axes = {name: values.split(",") for name, values in _pairs(given["sweeps"], "--sweep")}
    scenarios = expand(_scenario(given), axes)
    if given["array"]:
        asked = {name: int(value) if value.isdigit() else value
                 for name, value in _pairs(given["array_options"], "--slurm-option")}  # fmt: skip
        stream = run_slurm(scenarios, Path(given["folder"]), asked)
    else:
        stream = run_local(scenarios, given["workers"])
    found: list[Figures] = [{} for _ in scenarios]
    with _progress(f"{len(scenarios)} runs") as tell:
        for done, (number, figures) in enumerate(stream, 1):
            found[number] = figures
            if tell is not None:
                tell(done, len(scenarios))
    if given["as_json"]:
        click.echo(json.dumps(_plain({"runs": found}), allow_nan=False))
    else:
        Console().print(_figures_table(found))


_SHOWN = ("jobs", "avg_jct_h", "p50_jct_h", "p95_jct_h", "p99_jct_h", "makespan_h", "utilisation", "cost_usd",
          "p95_rho", "max_rho", "preemptions", "solve_ms_median", "wall_s")  # fmt: skip


def _figures_table(found: list[Any]) -> Table:
    table = Table()
    table.add_column("")
    for figures in found:
        table.add_column(str(figures.get("label", figures["policy"])), justify="right")
    for name in _SHOWN:
        table.add_row(name, *(f"{figures[name]:,.4g}" if isinstance(figures[name], float) else str(figures[name])
                              for figures in found))  # fmt: skip
    return table


def _plain(value: Any) -> Any:
    """JSON knows no nan: what could not be measured is null."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
