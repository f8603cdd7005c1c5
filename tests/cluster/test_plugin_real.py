"""The job_submit plugin inside a real slurmctld, asking a daemon whose answers are laid down here.

Jobs are submitted held, or become a whole V100, which no node hook looks at: so these tests need no hetschedd,
and where one runs it is stopped meanwhile.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import wait_until

from pyhetsched.rpc.gen import hook_pb2 as pb

sys.path.insert(0, str(Path(__file__).parents[1] / "plugin"))

from stand_in_daemon import StandInDaemon, refused, rewritten, unchanged  # noqa: E402

HOOK_SOCKET = Path("/run/hetsched/hook.sock")
PLUGIN_CONF = Path("/etc/hetsched/plugin.conf")
SLURM_CONF = Path("/etc/slurm/slurm.conf")
DEADLINE_MS = 200
GPU_VARIABLES = ("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND", "SLURM_NTASKS_PER_GPU")


@pytest.fixture(scope="module", autouse=True)
def plugin(daemons) -> Iterator[None]:
    """Slurm with the plugin and without hetschedd."""
    with_hetsched = daemons.with_hetsched()
    if with_hetsched:
        daemons.stop("hetschedd")
    else:
        plugin_dir = next(Path("/usr/lib").glob("*/slurm-wlm/select_cons_tres.so")).parent
        subprocess.run(["make", "plugin-install", f"SLURM_PLUGIN_DIR={plugin_dir}"], check=True, capture_output=True)
        SLURM_CONF.write_text(SLURM_CONF.read_text() + "JobSubmitPlugins=hetsched\n")
    PLUGIN_CONF.parent.mkdir(exist_ok=True)
    installed = PLUGIN_CONF.read_text() if PLUGIN_CONF.exists() else ""
    PLUGIN_CONF.write_text(f"deadline_ms={DEADLINE_MS}\nmisses=4\nsilence_s=3600\n")
    daemons.restart("slurmctld")
    yield
    PLUGIN_CONF.write_text(installed)
    if with_hetsched:
        daemons.start("hetschedd")
    daemons.restart("slurmctld")


@pytest.fixture
def forgetful(slurm, as_user) -> Callable[[], None]:
    """Makes the plugin forget its misses: a reconfigure loads it anew, and the nodes are known again a bit later."""

    def forget() -> None:
        as_user("root", "scontrol", "reconfigure", check=True)
        wait_until(lambda: set(slurm.node_states().values()) == {"idle"}, 60, "all nodes idle")

    return forget


@pytest.fixture
def daemon(slurm, forgetful) -> Iterator[StandInDaemon]:
    """The daemon that the plugin asks."""
    forgetful()
    with StandInDaemon(HOOK_SOCKET) as daemon:
        yield daemon
    slurm.cancel_everything()


def slice_becomes_shards(request: pb.HookRequest) -> pb.HookReply | None:
    """What hetschedd would answer for one slice 1g.10gb, however it is spelled."""
    submit = request.submit
    if not any("1g.10gb" in tres for tres in (submit.tres_per_node, submit.tres_per_job, submit.tres_per_task)):
        return unchanged(request)
    cleared = dict.fromkeys(("TRES_PER_JOB", "TRES_PER_TASK", "TRES_BIND"), "")
    changes = {"TRES_PER_NODE": "gres/shard:4", "FEATURES": "a100|h100", "ADMIN_COMMENT": "hetsched:d=7", **cleared}
    return rewritten(changes, "hetsched: gpu:1g.10gb:1 -> 4 shards", GPU_VARIABLES)


@pytest.mark.parametrize(
    "options",
    [
        ["--gres=gpu:1g.10gb:1"],
        ["-G", "1g.10gb:1"],
        ["--gpus-per-node=1g.10gb:1"],
        ["-n1", "--gpus-per-task=1g.10gb:1"],
        ["-n1", "--tres-per-task=gres/gpu:1g.10gb:1"],
    ],
)
def test_a_slice_becomes_shards(slurm, daemon, options):
    daemon.answer = slice_becomes_shards
    submitted = slurm.try_sbatch("alice", "-H", *options)
    assert submitted.status == 0
    assert "hetsched: gpu:1g.10gb:1 -> 4 shards" in submitted.err
    job = slurm.show(int(submitted.out))
    assert job["tres_per_node"] == "gres/shard:4"
    assert (job["tres_per_job"], job["tres_per_task"], job["tres_bind"]) == ("", "", "")
    assert (job["features"], job["admin_comment"]) == ("a100|h100", "hetsched:d=7")
    (request,) = daemon.of_kind("submit")
    assert request.submit.batch
    assert not request.submit.test_only


def test_the_environment_loses_what_an_inner_srun_would_read(slurm, daemon):
    daemon.answer = lambda request: rewritten(
        {"TRES_PER_JOB": "", "TRES_PER_NODE": "gres/gpu:v100:1"}, drop=GPU_VARIABLES
    )
    job = slurm.sbatch("alice", "-G", "1g.10gb:1", wrap="env | grep ^SLURM_GPUS=; echo $LOGNAME; srun echo step ran")
    assert slurm.wait_ended(job) == "COMPLETED"
    assert slurm.output("alice", job).splitlines() == ["alice", "step ran"]
    assert "SLURM_GPUS=1g.10gb:1" in daemon.of_kind("submit")[0].submit.gpu_environment


def test_a_refusal_reaches_the_user(slurm, daemon, as_user):
    daemon.answer = lambda request: refused("there is no a10O here\nwrite --gres=gpu:a100:1")
    for ran in (
        slurm.try_sbatch("alice", "--gres=gpu:a10O:1"),
        as_user("alice", "srun", "--gres=gpu:a10O:1", "true"),
        as_user("alice", "salloc", "--gres=gpu:a10O:1", "true"),
    ):
        assert ran.status
        assert "there is no a10O here" in ran.err
        assert "write --gres=gpu:a100:1" in ran.err
        assert "Invalid generic resource" in ran.err
    assert [request.submit.batch for request in daemon.of_kind("submit")] == [True, False, False]


def test_only_a_rehearsal_is_told_as_one(slurm, daemon):
    daemon.answer = slice_becomes_shards
    assert slurm.try_sbatch("alice", "--test-only", "--gres=gpu:1g.10gb:1").status == 0
    assert daemon.of_kind("submit")[0].submit.test_only


def test_an_array_is_one_question(slurm, daemon):
    daemon.answer = slice_becomes_shards
    job = slurm.sbatch("alice", "-H", "--array=1-5", "--gres=gpu:1g.10gb:1")
    assert [request.submit.array_inx for request in daemon.of_kind("submit")] == ["1-5"]
    assert slurm.show(job)["tres_per_node"] == "gres/shard:4"


def test_each_component_of_a_heterogeneous_job_is_a_question(slurm, daemon):
    daemon.answer = slice_becomes_shards
    script = "#!/bin/sh\n#SBATCH -H --gres=gpu:1g.10gb:1\n#SBATCH hetjob\n#SBATCH --gres=gpu:v100:1\ntrue\n"
    job = slurm.sbatch("alice", script=script)
    asked = [request.submit for request in daemon.of_kind("submit")]
    assert [(one.het_job, one.het_job_offset, one.batch) for one in asked] == [(True, 0, True), (True, 1, True)]
    assert [one["tres_per_node"] for one in slurm.show_all(job)] == ["gres/shard:4", "gres/gpu:v100:1"]


def test_directives_and_comments_are_told(slurm, daemon):
    slurm.sbatch("alice", "-H", script="#!/bin/sh\n#SBATCH --gres=gpu:1\n#HETSCHED min-vram=40G\ntrue\n")
    slurm.sbatch("alice", "-H", "--comment=hetsched:types=a100")
    first, second = (request.submit for request in daemon.of_kind("submit"))
    assert list(first.script_lines) == ["min-vram=40G"]
    assert second.comment == "hetsched:types=a100"


def test_jobs_without_gpus_are_no_question(slurm, daemon):
    slurm.sbatch("alice", "-H", "-n2", "--comment=nothing here")
    assert daemon.of_kind("submit") == []


def test_the_owner_cannot_change_what_is_guarded(slurm, daemon, as_user):
    daemon.answer = slice_becomes_shards
    job = slurm.sbatch("alice", "-H", "--gres=gpu:1g.10gb:1")

    def veto(request: pb.HookRequest) -> pb.HookReply:
        reply = unchanged(request)
        if request.WhichOneof("what") == "modify":
            reply.modify.verdict = pb.REFUSED
            reply.modify.user_message = "cancel the job and submit it again"
        return reply

    daemon.answer = veto
    for change in ("Gres=shard:31", "TresPerNode=gres/gpu:a100:4", "Features=v100", "ExcNodeList=a100-0"):
        refusal = as_user("alice", "scontrol", "update", f"job={job}", change)
        assert refusal.status
        assert "cancel the job and submit it again" in refusal.out + refusal.err
    assert slurm.show(job)["tres_per_node"] == "gres/shard:4"
    assert {request.modify.job_id for request in daemon.of_kind("modify")} == {str(job)}
    asked = len(daemon.of_kind("modify"))
    as_user("alice", "scontrol", "update", f"job={job}", "Comment=mine", check=True)
    as_user("root", "scontrol", "update", f"job={job}", "Features=v100", check=True)
    assert len(daemon.of_kind("modify")) == asked


def fails_open(slurm) -> None:
    """An ordinary request passes as it is, a slice is refused with a sentence."""
    job = slurm.sbatch("alice", "-H", "--gres=gpu:v100:1")
    assert slurm.show(job)["tres_per_node"] == "gres/gpu:v100:1"
    told = slurm.try_sbatch("alice", "-H", "--gres=gpu:1g.10gb:1")
    assert told.status
    assert "hetsched is not answering, so the GPU slice 1g.10gb cannot be set up now" in told.err


def test_garbage_is_no_answer(slurm, daemon):
    for garbage in (b"", b"\0\0", b"\xff" * 64, b"\0\0\0\x10" + b"\xa5" * 16, b"\0\0\x10\0only the beginning"):
        daemon.answer = lambda request, garbage=garbage: garbage
        fails_open(slurm)


def test_a_daemon_that_hangs_is_left_alone_after_some_misses(slurm, daemon):
    daemon.answer = lambda request: None
    for _ in range(4):
        fails_open(slurm)
    assert len(daemon.of_kind("submit")) == 4


def test_a_stopped_process_is_given_up_on(slurm, forgetful):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    HOOK_SOCKET.parent.mkdir(exist_ok=True)
    HOOK_SOCKET.unlink(missing_ok=True)
    listener.bind(str(HOOK_SOCKET))
    os.chmod(HOOK_SOCKET, 0o666)
    stopped = subprocess.Popen(["sleep", "600"], pass_fds=[listener.fileno()])
    listener.listen(1)
    listener.close()  # from here on only the stopped process holds it, and a backlog of one
    stopped.send_signal(signal.SIGSTOP)
    try:
        forgetful()
        for _ in range(3):
            fails_open(slurm)
    finally:
        stopped.kill()
        stopped.wait()
        HOOK_SOCKET.unlink()
        slurm.cancel_everything()


def test_no_socket_at_all(slurm, forgetful):
    forgetful()
    fails_open(slurm)
    slurm.cancel_everything()


def test_somebody_elses_socket_is_not_believed(slurm, forgetful):
    script = (
        "import os, socket; s = socket.socket(socket.AF_UNIX); s.bind('/run/hetsched/hook.sock');"
        "os.chmod('/run/hetsched/hook.sock', 0o666); os.setuid(65534); s.listen(); print('ready', flush=True);"
        "c, _ = s.accept(); print(len(c.recv(100)), flush=True)"
    )
    HOOK_SOCKET.unlink(missing_ok=True)
    impostor = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert impostor.stdout is not None
    try:
        assert impostor.stdout.readline() == "ready\n"
        forgetful()
        fails_open(slurm)
        assert impostor.stdout.readline() == "0\n"  # it was not even told the request
    finally:
        impostor.kill()
        impostor.communicate()
        HOOK_SOCKET.unlink()
        slurm.cancel_everything()


def test_the_flag_file_turns_the_plugin_off(slurm, daemon):
    flag = Path("/etc/hetsched/disabled")
    flag.touch()
    try:
        slurm.sbatch("alice", "-H", "--gres=gpu:v100:1")
        told = slurm.try_sbatch("alice", "--gres=gpu:1g.10gb:1")
    finally:
        flag.unlink()
    assert told.status
    assert "hetsched" not in told.err
    assert daemon.of_kind("submit") == []
