"""What a malicious user of the login node tries: others are served, and an admin's terminal stays whole."""

from __future__ import annotations

import json
import subprocess

import pytest
from conftest import PATH, Daemons, Slurm, run_as, wait_until
from main_path import SEES, profiles_seen

EXCLUDED = ",".join(f"host{number}x{number * 7}" for number in range(400))
ODD = [
    ("-x", EXCLUDED),
    ("-x", "n[1-65000]"),
    ("-x", "n[1-10-99999999]"),
    ("-w", "n[1-999999999]"),
    ("-C", "&".join(["a100"] * 1500)),
    ("-C", "a100\n"),
    ("-C", "\x1b[2J"),
    ("--comment", "hetsched:types=" + ",".join(["a"] * 20000)),
    ("--comment", "x" * 100_000),
]


@pytest.mark.parametrize(("option", "value"), ODD, ids=range(len(ODD)))
def test_odd_requests_of_one_do_not_silence_the_daemon_for_others(
    quiet_cluster: Slurm, option: str, value: str
) -> None:
    wait_until(lambda: not quiet_cluster.try_sbatch("bob", "--hold", "--gres=gpu:1g.10gb:1").status, 30, "answers")
    for _ in range(6):
        quiet_cluster.try_sbatch("alice", "--hold", "--gres=gpu:1g.10gb:1", option, value)
    # One miss may be the machine's; six in a row would have silenced the plugin for ten seconds.
    tries = [quiet_cluster.try_sbatch("bob", "--hold", "--gres=gpu:1g.10gb:1").status for _ in range(3)]
    assert 0 in tries


def test_names_do_nothing_to_a_terminal(quiet_cluster: Slurm) -> None:
    job = quiet_cluster.sbatch("alice", "-J", "\x1b]0;owned\x07\n\u202ename", "--gres=gpu:1g.10gb:1")
    quiet_cluster.wait_ended(job)
    quiet_cluster.try_sbatch("alice", "-A", "\x1b[2J", "--gres=gpu:1g.10gb:1")
    for words in (["explain", str(job)], ["decisions", "-o", "user,account,partition,asked,became,message"]):
        out = run_as("root", "hetsched", *words, check=True).out
        assert all(c.isprintable() or c == "\n" for c in out)


def test_a_name_that_is_no_text_harms_nobody(quiet_cluster: Slurm, daemons: Daemons) -> None:
    words = ["sbatch", "-o", "/dev/null", "-w", "a100-0", "--gres=gpu:1g.10gb:1", "-J", b"\xff\x80", "--wrap=sleep 30"]
    prefix = ["setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "--"]
    subprocess.run([*prefix, *words], check=True, cwd="/tmp", env={"PATH": PATH, "HOME": "/home/alice"})
    seen = ("hetsched", "gpus", "-w", "a100-0")
    wait_until(lambda: "1g.10gb" in run_as("root", *seen, check=True).out, 60, "a slice")
    daemons.restart("hetschedd")  # which learns of all running jobs
    job = quiet_cluster.sbatch("bob", "-w", "a100-0", "--gres=gpu:1g.10gb:1", wrap=SEES)
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("bob", job)) == ["1g.10gb"]
    held = json.loads(run_as("root", *seen, "--json", check=True).out)
    assert sum(gpu["shards_used"] for gpu in held["nodes"][0]["gpus"]) >= 4


def test_endless_host_lists_are_refused(quiet_cluster: Slurm) -> None:
    ran = run_as("alice", "hetsched", "gpus", "-w", "n[1-999999999]", timeout_s=30)
    assert ran.status == 1
    assert "65536" in ran.err


def test_watchers_leave_threads_to_others(quiet_cluster: Slurm) -> None:
    prefix = ["setpriv", "--reuid", "alice", "--regid", "alice", "--init-groups", "--"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    watchers = [subprocess.Popen([*prefix, "hetsched", "decisions", "-w"], **quiet) for _ in range(8)]  # type: ignore[call-overload]
    try:
        # What is beyond alice's share of the threads is refused.
        wait_until(lambda: sum(each.poll() is not None for each in watchers) == 4, 60, "four watchers refused")
        job = quiet_cluster.sbatch("bob", "--gres=gpu:1g.10gb:1", wrap=SEES)
        assert quiet_cluster.wait_ended(job) == "COMPLETED"
        assert profiles_seen(quiet_cluster.output("bob", job)) == ["1g.10gb"]
    finally:
        for each in watchers:
            each.kill()
            each.wait()


def test_a_job_given_back_from_the_node_it_requires_is_not_held(quiet_cluster: Slurm) -> None:
    # Shards fit, geometry does not: 1g slices in the way, and the one node that the job asks for.
    small = [
        quiet_cluster.sbatch("bob", "-w", "a30-0", "--gres=gpu:1g.6gb:1", wrap="sleep 20") for _ in range(4)
    ]
    for job in small:
        quiet_cluster.wait_state(job, "RUNNING")
    run_as("bob", "scancel", str(small[0]), str(small[2]), check=True)
    job = quiet_cluster.sbatch("alice", "-w", "a30-0", "--gres=gpu:2g.12gb:1", wrap=SEES)
    run_as("root", "scontrol", "update", f"job={job}", "ExcNodeList=", check=True)
    assert quiet_cluster.wait_ended(job, 90) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", job)) == ["2g.12gb"]
