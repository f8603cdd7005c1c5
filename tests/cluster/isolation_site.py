"""A node of the testbed with capability device nodes, and with cgroup v2 under its slurmd if asked for."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from conftest import Daemons, run_as, wait_until
from main_path import nvml

NODE = "a100-0"
MAJOR = 511
CAPS = Path("/dev/fake-caps")  # /dev is a file system that allows devices
DEV = Path("/dev/nvidia-caps")
DRIVER = Path("/proc/driver")
DEVICES = Path("/proc/devices")
CGROUP = Path("/sys/fs/cgroup")
ALL_CGROUPS = Path("/run/all-cgroups")
SHIM = Path("/usr/local/lib/only_cgroup_v2.so")
CONF = Path("/etc/slurm-cgroup")
GPU_FILES = Path("/dev/fake-gpus")
SCOPE = CGROUP / f"system.slice/{NODE}_slurmstepd.scope"
CGROUP_CONF = """\
CgroupPlugin=cgroup/v2
IgnoreSystemd=yes
ConstrainDevices=yes
ConstrainCores=no
ConstrainRAMSpace=no
"""


def root(*argv: str) -> str:
    """Run a command as root and return what it printed."""
    return run_as("root", *argv, check=True).out


@contextlib.contextmanager
def capability_nodes() -> Iterator[None]:
    """Let the driver of the node show capabilities, with device nodes, where the product looks for them."""
    init = ("fake-nvml-ctl", "--node", NODE, "init", "--gpu", "A100-80GB:4", "--mig", "on")
    root(*init, "--caps-root", str(CAPS), "--caps-kind", "device")
    devices = Path("/run/proc-devices")
    devices.write_text(DEVICES.read_text().replace("Block", f"{MAJOR} nvidia-caps\n\nBlock", 1))
    root("mount", "--bind", str(devices), str(DEVICES))
    root("mount", "--bind", str(CAPS / "proc/driver"), str(DRIVER))
    DEV.symlink_to(CAPS / "dev/nvidia-caps")
    try:
        yield
    finally:
        DEV.unlink()
        root("umount", str(DRIVER))
        root("umount", str(DEVICES))
        root(*init)
        root("rm", "-rf", str(CAPS))


@contextlib.contextmanager
def slurmd_with_cgroups(daemons: Daemons, prolog_flags: str) -> Iterator[None]:
    """Run the node's slurmd on cgroup v2, in a part of the hierarchy that is this run's own."""
    name = f"slurmd@{NODE}"
    _write_conf(prolog_flags)
    root("gcc", "-shared", "-fPIC", "-O1", "-o", str(SHIM), str(Path(__file__).with_name("only_cgroup_v2.c")))
    daemons.stop(name)
    with _own_cgroup() as own:
        process = subprocess.Popen(
            ["unshare", "--cgroup", "sh", "-c",
             f"mount -t cgroup2 cgroup2 {CGROUP} && exec /usr/sbin/slurmd -D -N {NODE} -f {CONF}/slurm.conf"],
            preexec_fn=lambda: (own / "cgroup.procs").write_text(f"{os.getpid()}\n"),  # noqa: PLW1509
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "LD_PRELOAD": str(SHIM)},
            start_new_session=True,
        )  # fmt: skip
        Path(f"/run/testbed/{name}.pid").write_text(str(process.pid))
        try:
            wait_until(SCOPE.is_dir, 30, "the cgroup of the node's jobs")
            wait_until(lambda: _idle(), 30, f"{NODE} idle")
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            root("umount", str(CGROUP))
    daemons.start(name)
    wait_until(_idle, 30, f"{NODE} idle")


def _idle() -> bool:
    return root("sinfo", "-h", "-n", NODE, "-p", "gpu", "-o", "%T").strip() == "idle"


@contextlib.contextmanager
def _own_cgroup() -> Iterator[Path]:
    ALL_CGROUPS.mkdir(exist_ok=True)
    root("mount", "-t", "cgroup2", "cgroup2", str(ALL_CGROUPS))
    own = ALL_CGROUPS / f"hetsched-test-{os.urandom(4).hex()}"
    own.mkdir()
    try:
        yield own
    finally:
        for folder in [*sorted((path for path in own.rglob("*") if path.is_dir()), reverse=True), own]:
            wait_until(lambda at=folder: _gone(at), 20, f"{folder} is empty")
        root("umount", str(ALL_CGROUPS))


def _gone(cgroup: Path) -> bool:
    with contextlib.suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()


def _write_conf(prolog_flags: str) -> None:
    """Slurm's files for this slurmd alone; each GPU has a device number of its own, which Slurm constrains."""
    CONF.mkdir(exist_ok=True)
    text = Path("/etc/slurm/slurm.conf").read_text()
    for old, new in (
        ("ProctrackType=proctrack/linuxproc", "ProctrackType=proctrack/cgroup"),
        ("TaskPlugin=task/none", "TaskPlugin=task/cgroup"),
        ("PrologFlags=Alloc", f"PrologFlags={prolog_flags}"),
    ):
        assert old in text
        text = text.replace(old, new)
    (CONF / "slurm.conf").write_text(f"{text}\nDebugFlags=NO_CONF_HASH\n")
    (CONF / "cgroup.conf").write_text(CGROUP_CONF)
    gres = Path("/etc/slurm/gres.conf").read_text()
    (CONF / "gres.conf").write_text(gres.replace(f"/dev/testbed/{NODE}", str(GPU_FILES)))
    GPU_FILES.mkdir(exist_ok=True)
    for index in range(4):
        with contextlib.suppress(FileExistsError):
            os.mknod(GPU_FILES / f"nvidia{index}", stat.S_IFCHR | 0o666, os.makedev(195, index))
        os.chmod(GPU_FILES / f"nvidia{index}", 0o666)


def minors_by_owner() -> dict[int, int]:
    """Device nodes of instances that exist: minor, and uid of the owner."""
    found = {}
    for path in DEV.iterdir():
        status = path.stat()
        if os.minor(status.st_rdev) > 2:
            found[os.minor(status.st_rdev)] = status.st_uid
    return found


def minors_of(uuid: str) -> set[int]:
    """The two minors of the instance that a MIG UUID names."""
    for gpu in nvml(NODE)["gpus"]:
        for instance in gpu["instances"]:
            for compute in instance["compute_instances"]:
                if compute["uuid"] == uuid:
                    first = 3 + 135 * gpu["minor"] + 9 * instance["gi"]
                    return {first, first + 1 + compute["ci"]}
    raise AssertionError(f"{uuid} is not on {NODE}")
