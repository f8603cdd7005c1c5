"""The hetsched.toml of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster import Cluster

SOCKET = "/run/hetsched/hetschedd.sock"
HOOK_SOCKET = "/run/hetsched/hook.sock"
FOLDERS = ("/run/hetsched", "/var/lib/hetsched", "/var/log/hetsched")


def settings(cluster: Cluster) -> dict[str, Any]:
    """What the run's configuration differs in from the defaults, the cluster file's own words last."""
    own: dict[str, Any] = {
        "access": {"operators": [user.name for user in cluster.users if user.admin_level == "Operator"]},
        "gpus": {node.gres_type: {"model": node.model} for node in cluster.nodes},
    }
    return merged(own, cluster.hetsched)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Base with over's values, table by table."""
    result = dict(base)
    for key, value in over.items():
        both_tables = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both_tables else value
    return result


def render(cluster: Cluster) -> str:
    """The file's text."""
    return "\n".join(table_lines(settings(cluster), ())) + "\n"


def table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """One table: its values first, then the tables in it."""
    lines = [f"[{'.'.join(path)}]"] if path else []
    lines += [f"{key} = {literal(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", *table_lines(value, (*path, key))]
    return lines


def literal(value: object) -> str:
    """A TOML literal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
