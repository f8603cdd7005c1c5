"""Puts the working tree's own parts into a run: make install, the fake NVML, hetschedd, the hooks."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import hetsched_toml
from cluster import Cluster
from daemons import Daemon, unix_open

SOURCE = Path("/opt/hetsched-src")
PYTHON = "/opt/hetsched-venv/bin/python"
CONFIG = Path("/etc/hetsched/hetsched.toml")
LOOK_WITHIN_S = 30.0
HOOKS = Path("/usr/lib/hetsched/hooks")
PLUGIN = "job_submit_hetsched.so"
# In the checkout's own build/, by the root's compiler, so that the next run need not compile again.
BUILD = SOURCE / "build/testbed"
FAKE_NVML_BUILD = BUILD / "fakenvml"

SLURM_CONF = f"""\
JobSubmitPlugins=hetsched
PrologSlurmctld={HOOKS}/prolog-slurmctld
EpilogSlurmctld={HOOKS}/epilog-slurmctld
Prolog={HOOKS}/prolog
TaskProlog={HOOKS}/task-prolog
Epilog={HOOKS}/epilog
"""

# What make install must have left; a missing one is named rather than met later as a strange failure.
INSTALLED = (
    Path("/usr/sbin/hetschedd"),
    Path("/usr/sbin/hetsched-node"),
    Path("/usr/bin/hetsched"),
    *(HOOKS / name for name in ("prolog-slurmctld", "epilog-slurmctld", "prolog", "task-prolog", "epilog")),
)


class PartError(Exception):
    """A part of hetsched is missing or does not build; the message ends with what the build said."""


def installed() -> bool:
    """Whether this run has hetsched."""
    return CONFIG.exists()


def install(cluster: Cluster) -> None:
    """Build and install everything but start nothing."""
    BUILD.mkdir(exist_ok=True)
    # Runs that boot together take turns in build/.
    with open(BUILD / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        install_product()
        install_fake_nvml()
    make_gpus(cluster)
    write_config(cluster)


def install_product() -> None:
    """make install, and a look at what it left."""
    plugin_dir = slurm_plugin_dir()
    variables = ["DESTDIR=", "PREFIX=/usr", f"PYTHON={PYTHON}", f"SLURM_PLUGIN_DIR={plugin_dir}"]
    run_part(["make", "install", *variables], "make install")
    for path in (*INSTALLED, plugin_dir / PLUGIN):
        if not path.exists():
            raise PartError(f"make install left no {path}; --without-hetsched boots without it")


def slurm_plugin_dir() -> Path:
    """Where Slurm looks for plugins."""
    return next(Path("/usr/lib").glob("*/slurm-wlm/select_cons_tres.so")).parent


def run_part(argv: list[str], what: str) -> None:
    """Run one build step in the source folder; PartError with its last words when it fails."""
    done = subprocess.run(argv, cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise PartError(f"{what} failed with {done.returncode}; --without-hetsched boots without it\n{tail}")


def install_fake_nvml() -> None:
    """Build the fake library and its tools and put them where the loader and the shell find them."""
    source = SOURCE / "tests/fakenvml"
    if not (source / "Makefile").exists():
        raise PartError("tests/fakenvml has no Makefile; --without-hetsched boots without it")
    run_part(["make", "-C", str(source), f"OUT={FAKE_NVML_BUILD}"], "make -C tests/fakenvml")
    library = next(Path("/usr/lib").glob("*/libc.so.6")).parent / "libnvidia-ml.so.1"
    shutil.copy(FAKE_NVML_BUILD / "libnvidia-ml.so.1", library)
    subprocess.run(["ldconfig"], check=True)
    for tool in ("fake-nvml-ctl", "fake-nvidia-smi", "fake-cuda-hold"):
        shutil.copy(FAKE_NVML_BUILD / tool, Path("/usr/local/bin") / tool)
    os.symlink("/usr/local/bin/fake-nvidia-smi", "/usr/local/bin/nvidia-smi")


def make_gpus(cluster: Cluster) -> None:
    """A fake NVML state for every node."""
    for node in cluster.nodes:
        gpus = f"{node.model}:{node.gpus}"
        mig = "on" if node.mig else "off"
        argv = ["fake-nvml-ctl", "--node", node.name, "init", "--gpu", gpus, "--mig", mig]
        run_part(argv, f"fake NVML of {node.name}")


def write_config(cluster: Cluster) -> None:
    """Write hetsched.toml and the folders it names."""
    CONFIG.parent.mkdir(parents=True, exist_ok=True)
    CONFIG.write_text(hetsched_toml.render(cluster), encoding="utf-8")
    for folder in hetsched_toml.FOLDERS:
        os.makedirs(folder, exist_ok=True)
        shutil.chown(folder, "slurm", "slurm")


def hetschedd() -> Daemon:
    """The daemon, run as SlurmUser and with the priority that its unit gives it."""
    return Daemon(
        "hetschedd",
        ("nice", "-n", "-5", "setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups", "/usr/sbin/hetschedd"),
        Path("/var/log/testbed/hetschedd.out"),
        ready=lambda: unix_open(hetsched_toml.SOCKET),
        env={"SLURM_CONF": "/etc/slurm/slurm.conf"},
    )


def look_at_cluster(daemon: Daemon) -> None:
    """Have the daemon look again, now that all nodes are there, and wait until it has.

    Its look at the start found no slurmctld; until the next, requests that need a place are told to try again.
    """
    since = time.monotonic()
    daemon.send(signal.SIGHUP)
    while time.monotonic() < since + LOOK_WITHIN_S:
        done = subprocess.run(["hetsched", "status", "--json"], capture_output=True, text=True)
        seen = json.loads(done.stdout) if done.returncode == 0 else {}
        if seen.get("nodes") and seen["slurm_reachable"] and seen["snapshot_age_s"] < time.monotonic() - since:
            return
        time.sleep(0.05)
    raise PartError(f"hetschedd has not seen the cluster after {LOOK_WITHIN_S:.0f} s\n{daemon.tail()}")


def boot_nodes(cluster: Cluster) -> None:
    """What systemd does on a real node before slurmd: reconcile the instances with the reservations."""
    for name, process in [(node.name, start_boot(node.name)) for node in cluster.nodes]:
        said, _ = process.communicate()
        if process.returncode:
            raise PartError(f"hetsched-node boot --node {name} failed with {process.returncode}\n{said[-2000:]}")


def start_boot(node: str) -> subprocess.Popen[str]:
    """Start the reconcile of one node; the fake NVML takes the node from the environment."""
    return subprocess.Popen(
        ["/usr/sbin/hetsched-node", "boot", "--node", node],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SLURMD_NODENAME": node},
    )
