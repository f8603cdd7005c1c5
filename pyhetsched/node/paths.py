"""Where one node keeps its files, and how they are written so that a crash never leaves half of one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyhetsched.clock import Clock
from pyhetsched.errors import ConfigError, NotNowError
from pyhetsched.node.settings import NodeSettings

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_LOCK_STEP_S = 0.02

MODE_WAIT_S = 40.0  # longer than a change of MIG modes with resets should take


@dataclass(frozen=True, slots=True)
class NodePaths:
    """The files of one Slurm node; ``state`` outlives a reboot, ``run`` does not.

    ``state`` is root's alone. ``run`` is readable by all, since the task prolog runs as the user, and
    writable by root alone, so no path in it can be a user's symbolic link.
    """

    state: Path
    run: Path

    def record(self, job_id: int) -> Path:
        """The journal of one job."""
        return self.state / f"job-{job_id}.json"

    def environment(self, job_id: int) -> Path:
        """What the task prolog reads."""
        return self.run / f"job-{job_id}.env"

    def lock(self, gpu_index: int) -> Path:
        """The lock of one GPU's geometry."""
        return self.run / f"gpu{gpu_index}.lock"

    @property
    def mig_gpus(self) -> Path:
        """The indexes of GPUs in MIG mode, as ``,0,1,``, for the shell part of the hooks."""
        return self.run / "mig-gpus"

    @property
    def remembered_mig_gpus(self) -> Path:
        """The same, as it outlives a reboot: Hopper and later lose the mode then."""
        return self.state / "mig-gpus"

    @property
    def mode_lock(self) -> Path:
        """Held alone while MIG modes change, and shared by prologs, which wait for it."""
        return self.run / "mode.lock"

    @property
    def booted(self) -> Path:
        """There once the GPUs have been looked at in this boot."""
        return self.run / "booted"

    @property
    def boot(self) -> Path:
        """The boot that the records belong to."""
        return self.state / "boot-id"

    @property
    def pending(self) -> Path:
        """A flag: the daemon was away when the node wanted to reconcile."""
        return self.run / "reconcile-pending"

    @property
    def spool(self) -> Path:
        """Reports that have not reached the daemon yet."""
        return self.state / "spool"

    @property
    def log(self) -> Path:
        """What the hooks did, beside syslog."""
        return self.run / "hooks.log"

    def create(self) -> None:
        """Make the directories with the modes that the hooks rely on."""
        for path, mode in ((self.state, 0o700), (self.spool, 0o700), (self.run, 0o755)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)


def paths_of(node: str, settings: NodeSettings) -> NodePaths:
    """Return the paths of the node that Slurm calls ``node``; raises `ConfigError` on an impossible name."""
    if not _NODE_NAME.fullmatch(node):
        raise ConfigError(f"{node!r} is not a node name; give the name of slurm.conf, such as --node a100-0")
    return NodePaths(Path(settings.state_dir) / node, Path(settings.run_dir) / node)


def write_atomically(path: Path, text: str, mode: int = 0o600, durable: bool = True) -> None:
    """Replace ``path`` by ``text``: whole or not at all, and on disk before this returns if ``durable``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode
    )
    try:
        os.fchmod(descriptor, mode)
        os.write(descriptor, text.encode())
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Put the entries of a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def gpu_locks(paths: NodePaths, indexes: Iterable[int], clock: Clock, wait_s: float) -> Iterator[None]:
    """Hold the locks of these GPUs, taken in index order so that two holders never wait for each other.

    A lock dies with its process. Raises `NotNowError` when one cannot be had within ``wait_s``.
    """
    deadline_s = clock.monotonic_s() + wait_s
    with contextlib.ExitStack() as stack:
        for index in sorted(set(indexes)):
            _take(paths.lock(index), stack, clock, deadline_s)
        yield


@contextlib.contextmanager
def mode_lock(paths: NodePaths, exclusive: bool, clock: Clock, wait_s: float) -> Iterator[None]:
    """Hold the mode lock, alone or with others; raises `NotNowError` when it cannot be had within ``wait_s``."""
    descriptor = os.open(paths.mode_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline_s = clock.monotonic_s() + wait_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if clock.monotonic_s() >= deadline_s:
                    raise NotNowError("a change of MIG modes, or a prolog, is at work on this node") from error
                clock.sleep_s(_LOCK_STEP_S)
        yield
    finally:
        os.close(descriptor)


def _take(path: Path, stack: contextlib.ExitStack, clock: Clock, deadline_s: float) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, descriptor)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if clock.monotonic_s() >= deadline_s:
                raise NotNowError(f"{path} has been locked by another hook for too long") from error
            clock.sleep_s(_LOCK_STEP_S)
