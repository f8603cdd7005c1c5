"""Nodes that go into and out of MIG mode as jobs need them, and never under a job."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest
from conftest import Daemons, Slurm, run_as, wait_until
from main_path import SEES, explained, nvml, profiles_seen, uuids_of, wait_clean, wait_started
from pool_site import decided, modes, node_looks, ordered, pool, set_modes

HOPPER, AMPERE = "h100-0", "a100-1"
QUICK = "grow_after_s = 0\nshrink_after_s = 0\nrecent_s = 0\nperiod_s = 0.5\nhourly_changes = 100\n"


@pytest.fixture(autouse=True)
def _modes_as_before(quiet_cluster: Slurm) -> Iterator[None]:
    yield
    quiet_cluster.cancel_everything()
    for node in (HOPPER, AMPERE):
        if {gpu["mode"] for gpu in nvml(node)["gpus"]} != {1}:
            set_modes(node, True)


def apply(text: str, *options: str) -> tuple[int, str]:
    """`hetsched mig apply` of a text; its status and what it printed."""
    ran = run_as("root", "hetsched", "mig", "apply", "-", *options, stdin=text)
    return ran.status, ran.out + ran.err


def layouts(node: str, layout: str, model: str) -> str:
    """Every GPU of a node with the same layout, as `hetsched mig export` writes it."""
    return "".join(f"{node}:{index} {model} {layout}\n" for index in range(4))


def test_a_job_for_several_gpus_gets_a_node_back_and_slices_take_it_again(
    quiet_cluster: Slurm, daemons: Daemons
) -> None:
    with pool(daemons, f'enabled = true\nnodes = "{HOPPER}"\n{QUICK}'):
        first = quiet_cluster.sbatch("alice", "--gres=gpu:h100:4", wrap="echo started; sleep 60")
        wait_started(quiet_cluster, "alice", first)
        assert quiet_cluster.show(first)["nodes"] == "h100-1"
        second = quiet_cluster.sbatch("bob", "--gres=gpu:h100:4", wrap="echo cvd=$CUDA_VISIBLE_DEVICES")
        wait_until(lambda: ordered(HOPPER) == "off", 30, "a node ordered out of MIG mode")
        assert "on>off" in run_as("root", "hetsched", "gpus", "-w", HOPPER, check=True).out
        wait_until(lambda: node_looks(HOPPER) and modes(HOPPER) == {"off"}, 30, "the node out of MIG mode")
        assert quiet_cluster.wait_ended(second, 90) == "COMPLETED", explained(second)
        assert quiet_cluster.show(second)["nodes"] == HOPPER
        assert uuids_of(quiet_cluster.output("bob", second), "cvd") == ["0", "1", "2", "3"]
        third = quiet_cluster.sbatch("alice", "--gres=gpu:1g.10gb:1", "-C", "h100", wrap=SEES)
        wait_until(lambda: ordered(HOPPER) == "on", 30, "a node ordered into MIG mode")
        wait_until(lambda: node_looks(HOPPER) and modes(HOPPER) == {"on"}, 30, "the node in MIG mode")
        assert quiet_cluster.wait_ended(third, 90) == "COMPLETED", explained(third)
        assert profiles_seen(quiet_cluster.output("alice", third)) == ["1g.10gb"]
        run_as("root", "scancel", str(first))
    wait_clean(quiet_cluster, 60)
    assert {"ordered", "changed"} <= {decision["outcome"] for decision in decided("pool")}


def test_ampere_is_reset_only_where_the_site_allows_it(quiet_cluster: Slurm, daemons: Daemons) -> None:
    off, on = layouts(AMPERE, "off", "A100-80GB"), layouts(AMPERE, "-", "A100-80GB")
    with pool(daemons, f'nodes = "{AMPERE}"'):
        assert apply(off)[0] == 0
        assert "allow_reset" in node_looks(AMPERE)
        assert modes(AMPERE) == {"on"}
        assert ordered(AMPERE) == ""
    with pool(daemons, f'nodes = "{AMPERE}"\nallow_reset = true'):
        assert apply(off)[0] == 0
        assert ordered(AMPERE) == "off"
        node_looks(AMPERE)
        assert modes(AMPERE) == {"off"}
        assert {gpu["pending"] for gpu in nvml(AMPERE)["gpus"]} == {0}
        assert apply(on)[0] == 0
        node_looks(AMPERE)
        assert modes(AMPERE) == {"on"}
    wait_clean(quiet_cluster)


def test_a_reset_that_fails_leaves_every_gpu_as_it_was(quiet_cluster: Slurm, daemons: Daemons) -> None:
    with pool(daemons, f'nodes = "{AMPERE}"\nallow_reset = true'):
        words = ("fault", "add", "--call", "gpuReset", "--gpu", "2", "--fail", "19")
        run_as("root", "fake-nvml-ctl", "--node", AMPERE, *words, check=True)
        assert apply(layouts(AMPERE, "off", "A100-80GB"))[0] == 0
        assert "cannot be reset" in node_looks(AMPERE)
        assert modes(AMPERE) == {"on"}
        assert {gpu["pending"] for gpu in nvml(AMPERE)["gpus"]} == {1}
        assert ordered(AMPERE) == ""
    wait_clean(quiet_cluster)


def test_a_mode_never_changes_under_a_job(quiet_cluster: Slurm, daemons: Daemons) -> None:
    with pool(daemons, f'nodes = "{HOPPER}"'):
        job = quiet_cluster.sbatch("alice", "-w", HOPPER, "--gres=gpu:1g.10gb:1", wrap="echo started; sleep 60")
        wait_started(quiet_cluster, "alice", job)
        status, said = apply(layouts(HOPPER, "off", "H100-80GB-SXM"))
        assert status == 1
        assert f"serves job {job}" in said
        node_looks(HOPPER)
        assert modes(HOPPER) == {"on"}
        assert ordered(HOPPER) == "off"
        run_as("root", "scancel", str(job))
        quiet_cluster.wait_ended(job)
        wait_until(lambda: node_looks(HOPPER) and modes(HOPPER) == {"off"}, 30, "changed once idle")
        # A job that runs on whole GPUs, without any process yet, is as safe.
        whole = quiet_cluster.sbatch("bob", "-w", HOPPER, "--gres=gpu:h100:2", wrap="echo started; sleep 60")
        wait_started(quiet_cluster, "bob", whole)
        assert apply(layouts(HOPPER, "-", "H100-80GB-SXM"))[0] == 0
        node_looks(HOPPER)
        assert modes(HOPPER) == {"off"}
        run_as("root", "scancel", str(whole))
        quiet_cluster.wait_ended(whole)
        wait_until(lambda: node_looks(HOPPER) and modes(HOPPER) == {"on"}, 30, "changed once idle")
    wait_clean(quiet_cluster)


def test_a_job_that_starts_while_modes_change_waits_for_it(quiet_cluster: Slurm, daemons: Daemons) -> None:
    with pool(daemons, f'enabled = true\nnodes = "{HOPPER}"\nshrink_after_s = 1e6'):
        assert apply(layouts(HOPPER, "off", "H100-80GB-SXM"))[0] == 0
        words = ("fault", "add", "--call", "nvmlDeviceSetMigMode", "--stall", "2", "--count", "4")
        run_as("root", "fake-nvml-ctl", "--node", HOPPER, *words, check=True)
        looks = subprocess.Popen(["env", f"SLURMD_NODENAME={HOPPER}", "hetsched-node", "reconcile"])
        wait_until(lambda: {gpu["mode"] for gpu in nvml(HOPPER)["gpus"]} == {0, 1}, 20, "the change begun")
        job = quiet_cluster.sbatch("alice", "-w", HOPPER, "--gres=gpu:h100:2", wrap="echo cvd=$CUDA_VISIBLE_DEVICES")
        time.sleep(1)
        assert quiet_cluster.states(job) & {"RUNNING", "CONFIGURING", "PENDING"}
        assert looks.wait(60) == 0
        assert modes(HOPPER) == {"off"}
        assert quiet_cluster.wait_ended(job, 90) == "COMPLETED", explained(job)
        assert uuids_of(quiet_cluster.output("alice", job), "cvd") == ["0", "1"]
        assert apply(layouts(HOPPER, "-", "H100-80GB-SXM"))[0] == 0
        node_looks(HOPPER)
        assert modes(HOPPER) == {"on"}
    wait_clean(quiet_cluster)


def test_a_job_that_must_wait_for_the_pool_is_not_held(quiet_cluster: Slurm, daemons: Daemons) -> None:
    """No node can serve it as the modes are; it waits, unheld, and starts once the pool has changed one."""
    nodes = "a100-0,a100-1"
    with pool(daemons, f'enabled = true\nallow_reset = true\nnodes = "{nodes}"\n{QUICK}'):
        job = quiet_cluster.sbatch("alice", "--gres=gpu:a100:2", wrap="echo cvd=$CUDA_VISIBLE_DEVICES")

        def given() -> str:
            for node in nodes.split(","):
                node_looks(node)
            return next((node for node in nodes.split(",") if modes(node) == {"off"}), "")

        node = wait_until(given, 60, "a node out of MIG mode")
        assert quiet_cluster.show(job)["hold"] is False
        assert quiet_cluster.wait_ended(job, 120) == "COMPLETED", explained(job)
        assert quiet_cluster.show(job)["nodes"] == node
        assert uuids_of(quiet_cluster.output("alice", job), "cvd") == ["0", "1"]
        for other in nodes.split(","):
            assert apply(layouts(other, "-", "A100-80GB"))[0] == 0
            node_looks(other)
    wait_clean(quiet_cluster)


def test_slices_keep_off_a_node_that_is_out_of_mig_mode(quiet_cluster: Slurm, daemons: Daemons) -> None:
    with pool(daemons, f'nodes = "{AMPERE}"\nallow_reset = true'):
        assert apply(layouts(AMPERE, "off", "A100-80GB"))[0] == 0
        node_looks(AMPERE)
        assert modes(AMPERE) == {"off"}
        jobs = [
            quiet_cluster.sbatch("alice", "--gres=gpu:7g.80gb:1", "-C", "a100", wrap="echo started; sleep 3")
            for _ in range(6)
        ]
        for job in jobs:
            assert quiet_cluster.wait_ended(job, 120) == "COMPLETED", explained(job)
            assert quiet_cluster.show(job)["nodes"] == "a100-0"
        pair = quiet_cluster.sbatch("bob", "--gres=gpu:a100:2", wrap="echo cvd=$CUDA_VISIBLE_DEVICES")
        assert quiet_cluster.wait_ended(pair, 60) == "COMPLETED", explained(pair)
        assert quiet_cluster.show(pair)["nodes"] == AMPERE
        assert apply(layouts(AMPERE, "-", "A100-80GB"))[0] == 0
        node_looks(AMPERE)
    wait_clean(quiet_cluster)
