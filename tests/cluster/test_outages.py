"""The daemon is down, hangs, or somebody else sits on its socket: Slurm is never kept waiting."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Daemons, Slurm, run_as
from main_path import profiles_seen, wait_clean, wait_started

HOOK_SOCKET = Path("/run/hetsched/hook.sock")
DEADLINE_S = 0.1
# What sbatch itself takes on a busy machine, on top of what the plugin may.
SLACK_S = 1.5


def submit(slurm: Slurm, *options: str) -> tuple[float, str, int]:
    """Submit as alice; return how long it took, what the user was told and the exit status."""
    started = time.monotonic()
    ran = slurm.try_sbatch("alice", *options)
    return time.monotonic() - started, ran.err, ran.status


@contextlib.contextmanager
def impostor(answer: bytes | None) -> Iterator[None]:
    """Sit on the hook socket as root and answer every request with ``answer`` (None: never)."""
    HOOK_SOCKET.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(HOOK_SOCKET))
    os.chmod(HOOK_SOCKET, 0o666)
    server.listen(64)
    held: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                held.append(connection)
                if answer is not None:
                    with contextlib.suppress(OSError):
                        connection.recv(65536)
                        connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        server.close()
        for connection in held:
            connection.close()
        HOOK_SOCKET.unlink(missing_ok=True)


def check_failing_open(slurm: Slurm) -> None:
    """Ordinary jobs pass, slice requests get a sentence, nobody waits; at last the plugin stops asking."""
    wall_s, said, status = submit(slurm, "--gres=gpu:1g.10gb:1")
    assert status != 0
    assert "hetsched is not answering" in said
    assert wall_s < DEADLINE_S + SLACK_S
    for _ in range(6):
        wall_s, said, status = submit(slurm, "--gres=gpu:v100:1")
        assert (status, said) == (0, "")
        assert wall_s < DEADLINE_S + SLACK_S
    assert submit(slurm)[2] == 0


def test_daemon_down(quiet_cluster: Slurm, daemons: Daemons) -> None:
    daemons.stop("hetschedd")
    check_failing_open(quiet_cluster)


def test_daemon_killed_and_socket_left_behind(quiet_cluster: Slurm, daemons: Daemons) -> None:
    daemons.kill("hetschedd")
    check_failing_open(quiet_cluster)


def test_daemon_stopped_in_its_tracks(quiet_cluster: Slurm, daemons: Daemons) -> None:
    daemons.pause("hetschedd")
    check_failing_open(quiet_cluster)


def test_socket_missing(quiet_cluster: Slurm, daemons: Daemons) -> None:
    HOOK_SOCKET.unlink()
    check_failing_open(quiet_cluster)
    daemons.restart("hetschedd")


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"\xff" * 4, b"\x00\x00\x00\x05garba", b"\x00\x00\x00\x04" + b"\xff" * 4, b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["silence", "nothing", "huge", "short", "no protobuf", "http"],
)
def test_garbage_on_the_socket(quiet_cluster: Slurm, daemons: Daemons, answer: bytes | None) -> None:
    daemons.stop("hetschedd")
    with impostor(answer):
        check_failing_open(quiet_cluster)


def test_after_five_misses_nobody_waits_at_all_and_then_it_is_asked_again(
    quiet_cluster: Slurm, daemons: Daemons
) -> None:
    daemons.pause("hetschedd")
    for _ in range(6):
        submit(quiet_cluster, "--gres=gpu:v100:1")
    before = daemons.log("slurmctld").count("hetsched")
    for _ in range(3):
        assert submit(quiet_cluster, "--gres=gpu:v100:1")[2] == 0
    assert daemons.log("slurmctld").count("hetsched") == before
    daemons.resume("hetschedd")
    time.sleep(10.5)
    job = quiet_cluster.sbatch("alice", "--gres=gpu:1g.10gb:1", wrap="fake-nvidia-smi -L")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", job)) == ["1g.10gb"]


def test_a_slice_job_that_starts_while_the_daemon_is_away_waits_for_it(quiet_cluster: Slurm, daemons: Daemons) -> None:
    job = quiet_cluster.sbatch("alice", "--gres=gpu:1g.10gb:1", "--hold", wrap="fake-nvidia-smi -L")
    daemons.stop("hetschedd")
    run_as("alice", "scontrol", "release", str(job), check=True)
    time.sleep(3)
    daemons.start("hetschedd")
    assert quiet_cluster.wait_ended(job, within_s=120) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", job)) == ["1g.10gb"]
    assert all("idle" in state for state in quiet_cluster.node_states().values())
    wait_clean(quiet_cluster)


def test_slices_of_running_jobs_survive_the_death_of_the_daemon(quiet_cluster: Slurm, daemons: Daemons) -> None:
    job = quiet_cluster.sbatch("alice", "--gres=gpu:2g.20gb:1", wrap="echo started; sleep 4; fake-nvidia-smi -L")
    wait_started(quiet_cluster, "alice", job)
    daemons.kill("hetschedd")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"
    assert profiles_seen(quiet_cluster.output("alice", job)) == ["2g.20gb"]
    daemons.start("hetschedd")
    other = quiet_cluster.sbatch("bob", "--gres=gpu:7g.80gb:1", wrap="fake-nvidia-smi -L")
    assert quiet_cluster.wait_ended(other) == "COMPLETED"
    wait_clean(quiet_cluster, within_s=90)


def test_the_flag_file_turns_everything_off_and_on(quiet_cluster: Slurm) -> None:
    flag = Path("/etc/hetsched/disabled")
    flag.touch()
    try:
        ran = quiet_cluster.try_sbatch("alice", "--gres=gpu:1g.10gb:1")
        assert ran.status != 0
        assert "hetsched" not in ran.err
    finally:
        flag.unlink()
    job = quiet_cluster.sbatch("alice", "--gres=gpu:1g.10gb:1", wrap="fake-nvidia-smi -L")
    assert quiet_cluster.wait_ended(job) == "COMPLETED"


def test_a_wrong_configuration_is_refused_and_the_old_one_kept(quiet_cluster: Slurm, daemons: Daemons) -> None:
    config = Path("/etc/hetsched/hetsched.toml")
    right = config.read_text()
    try:
        config.write_text(right + '\n[modee]\ndefault = "off"\n')
        check = run_as("root", "hetschedd", "--check-config")
        assert check.status == 1
        assert "modee" in check.err
        daemons.reload("hetschedd")
        job = quiet_cluster.sbatch("alice", "--gres=gpu:1g.10gb:1", wrap="true")
        assert quiet_cluster.wait_ended(job) == "COMPLETED"
        assert "the old configuration is kept" in daemons.log("hetschedd")
    finally:
        config.write_text(right)
        daemons.reload("hetschedd")


def test_shadow_mode_records_and_changes_nothing(quiet_cluster: Slurm) -> None:
    run_as("oper", "hetsched", "mode", "shadow", check=True)
    try:
        ran = quiet_cluster.try_sbatch("alice", "--gres=gpu:h100:2", wrap="true")
        assert (ran.status, ran.err) == (0, "")
        job = int(ran.out)
        assert not quiet_cluster.show(job)["features"]
        said = run_as("alice", "hetsched", "explain", str(job)).out
        assert "[shadow]" in said
        assert "2 whole GPUs on h100" in said
    finally:
        run_as("root", "hetsched", "mode", "enforce", check=True)


def test_hetsched_says_when_the_daemon_cannot_be_reached(quiet_cluster: Slurm, daemons: Daemons) -> None:
    daemons.stop("hetschedd")
    ran = run_as("alice", "hetsched", "status")
    assert ran.status == 3
    assert "does not answer" in ran.err
    assert run_as("alice", "hetsched", "gpus", "--nonsense").status == 2
