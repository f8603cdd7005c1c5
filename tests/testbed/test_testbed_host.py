"""The testbed seen from the machine it runs on: runs stand side by side and leave nothing behind.

Needs root and, for all but the interrupted build, a built root (tests/testbed/testbed build).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TESTBED = Path(__file__).parent / "testbed"
SOURCE = TESTBED.parents[2]
CACHE = Path(os.environ.get("HETSCHED_TESTBED", "/var/cache/hetsched-testbed"))
RUN = (str(TESTBED), "run", "--without-hetsched", "--")
BOOTED = "booted"
WAIT_S = 120.0


def start(*command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a program as the leader of its own process group that Ctrl-C reaches, as a terminal does.

    What was itself started in the background ignores SIGINT, and so would all that it starts.
    """
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0,
        env={**os.environ, **(env or {})}, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def start_sleeping_run(marker_s: int) -> subprocess.Popen[str]:
    """A run whose command says that it is there and sleeps; returns when it sleeps."""
    run = start(*RUN, "sh", "-c", f"echo {BOOTED}; sleep {marker_s}")
    assert run.stdout is not None
    said = []
    for line in run.stdout:
        said.append(line)
        if BOOTED in line:
            return run
    raise AssertionError("".join(said))


def finish(run: subprocess.Popen[str]) -> int:
    """Wait for the end of a run whose output nobody reads any more; return its status."""
    assert run.stdout is not None
    run.stdout.close()
    return run.wait(timeout=WAIT_S)


def processes(words: str) -> list[int]:
    """The ids of processes of this machine, in whatever namespace, whose command line holds the words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words in command:
            found.append(int(path.parent.name))
    return found


def mounts() -> list[str]:
    """The mounts of this machine that the testbed could have made."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if str(CACHE) in line or "testbed" in line]


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_second_build_finds_it_up_to_date() -> None:
    subprocess.run([TESTBED, "build"], check=True)
    done = subprocess.run([TESTBED, "build"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert "up to date" in done.stderr


def test_two_runs_at_once_stand_apart_and_pass_their_status_on() -> None:
    program = "echo mine > /etc/marker-$0; test -e /etc/marker-$1 && exit 99; sinfo -h -o %D; exit $0"
    runs = [start(*RUN, "sh", "-c", program, mine, other) for mine, other in (("3", "4"), ("4", "3"))]
    outputs = [run.communicate(timeout=WAIT_S)[0] for run in runs]
    assert [run.returncode for run in runs] == [3, 4], outputs
    assert all("\n7\n" in output for output in outputs)
    assert mounts() == []


def test_the_checkout_is_untouched_but_for_build() -> None:
    program = "echo x > setup.py; echo x > strayed; mkdir -p build; echo kept > build/testbed-host-test"
    subprocess.run([*RUN, "sh", "-c", program], check=True, capture_output=True)
    assert (SOURCE / "setup.py").stat().st_size > 2
    assert not (SOURCE / "strayed").exists()
    kept = SOURCE / "build/testbed-host-test"
    assert kept.read_text() == "kept\n"
    kept.unlink()


@pytest.mark.parametrize(
    ("number", "whole_group", "status"),
    [(signal.SIGKILL, False, -signal.SIGKILL), (signal.SIGTERM, False, 143), (signal.SIGINT, True, 130)],
)
def test_nothing_survives_a_run_that_is_stopped(number: signal.Signals, whole_group: bool, status: int) -> None:
    marker_s = 700_000_000 + os.getpid()
    run = start_sleeping_run(marker_s)
    assert processes(f"sleep {marker_s}")
    assert run.stdout is not None
    run.stdout.close()  # nobody reads any more, as after Ctrl-C of `make test | head`
    (os.killpg if whole_group else os.kill)(run.pid, number)
    assert finish(run) == status
    eventually(lambda: not processes(f"sleep {marker_s}"), "the command is gone")
    assert mounts() == []
    assert list((CACHE / "mnt").iterdir()) == []


def test_no_daemon_is_left_of_a_run() -> None:
    before = set(processes("slurmctld -D"))
    run = start_sleeping_run(60)
    ours = set(processes("slurmctld -D")) - before
    assert ours
    os.kill(run.pid, signal.SIGKILL)
    finish(run)
    eventually(lambda: not ours & set(processes("slurmctld -D")), "slurmctld is gone")


def test_a_daemon_that_does_not_come_up_is_named_with_its_log(tmp_path: Path) -> None:
    cluster = tmp_path / "broken.toml"
    text = (TESTBED.parent / "clusters/default.toml").read_text()
    cluster.write_text('slurm_conf = "JobSubmitPlugins=nonesuch"\n' + text)
    argv = [str(TESTBED), "run", "--without-hetsched", "--cluster", str(cluster), "--", "true"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 125
    assert "slurmctld ended while starting" in done.stderr
    assert "nonesuch" in done.stderr


def test_an_interrupted_build_is_not_taken_for_a_finished_one(tmp_path: Path) -> None:
    build = start(str(TESTBED), "build", env={"HETSCHED_TESTBED": str(tmp_path)})
    eventually(lambda: bool(list(tmp_path.glob("tmp.*/layer/*"))), "debootstrap has begun")
    os.kill(build.pid, signal.SIGKILL)
    finish(build)
    eventually(lambda: not processes(str(tmp_path)), "the build's processes are gone")
    assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(tmp_path) in line]
    assert not list(tmp_path.glob("base-*"))


def test_a_shell_gives_its_status_and_logs_are_kept(tmp_path: Path) -> None:
    argv = [str(TESTBED), "shell", "--without-hetsched", "--keep-logs", str(tmp_path / "logs")]
    done = subprocess.run(argv, input="sinfo -h -o %P -p debug\nexit 5\n", capture_output=True, text=True)
    assert done.returncode == 5
    assert "debug" in done.stdout
    assert "slurmctld version" in (tmp_path / "logs/slurm/slurmctld.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "no command"),
        (["run", "sinfo"], "write: testbed run"),
        (["run", "--cluster", "/nonesuch.toml", "--", "true"], "no cluster file"),
        (["boot"], "usage:"),
    ],
)
def test_a_wrong_command_line_says_what_to_write(arguments: list[str], words: str) -> None:
    done = subprocess.run([str(TESTBED), *arguments], capture_output=True, text=True)
    assert done.returncode in (1, 2)
    assert words in done.stderr
