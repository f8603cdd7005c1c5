"""What the tests of modes and pools do to the site: its configuration, its nodes' modes, their look at themselves."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import Daemons, run_as, wait_until
from main_path import gpu_map, nvml

CONFIG = Path("/etc/hetsched/hetsched.toml")


def pool(daemons: Daemons, text: str) -> contextlib.AbstractContextManager[None]:
    """A [pool] section while the block runs; afterwards the file is as it was."""
    return configured(daemons, f"[pool]\n{text}")


@contextlib.contextmanager
def configured(daemons: Daemons, text: str) -> Iterator[None]:
    """Further sections of hetsched.toml while the block runs."""
    before = CONFIG.read_text(encoding="utf-8")
    try:
        _reload(daemons, f"{before}\n{text}\n")
        yield
    finally:
        _reload(daemons, before)


def _reload(daemons: Daemons, text: str) -> None:
    def reloads() -> int:
        return daemons.log("hetschedd").count("configuration read again")

    CONFIG.write_text(text, encoding="utf-8")
    earlier = reloads()
    daemons.reload("hetschedd")
    wait_until(lambda: reloads() > earlier, 20, "the configuration read again")


def node_looks(node: str) -> str:
    """What the timer runs on a node every few minutes; returns what it said."""
    ran = run_as("root", "env", f"SLURMD_NODENAME={node}", "hetsched-node", "reconcile", check=True)
    return ran.out + ran.err


def modes(node: str) -> set[str]:
    """The MIG modes of a node's GPUs as the daemon knows them."""
    return {gpu["mig_mode"] for gpu in gpu_map()[node]}


def set_modes(node: str, on: bool) -> None:
    """Set the modes outright, as on a node that was booted so, and let the daemon know."""
    for gpu in range(len(nvml(node)["gpus"])):
        words = ("mode", "--gpu", str(gpu), "on" if on else "off")
        run_as("root", "fake-nvml-ctl", "--node", node, *words, check=True)
    node_looks(node)


def ordered(node: str) -> str:
    """The mode that is ordered for a node, empty if none is."""
    reply: dict[str, Any] = json.loads(run_as("root", "hetsched", "gpus", "--json", check=True).out)
    return str(next(item["wanted_mode"] for item in reply["nodes"] if item["name"] == node))


def decided(kind: str) -> list[dict[str, Any]]:
    """The decisions of a kind, oldest first."""
    reply = json.loads(run_as("root", "hetsched", "decisions", "-k", kind, "--json", check=True, cwd=os.getcwd()).out)
    found: list[dict[str, Any]] = reply["decisions"]
    return found
