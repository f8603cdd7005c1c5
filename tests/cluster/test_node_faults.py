"""Nodes on which things die, stall or refuse: no job is lost or held, no node drained, no slice left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemons, Slurm, run_as, wait_until
from main_path import SEES, gpu_map, instances, profiles_seen, wait_clean

NODE = "a100-0"
HERE = ("-w", NODE, "--gres=gpu:1g.10gb:1")
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
CREATE_CI = "nvmlGpuInstanceCreateComputeInstance"


def nvml(*words: str, node: str = NODE) -> str:
    return run_as("root", "fake-nvml-ctl", "--node", node, *words, check=True).out


def on_node(verb: str, *words: str, node: str = NODE) -> None:
    """Run hetsched-node as on that node; the fake NVML takes the node's name from the environment."""
    run_as("root", "env", f"SLURMD_NODENAME={node}", "hetsched-node", verb, *words, check=True)


def fault(call: str, *action: str) -> None:
    nvml("fault", "add", "--call", call, *action)


@pytest.fixture(autouse=True)
def _no_faults_before_or_after(quiet_cluster: Slurm) -> Iterator[None]:
    nvml("fault", "clear")
    yield
    nvml("fault", "clear")
    nvml("unhold", "--all")


def submit(slurm: Slurm, *options: str, wrap: str = SEES) -> int:
    """Submit as alice; a plugin that gave up asking on a busy machine asks again 10 s later."""
    for _ in range(10):
        ran = slurm.try_sbatch("alice", *options, wrap=wrap)
        if "not answering" not in ran.err:
            break
        time.sleep(3)
    assert ran.status == 0, ran.err
    return int(ran.out.split(";")[0])


def explained(job: int) -> str:
    return json.dumps(json.loads(run_as("root", "hetsched", "explain", str(job), "--json", check=True).out))


def runs_well(slurm: Slurm, job: int, within_s: float = 60) -> None:
    """The job ends as it should, having seen one slice, and nothing is left."""
    assert slurm.wait_ended(job, within_s) == "COMPLETED", explained(job)
    assert profiles_seen(slurm.output("alice", job))[-1] == "1g.10gb"
    wait_clean(slurm)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", [CREATE, CREATE_CI])
def test_a_prolog_killed_while_it_creates(quiet_cluster: Slurm, call: str, moment: str) -> None:
    fault(call, "--kill", moment)
    job = submit(quiet_cluster, *HERE, wrap=SEES)
    runs_well(quiet_cluster, job)
    assert int(quiet_cluster.show(job)["restart_cnt"]) == 1


@pytest.mark.parametrize("call", ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_epilog_killed_while_it_destroys(quiet_cluster: Slurm, call: str, moment: str) -> None:
    fault(call, "--kill", moment)
    runs_well(quiet_cluster, submit(quiet_cluster, *HERE, wrap=SEES))


def test_an_epilog_killed_again_and_again(quiet_cluster: Slurm) -> None:
    fault("nvmlGpuInstanceDestroy", "--kill", "before", "--count", "2")
    first = submit(quiet_cluster, *HERE, wrap=SEES)
    assert quiet_cluster.wait_ended(first) == "COMPLETED"
    assert len(instances(NODE)) == 1
    assert "idle" in quiet_cluster.node_states()[NODE]
    # The next job on that GPU finds its place free, whatever the first one left.
    second = submit(quiet_cluster, *HERE, wrap=SEES)
    assert quiet_cluster.wait_ended(second) == "COMPLETED", explained(second)
    on_node("reconcile")
    wait_clean(quiet_cluster)


@pytest.mark.parametrize(
    ("call", "code"), [(CREATE, "23"), (CREATE_CI, "23"), (CREATE, "4"), (CREATE, "19"), (CREATE, "999")]
)
def test_a_creation_that_is_refused_once(quiet_cluster: Slurm, call: str, code: str) -> None:
    fault(call, "--fail", code)
    job = submit(quiet_cluster, "--gres=gpu:1g.10gb:1", "-C", "a100", wrap=SEES)
    runs_well(quiet_cluster, job)


def test_an_interactive_job_whose_slice_cannot_be_made_ends_with_a_word(quiet_cluster: Slurm) -> None:
    fault(CREATE, "--fail", "23", "--count", "0")
    ran = run_as("alice", "srun", *HERE, "true", timeout_s=60)
    assert ran.status != 0
    nvml("fault", "clear")
    wait_clean(quiet_cluster)


def test_a_stalled_call_delays_only_its_job(quiet_cluster: Slurm) -> None:
    fault(CREATE, "--stall", "5")
    slow = submit(quiet_cluster, *HERE, wrap=SEES)
    quick = submit(quiet_cluster, "-w", "a100-1", "--gres=gpu:1g.10gb:1", wrap=SEES)
    assert quiet_cluster.wait_ended(quick) == "COMPLETED"
    runs_well(quiet_cluster, slow)
    assert int(quiet_cluster.show(slow)["restart_cnt"]) == 0


def test_in_use_that_clears(quiet_cluster: Slurm) -> None:
    job = submit(quiet_cluster, *HERE, wrap=f"{SEES}; sleep 3")
    [made] = wait_until(lambda: instances(NODE), 20, "an instance")
    nvml("hold", "--uuid", made["compute_instances"][0]["uuid"], "--for", "6")
    runs_well(quiet_cluster, job)


def test_in_use_that_stays_names_its_holder(quiet_cluster: Slurm) -> None:
    job = submit(quiet_cluster, *HERE, wrap=f"{SEES}; sleep 3")
    [made] = wait_until(lambda: instances(NODE), 20, "an instance")
    pid = nvml("hold", "--uuid", made["compute_instances"][0]["uuid"]).strip()
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert "idle" in quiet_cluster.node_states()[NODE]
    wait_until(lambda: f"pid {pid}" in explained(job), 20, "the holder in the record")
    shown: list[dict[str, Any]] = [item for gpu in gpu_map()[NODE] for item in gpu["slices"]]
    assert [item["state"] for item in shown] == ["destroying"]
    nvml("unhold", "--all")
    on_node("sweep")
    wait_clean(quiet_cluster)


def test_a_gpu_that_falls_off_the_bus(quiet_cluster: Slurm) -> None:
    nvml("lost", "--gpu", "0")
    job = submit(quiet_cluster, "--gres=gpu:1g.10gb:1", "-C", "a100", wrap=SEES)
    assert quiet_cluster.wait_ended(job) == "COMPLETED", explained(job)
    nvml("lost", "--gpu", "0", "--clear")
    wait_clean(quiet_cluster)


def test_the_daemon_killed_while_the_prolog_works(quiet_cluster: Slurm, daemons: Daemons) -> None:
    fault(CREATE, "--stall", "2")
    job = submit(quiet_cluster, *HERE, wrap=SEES)
    wait_until(
        lambda: Path(f"/var/lib/hetsched/node/{NODE}/job-{job}.json").exists(), 20, "the prolog at work"
    )
    daemons.kill("hetschedd")
    time.sleep(0.5)
    daemons.start("hetschedd")
    runs_well(quiet_cluster, job)


@pytest.mark.parametrize("mode_goes", [False, True], ids=["instances gone", "mode gone"])
def test_a_reboot_under_a_job(quiet_cluster: Slurm, daemons: Daemons, mode_goes: bool) -> None:
    node = "h100-0" if mode_goes else NODE
    job = submit(quiet_cluster, "-w", node, "--gres=gpu:1g.10gb:1", wrap=f"{SEES}; sleep 60")
    tasks_see = Path(f"/run/hetsched/node/{node}/job-{job}.env")
    wait_until(lambda: tasks_see.exists() and "STATE=ready" in tasks_see.read_text(), 30, "the prolog done")
    daemons.kill(f"slurmd@{node}")
    run_as("root", "sh", "-c", f"pkill -9 -f 'slurmstepd: .{job}.'; true")
    nvml("reboot", node=node)
    on_node("boot", "--rebooted", node=node)
    assert not instances(node)
    daemons.start(f"slurmd@{node}")
    run_as("root", "scancel", str(job))
    quiet_cluster.wait_ended(job, 90)
    if mode_goes:
        assert all(gpu["mig_mode"] == "on" for gpu in gpu_map()[node])
    wait_clean(quiet_cluster, 90)
