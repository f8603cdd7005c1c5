"""``hetsched bench-policy``: how long one call of a policy takes on a random state."""

from __future__ import annotations

import json
import resource
import statistics
from typing import Any

import click

from pyhetsched.clock import RealClock
from pyhetsched.errors import ConfigError
from pyhetsched.policies.contract import Allocation, ClusterState
from pyhetsched.policies.instances import InstanceSpec, draw
from pyhetsched.policies.registry import SolverCache, allocate, resolve


def measure(
    name: str, state: ClusterState, options: dict[str, str], trials: int, budget_s: float, warm: bool = False
) -> tuple[list[float], Allocation]:
    """Return the seconds of each call and the last answer; every call is fresh unless ``warm``."""
    clock = RealClock()
    kept = SolverCache()
    seconds = []
    for _ in range(trials):
        started_s = clock.monotonic_s()
        cache = kept if warm else SolverCache()
        answer = allocate(name, state, options, clock, budget_s=budget_s, cache=cache)
        seconds.append(clock.monotonic_s() - started_s)
    return seconds, answer


def bench(name: str, spec: InstanceSpec, options: dict[str, str], trials: int, budget_s: float) -> dict[str, Any]:
    """Return the figures of one benchmark as a dictionary for JSON."""
    state = draw(spec)
    seconds, answer = measure(name, state, options, trials, budget_s)
    told = answer.diagnostics
    return {
        "policy": name,
        "jobs": spec.jobs,
        "types": spec.types,
        "gangs": spec.gangs,
        "packed": spec.pairs,
        "median_s": statistics.median(seconds),
        "first_s": seconds[0],
        "objective": answer.objective,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "rung": f"{told.policy}/{told.rung}",
        "reasons": list(told.reasons),
        "gap": None if told.gap != told.gap else told.gap,
        "solver": told.solver,
    }


@click.command("bench-policy")
@click.argument("name")
@click.option("--jobs", default=2048, show_default=True, type=click.IntRange(1), help="Jobs in the state.")
@click.option("--types", default=3, show_default=True, type=click.IntRange(1), help="GPU types.")
@click.option("--gangs", is_flag=True, help="Gangs of 1, 2, 4 and 8 GPUs instead of single GPUs.")
@click.option("--packed", is_flag=True, help="Let pairs of jobs share GPUs.")
@click.option("--distinct", is_flag=True, help="Give every job rates of its own.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random state.")
@click.option("--trials", default=5, show_default=True, type=click.IntRange(1), help="Fresh calls.")
@click.option("--budget", "budget_s", default=60.0, show_default=True, help="Time budget of a call, seconds.")
@click.option("-o", "--option", "pairs", multiple=True, metavar="NAME=VALUE", help="Option of the policy.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench_policy(
    name: str,
    jobs: int,
    types: int,
    gangs: bool,
    packed: bool,
    distinct: bool,
    seed: int,
    trials: int,
    budget_s: float,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Time policy NAME on a random state of jobs drawn as in Gavel's sweep over run times."""
    options = dict(pair.partition("=")[::2] for pair in pairs)
    if packed:
        options["packed"] = "true"
    spec = InstanceSpec(jobs, types, gangs, packed, distinct, seed=seed)
    try:
        info, preset = resolve(name)
        info.options({**preset, **options})
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    figures = bench(name, spec, options, trials, budget_s)
    if as_json:
        click.echo(json.dumps(figures))
        return
    click.echo(
        f"{name}: {jobs} jobs, {types} types: median {figures['median_s'] * 1e3:.1f} ms, objective "
        f"{figures['objective']:.9g}, peak {figures['peak_rss_mb']:.0f} MB, {figures['rung']}"
    )


__all__ = ["bench", "bench_policy", "measure"]
