"""Rounds on real Slurm: types are preferred and jobs put in order, and nothing is held, closed or left idle for it."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemons, Slurm, run_as, wait_until
from main_path import explained
from pool_site import configured

TABLE = Path("/etc/hetsched/throughputs.csv")
RATES = {"likes-h100": (2, 1, 8, 1), "likes-v100": (1, 1, 1, 4)}
TYPES = ("a100", "a30", "h100", "v100")


@pytest.fixture(autouse=True)
def _site_table() -> None:
    rows = [f"{name},1,{t},{rate}" for name, rates in RATES.items() for t, rate in zip(TYPES, rates, strict=True)]
    TABLE.write_text("\n".join(["job_type,scale_factor,worker_type,steps_per_s", *rows]) + "\n", encoding="utf-8")


def policy(daemons: Daemons, text: str) -> contextlib.AbstractContextManager[None]:
    """A [policy] section while the block runs; afterwards the file is as it was."""
    return configured(daemons, f'[policy]\nround_s = 1\nthroughputs = "{TABLE}"\n{text}')


def block(slurm: Slurm, *nodes: str) -> int:
    """A job that holds all of these nodes (none: of the cluster)."""
    where = ["-w", ",".join(nodes), "-N", str(len(nodes))] if nodes else ["-N", "7"]
    job = slurm.sbatch("bob", "--exclusive", "-t", "10", *where, wrap="sleep 600")
    slurm.wait_state(job, "RUNNING")
    return job


def train(slurm: Slurm, job_class: str = "", *options: str, lines: str = "") -> int:
    """A job of alice's on one GPU that names a class."""
    said = f"#HETSCHED class={job_class}\n" if job_class else ""
    script = f"#!/bin/sh\n{said}{lines}echo started; sleep 30\n"
    return slurm.sbatch("alice", "--gres=gpu:1", "-t", "60", *options, script=script)


def rounds_of(job: int) -> list[dict[str, Any]]:
    """The decisions of rounds about a job, oldest first."""
    return [item for item in explained(job)["decisions"] if item["kind"] == "round"]


def wait_round(job: int, outcome: str = "preferred") -> dict[str, Any]:
    """Wait until a round has decided on a job, and return its record."""

    def found() -> dict[str, Any] | None:
        return next((item for item in rounds_of(job) if item["outcome"] == outcome), None)

    try:
        record: dict[str, Any] = wait_until(found, 60, f"a round that has {outcome} job {job}")
    except AssertionError as late:
        seen = run_as("root", "hetsched", "rounds", "--would").out
        raise AssertionError(f"{late}\n{seen}\n{told()['rounds'][-2:]}\n{rounds_of(job)}") from None
    return record


def told() -> dict[str, Any]:
    """What `hetsched rounds --json` says."""
    reply: dict[str, Any] = json.loads(run_as("root", "hetsched", "rounds", "--json", check=True).out)
    return reply


def wait_rounds(more: int = 2) -> None:
    """Wait until so many further rounds have been made."""
    last = [item["time_s"] for item in told()["rounds"]][-1:] or [0.0]
    wait_until(lambda: sum(item["time_s"] > last[0] for item in told()["rounds"]) >= more, 60, "further rounds")


def show(slurm: Slurm, job: int) -> tuple[str, int]:
    """What a job prefers, and its priority."""
    record = slurm.show(job)
    assert "Held" not in record["state_reason"], record["state_reason"]
    return record["prefer"], record["priority"]["number"]


def test_a_known_gain_is_preferred_and_had_when_free(quiet_cluster: Slurm, daemons: Daemons) -> None:
    blocker = block(quiet_cluster)
    with policy(daemons, 'mode = "enforce"'):
        fast, old, unknown = (train(quiet_cluster, name) for name in ("likes-h100", "likes-v100", ""))
        narrow = train(quiet_cluster, "likes-h100", "-C", "a100|h100")
        for job, name in ((fast, "h100"), (old, "v100"), (narrow, "(a100|h100)&h100")):
            record = wait_round(job)
            assert record["became"].startswith(f"prefers {name}")
            assert show(quiet_cluster, job)[0] == name
            assert [item["name"] for item in record["candidates"] if item["chosen"]] == [name.split("&")[-1]]
        wait_rounds()
        assert show(quiet_cluster, unknown)[0] == ""
        run_as("root", "scancel", str(blocker))
        for job, name in ((fast, "h100"), (narrow, "h100"), (old, "v100")):
            quiet_cluster.wait_state(job, "RUNNING")
            assert quiet_cluster.show(job)["nodes"].startswith(name)
        # A start uses the preference up; a job that goes back to the queue has its own constraint again.
        run_as("root", "scontrol", "requeue", str(narrow), check=True)
        wait_until(lambda: quiet_cluster.show(narrow)["restart_cnt"] == 1, 30, "requeued")
        assert quiet_cluster.show(narrow)["features"] in ("a100|h100", "(a100|h100)&h100")


def test_a_busy_type_is_not_waited_for(quiet_cluster: Slurm, daemons: Daemons) -> None:
    block(quiet_cluster, "h100-0", "h100-1")
    rest = block(quiet_cluster, "a100-0", "a100-1", "a30-0", "v100-0", "v100-1")
    with policy(daemons, 'mode = "enforce"'):
        job = train(quiet_cluster, "likes-h100")
        wait_until(lambda: told()["rounds"], 30, "a round")
        wait_round(job)
        run_as("root", "scancel", str(rest))
        quiet_cluster.wait_state(job, "RUNNING")
        assert not quiet_cluster.show(job)["nodes"].startswith("h100")


def test_short_jobs_go_first_within_bounds(quiet_cluster: Slurm, daemons: Daemons) -> None:
    block(quiet_cluster)
    with policy(daemons, 'mode = "enforce"\norder_points = 400'):
        long, short = train(quiet_cluster, "", "-t", "600"), train(quiet_cluster, "", "-t", "5")
        before = show(quiet_cluster, long)[1]
        wait_round(short, "ordered")
        wait_round(long, "ordered")
        after = {job: show(quiet_cluster, job)[1] for job in (long, short)}
        assert after[short] - after[long] == pytest.approx(800, abs=50)
        assert abs(after[long] - before) <= 450
        run_as("root", "hetsched", "rounds", "--set", "off", check=True)
        wait_round(short, "withdrawn")
        wait_round(long, "withdrawn")
        assert abs(show(quiet_cluster, short)[1] - show(quiet_cluster, long)[1]) < 50


def test_shadow_changes_nothing_and_explains(quiet_cluster: Slurm, daemons: Daemons) -> None:
    block(quiet_cluster)
    with policy(daemons, 'mode = "shadow"'):
        job, other = train(quiet_cluster, "likes-h100"), train(quiet_cluster, "", "-t", "5")
        before = show(quiet_cluster, job)[1], show(quiet_cluster, other)[1]
        record = wait_round(job)
        assert record["mode"] == "shadow"
        assert record["became"].startswith("prefers h100")
        wait_rounds()
        assert show(quiet_cluster, job) == ("", pytest.approx(before[0], abs=50))
        assert show(quiet_cluster, other) == ("", pytest.approx(before[1], abs=50))


def test_owners_words_and_opt_outs_are_left_alone(quiet_cluster: Slurm, daemons: Daemons) -> None:
    block(quiet_cluster)
    with policy(daemons, 'mode = "enforce"'):
        own = train(quiet_cluster, "likes-h100", "--prefer=a100")
        out = train(quiet_cluster, "likes-h100", lines="#HETSCHED opt-out\n")
        seen = train(quiet_cluster, "likes-h100")
        wait_round(seen)
        wait_rounds()
        assert show(quiet_cluster, own)[0] == "a100"
        assert show(quiet_cluster, out)[0] == ""
        assert rounds_of(out) == []


def test_a_policy_without_time_falls_back_and_says_so(quiet_cluster: Slurm, daemons: Daemons) -> None:
    block(quiet_cluster)
    with policy(daemons, 'mode = "enforce"\nname = "max-min"\nbudget_s = 0.001'):
        job, other = train(quiet_cluster, "likes-h100"), train(quiet_cluster)
        record = wait_round(job, "ordered")
        assert not record["policy"].startswith("max-min")
        assert any("time budget" in reason for reason in json.loads(record["detail_json"])["reasons"])
        assert any("time budget" in reason for item in told()["rounds"] for reason in item["reasons"])
        for waiting in (job, other):
            assert quiet_cluster.states(waiting) == {"PENDING"}


def test_would_tells_each_their_own_and_changes_nothing(quiet_cluster: Slurm, daemons: Daemons) -> None:
    block(quiet_cluster)
    job = train(quiet_cluster, "likes-h100")
    theirs = quiet_cluster.sbatch("bob", "--gres=gpu:1", wrap="sleep 1")
    wait_until(lambda: {job, theirs} <= would("root").keys(), 60, "both jobs in what a policy would do")
    assert would("root")[job]["prefer"] == "" or would("root")[job]["wanted"]
    assert would("alice").keys() == {job}
    assert show(quiet_cluster, job)[0] == ""
    assert rounds_of(job) == []
    assert run_as("alice", "hetsched", "rounds", "--set", "enforce").status != 0
    assert "no operator" in run_as("alice", "hetsched", "rounds", "--would", "-P", "fifo").err
    assert "no policy" in run_as("root", "hetsched", "rounds", "--would", "-P", "nosuch").err
    text = run_as("oper", "hetsched", "rounds", "--would", "-P", "fifo", check=True).out
    assert re.search(rf"{job}\s+alice", text)
    assert "mode off" in run_as("alice", "hetsched", "rounds", check=True).out


def would(user: str) -> dict[int, dict[str, Any]]:
    """What `hetsched rounds --would` tells a user, by job."""
    reply = json.loads(run_as(user, "hetsched", "rounds", "--would", "--json", check=True).out)
    return {item["job_id"]: item for item in reply["jobs"]}


def test_ended_jobs_teach_how_long_they_take(quiet_cluster: Slurm, daemons: Daemons) -> None:
    with policy(daemons, 'mode = "shadow"'):
        done = quiet_cluster.sbatch("alice", "-J", "learnt", "--gres=gpu:v100:1", "-t", "600", wrap="sleep 2")
        assert quiet_cluster.wait_ended(done) == "COMPLETED"
        wait_rounds()
        block(quiet_cluster)
        again = quiet_cluster.sbatch("alice", "-J", "learnt", "--gres=gpu:v100:1", "-t", "600", wrap="sleep 2")
        wait_until(lambda: again in would("root"), 30, "the second run in what a policy would do")
        chosen = next(item for item in would("root")[again]["candidates"] if item["chosen"])
        assert chosen["score"] < 60
        assert chosen["reason"].startswith("measured")
