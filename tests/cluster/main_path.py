"""What the tests of the main path ask of the cluster: slices seen by jobs, and nothing left behind."""

from __future__ import annotations

import json
import re
from typing import Any

from conftest import Slurm, run_as, wait_until

MIG_NODES = ("a100-0", "a100-1", "h100-0", "a30-0")
_TASK = "echo task $SLURM_PROCID $CUDA_VISIBLE_DEVICES; fake-nvidia-smi -L"
SEES = f"echo batch=$CUDA_VISIBLE_DEVICES; srun sh -c '{_TASK}'"
_MIG_LINE = re.compile(r"MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[0-9a-f-]+)\)")


def explained(job: int | str) -> dict[str, Any]:
    """What `hetsched explain --json` says of a job."""
    found: dict[str, Any] = json.loads(run_as("root", "hetsched", "explain", str(job), "--json", check=True).out)
    return found


def gpu_map() -> dict[str, list[dict[str, Any]]]:
    """`hetsched gpus --json`: the GPUs of each node."""
    reply = json.loads(run_as("root", "hetsched", "gpus", "--json", check=True).out)
    return {node["name"]: node["gpus"] for node in reply["nodes"]}


def profiles_seen(output: str) -> list[str]:
    """The profiles of the slices that nvidia-smi listed in a job's output."""
    return [match[1] for match in _MIG_LINE.finditer(output)]


def uuids_of(output: str, what: str) -> list[str]:
    """CUDA_VISIBLE_DEVICES as the line that starts with ``what`` has it."""
    found = re.search(rf"^{re.escape(what)}[ =]?(\S*)$", output, re.MULTILINE)
    assert found, f"no line {what!r} in {output!r}"
    return [uuid for uuid in found[1].split(",") if uuid]


def nvml(node: str) -> dict[str, Any]:
    """The GPUs of a node as its driver has them."""
    state: dict[str, Any] = json.loads(run_as("root", "fake-nvml-ctl", "--node", node, "show", check=True).out)
    return state


def instances(node: str) -> list[dict[str, Any]]:
    """Every GPU instance on a node."""
    return [item for gpu in nvml(node)["gpus"] for item in gpu["instances"]]


def leftovers(slurm: Slurm) -> list[str]:
    """What should not be there on an empty cluster: instances, shards, reservations, drained or down nodes."""
    found = [f"{node} has instance {item}" for node in MIG_NODES for item in instances(node)]
    for name in slurm.node_states():
        used = slurm.node(name)["gres_used"]
        found += [f"{name} uses {part}" for part in re.findall(r"(?:shard|gpu)[^(]*:[1-9]\d*", used)]
    found += [f"{name} is {state}" for name, state in slurm.node_states().items() if "idle" not in state]
    status = json.loads(run_as("root", "hetsched", "status", "--json", check=True).out)
    found += [f"{status['reservations_open']} reservations open"] if status["reservations_open"] else []
    return found


def wait_started(slurm: Slurm, user: str, job: int) -> None:
    """Wait until the job's script has said "started": Slurm calls a job running while its Prolog still works."""

    def said() -> bool:
        try:
            return "started" in slurm.output(user, job)
        except FileNotFoundError:
            return False

    wait_until(said, 60, f"job {job} started")


def wait_clean(slurm: Slurm, within_s: float = 30) -> None:
    """Wait until nothing is left on the cluster; AssertionError says what is."""
    try:
        wait_until(lambda: not leftovers(slurm), within_s, "nothing left behind")
    except AssertionError as late:
        raise AssertionError(f"{late}: {leftovers(slurm)}") from None
