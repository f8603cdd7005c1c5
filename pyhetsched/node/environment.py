"""What the task prolog reads: one small file a job, ``KEY=value`` lines, never evaluated by the shell.

``STATE`` is ``ready`` or ``blocked``. A job whose slices are not there yet, or never will be, is blocked: its
tasks see no GPU at all, since on a card in MIG mode CUDA would otherwise pick somebody's first instance.
"""

from __future__ import annotations

import re

from pyhetsched.errors import DataError
from pyhetsched.node.journal import JobRecord
from pyhetsched.node.paths import NodePaths, write_atomically

_LONGEST_WHY = 400
_SAFE = re.compile(r"[A-Za-z0-9._+:/-]+")


def write_ready(paths: NodePaths, record: JobRecord) -> None:
    """Write what the tasks of a job may see: all of its slices, and each task's own if they are per task."""
    write_atomically(paths.environment(record.job_id), "".join(lines(record)), 0o644, durable=False)


def write_blocked(paths: NodePaths, job_id: int, why: str = "") -> None:
    """Let the tasks of a job see no GPU, and tell them ``why`` in one line."""
    line = "".join(c for c in why[:_LONGEST_WHY] if c.isascii() and c.isprintable())
    text = "STATE=blocked\n" + (f"WHY={line}\n" if line else "")
    write_atomically(paths.environment(job_id), text, 0o644, durable=False)


def remove(paths: NodePaths, job_id: int) -> None:
    """Say nothing to the tasks of a job."""
    paths.environment(job_id).unlink(missing_ok=True)


def lines(record: JobRecord) -> list[str]:
    """Return the lines for a job whose slices are ready, in the order in which they were planned."""
    uuids = [_safe(item.mig_uuid) for item in record.reservations]
    profiles = [_safe(item.profile) for item in record.reservations]
    text = ["STATE=ready\n", f"ALL={','.join(uuids)}\n", f"SLICES={','.join(profiles)}\n"]
    if record.flex:
        text.append("RANKS=flex\n")
    share = record.slices_per_task
    if share > 0:
        groups = [uuids[at : at + share] for at in range(0, len(uuids), share)]
        text.append(f"TASKS={len(groups)}\n")
        text += [f"TASK_{rank}={','.join(group)}\n" for rank, group in enumerate(groups)]
    return text


def _safe(value: str) -> str:
    if not _SAFE.fullmatch(value):
        raise DataError(
            f"{value!r} cannot be passed to a task: it holds characters that no UUID or profile has"
        )
    return value
