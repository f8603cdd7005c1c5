"""One simulation as a value: what to load, on what cluster, under which rules and policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from pyhetsched.errors import ConfigError
from pyhetsched.policies.registry import OptionValue, resolve
from pyhetsched.simulator.accounting import read_sacct
from pyhetsched.simulator.cluster import SimCluster, parse_cluster
from pyhetsched.simulator.gavel_jobs import read_gavel_jobs
from pyhetsched.simulator.gavel_rules import GavelRules, simulate_gavel
from pyhetsched.simulator.generator import Draw, draw_trace
from pyhetsched.simulator.learning import Learned
from pyhetsched.simulator.result import Run
from pyhetsched.simulator.slurm_rules import SlurmRules, simulate_slurm
from pyhetsched.simulator.swf import read_swf
from pyhetsched.simulator.tables import load_pairs, load_table
from pyhetsched.simulator.trace import Trace

FORMATS = ("gavel", "sacct", "swf")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a run depends on; plain values, so that it can be sent to another process.

    ``jobs`` a file in one of FORMATS ("" = by its name and content), else ``draw``. ``throughputs`` and ``pairs``
    files, "" = as shipped. ``speeds`` relative speed by type, for accounting and SWF. ``unknown``: throughputs are
    learned as the simulation runs. ``packed``: policies may put two jobs on a GPU (Gavel's rules).
    """

    cluster: str
    policy: str
    rules: str = "slurm"
    jobs: str = ""
    format: str = ""
    draw: Draw = field(default_factory=Draw)
    throughputs: str = ""
    pairs: str = ""
    speeds: tuple[tuple[str, float], ...] = ()
    options: tuple[tuple[str, OptionValue], ...] = ()
    window: tuple[int, int] | None = None
    unknown: bool = False
    packed: bool = False
    seed: int = 0
    partitions: tuple[str, ...] = ()
    gpu_limits: tuple[str, ...] = ()
    rule_values: tuple[tuple[str, float], ...] = ()

    def label(self) -> str:
        """Return a short name: the policy and its options."""
        shown = ",".join(f"{name}={value}" for name, value in self.options)
        return f"{self.policy}({shown})" if shown else self.policy


def load_cluster(scenario: Scenario) -> SimCluster:
    """Return the scenario's cluster."""
    return parse_cluster(scenario.cluster, partitions=scenario.partitions, gpu_limits=scenario.gpu_limits)


def load_trace(scenario: Scenario, cluster: SimCluster) -> Trace:
    """Return the scenario's work, with throughputs on the cluster's types."""
    speeds = {name: dict(scenario.speeds).get(name, 1.0) for name in cluster.names}
    unknown = set(dict(scenario.speeds)) - set(cluster.names)
    if unknown:
        raise ConfigError(f"speed given for {', '.join(sorted(unknown))}; the cluster has {', '.join(cluster.names)}")
    table_path = Path(scenario.throughputs) if scenario.throughputs else None
    if not scenario.jobs:
        names = cluster.names if "v100" in cluster.names else (*cluster.names, "v100")
        return draw_trace(scenario.draw, load_table(table_path, names)).on_types(cluster.names)
    path = Path(scenario.jobs)
    kind = scenario.format or guess_format(path)
    if kind == "sacct":
        return read_sacct(path, speeds)
    if kind == "swf":
        return read_swf(path, speeds)
    if kind != "gavel":
        raise ConfigError(f"no job format {kind!r}; write one of {', '.join(FORMATS)}")
    table = load_table(table_path, cluster.names) if table_path else None
    return read_gavel_jobs(path, table).on_types(cluster.names)


def guess_format(path: Path) -> str:
    """Return the format of a job file: ``.swf``, JSON or ``|`` columns (sacct), else Gavel's CSV."""
    name = path.name.lower()
    if name.endswith((".swf", ".swf.gz")):
        return "swf"
    try:
        head = path.read_bytes()[:4096].decode("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    first = head.lstrip().splitlines()[0] if head.strip() else ""
    if first.startswith("{") or "|" in first:
        return "sacct"
    return "swf" if first.startswith(";") else "gavel"


def play(scenario: Scenario, progress: Callable[[int, int], None] | None = None) -> Run:
    """Load and run a scenario; errors are ConfigError and DataError."""
    # A light load may never ask the policy: a wrong name or option must be told all the same.
    info, preset = resolve(scenario.policy)
    info.options({**preset, **dict(scenario.options)})
    cluster = load_cluster(scenario)
    trace = load_trace(scenario, cluster)
    beliefs = Learned(trace) if scenario.unknown else None
    options: Mapping[str, OptionValue] = dict(scenario.options)
    values = dict(scenario.rule_values)
    if scenario.rules == "slurm":
        rules = _with(SlurmRules(), values)
        return simulate_slurm(trace, cluster, scenario.policy, options, scenario.window, rules, beliefs, progress)
    if scenario.rules != "gavel":
        raise ConfigError(f"no rules {scenario.rules!r}; write gavel or slurm")
    pairs, pair_class = None, None
    if scenario.packed:
        table = load_table(Path(scenario.throughputs) if scenario.throughputs else None, cluster.names)
        pairs = load_pairs(Path(scenario.pairs) if scenario.pairs else None, table)
        keys = zip(trace.job_class, trace.gang.tolist(), strict=True)
        pair_class = np.array([table.row(name, gang) for name, gang in keys])
    gavel = replace(_with(GavelRules(), values), seed=scenario.seed)
    return simulate_gavel(
        trace, cluster, scenario.policy, options, scenario.window, gavel, beliefs, pairs, pair_class, progress
    )


_Rules = TypeVar("_Rules", GavelRules, SlurmRules)


def _with(rules: _Rules, values: Mapping[str, float]) -> _Rules:
    known = {f.name for f in fields(rules) if isinstance(getattr(rules, f.name), int | float)}
    unknown = set(values) - known
    if unknown:
        raise ConfigError(f"no rule {', '.join(sorted(unknown))}; these can be set: {', '.join(sorted(known))}")
    typed = {name: type(getattr(rules, name))(value) for name, value in values.items()}
    return replace(rules, **typed)
