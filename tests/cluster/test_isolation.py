"""A job's tasks open their own slices' device nodes only: by ownership, and by device rules of cgroup v2."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Daemons, Slurm, run_as, wait_until
from isolation_site import (
    DEV,
    GPU_FILES,
    NODE,
    SCOPE,
    capability_nodes,
    minors_by_owner,
    minors_of,
    root,
    slurmd_with_cgroups,
)
from main_path import explained, uuids_of, wait_clean, wait_started

CONFIG = Path("/etc/hetsched/hetsched.toml")
PROBE = Path("/usr/local/bin/probe-devices")
PROBE_TEXT = """\
#!/usr/bin/python3
import errno, os, sys
for folder in sys.argv[1:]:
    for name in sorted(os.listdir(folder)):
        try:
            os.close(os.open(f"{folder}/{name}", os.O_RDONLY))
            said = "opened"
        except OSError as error:  # ENXIO: permitted, but there is no driver behind it
            said = errno.errorcode[error.errno]
        print("probe", name, said)
"""
SLICE = ("--gres=gpu:1g.10gb:1", "-w", NODE)
GO = Path("/tmp/go")
WAITS = f"echo uuid=$CUDA_VISIBLE_DEVICES; echo started; while [ ! -e {GO} ]; do sleep 0.1; done;"
PROBES = f"{WAITS} {PROBE} {DEV}; fake-cuda-hold --expect 1 0; echo cuda=$?"


@pytest.fixture(scope="module", autouse=True)
def caps(daemons: Daemons) -> Iterator[None]:
    """Capability device nodes on one node, and the program that tries them."""
    PROBE.write_text(PROBE_TEXT)
    PROBE.chmod(0o755)
    with capability_nodes():
        yield


@pytest.fixture
def cluster(quiet_cluster: Slurm) -> Iterator[Slurm]:
    """An empty cluster; jobs go on once GO is there."""
    GO.unlink(missing_ok=True)
    yield quiet_cluster
    GO.unlink(missing_ok=True)


@pytest.fixture(scope="module", params=["Alloc", "Alloc,Contain"])
def cgroups(caps: None, daemons: Daemons, request: pytest.FixtureRequest) -> Iterator[None]:
    """The node's slurmd on cgroup v2, with its own ConstrainDevices in force."""
    with slurmd_with_cgroups(daemons, request.param):
        yield


def may_open(output: str) -> set[int]:
    """The minors of instances that a job was let open."""
    said = re.findall(r"^probe nvidia-cap(\d+) (\w+)$", output, re.MULTILINE)
    assert {answer for _, answer in said} <= {"ENXIO", "EACCES", "EPERM"}
    return {int(minor) for minor, answer in said if answer == "ENXIO" and int(minor) > 2}


def run_together(slurm: Slurm, *users: str) -> list[tuple[set[int], set[int], str]]:
    """Run jobs side by side; of each the minors of its slice, those it may open, and its output."""
    jobs = [slurm.sbatch(user, *SLICE, wrap=PROBES) for user in users]
    for user, job in zip(users, jobs, strict=True):
        wait_started(slurm, user, job)
    own = [minors_of(uuids_of(slurm.output(user, job), "uuid")[0]) for user, job in zip(users, jobs, strict=True)]
    GO.touch()
    assert [slurm.wait_ended(job) for job in jobs] == ["COMPLETED"] * len(jobs)
    outputs = [slurm.output(user, job) for user, job in zip(users, jobs, strict=True)]
    assert all("cuda=0" in output for output in outputs)
    return [(mine, may_open(output), output) for mine, output in zip(own, outputs, strict=True)]


def test_two_users_open_their_own_slices_only(cluster: Slurm) -> None:
    for mine, opened, _ in run_together(cluster, "alice", "bob"):
        assert opened == mine


def test_the_nodes_belong_to_the_user_and_go_back_to_root(cluster: Slurm) -> None:
    root("fake-nvml-ctl", "--node", NODE, "policy", "keep-caps=on")
    job = cluster.sbatch("alice", *SLICE, wrap=WAITS)
    wait_started(cluster, "alice", job)
    own = minors_of(uuids_of(cluster.output("alice", job), "uuid")[0])
    uid = int(run_as("alice", "id", "-u", check=True).out)
    assert {minors_by_owner()[minor] for minor in own} == {uid}
    GO.touch()
    assert cluster.wait_ended(job) == "COMPLETED"
    wait_clean(cluster)
    try:
        for minor in own:
            status = (DEV / f"nvidia-cap{minor}").stat()
            assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (0, 0, 0o444)
    finally:
        root("fake-nvml-ctl", "--node", NODE, "policy", "keep-caps=off")
        for minor in own:
            (DEV / f"nvidia-cap{minor}").unlink()


def test_ownership_cannot_tell_two_jobs_of_one_user_apart_and_the_record_says_so(cluster: Slurm) -> None:
    (first, opened, _), (second, _, _) = run_together(cluster, "alice", "alice")
    assert opened == first | second
    ids = json.loads(root("sacct", "-X", "-n", "-u", "alice", "--json"))["jobs"]
    events = explained(max(job["job_id"] for job in ids))
    assert "not from other jobs of one user" in json.dumps(events)


def test_a_configured_cgroup_that_cannot_be_had_sends_the_job_back(cluster: Slurm) -> None:
    before = CONFIG.read_text()
    assert "[node]" not in before
    CONFIG.write_text(f'{before}\n[node]\nisolation = "cgroup"\n')
    try:
        job = cluster.sbatch("alice", *SLICE, wrap="echo ran")
        wait_until(lambda: "cgroup v2 is not mounted" in json.dumps(explained(job)), 30, "the reason in the record")
        run_as("root", "scancel", str(job))
        assert cluster.wait_ended(job) == "CANCELLED"
        assert not Path(f"/home/alice/job-{job}_4294967294.out").exists()
    finally:
        CONFIG.write_text(before)
    wait_clean(cluster)


def test_cgroups_keep_two_users_apart(cgroups: None, cluster: Slurm) -> None:
    for mine, opened, _ in run_together(cluster, "alice", "bob"):
        assert opened == mine


def test_cgroups_keep_two_jobs_of_one_user_apart(cgroups: None, cluster: Slurm) -> None:
    for mine, opened, output in run_together(cluster, "alice", "alice"):
        assert opened == mine
        assert "EPERM" in output


def test_cgroups_keep_out_jobs_without_slices(cgroups: None, cluster: Slurm) -> None:
    owner = cluster.sbatch("alice", *SLICE, wrap=WAITS)
    wait_started(cluster, "alice", owner)
    other = cluster.sbatch("alice", "-w", NODE, wrap=f"{PROBE} {DEV}")
    assert cluster.wait_ended(other) == "COMPLETED"
    assert may_open(cluster.output("alice", other)) == set()


def test_steps_keep_their_slice_one_after_the_other(cgroups: None, cluster: Slurm) -> None:
    """Between two steps of an interactive job Slurm would remove the job's cgroup."""
    steps = "; sleep 1; ".join([f"srun sh -c 'echo uuid=$CUDA_VISIBLE_DEVICES; {PROBE} {DEV}'"] * 2)
    ran = run_as("bob", "salloc", *SLICE, "sh", "-c", steps)
    assert ran.status == 0, ran.err
    opened = re.findall(r"^probe nvidia-cap(?!1 |2 )\d+ ENXIO$", ran.out, re.MULTILINE)
    assert len(opened) == 4, ran.out
    wait_clean(cluster)


def test_slurms_own_device_rules_stay_in_force(cgroups: None, cluster: Slurm) -> None:
    job = cluster.sbatch("alice", *SLICE, wrap=f"{PROBE} {GPU_FILES}; srun {PROBE} {GPU_FILES}")
    assert cluster.wait_ended(job) == "COMPLETED"
    said = re.findall(r"^probe nvidia(\d) (\w+)$", cluster.output("alice", job), re.MULTILINE)
    expected = [("0", "ENXIO"), ("1", "EPERM"), ("2", "EPERM"), ("3", "EPERM")]
    assert said == expected * 2


def test_nothing_is_left_in_the_hierarchy(cgroups: None, cluster: Slurm) -> None:
    job = cluster.sbatch("alice", *SLICE, wrap="srun true")
    assert cluster.wait_ended(job) == "COMPLETED"

    def folders() -> set[str]:
        return {path.name for path in SCOPE.iterdir() if path.is_dir()} - {"slurmd", "system"}

    wait_until(lambda: not folders(), 20, "no cgroups of jobs")
