"""Many scenarios: side by side on this machine's cores, or as a Slurm job array through submitit."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pyhetsched.errors import ConfigError
from pyhetsched.simulator.result import summary
from pyhetsched.simulator.scenario import Scenario, play

Figures = dict[str, Any]


def expand(base: Scenario, axes: Mapping[str, Sequence[str]]) -> list[Scenario]:
    """Return a scenario for each combination of values.

    An axis is a field of Scenario (``policy``, ``cluster``, ``seed``), of the drawn list (``draw.seed``,
    ``draw.mean_gap_s``) or an option of the policy (``option.light``).
    """
    scenarios = []
    for values in itertools.product(*axes.values()):
        scenario = base
        for name, value in zip(axes, values, strict=True):
            scenario = _set(scenario, name, value)
        scenarios.append(scenario)
    return scenarios


def _set(scenario: Scenario, name: str, value: str) -> Scenario:
    group, _, inner = name.partition(".")
    if group == "option" and inner:
        kept = tuple(item for item in scenario.options if item[0] != inner)
        return replace(scenario, options=(*kept, (inner, value)))
    target: Any = scenario.draw if group == "draw" and inner else scenario
    name = inner if target is scenario.draw else name
    known = {f.name: type(getattr(target, f.name)) for f in fields(target)}
    kinds = {k: kind for k, kind in known.items() if kind in (str, int, float, bool)}
    if name not in kinds:
        raise ConfigError(
            f"cannot sweep over {name!r}; write one of {', '.join(sorted(kinds))}, draw.<field> or option.<name>"
        )
    try:
        typed = value.lower() in ("1", "yes", "true") if kinds[name] is bool else kinds[name](value)
    except ValueError:
        raise ConfigError(f"sweep over {name}: {value!r} is not {kinds[name].__name__}") from None
    changed = replace(target, **{name: typed})
    return replace(scenario, draw=changed) if target is scenario.draw else changed


def figures(scenario: Scenario) -> Figures:
    """Run a scenario and return its figures, with what it was."""
    return {
        "label": scenario.label(),
        "cluster": scenario.cluster,
        "list": scenario.jobs or f"drawn {scenario.draw}",
        "seed": scenario.seed,
        **summary(play(scenario)),
    }


def run_local(scenarios: Sequence[Scenario], workers: int | None = None) -> Iterator[tuple[int, Figures]]:
    """Yield (number, figures) as scenarios end; ``workers`` processes, by default one a usable core."""
    workers = workers or len(os.sched_getaffinity(0))
    if workers == 1 or len(scenarios) == 1:
        for number, scenario in enumerate(scenarios):
            yield number, figures(scenario)
        return
    # Fresh processes: forking one that has solver threads may hang the child.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(scenarios)), mp_context=fresh) as pool:
        waiting = {pool.submit(figures, scenario): number for number, scenario in enumerate(scenarios)}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def run_slurm(
    scenarios: Sequence[Scenario], folder: Path, parameters: Mapping[str, object] | None = None
) -> Iterator[tuple[int, Figures]]:
    """Submit a job array, one task a scenario, and yield (number, figures) as tasks end.

    ``folder`` must be seen by all nodes; ``parameters`` are submitit's (``timeout_min``, ``slurm_partition``,
    ``slurm_array_parallelism``...). ConfigError if submitit is not installed.
    """
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("a sweep on Slurm needs submitit: pip install 'pyhetsched[simulate]'") from error
    cluster = str((parameters or {}).get("cluster", "slurm"))
    executor = submitit.AutoExecutor(folder=str(folder), cluster=cluster)
    asked = {name: value for name, value in (parameters or {}).items() if name != "cluster"}
    executor.update_parameters(**{"timeout_min": 60, "cpus_per_task": 1, "name": "hetsched-sweep", **asked})
    jobs = executor.map_array(figures, list(scenarios))
    number = {job.job_id: index for index, job in enumerate(jobs)}
    for job in submitit.helpers.as_completed(jobs):
        yield number[job.job_id], job.result()
