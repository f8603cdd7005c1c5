"""Changing the MIG mode of this node's GPUs: asked twice, on idle GPUs only, and read back.

A job may start on the node at any instant, so a change goes in this order: the mode lock is taken, which
prologs wait for; every GPU is marked for the shell hooks as one that may be in MIG mode, so that no prolog
leaves before it meets the lock; the daemon is asked again and looks whether Slurm has given any of these GPUs
away; only then are they touched. A job whose prolog was through before the lock was taken is seen by Slurm's
word, one that comes later waits. Both crashes and a daemon that dies in between leave nothing to undo: locks die
with their process, and the marks are written anew by the next look at the node.

NVML has no call that resets a GPU; ``nvidia-smi --gpu-reset`` of that GPU alone is the only way, with no
session of ours open. Hopper and later need none (field 184 of NVML tells).
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyhetsched.errors import HetschedError, MigError, NotNowError, RpcError
from pyhetsched.mig.nvml import NvmlDriver
from pyhetsched.node import inventory, processes
from pyhetsched.node.hook import Hook
from pyhetsched.node.paths import NodePaths, gpu_locks, mode_lock, write_atomically
from pyhetsched.node.rpc import deliver
from pyhetsched.node.slices import LOCK_WAIT_S

if TYPE_CHECKING:
    from pyhetsched.rpc.gen import services_pb2 as pb

log = logging.getLogger("hetsched.node")

_RESET_LIMIT_S = 120.0


def run(node: str, hook: Hook, wanted: Sequence[pb.ModeChange]) -> tuple[str, ...]:
    """Make the changes of MIG mode that the daemon has ordered, if it still wants them; return notes for people."""
    if not wanted:
        return ()
    try:
        with mode_lock(hook.paths, True, hook.clock, 0.0):
            return _run_alone(node, hook, wanted)
    except (HetschedError, OSError) as error:
        log.error("MIG modes are not changed: %s", error)
        return (f"MIG modes are not changed: {error}",)


def _run_alone(node: str, hook: Hook, wanted: Sequence[pb.ModeChange]) -> tuple[str, ...]:
    from pyhetsched.rpc.gen import services_pb2 as pb

    error = ""
    try:
        with hook.open_driver() as driver:
            _mark_all(hook.paths, driver)
            confirmed = _ask_again(node, hook, driver)
        if sorted(map(_key, confirmed)) != sorted(map(_key, wanted)):
            return ("the daemon has withdrawn the change of MIG modes",)
        with gpu_locks(hook.paths, [change.gpu_index for change in confirmed], hook.clock, LOCK_WAIT_S):
            _change_all(hook, confirmed)
    except (MigError, NotNowError) as failed:
        error = str(failed)
        log.error("MIG modes: %s", error)
    finally:
        with hook.open_driver() as driver:
            inventory.write_mig_gpus(hook.paths, {index: driver.mig_mode(index) for index in driver.indexes})
            now = inventory.inventory(driver, driver.gpus(), hook.boot_id)
    deliver(hook.rpc, hook.journal, pb.ReportRequest(node=node, inventory=now, modes_error=error))
    said = ", ".join(f"GPU {gpu.index} {gpu.mig_mode}" for gpu in now.gpus)
    return (f"MIG modes: {said}", *([error] if error else []))


def _key(change: pb.ModeChange) -> tuple[int, bool, bool]:
    return change.gpu_index, change.on, change.reset_allowed


def _mark_all(paths: NodePaths, driver: NvmlDriver) -> None:
    text = f",{','.join(map(str, driver.indexes))},\n"
    write_atomically(paths.mig_gpus, text, 0o644, durable=False)


def _ask_again(node: str, hook: Hook, driver: NvmlDriver) -> Sequence[pb.ModeChange]:
    from pyhetsched.rpc.gen import services_pb2 as pb

    try:
        plan = hook.rpc.reconcile(
            pb.ReconcileRequest(
                node=node, inventory=inventory.inventory(driver, driver.gpus(), hook.boot_id),
                running_job_ids=[record.job_id for record in hook.journal.records()[0]],
            )
        )  # fmt: skip
    except RpcError as error:
        raise NotNowError(f"the daemon cannot be asked again: {error}") from error
    return tuple(plan.modes)


def _change_all(hook: Hook, changes: Sequence[pb.ModeChange]) -> None:
    """Change all GPUs or, where one is not idle or must not be reset, none; raises `MigError`."""
    with hook.open_driver() as driver:
        for change in changes:
            _check_idle(hook, driver, change)
        uuids = {change.gpu_index: driver.uuid(change.gpu_index) for change in changes}
    for position, change in enumerate(changes):
        try:
            _change(hook, uuids[change.gpu_index], change)
        except MigError:
            _put_back(hook, [(uuids[c.gpu_index], c) for c in changes[: position + 1]])
            raise


def _check_idle(hook: Hook, driver: NvmlDriver, change: pb.ModeChange) -> None:
    index, mode = change.gpu_index, driver.mig_mode(change.gpu_index)
    if mode == _wanted(change):
        return
    if mode in ("none", "unknown"):
        raise MigError(f"GPU {index}: its MIG mode is {mode} and cannot be changed")
    for record in hook.journal.records()[0]:
        if any(r.gpu_index == index and r.state.holds_space for r in record.reservations):
            raise MigError(f"GPU {index}: job {record.job_id} has a slice on it")
    if driver.instances(index):
        raise MigError(f"GPU {index}: there are instances on it that no job has; see hetsched gpus")
    pids = driver.processes(index)
    if pids:
        raise MigError(f"GPU {index}: in use by {processes.describe(pids)}")
    if not driver.resetless(index) and not change.reset_allowed:
        raise MigError(f"GPU {index}: its mode changes only by a reset, which pool.allow_reset does not allow")


def _change(hook: Hook, uuid: str, change: pb.ModeChange) -> None:
    with hook.open_driver() as driver:
        index = driver.index_of(uuid)
        if index is None:
            raise MigError(f"GPU {uuid} is not there any more")
        mode = driver.mig_mode(index)
        if mode != _wanted(change):
            mode = driver.set_mig_mode(index, change.on)
    if mode != _wanted(change):
        reset_gpu(uuid)
        with hook.open_driver() as driver:
            index = driver.index_of(uuid)
            mode = "unknown" if index is None else driver.mig_mode(index)
    if mode != _wanted(change):
        # A reset can report success and do nothing; a pending mode is told, not tried again and again.
        raise MigError(f"GPU {change.gpu_index}: MIG mode is {mode} after the reset; it takes a reboot of the node")
    log.info("GPU %d: MIG mode is %s", change.gpu_index, mode)


def _put_back(hook: Hook, changed: Sequence[tuple[str, pb.ModeChange]]) -> None:
    """Take changes back, pending ones too, since a node serves only with all its GPUs in one mode."""
    for uuid, change in reversed(changed):
        before = type(change)(gpu_index=change.gpu_index, on=not change.on)
        try:
            _change(hook, uuid, before)
        except MigError as error:
            log.error("GPU %d: its MIG mode cannot be put back: %s", change.gpu_index, error)


def _wanted(change: pb.ModeChange) -> str:
    return "on" if change.on else "off"


def reset_gpu(uuid: str) -> None:
    """Reset one GPU, and no other; no NVML session of this process may be open. Raises `MigError`."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--gpu-reset", "-i", uuid], capture_output=True, text=True, timeout=_RESET_LIMIT_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MigError(f"GPU {uuid} cannot be reset: {error}") from error
    if done.returncode:
        words = (done.stdout or done.stderr).strip().splitlines()
        raise MigError(f"GPU {uuid} cannot be reset: {words[-1] if words else f'status {done.returncode}'}")
