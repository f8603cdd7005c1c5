"""The shell hooks themselves, run as slurmd runs them, with their paths moved into a test's folder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HOOKS = Path(__file__).resolve().parents[2] / "slurm_plugins" / "hooks"
READY = "STATE=ready\nALL=MIG-a,MIG-b\nSLICES=1g.10gb,1g.10gb\nTASKS=2\nTASK_0=MIG-a\nTASK_1=MIG-b\n"
MARKER = '#!/bin/sh\necho "$@" >>{calls}\nexit {status}\n'


class Site:
    """A root folder with hooks, commands that note how they were called, and a node's directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = root / "calls"
        self.run_dir = root / "run/hetsched/node/n0"
        self.state_dir = root / "var/lib/hetsched/node/n0"
        for path in (self.run_dir, self.state_dir, root / "etc/hetsched", root / "bin"):
            path.mkdir(parents=True)
        self.command("hetsched-node", 0)
        self.command("scontrol", 0)
        self.command("scancel", 0)

    def command(self, name: str, status: int, says: str = "") -> None:
        path = self.root / "bin" / name
        text = MARKER.format(calls=self.calls, status=status).replace('"$@"', f'{name} "$@"')
        path.write_text(text.replace("exit", f"echo '{says}' >&2\nexit") if says else text)
        path.chmod(0o755)

    def run(self, hook: str, **variables: str) -> str:
        text = (HOOKS / hook).read_text()
        for old, new in (
            ("/usr/sbin/hetsched-node", f"{self.root}/bin/hetsched-node"),
            ("=/run/", f"={self.root}/run/"),
            ("=/var/", f"={self.root}/var/"),
            ("/etc/hetsched", f"{self.root}/etc/hetsched"),
        ):
            text = text.replace(old, new)
        script = self.root / hook
        script.write_text(text)
        environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "SLURMD_NODENAME": "n0", "SLURM_JOB_ID": "7"}
        done = subprocess.run(
            ["/bin/sh", str(script)], env=environment | variables, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0
        assert done.stderr.strip() in ("", "Killed")
        return done.stdout

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def environment(self, text: str, job_id: int = 7) -> Path:
        path = self.run_dir / f"job-{job_id}.env"
        path.write_text(text)
        return path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def exports(text: str) -> dict[str, str]:
    return dict(
        line.removeprefix("export ").split("=", 1) for line in text.splitlines() if line.startswith("export ")
    )


class TestProlog:
    def test_a_job_without_gpus_starts_nothing(self, site: Site) -> None:
        site.run("prolog")
        assert site.called() == []

    def test_a_job_on_gpus_without_mig_starts_nothing(self, site: Site) -> None:
        (site.run_dir / "mig-gpus").write_text(",2,13,\n")
        site.run("prolog", SLURM_JOB_GPUS="0,1,3")
        assert site.called() == []

    @pytest.mark.parametrize("gpus", ["2", "0,13", "0-3"])
    def test_a_job_on_a_gpu_with_mig_is_prepared(self, site: Site, gpus: str) -> None:
        (site.run_dir / "mig-gpus").write_text(",2,13,\n")
        site.run("prolog", SLURM_JOB_GPUS=gpus)
        assert site.called() == ["hetsched-node prolog --node n0"]

    def test_without_an_inventory_it_is_asked(self, site: Site) -> None:
        site.run("prolog", SLURM_JOB_GPUS="0")
        assert site.called() == ["hetsched-node prolog --node n0"]

    def test_the_flag_file_turns_it_off(self, site: Site) -> None:
        (site.root / "etc/hetsched/disabled").touch()
        site.run("prolog", SLURM_JOB_GPUS="0")
        assert site.called() == []

    @pytest.mark.parametrize("job_id", ["", "7;touch x", "../7", "$(id)"])
    def test_a_strange_job_id_is_not_used(self, site: Site, job_id: str) -> None:
        site.run("prolog", SLURM_JOB_GPUS="0", SLURM_JOB_ID=job_id)
        assert site.called() == []

    @pytest.mark.parametrize("node", ["", "../n0", ".", "a/b"])
    def test_a_strange_node_name_is_not_used(self, site: Site, node: str) -> None:
        site.run("prolog", SLURM_JOB_GPUS="0", SLURMD_NODENAME=node)
        site.run("epilog", SLURMD_NODENAME=node)
        assert site.run("task-prolog", SLURMD_NODENAME=node) == ""
        assert site.called() == []

    def test_a_killed_prolog_sends_the_job_back_blocked(self, site: Site) -> None:
        (site.root / "bin/hetsched-node").write_text("#!/bin/sh\nkill -9 $$\n")
        site.run("prolog", SLURM_JOB_GPUS="0")
        assert site.called() == ["scontrol requeue 7"]
        path = site.run_dir / "job-7.env"
        assert path.read_text() == "STATE=blocked\n"
        assert path.stat().st_mode & 0o777 == 0o644

    @pytest.mark.parametrize(
        ("said", "then"),
        [
            ("Only batch jobs are accepted or processed for job 7", ["scancel 7"]),
            ("Job is pending execution for job 7", []),
            ("slurm_requeue: Invalid job id specified", []),
        ],
    )
    def test_only_an_interactive_job_is_cancelled(self, site: Site, said: str, then: list[str]) -> None:
        site.command("hetsched-node", 1)
        site.command("scontrol", 1, said)
        site.run("prolog", SLURM_JOB_GPUS="0")
        assert site.called()[1:] == ["scontrol requeue 7", *then]

    def test_a_controller_that_does_not_answer_is_asked_again(self, site: Site) -> None:
        site.command("hetsched-node", 1)
        site.command("scontrol", 1, "Unable to contact slurm controller")
        site.command("sleep", 0)
        site.run("prolog", SLURM_JOB_GPUS="0")
        assert site.called().count("scontrol requeue 7") == 5
        assert "scancel 7" not in site.called()

    def test_a_missing_installation_does_not_drain_the_node(self, site: Site) -> None:
        (site.root / "bin/hetsched-node").unlink()
        text = (HOOKS / "prolog").read_text()
        assert "exit 0" in text.splitlines()[-1]
        done = subprocess.run(
            ["/bin/sh", "-c", text.replace("/usr/sbin/hetsched-node", "/nonexistent")],
            env={"PATH": f"{site.root}/bin:/usr/bin:/bin", "SLURMD_NODENAME": "no-such-node", "SLURM_JOB_ID": "7",
                 "SLURM_JOB_GPUS": "0"}, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0
        assert site.called() == ["scontrol requeue 7"]


class TestEpilog:
    def test_a_job_without_record_starts_nothing(self, site: Site) -> None:
        site.run("epilog")
        assert site.called() == []

    def test_a_blocked_job_only_loses_its_file(self, site: Site) -> None:
        path = site.environment("STATE=blocked\n")
        site.run("epilog")
        assert site.called() == []
        assert not path.exists()

    def test_a_record_is_worked_off(self, site: Site) -> None:
        (site.state_dir / "job-7.json").touch()
        site.run("epilog")
        assert site.called() == ["hetsched-node epilog --node n0"]

    def test_a_failure_is_tried_once_more_and_drains_nothing(self, site: Site) -> None:
        (site.state_dir / "job-7.json").touch()
        site.command("hetsched-node", 1)
        site.run("epilog")
        assert site.called() == ["hetsched-node epilog --node n0"] * 2

    def test_it_cleans_up_with_hetsched_disabled(self, site: Site) -> None:
        (site.root / "etc/hetsched/disabled").touch()
        (site.state_dir / "job-7.json").touch()
        site.run("epilog")
        assert len(site.called()) == 1


class TestTaskProlog:
    STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "0", "SLURM_SHARDS_ON_NODE": "8"}

    def test_a_job_without_file_gets_nothing(self, site: Site) -> None:
        assert site.run("task-prolog", SLURM_STEP_ID="0", SLURM_LOCALID="0") == ""

    @pytest.mark.parametrize("step", ["-5", "4294967291", "-6", "4294967290"])
    def test_the_batch_script_sees_all(self, site: Site, step: str) -> None:
        site.environment(READY)
        said = site.run("task-prolog", SLURM_STEP_ID=step, SLURM_LOCALID="0")
        assert exports(said) == {
            "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b",
            "NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b",
            "HETSCHED_SLICES": "1g.10gb,1g.10gb",
        }
        assert "unset GPU_DEVICE_ORDINAL" in said.splitlines()

    @pytest.mark.parametrize(
        ("rank", "own"), [("0", "MIG-a"), ("1", "MIG-b"), ("2", "MIG-a"), ("3", "MIG-b")]
    )
    def test_each_task_sees_its_own(self, site: Site, rank: str, own: str) -> None:
        site.environment(READY)
        said = exports(site.run("task-prolog", SLURM_LOCALID=rank, **self.STEP))
        assert said["CUDA_VISIBLE_DEVICES"] == said["NVIDIA_VISIBLE_DEVICES"] == own

    def test_without_shares_each_task_sees_all(self, site: Site) -> None:
        site.environment("STATE=ready\nALL=MIG-a,MIG-b\nSLICES=1g.10gb,1g.10gb\n")
        said = exports(site.run("task-prolog", SLURM_LOCALID="1", **self.STEP))
        assert said["CUDA_VISIBLE_DEVICES"] == "MIG-a,MIG-b"

    def test_a_step_that_asked_for_no_gpu_sees_none(self, site: Site) -> None:
        site.environment(READY)
        said = exports(site.run("task-prolog", SLURM_STEP_ID="1", SLURM_LOCALID="0"))
        assert said == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}

    def test_a_blocked_job_sees_nothing_and_is_told(self, site: Site) -> None:
        site.environment("STATE=blocked\n")
        said = site.run("task-prolog", SLURM_LOCALID="0", **self.STEP)
        assert exports(said)["CUDA_VISIBLE_DEVICES"] == ""
        assert "print hetsched: the GPU slices of this job are not ready; it sees no GPU" in said

    def test_a_reason_is_passed_on_as_it_is(self, site: Site) -> None:
        site.environment("STATE=blocked\nWHY=asked=31 shards, has $(id) \\n\n")
        said = site.run("task-prolog", SLURM_LOCALID="0", **self.STEP)
        assert "print hetsched: asked=31 shards, has $(id) \\n; it sees no GPU" in said.splitlines()

    def test_nothing_in_the_file_is_executed(self, site: Site) -> None:
        site.environment(f"STATE=ready\nALL=$(touch {site.root}/pwned);`touch {site.root}/pwned`\nSLICES=*\n")
        said = site.run("task-prolog", SLURM_LOCALID="0", **self.STEP)
        assert not (site.root / "pwned").exists()
        assert "export HETSCHED_SLICES=*" in said

    @pytest.mark.parametrize("rank", ["x", "$(id)", "-1", ""])
    def test_a_strange_rank_sees_all_of_the_job(self, site: Site, rank: str) -> None:
        site.environment(READY)
        said = exports(site.run("task-prolog", SLURM_LOCALID=rank, **self.STEP))
        assert said["CUDA_VISIBLE_DEVICES"] == "MIG-a,MIG-b"

    def test_a_component_of_a_heterogeneous_job_finds_its_own_file(self, site: Site, tmp_path: Path) -> None:
        site.environment(READY, job_id=8)
        site.run("task-prolog")  # writes the script with its paths moved
        # The parent's title is what slurmstepd's is in a step of job 8, while SLURM_JOB_ID says 7.
        stepd = ["bash", "-c", f"exec -a 'slurmstepd: [8.0]' bash -c '/bin/sh {tmp_path}/task-prolog; true'"]
        variables = {
            "SLURMD_NODENAME": "n0",
            "SLURM_JOB_ID": "7",
            "SLURM_HET_SIZE": "2",
            "SLURM_LOCALID": "0",
        }
        done = subprocess.run(stepd, env=variables | self.STEP, capture_output=True, text=True, check=True)
        assert exports(done.stdout)["CUDA_VISIBLE_DEVICES"] == "MIG-a"


def test_the_hooks_are_executable_and_posix() -> None:
    check: Callable[[Path], int] = lambda path: subprocess.run(["dash", "-n", str(path)]).returncode  # noqa: E731
    for name in ("prolog", "epilog", "task-prolog"):
        path = HOOKS / name
        assert path.stat().st_mode & 0o111 == 0o111
        assert path.read_text().startswith("#!/bin/sh\n")
        assert check(path) == 0
