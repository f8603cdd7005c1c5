"""The ``[node]`` section of the configuration file, read without the validator that the daemon uses.

The keys, defaults and meanings are those of `pyhetsched.config.NodeConfig`; a test keeps the two equal.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from pyhetsched.errors import ConfigError

DEFAULT_PATH = Path("/etc/hetsched/hetsched.toml")
_YEAR_S = 31_622_400  # as pyhetsched.config has it: "inf" is no time to wait
ISOLATIONS = ("auto", "none", "owner", "cgroup")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Where the daemon is, whose word is taken, and where this node keeps its records.

    ``deadline_s`` bounds the wait for one answer of the daemon. ``isolation`` is how a job is kept from the
    slices of others: auto takes the strictest that this machine offers.
    """

    address: str = "unix:/run/hetsched/hetschedd.sock"
    trusted_users: tuple[str, ...] = ("root", "slurm")
    deadline_s: float = 10.0
    destroy_foreign: bool = False
    isolation: str = "auto"
    state_dir: str = "/var/lib/hetsched/node"
    run_dir: str = "/run/hetsched/node"


def parse(text: str, source: str) -> NodeSettings:
    """Return the settings in the text of a configuration file.

    Raises `ConfigError` naming ``source`` and the key, and what to write instead.
    """
    try:
        section = tomllib.loads(text).get("node", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    if not isinstance(section, dict):
        raise ConfigError(f"{source}: node: write a section [node] instead of a value")
    known = {field.name for field in fields(NodeSettings)}
    for key in section:
        if key not in known:
            raise ConfigError(f"{source}: node.{key}: unknown key; valid here: {', '.join(sorted(known))}")
    return _checked(section, source)


def _checked(section: Mapping[str, object], source: str) -> NodeSettings:
    values: dict[str, object] = dict(section)
    for key, value in section.items():
        values[key] = _value(key, value, source)
    return NodeSettings(**values)  # type: ignore[arg-type]


def _value(key: str, value: object, source: str) -> object:
    if key == "deadline_s":
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.001 <= value <= _YEAR_S:
            raise ConfigError(f"{source}: node.{key}: write a number of seconds above 0 instead of {value!r}")
        return float(value)
    if key == "destroy_foreign":
        if not isinstance(value, bool):
            raise ConfigError(f"{source}: node.{key}: write true or false instead of {value!r}")
        return value
    if key == "trusted_users":
        if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
            raise ConfigError(f'{source}: node.{key}: write a list of user names, such as ["root", "slurm"]')
        return tuple(value)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{source}: node.{key}: write a text in quotes instead of {value!r}")
    if key == "isolation" and value not in ISOLATIONS:
        raise ConfigError(f"{source}: node.{key}: write one of {', '.join(ISOLATIONS)} instead of {value!r}")
    if key.endswith("_dir") and not value.startswith("/"):
        raise ConfigError(f"{source}: node.{key}: write an absolute path instead of {value!r}")
    return value


def load(path: Path | None = None) -> NodeSettings:
    """Read ``path`` (default: ``$HETSCHED_CONFIG``, else ``/etc/hetsched/hetsched.toml``).

    A file that does not exist means all defaults. Raises `ConfigError` when it is wrong.
    """
    path = path or Path(os.environ.get("HETSCHED_CONFIG", DEFAULT_PATH))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return NodeSettings()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse(text, str(path))
