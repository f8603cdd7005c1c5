"""The daemon's part in faults: requeues, lost and late reports, a full database, a clock that steps back."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from daemon_world import CallFailed, World, states

from pyhetsched.errors import SlurmError
from pyhetsched.rpc.gen import hook_pb2, services_pb2
from pyhetsched.slurm.workers import Workers

PROCEED, GAVE_BACK = hook_pb2.AllocateReply.PROCEED, hook_pb2.AllocateReply.GAVE_BACK
PLAN = services_pb2.PreparePlan


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_error_of_slurm_passes_between_processes() -> None:
    error = pickle.loads(pickle.dumps(SlurmError("scontrol update", "Job is no longer pending", 2010)))
    assert str(error) == "scontrol update: Job is no longer pending"
    assert (error.call, error.errno) == ("scontrol update", 2010)


class RefusingSlurm:
    """What a worker asks, where Slurm takes no change."""

    def update(self, job_id: int, fields: dict[str, str]) -> None:
        raise SlurmError("scontrol update", "refused")

    def pid(self) -> int:
        return os.getpid()


def no_slurm() -> None:
    """What a worker finds where there is no slurm.conf."""
    raise SlurmError("slurm.conf", "not found")


def test_a_command_that_slurm_refuses_leaves_the_workers_alive() -> None:
    workers = Workers(RefusingSlurm, 10.0)
    try:
        for _ in range(4):
            with pytest.raises(SlurmError, match="refused"):
                workers.call("update", 7, {"Nice": "1"})
    finally:
        workers.close()


def test_a_worker_that_dies_is_replaced() -> None:
    workers = Workers(RefusingSlurm, 10.0)
    try:
        os.kill(workers.call("pid"), signal.SIGKILL)
        assert workers.call("pid") > 0
    finally:
        workers.close()


def test_workers_without_a_slurm_say_so_at_once() -> None:
    with pytest.raises(SlurmError, match="not found"):
        Workers(no_slurm, 10.0)


def test_workers_leave_with_a_daemon_that_is_killed() -> None:
    code = (
        "import os, signal; from pyhetsched.slurm.workers import Workers; c = Workers(dict, 10.0); "
        "print(*c._pool._processes, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60)
    workers = [int(word) for word in done.stdout.split()]
    assert len(workers) >= 1
    deadline_s = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline_s, "workers outlive the daemon"
        time.sleep(0.05)


def start(world: World, job_id: int = 7, profile: str = "1g.10gb", shards: int = 4) -> None:
    """A job with a slice that runs on GPU 0 of node0."""
    world.slurm.submit(job_id, profile, shards=shards)
    world.slurm.allocate(job_id, shards=shards)
    assert world.daemon.allocate(job_id) == PROCEED
    node = world.nodes["node0"]
    plan = node.prepare(job_id)
    assert plan.action == PLAN.CREATE
    node.make(plan)
    node.report(job_id, "ready")
    world.slurm.run(job_id)


def test_a_job_that_runs_again_gets_no_slice_of_its_earlier_run(world: World) -> None:
    start(world)
    node = world.nodes["node0"]
    world.slurm.requeue(7)
    left = node.unmake(7)  # the epilog ran, and its report was lost
    world.slurm.allocate(7)
    assert world.daemon.allocate(7) == PROCEED
    plan = node.prepare(7)
    assert [item.profile for item in plan.slices] == ["1g.10gb"]
    assert plan.slices[0].reservation_id != left[0].reservation_id
    node.make(plan)
    node.report(7, "ready")
    node.reconcile()
    assert states(world.daemon.book.open()) == ["running"]


def test_what_an_earlier_run_left_on_the_node_is_destroyed(world: World) -> None:
    start(world)
    node = world.nodes["node0"]
    world.slurm.requeue(7)
    del node.records[7]  # the epilog never ran, and the record is lost too
    world.slurm.allocate(7, gpu=1)
    assert world.daemon.allocate(7) == PROCEED
    node.make(node.prepare(7))
    node.report(7, "ready")
    node.reconcile()
    node.reconcile()
    assert set(node.made) == {(1, item.start) for item in node.records[7]}
    assert states(world.daemon.book.open()) == ["running"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_job_that_is_not_here_any_more_is_blocked(world: World, gone: bool) -> None:
    world.slurm.submit(7, "1g.10gb", shards=4)
    world.slurm.allocate(7)
    assert world.daemon.allocate(7) == PROCEED
    world.slurm.requeue(7)
    if gone:
        world.slurm.forget(7)
    assert world.nodes["node0"].prepare(7).action == PLAN.BLOCK


def test_a_late_report_of_ready_does_not_undo_destroying(world: World) -> None:
    start(world)
    node = world.nodes["node0"]
    node.report(7, "destroying")
    node.report(7, "ready")
    assert states(world.daemon.book.open()) == ["destroying"]


def test_a_late_word_of_the_end_does_not_touch_a_new_run(world: World) -> None:
    world.slurm.submit(7, "1g.10gb", shards=4)
    world.slurm.allocate(7)
    assert world.daemon.allocate(7) == PROCEED
    world.daemon.finish(7)  # of the run before, delivered by a hook that was kept waiting
    assert states(world.daemon.book.open()) == ["reserved"]
    world.slurm.end(7)
    world.daemon.finish(7)
    assert world.daemon.book.open() == []


def test_a_slice_made_while_the_node_was_being_compared_is_kept(world: World) -> None:
    world.slurm.submit(7, "1g.10gb", shards=4)
    world.slurm.allocate(7)
    assert world.daemon.allocate(7) == PROCEED
    node = world.nodes["node0"]
    before = node.inventory()
    node.make(node.prepare(7))
    node.report(7, "ready")
    node.reconcile(inventory=before)
    assert states(world.daemon.book.open()) == ["running"]


def test_a_full_database_sends_jobs_back_and_makes_them_wait(world: World) -> None:
    world.slurm.submit(7, "1g.10gb", shards=4)
    waits = []
    world.deadly.full = True
    for _ in range(4):
        world.slurm.allocate(7)
        assert world.daemon.allocate(7) == GAVE_BACK
        waits.append(world.slurm.updates[-1][1])
    assert [fields["StartTime"] for fields in waits] == ["now+1", "now+2", "now+4", "now+8"]
    assert {fields["ExcNodeList"] for fields in waits} == {""}
    world.deadly.full = False
    world.slurm.allocate(7)
    assert world.daemon.allocate(7) == PROCEED


def test_a_report_that_the_database_cannot_take_is_sent_again(world: World) -> None:
    start(world)
    node = world.nodes["node0"]
    world.deadly.full = True
    with pytest.raises(CallFailed) as failed:
        node.report(7, "gone")
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    world.deadly.full = False
    node.report(7, "gone")
    assert world.daemon.book.open() == []


def given_back(world: World) -> None:
    """A job that had no place on node0 and is kept from it."""
    start(world, 1, "7g.80gb", 31)
    world.slurm.submit(7, "1g.10gb", shards=4)
    world.slurm.allocate(7)
    assert world.daemon.allocate(7) == GAVE_BACK
    assert world.slurm.known[7].excluded_nodes == "node0"


def test_exclusions_are_lifted_though_slurmctld_was_away(world: World) -> None:
    given_back(world)
    world.clock.advance(100)
    world.slurm.down = True
    world.daemon.giveback.lift()
    assert world.slurm.known[7].excluded_nodes == "node0"
    world.slurm.down = False
    world.daemon.giveback.lift()
    assert world.slurm.known[7].excluded_nodes == ""


def test_exclusions_of_a_job_that_has_ended_are_forgotten(world: World) -> None:
    given_back(world)
    world.slurm.end(7)
    world.clock.advance(100)
    world.slurm.refuse = {"update": "Job/step already completing or completed"}
    world.daemon.giveback.lift()
    assert world.daemon.giveback.times(7) == 0
    world.restart()
    assert world.daemon.giveback.times(7) == 0


def test_exclusions_survive_a_restart_of_the_daemon(world: World) -> None:
    given_back(world)
    world.restart()
    world.clock.advance(100)
    world.daemon.giveback.lift()
    assert world.slurm.known[7].excluded_nodes == ""


def test_a_clock_that_steps_back_keeps_no_job_away_for_longer(world: World) -> None:
    given_back(world)
    world.clock.step_wall(-86400)
    world.clock.advance(world.config.allocation.exclude_s + 1)
    world.daemon.giveback.lift()
    assert world.slurm.known[7].excluded_nodes == ""


def test_reservations_are_kept_through_a_clock_that_steps_back(world: World) -> None:
    start(world)
    world.clock.step_wall(-86400)
    world.nodes["node0"].reconcile()
    assert states(world.daemon.book.open()) == ["running"]
    world.slurm.end(7)
    world.nodes["node0"].unmake(7)
    world.nodes["node0"].report(7, "gone") if 7 in world.nodes["node0"].records else world.nodes["node0"].reconcile()
    assert world.daemon.book.open() == []


def test_a_gpu_that_has_lost_mig_mode_gets_no_slice_job(world: World) -> None:
    node = world.nodes["node0"]
    node.mig_mode = "off"
    node.reconcile(booted=True)
    world.slurm.submit(7, "1g.10gb", shards=4)
    world.slurm.allocate(7)
    assert world.daemon.allocate(7) == GAVE_BACK
    assert world.slurm.known[7].excluded_nodes == "node0"
    assert any("MIG mode" in decision.message for decision in world.daemon.decisions)


def test_a_node_that_has_lost_mig_mode_blocks_the_job_that_got_through(world: World) -> None:
    node = world.nodes["node0"]
    node.mig_mode = "off"
    node.reconcile(booted=True)
    world.slurm.submit(7, "1g.10gb", shards=4, batch=False)
    world.slurm.allocate(7)
    assert world.nodes["node0"].prepare(7).action == PLAN.GIVE_BACK
    assert world.slurm.cancelled == [7]


def test_a_daemon_that_has_not_seen_the_nodes_yet_lets_nothing_through(world: World) -> None:
    world.slurm.submit(7, "1g.10gb", shards=4)
    world.slurm.allocate(7)
    world.slurm.down = True
    world.restart()
    assert world.daemon.allocate(7) == 0  # an error: the hook goes on, and the node asks
    with pytest.raises(CallFailed) as failed:
        world.nodes["node0"].prepare(7)
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    world.slurm.down = False
    assert world.nodes["node0"].prepare(7).action == PLAN.CREATE


@pytest.mark.parametrize("batch", [True, False])
def test_a_job_whose_prolog_nobody_runs_goes_back(world: World, batch: bool) -> None:
    world.slurm.submit(7, "1g.10gb", shards=4, batch=batch)
    world.slurm.allocate(7)
    assert world.daemon.allocate(7) == PROCEED
    stuck = world.daemon.housekeeping._stuck
    for _ in range(17):
        stuck.release()
        world.clock.advance(10)
    world.clock.step_wall(86400)
    assert world.slurm.known[7].state == "CONFIGURING"
    world.clock.advance(10)
    stuck.release()
    assert world.slurm.requeued == ([7] if batch else [])
    assert world.slurm.cancelled == ([] if batch else [7])
    assert world.daemon.book.open() == []
    assert any("its prolog has not ended" in decision.message for decision in world.daemon.decisions)


def test_a_job_that_starts_anew_has_its_time_anew(world: World) -> None:
    world.slurm.submit(7, "1g.10gb", shards=4)
    stuck = world.daemon.housekeeping._stuck
    for _ in range(3):
        world.slurm.allocate(7)
        stuck.release()
        world.clock.advance(100)
        world.slurm.run(7)
        stuck.release()
        world.slurm.requeue(7)
        world.clock.advance(100)
    assert world.slurm.requeued == [7, 7, 7]


def test_a_slice_job_whose_gpu_slurm_does_not_tell_yet_waits(world: World) -> None:
    world.slurm.submit(7, "1g.10gb", shards=4)
    world.slurm.allocate(7)
    told = world.slurm.known[7]
    world.slurm.known[7] = dataclasses.replace(told, nodes=())
    with pytest.raises(CallFailed) as failed:
        world.nodes["node0"].prepare(7)
    assert failed.value.code is grpc.StatusCode.UNAVAILABLE
    world.slurm.known[7] = told
    assert world.nodes["node0"].prepare(7).action == PLAN.CREATE


def test_nothing_is_concluded_about_a_gpu_that_could_not_be_looked_at(world: World) -> None:
    start(world)
    node = world.nodes["node0"]
    seen = node.inventory()
    for gpu in seen.gpus:
        gpu.mig_mode = "unknown"
        del gpu.slices[:]
    record = node.records.pop(7)
    node.reconcile(inventory=seen)
    assert states(world.daemon.book.open()) == ["running"]
    node.records[7] = record
