"""A process that outlives the hook and brings the daemon what it could not be told while it was away.

Without it a report would wait for the next job on the node. There is one courier a node at most (it holds a
lock), it tries with growing pauses, and it leaves when nothing waits any more or its time is up; whatever
still waits then is taken along by the next hook.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable

from pyhetsched.clock import Clock
from pyhetsched.errors import HetschedError
from pyhetsched.node.paths import NodePaths

log = logging.getLogger("hetsched.node")

#: Its time; after that the daemon is not coming back soon.
STAY_S = 3600.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


def needed(paths: NodePaths) -> bool:
    """Return whether something waits for the daemon: reports, or a comparison that the boot could not make."""
    return paths.pending.exists() or any(paths.spool.glob("*.report"))


def start(paths: NodePaths, command: list[str]) -> int:
    """Start ``command`` as this node's courier if one is needed and none is at work; return its pid, else 0."""
    if not needed(paths):
        return 0
    descriptor = _lock(paths)
    if descriptor is None:
        return 0
    os.close(descriptor)
    # A session of its own, since Slurm kills the process group of a hook that has ended, and none of the
    # hook's descriptors, since slurmd waits until its pipe is closed.
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    return os.posix_spawnp(command[0], command, os.environ, file_actions=silent, setsid=True)


def run(paths: NodePaths, deliver: Callable[[], object], clock: Clock, stay_s: float = STAY_S) -> bool:
    """Call ``deliver`` until nothing waits any more; return whether that was reached (or another is at it)."""
    descriptor = _lock(paths)
    if descriptor is None:
        return True
    try:
        deadline_s, pause_s = clock.monotonic_s() + stay_s, _FIRST_PAUSE_S
        while needed(paths):
            if clock.monotonic_s() + pause_s > deadline_s:
                return False
            clock.sleep_s(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                deliver()
            except (HetschedError, OSError) as error:
                log.info("courier: %s", error)
        return True
    finally:
        os.close(descriptor)


def _lock(paths: NodePaths) -> int | None:
    descriptor = os.open(
        paths.run / "courier.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
