"""The prolog: slices are made as planned, or the job goes back with nothing left behind."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from node_world import NODE, UID, World

from pyhetsched.errors import DataError, UntrustedError
from pyhetsched.node.hook import job_from
from pyhetsched.node.inventory import read_mig_gpus
from pyhetsched.rpc.gen import services_pb2 as pb


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_slices_are_made_where_planned_and_reported(world: World) -> None:
    world.daemon.plan(7, ("3g.40gb", 4), ("1g.10gb", 0))
    world.prolog(7)
    assert world.layout() == {("3g.40gb", 4), ("1g.10gb", 0)}
    assert world.daemon.last_states() == {"7.0": "ready", "7.1": "ready"}
    report = world.daemon.reports[-1]
    assert [item.mig_uuid[:4] for item in report.slices] == ["MIG-", "MIG-"]
    assert all(item.nvml_s > 0 for item in report.slices)
    uuids = ",".join(item.mig_uuid for item in report.slices)
    assert world.visible(7) == f"STATE=ready\nALL={uuids}\nSLICES=3g.40gb,1g.10gb\n"
    assert not world.given_back


def test_the_record_says_what_was_made(world: World) -> None:
    world.daemon.plan(7, ("2g.20gb", 2), gpu=1)
    world.prolog(7, 1)
    record = json.loads(world.paths.record(7).read_text())
    made = record["slices"][0]["reservation"]
    assert (made["state"], made["gpu_index"], made["start"], made["size"]) == ("ready", 1, 2, 2)
    assert made["mig_uuid"].startswith("MIG-")
    assert record["slices"][0]["gpu_uuid"].startswith("GPU-")
    assert world.paths.record(7).stat().st_mode & 0o777 == 0o600


def test_tasks_get_their_own_share(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2), ("1g.10gb", 3), per_task=2)
    world.prolog(7)
    uuids = [item.mig_uuid for item in world.daemon.reports[-1].slices]
    lines = world.visible(7).splitlines()
    assert lines[3:] == ["TASKS=2", f"TASK_0={uuids[0]},{uuids[1]}", f"TASK_1={uuids[2]},{uuids[3]}"]


def test_a_job_without_slices_is_left_alone(world: World) -> None:
    world.prolog(8)
    assert world.visible(8) == ""
    assert not world.daemon.reports
    assert not world.given_back


def test_a_job_on_gpus_without_mig_does_not_ask_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, "V100-32GB:2")
    world.daemon.away = True
    world.prolog(8)
    assert not world.given_back
    assert read_mig_gpus(world.paths) == frozenset()


def test_the_inventory_is_made_when_the_boot_left_none(world: World) -> None:
    world.node.ctl("mode", "--gpu", "1", "off")
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    assert read_mig_gpus(world.paths) == {0}
    assert world.paths.mig_gpus.read_text() == ",0,\n"


def test_an_unreachable_daemon_sends_the_job_back_blocked(world: World) -> None:
    world.daemon.away = True
    world.prolog(7)
    assert "does not answer" in world.given_back[7]
    assert world.visible(7) == "STATE=blocked\n"
    assert world.layout() == set()


def test_an_answer_that_cannot_be_verified_sends_the_job_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impostor(request: pb.PrepareRequest) -> pb.PreparePlan:
        raise UntrustedError("uid 1002 answered in place of the daemon")

    monkeypatch.setattr(world.daemon, "prepare", impostor)
    world.prolog(7)
    assert "uid 1002" in world.given_back[7]


def test_a_daemon_that_comes_back_in_time_is_waited_for(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.daemon.away = True
    from pyhetsched.node import prolog

    threading.Timer(0.3, lambda: setattr(world.daemon, "away", False)).start()
    prolog.run(world.job(7), world.hook(patience_s=20.0))
    assert world.layout() == {("1g.10gb", 0)}
    assert not world.given_back


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"job_id": 8}, "the plan is for job 8"),
        ({"uid": 0}, "of uid 0"),
        ({"slices": []}, "names none"),
    ],
)
def test_a_plan_for_another_job_is_not_followed(
    world: World, change: dict[str, object], complaint: str
) -> None:
    plan = world.daemon.plan(7, ("1g.10gb", 0))
    if "slices" in change:
        del plan.slices[:]
    else:
        plan.MergeFrom(pb.PreparePlan(**change))  # type: ignore[arg-type]
        if "uid" in change:
            plan.uid = 0
    world.prolog(7)
    assert complaint in world.given_back[7]
    assert world.layout() == set()


def test_a_plan_for_a_gpu_that_slurm_did_not_give_is_not_followed(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0), gpu=1)
    world.prolog(7, 0)
    assert "Slurm gave GPUs (0,)" in world.given_back[7]
    assert world.layout(1) == set()


def test_given_back_by_the_daemon_means_no_gpu_and_nothing_else(world: World) -> None:
    world.daemon.plans[7] = pb.PreparePlan(action=pb.PreparePlan.GIVE_BACK, message="no place")
    world.prolog(7)
    assert world.visible(7) == "STATE=blocked\n"
    assert not world.given_back


def test_a_blocked_job_runs_without_gpu_and_is_told_why(world: World) -> None:
    world.daemon.plans[7] = pb.PreparePlan(
        action=pb.PreparePlan.BLOCK, message="got 2 shards,\nnot 31 \x1b[1m\u00e9"
    )
    world.prolog(7)
    assert world.visible(7) == "STATE=blocked\nWHY=got 2 shards,not 31 [1m\n"
    assert not world.given_back


def test_a_plan_of_a_newer_daemon_sends_the_job_back(world: World) -> None:
    world.daemon.plans[7] = pb.PreparePlan(action=9)  # type: ignore[arg-type]
    world.prolog(7)
    assert "not known to this version" in world.given_back[7]


def test_a_failed_compute_instance_leaves_no_gpu_instance(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0), ("2g.20gb", 2))
    world.node.ctl(
        "fault", "add", "--call", "nvmlGpuInstanceCreateComputeInstance", "--skip", "1", "--fail", "23"
    )
    world.prolog(7)
    assert world.layout() == set()
    assert world.daemon.reports[-1].job_must_go_back
    assert world.daemon.last_states() == {"7.0": "failed", "7.1": "failed"}
    assert "no room" in world.daemon.reports[-1].message
    assert world.visible(7) == "STATE=blocked\n"
    assert not world.paths.record(7).exists()
    assert not world.given_back  # the daemon was told and does it


def test_when_the_daemon_cannot_be_told_slurm_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.node.ctl("fault", "add", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--fail", "4")
    real = world.daemon.prepare

    def prepare_then_vanish(request: pb.PrepareRequest) -> pb.PreparePlan:
        plan = real(request)
        world.daemon.away = True
        return plan

    monkeypatch.setattr(world.daemon, "prepare", prepare_then_vanish)
    world.prolog(7)
    assert "root" in world.given_back[7]
    [(_, kept)] = world.journal.spooled()
    assert not pb.ReportRequest.FromString(kept).job_must_go_back  # it would hit the job's next run


def test_the_place_of_a_foreign_instance_is_not_taken(world: World) -> None:
    with world.node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.create(gpu, 9, 4)
    world.daemon.plan(7, ("1g.10gb", 4))
    world.prolog(7)
    assert world.layout() == {("3g.40gb", 4)}
    assert "is not this job's" in world.daemon.reports[-1].message
    assert not world.paths.record(7).exists()


def test_what_was_reported_made_but_is_not_there_counts_as_failed(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.node.ctl("fault", "add", "--call", "nvmlGpuInstanceCreateComputeInstance", "--noop")
    world.prolog(7)
    assert world.layout() == set()
    assert world.daemon.last_states() == {"7.0": "failed"}


def test_a_gpu_off_the_bus_sends_the_job_back(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.node.ctl("lost", "--gpu", "0")
    world.prolog(7)
    assert "fallen off the bus" in world.daemon.reports[-1].message
    world.daemon.plan(8, ("1g.10gb", 0), gpu=1)
    world.prolog(8, 1)
    assert world.layout(1) == {("1g.10gb", 0)}  # the other GPU keeps its index


def test_without_a_driver_no_gpu_is_in_mig_mode(world: World) -> None:
    (world.folder / "nvml" / f"{NODE}.state").unlink()
    world.daemon.away = True
    world.prolog(7)
    assert not world.given_back


def test_where_the_gpus_cannot_be_looked_at_the_daemon_is_asked(world: World) -> None:
    world.node.ctl("fault", "add", "--call", "nvmlInitWithFlags", "--fail", "999")
    world.daemon.away = True
    world.prolog(7)
    assert world.given_back
    assert world.visible(7) == "STATE=blocked\n"


def test_no_driver_at_all_sends_the_job_back(world: World) -> None:
    world.prolog(1)  # writes the inventory
    world.daemon.plan(7, ("1g.10gb", 0))
    (world.folder / "nvml" / f"{NODE}.state").unlink()
    world.prolog(7)
    assert world.daemon.reports[-1].job_must_go_back


def test_leftovers_of_a_job_that_is_over_make_way(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)  # its epilog never runs
    world.jobs_over = {7}
    world.daemon.plan(8, ("7g.80gb", 0))
    world.prolog(8)
    assert world.layout() == {("7g.80gb", 0)}
    assert not world.paths.record(7).exists()


def test_a_live_job_is_never_swept_away(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    world.daemon.plan(8, ("7g.80gb", 0))
    world.prolog(8)
    assert world.layout() == {("1g.10gb", 0)}
    assert world.daemon.last_states()["8.0"] == "failed"


def test_a_second_run_of_the_same_prolog_changes_nothing(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    before = world.visible(7)
    shown = world.node.show()["gpus"][0]["instances"]
    world.prolog(7)
    assert world.visible(7) == before
    assert world.node.show()["gpus"][0]["instances"] == shown


def test_a_requeued_job_starts_from_nothing(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    plan = world.daemon.plan(7, ("3g.40gb", 0))
    plan.slices[0].reservation_id = "7.second"
    world.prolog(7)
    assert world.layout() == {("3g.40gb", 0)}


def test_many_prologs_at_once_on_one_gpu(world: World) -> None:
    jobs = range(10, 17)
    world.prolog(1)  # the inventory is there, as after a boot
    children = []
    for start, job_id in enumerate(jobs):
        world.daemon.plan(job_id, ("1g.10gb", start))
        children.append(threading.Thread(target=world.crash, args=(lambda job=job_id: world.prolog(job),)))
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert world.layout() == {("1g.10gb", start) for start in range(7)}
    seen = {world.visible(job_id) for job_id in jobs}
    assert len(seen) == 7
    assert all(text.startswith("STATE=ready") for text in seen)
    for job_id in jobs:
        assert world.epilog(job_id)
    assert world.layout() == set()


def test_the_job_is_read_from_slurmds_variables() -> None:
    variables = {
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_UID": str(UID),
        "SLURM_JOB_GPUS": "0,2-3",
        "SLURMD_NODENAME": NODE,
    }
    job = job_from(variables)
    assert (job.job_id, job.uid, job.node, job.gpus) == (12, UID, NODE, (0, 2, 3))


@pytest.mark.parametrize("bad", ["", "12; rm -rf /", "../12", "-1", "1e3"])
def test_a_job_id_that_is_no_number_is_refused(bad: str) -> None:
    with pytest.raises(DataError, match="SLURM_JOB_ID"):
        job_from({"SLURM_JOB_ID": bad, "SLURM_JOB_UID": "1"})
