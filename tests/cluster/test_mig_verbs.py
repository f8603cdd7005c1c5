"""`hetsched mig export|assert|apply|plan` on the running cluster, and what is known of utilisation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from conftest import Daemons, Slurm, run_as
from main_path import instances, wait_clean, wait_started
from pool_site import node_looks

NODE = "a30-0"
EMPTY = [f"{NODE}:0 A30-24GB -", f"{NODE}:1 A30-24GB -"]


def mig(*words: str, stdin: str = "", user: str = "root") -> tuple[int, str]:
    """Run `hetsched mig` and return its status and what it printed."""
    ran = run_as(user, "hetsched", "mig", *words, stdin=stdin)
    return ran.status, ran.out + ran.err


def test_the_export_round_trips_and_asserts_itself(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "-w", NODE, "--gres=gpu:2g.12gb:1", wrap="echo started; sleep 60")
    wait_started(quiet_cluster, "alice", job)
    status, text = mig("export")
    assert status == 0
    assert f"{NODE}:0 A30-24GB 2g.12gb@2={job}" in text
    assert "h100-1:0 H100-80GB-SXM off" in text
    assert mig("assert", "-", stdin=text) == (0, "")
    status, said = mig("assert", "-", stdin="\n".join(EMPTY))
    assert status == 1
    assert said.splitlines() == [f"{NODE}:0 has 2g.12gb@2, not no instance"]
    # Another user sees that the place is taken, and not by whom.
    assert f"{NODE}:0 A30-24GB 2g.12gb@2=0" in mig("export", "-w", NODE, user="bob")[1]
    run_as("root", "scancel", str(job))
    wait_clean(quiet_cluster)


def test_plan_reads_the_cluster_or_a_file(quiet_cluster: Slurm, tmp_path: Path) -> None:
    status, text = mig("plan", "--dry-run", "--want", "3g.40gb=2", "--seconds", "0")
    assert status == 0
    assert text.count("create ") == 2
    inventory = tmp_path / "gpus.txt"
    inventory.write_text(mig("export")[1], encoding="utf-8")
    assert mig("plan", str(inventory), "--dry-run", "--want", "3g.40gb=2", "--seconds", "0") == (0, text)


def test_apply_removes_what_somebody_else_made_and_nothing_else(quiet_cluster: Slurm) -> None:
    words = ("env", f"SLURMD_NODENAME={NODE}", sys.executable, "-c", MAKE_ONE)
    run_as("root", *words, check=True, cwd=str(Path(__file__).parents[2]))
    node_looks(NODE)
    assert f"{NODE}:1 A30-24GB 1g.6gb@2\n" in mig("export", "-w", NODE)[1]
    status, steps = mig("apply", "--dry-run", "-", stdin="\n".join(EMPTY))
    assert (status, steps) == (0, f"destroy {NODE}:1 1g.6gb@2\n")
    assert len(instances(NODE)) == 1
    assert mig("apply", "-", stdin="\n".join(EMPTY), user="bob")[0] == 1
    assert mig("apply", "-", stdin="\n".join(EMPTY))[0] == 0
    node_looks(NODE)
    assert instances(NODE) == []
    assert mig("assert", "-", stdin="\n".join(EMPTY)) == (0, "")


def test_apply_says_what_it_cannot_do(quiet_cluster: Slurm, daemons: Daemons) -> None:
    status, said = mig("apply", "-", stdin=f"{NODE}:0 A30-24GB 1g.6gb@0\n")
    assert status == 1
    assert "cut when a job asks for it" in said
    status, said = mig("apply", "-", stdin="h100-0:0 H100-80GB-SXM off\n")
    assert status == 1
    assert "all GPUs of a node" in said
    text = "".join(f"h100-0:{index} H100-80GB-SXM off\n" for index in range(4))
    status, said = mig("apply", "-", stdin=text)
    assert status == 1
    assert "not in the pool" in said


def test_missing_utilisation_is_unknown(quiet_cluster: Slurm) -> None:
    run_as("root", "fake-nvml-ctl", "--node", "v100-0", "util", "--gpu", "1", "40", check=True)
    for node in ("v100-0", NODE):
        node_looks(node)
    reply = json.loads(run_as("root", "hetsched", "gpus", "--json", check=True).out)
    by_node = {node["name"]: [gpu["utilization_pct"] for gpu in node["gpus"]] for node in reply["nodes"]}
    assert by_node["v100-0"] == [0, 40, 0, 0]
    assert by_node[NODE] == [None, None]
    table = run_as("root", "hetsched", "gpus", "-a", "-h", "-o", "nodelist,gpu,util", check=True).out
    assert {"v100-0 1 40%", f"{NODE} 0 unknown"} <= {" ".join(line.split()) for line in table.splitlines()}
    run_as("root", "fake-nvml-ctl", "--node", "v100-0", "util", "--gpu", "1", "0", check=True)


#: What an administrator's hand might do: a 1g instance at 2 on GPU 1.
MAKE_ONE = """
from pyhetsched.mig.nvml import NvmlDriver
with NvmlDriver() as driver:
    driver.create_slice(1, 14, 2, 1)
"""
