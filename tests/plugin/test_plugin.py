"""The C parts without slurmctld: cases, valgrind, sanitizers, fuzzing, three Slurm releases, hetsched-hook.

`make plugin-test` builds what is needed and runs these.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stand_in_daemon import StandInDaemon, unchanged

from pyhetsched.rpc.gen import hook_pb2 as pb

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "build/slurm-headers"
RELEASES = {"bookworm": "22.05", "trixie": "24.11", "forky": "26.05"}
FUZZ_S = os.environ.get("HETSCHED_FUZZ_S", "5")


def make(target: str, release: str) -> str:
    """Run make for the headers of a Debian release and return the folder of the programs that it made."""
    include = HEADERS / release / "usr/include"
    made = subprocess.run(
        ["make", "--no-print-directory", target, f"SLURM_INCLUDE={include}"], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    folder = subprocess.run(
        ["make", "--no-print-directory", "plugin-folder", f"SLURM_INCLUDE={include}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )
    return str(ROOT / folder.stdout.strip())


@pytest.fixture(scope="session")
def programs() -> Path:
    """The test programs for Slurm 26.05."""
    return Path(make("plugin-check-programs", "forky")) / "check"


def run(argv: list[str | Path], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a test program; its output is shown when it fails."""
    return subprocess.run(
        argv, cwd=cwd, capture_output=True, text=True, errors="replace", env={**os.environ, **environment}
    )


@pytest.mark.parametrize("release", RELEASES)
def test_all_cases_hold_with_the_headers_of_each_release(release, tmp_path):
    program = Path(make("plugin-check-programs", release)) / "check/check_plugin_sanitized"
    ran = run([program], tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("release", RELEASES)
def test_the_plugin_shows_slurmctld_its_interface_and_nothing_else(release):
    plugin = Path(make("plugin", release)) / "job_submit_hetsched.so"
    symbols = subprocess.run(["nm", "-D", "--defined-only", plugin], capture_output=True, text=True, check=True).stdout
    names = {line.split()[2] for line in symbols.splitlines()}
    interface = {"init", "fini", "job_submit", "job_modify", "plugin_name", "plugin_type", "plugin_version"}
    assert names == interface


def test_the_plugin_is_short():
    lines = (ROOT / "slurm_plugins/job_submit_hetsched.c").read_text(encoding="utf-8").count("\n")
    assert lines < 600


def test_valgrind_finds_nothing(programs, tmp_path):
    # Under valgrind the process is slow: the cases wait for the daemon, so their deadline is longer here.
    tmp_path.joinpath("plugin.conf").write_text("deadline_ms=2000\n")
    cases = run([programs / "check_plugin", "--list"], tmp_path).stdout.split()
    quick = [case for case in cases if case not in {"gives_up_at_the_deadline", "stops_asking_after_misses"}]
    valgrind = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=all", "--track-fds=yes",
                "--errors-for-leak-kinds=definite,indirect", programs / "check_plugin", *quick]
    ran = run(valgrind, tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("target", ["reply", "request"])
def test_mutations_break_no_promise(programs, target, tmp_path):
    ran = run([programs / f"fuzz_{target}", "mutate", FUZZ_S, "20261130"], tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_fuzzing_breaks_no_promise(programs):
    """With libFuzzer where there is clang, else the same mutations again."""
    ran = run([ROOT / "tests/plugin/fuzz.sh", programs, FUZZ_S], ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# ---- hetsched-hook ----

Hook = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hook(programs, tmp_path) -> Hook:
    """Runs hetsched-hook as slurmctld does, for job 17 of uid 1000."""
    tmp_path.joinpath("plugin.conf").write_text(
        f"socket={tmp_path}/hook.sock\ndisabled_file={tmp_path}/disabled\nallocate_deadline_ms=500\nfinish_deadline_ms=500\n"
    )

    def run_hook(verb: str, **environment: str) -> subprocess.CompletedProcess[str]:
        job = {"SLURM_JOB_ID": "17", "SLURM_JOB_UID": "1000", "SLURM_JOB_NODELIST": "a100-[0-1]"}
        return run([programs / "hetsched-hook", verb], tmp_path, **{**job, **environment})

    return run_hook


@pytest.fixture
def daemon(tmp_path) -> Iterator[StandInDaemon]:
    """The daemon that hetsched-hook asks."""
    with StandInDaemon(tmp_path / "hook.sock") as daemon:
        yield daemon


def allocated(action: int, message: str = "") -> Callable[[pb.HookRequest], pb.HookReply]:
    """A daemon that answers so to an allocation."""

    def answer(request: pb.HookRequest) -> pb.HookReply:
        reply = unchanged(request)
        if request.WhichOneof("what") == "allocate":
            reply.allocate.action = action
            reply.allocate.message = message
        return reply

    return answer


@pytest.mark.parametrize(
    ("action", "status"),
    [(pb.AllocateReply.PROCEED, 0), (pb.AllocateReply.GAVE_BACK, 0), (pb.AllocateReply.KILL, 1), (77, 0)],
)
def test_the_hook_does_what_the_daemon_says(hook, daemon, action, status):
    daemon.answer = allocated(action, "because")
    ran = hook("allocate", SLURM_JOB_RESTART_COUNT="2")
    assert ran.returncode == status, ran.stderr
    (request,) = daemon.of_kind("allocate")
    told = request.allocate
    assert (told.job_id, told.uid, told.node_list, told.restart_count) == (17, 1000, "a100-[0-1]", 2)


def test_the_hook_tells_that_a_job_has_ended(hook, daemon):
    assert hook("finish").returncode == 0
    (request,) = daemon.of_kind("finish")
    assert (request.finish.job_id, request.finish.uid, request.finish.restart_count) == (17, 1000, 0)


def test_ping_says_which_daemon_answers(hook, daemon):
    ran = hook("ping")
    assert (ran.returncode, ran.stdout) == (0, "hetschedd stand-in\n")


def test_without_a_daemon_jobs_go_on(hook):
    assert hook("allocate").returncode == 0
    assert hook("finish").returncode == 0
    assert hook("ping").returncode == 1


def test_a_daemon_that_hangs_is_found_out_by_a_ping(hook, daemon):
    daemon.answer = lambda request: None
    ran = hook("allocate")
    assert ran.returncode == 0
    assert "no answer within the deadline" in ran.stderr
    assert daemon.of_kind("allocate") == []


def test_a_daemon_that_takes_too_long_to_allocate_does_not_hold_the_job(hook, daemon):
    daemon.answer = lambda request: unchanged(request) if request.WhichOneof("what") == "ping" else None
    assert hook("allocate").returncode == 0
    assert hook("finish").returncode == 0


def test_an_answer_to_another_question_is_passed_over(hook, daemon):
    daemon.answer = lambda request: unchanged(pb.HookRequest(version=1, ping=pb.PingRequest()))
    ran = hook("allocate")
    assert ran.returncode == 0
    assert "something else" in ran.stderr


def test_the_flag_file_turns_the_hook_off(hook, daemon, tmp_path):
    (tmp_path / "disabled").touch()
    daemon.answer = allocated(pb.AllocateReply.KILL)
    assert hook("allocate").returncode == 0
    assert daemon.requests == []


@pytest.mark.parametrize("job_id", ["", "0", "x", "-1", "99999999999999999999", "4294967296"])
def test_what_is_no_job_is_a_usage_error(hook, job_id):
    assert hook("allocate", SLURM_JOB_ID=job_id).returncode == 2
    assert hook("nonsense").returncode == 2
