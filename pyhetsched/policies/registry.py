"""Names of policies, their options, and the ladder that guards a solver.

A policy is a function ``(state, options, context) -> Allocation``, registered by decorator::

    @policy("max-min", options=MaxMinOptions, summary="...", aliases={"max_min_fairness": {"aware": False}})
    def max_min(state, options, context): ...

    @max_min.rung("highs")
    def max_min_highs(state, options, context): ...

:func:`allocate` runs it. A rung that raises :class:`SolverError`, or comes back after the time
budget with nothing, hands over to the next one; below a policy's own rungs stand other policies
(``fall_to``), at the bottom ``fifo``. The answer names the rung and says why those before it failed.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pyhetsched.clock import Clock, RealClock
from pyhetsched.errors import ConfigError, SolverError
from pyhetsched.policies.contract import Allocation, ClusterState, Diagnostics

OptionValue = str | int | float | bool
DEFAULT_BUDGET_S = 10.0


@dataclass(slots=True)
class SolverCache:
    """Solver objects and bases that outlive one call, so that the next one starts warm.

    Held by the caller (daemon or simulator); a policy without one starts cold and gives the same
    objective.
    """

    entries: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """What a rung may use beside state and options: a clock, its deadline, and the solver cache."""

    clock: Clock
    deadline_s: float
    cache: SolverCache

    def left_s(self) -> float:
        """Return the seconds until this rung must have answered; raise SolverError if none are left."""
        left = self.deadline_s - self.clock.monotonic_s()
        if left <= 0:
            raise SolverError("time budget used up")
        return left


class Policy(Protocol):
    """A pure function of its arguments; raises SolverError if it finds no answer."""

    def __call__(self, state: ClusterState, options: Any, context: Context, /) -> Allocation:
        """Return what should run where."""
        ...


@dataclass(slots=True)
class PolicyInfo:
    """A registered policy: name, one-line summary, options type, rungs in order, policies to fall to."""

    name: str
    summary: str
    options_type: type
    rungs: list[tuple[str, Policy]]
    aliases: dict[str, dict[str, OptionValue]]
    fall_to: tuple[str, ...]

    def rung(self, name: str) -> Callable[[Policy], Policy]:
        """Register a further way to answer, tried when those before it fail."""

        def add(function: Policy) -> Policy:
            self.rungs.append((name, function))
            return function

        return add

    def options(self, values: Mapping[str, OptionValue] | None = None) -> Any:
        """Return the options as a frozen dataclass, parsed from text or numbers."""
        return parse_options(self.name, self.options_type, values or {})


_POLICIES: dict[str, PolicyInfo] = {}
_ALIASES: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class NoOptions:
    """For policies that have nothing to choose."""


def policy(
    name: str,
    *,
    summary: str,
    options: type = NoOptions,
    rung: str = "exact",
    aliases: Mapping[str, Mapping[str, OptionValue]] | None = None,
    fall_to: tuple[str, ...] = ("isolated", "fifo"),
) -> Callable[[Policy], PolicyInfo]:
    """Register a policy; ``aliases`` maps other names to the options they stand for."""

    def register(function: Policy) -> PolicyInfo:
        presets = {alias: dict(preset) for alias, preset in (aliases or {}).items()}
        info = PolicyInfo(name, summary, options, [(rung, function)], presets, fall_to)
        _POLICIES[name] = info
        for alias in presets:
            _ALIASES[alias] = name
        return info

    return register


def load_all() -> None:
    """Import every module of this package, so that all policies are registered."""
    package = importlib.import_module("pyhetsched.policies")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"pyhetsched.policies.{module.name}")


def names() -> list[str]:
    """Return the names of all policies, without aliases."""
    load_all()
    return sorted(_POLICIES)


def resolve(name: str) -> tuple[PolicyInfo, dict[str, OptionValue]]:
    """Return a policy and the options its name implies; an unknown name is a ConfigError."""
    if name not in _POLICIES and name not in _ALIASES:
        load_all()
    if name in _POLICIES:
        return _POLICIES[name], {}
    if name in _ALIASES:
        info = _POLICIES[_ALIASES[name]]
        return info, dict(info.aliases[name])
    raise ConfigError(
        f"no policy {name!r}; write one of {', '.join(sorted(_POLICIES))} "
        f"(or, as in Gavel: {', '.join(sorted(_ALIASES))})"
    )


def allocate(
    name: str,
    state: ClusterState,
    options: Mapping[str, OptionValue] | None = None,
    clock: Clock | None = None,
    budget_s: float = DEFAULT_BUDGET_S,
    cache: SolverCache | None = None,
) -> Allocation:
    """Run policy ``name`` and return its allocation, from the first rung of its ladder that answers.

    ``budget_s`` bounds the policy's own rungs together. Raises ConfigError for an unknown name or
    option, never SolverError.
    """
    info, preset = resolve(name)
    parsed = info.options({**preset, **(options or {})})
    clock = clock or RealClock()
    started_s = clock.monotonic_s()
    context = Context(clock, started_s + budget_s, cache or SolverCache())
    reasons: list[str] = []
    for owner, rung_name, function, rung_options in _ladder(info, parsed):
        # The last resorts are cheap and must answer whatever the time.
        last_resort = owner != info.name
        rung_context = dataclasses.replace(context, deadline_s=float("inf")) if last_resort else context
        try:
            answer = function(state, rung_options, rung_context)
            _check(answer, state)
        except SolverError as error:
            reasons.append(f"{owner}/{rung_name}: {error}")
            continue
        spent_ms = (clock.monotonic_s() - started_s) * 1e3
        told = dataclasses.replace(
            answer.diagnostics, policy=owner, rung=rung_name, reasons=tuple(reasons), solve_ms=spent_ms
        )
        return dataclasses.replace(answer, diagnostics=told)
    raise AssertionError("the ladder ends with a policy that always answers; " + "; ".join(reasons))


def _ladder(info: PolicyInfo, parsed: Any) -> list[tuple[str, str, Policy, Any]]:
    steps = [(info.name, rung_name, function, parsed) for rung_name, function in info.rungs]
    for fallback in info.fall_to:
        if fallback != info.name:
            other, preset = resolve(fallback)
            steps.append((other.name, *other.rungs[0], other.options(preset)))
    return steps


def _check(answer: Allocation, state: ClusterState) -> None:
    """Refuse an answer that no cluster could carry out."""
    time_shares = answer.time_shares()
    if time_shares.shape != (state.n_jobs, state.n_types) or not np.isfinite(time_shares).all():
        raise SolverError("shares are not finite numbers of the right shape")
    if not time_shares.size:
        return
    if time_shares.min() < 0 or time_shares.sum(axis=1).max() > 1 + 1e-6:
        raise SolverError("a job was given less than nothing or more than all of the time")
    over = answer.device_use(state) - state.counts
    if (over > 1e-6 * np.maximum(state.counts, 1)).any():
        raise SolverError(f"{state.types[int(over.argmax())].name}: more GPUs given than there are")


def empty(state: ClusterState, objective: float = 0.0, **told: Any) -> Allocation:
    """Return the allocation that gives nothing to anybody."""
    return Allocation(np.zeros((state.n_jobs, state.n_types)), objective, diagnostics=Diagnostics(**told))


def parse_options(owner: str, options_type: type, values: Mapping[str, OptionValue]) -> Any:
    """Return ``options_type`` filled from names and values; a wrong one is a ConfigError naming the valid.

    Names may be written with hyphens. Fields may be bool, int, float, str, a Literal, or one of these
    or None (written ``none``).
    """
    hints = typing.get_type_hints(options_type)
    valid = {f.name: hints[f.name] for f in dataclasses.fields(options_type)}
    filled = {}
    for raw_name, value in values.items():
        name = raw_name.replace("-", "_")
        if name not in valid:
            known = ", ".join(valid) or "none"
            raise ConfigError(f"policy {owner}: no option {raw_name!r}; its options are: {known}")
        filled[name] = _convert(owner, name, valid[name], value)
    try:
        return options_type(**filled)
    except ValueError as error:
        raise ConfigError(f"policy {owner}: {error}") from error


def _convert(owner: str, name: str, hint: Any, value: OptionValue) -> Any:
    if isinstance(hint, types.UnionType):
        inner = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return _convert(owner, name, inner[0], value)
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value
        raise ConfigError(f"policy {owner}: {name} must be one of {', '.join(map(str, choices))}, not {value!r}")
    if hint is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise ConfigError(f"policy {owner}: {name} must be true or false, not {value!r}")
    try:
        return hint(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"policy {owner}: {name} must be a {hint.__name__}, not {value!r}") from error
