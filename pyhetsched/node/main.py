"""What slurmd's hooks, the boot and operators run on a compute node: ``hetsched-node``."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pyhetsched.clock import RealClock
from pyhetsched.errors import HetschedError, NotNowError
from pyhetsched.mig.nvml import NvmlDriver
from pyhetsched.node import courier, inventory
from pyhetsched.node import settings as node_settings
from pyhetsched.node.giveback import give_back
from pyhetsched.node.hook import Hook, HookJob, job_from
from pyhetsched.node.isolation import Isolation
from pyhetsched.node.journal import Journal
from pyhetsched.node.paths import MODE_WAIT_S, NodePaths, mode_lock, paths_of
from pyhetsched.node.rpc import NodeRpc, connect
from pyhetsched.node.slices import SliceEngine

log = logging.getLogger("hetsched.node")

#: A hook that is still not done then gives up; longer than a lock's wait and an NVML stall together.
_PROLOG_LIMIT_S = 100.0
_LOG_LIMIT_BYTES = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; prolog and epilog return 0 whenever the job has been seen to, even by giving it back."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except HetschedError as error:
        if log.handlers:  # else logging itself would print it, too
            log.error("%s", error)
        sys.stderr.write(f"hetsched-node: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    about = "What slurmd's hooks, the boot and operators run on a compute node."
    parser = argparse.ArgumentParser(prog="hetsched-node", description=about)
    parser.add_argument(
        "--config", type=Path, help="configuration file (default: /etc/hetsched/hetsched.toml)"
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, run, text in (
        ("prolog", _prolog, "make the slices of the job in the environment (run by slurmd's Prolog)"),
        ("epilog", _epilog, "destroy the slices of the job in the environment (run by slurmd's Epilog)"),
        ("boot", _boot, "reconcile before slurmd starts"),
        ("reconcile", _reconcile, "reconcile while jobs run"),
        ("sweep", _sweep, "try again to destroy what earlier epilogs could not"),
        ("deliver", _deliver, "bring the daemon what it could not be told while it was away"),
        ("show", _show, "show the GPUs of this node and the records of its jobs"),
    ):
        verb = verbs.add_parser(name, help=text, description=text)
        verb.add_argument("--node", default=_default_node(), help="the node's name in slurm.conf")
        verb.set_defaults(run=run)
        if name == "boot":
            verb.add_argument(
                "--rebooted", action="store_true", help="no job runs here, even if the boot id is the same"
            )
        if name == "reconcile":
            verb.add_argument("--if-pending", action="store_true", help="only if the daemon was away at boot")
        if name == "show":
            verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _default_node() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


class _LateRpc:
    """A client of the daemon that is connected when it is first used: gRPC takes long to load."""

    def __init__(self, settings: node_settings.NodeSettings) -> None:
        self._settings = settings
        self._rpc: NodeRpc | None = None

    def __getattr__(self, name: str) -> Any:
        if self._rpc is None:
            self._rpc = connect(self._settings)
        return getattr(self._rpc, name)


def _hook(options: argparse.Namespace) -> tuple[Hook, node_settings.NodeSettings]:
    settings = node_settings.load(options.config)
    paths = paths_of(options.node, settings)
    paths.create()
    _log_to(paths)
    journal, clock, boot = Journal(paths), RealClock(), inventory.boot_id()
    isolation = Isolation(settings.isolation)

    def engine(driver: NvmlDriver) -> SliceEngine:
        return SliceEngine(driver, paths, journal, clock, isolation, boot)

    rpc = _LateRpc(settings)
    hook = Hook(paths, journal, clock, rpc, NvmlDriver, engine, boot, settings.deadline_s, give_back)
    return hook, settings


def _log_to(paths: NodePaths) -> None:
    with contextlib.suppress(OSError):
        if paths.log.stat().st_size > _LOG_LIMIT_BYTES:
            paths.log.replace(paths.log.with_suffix(".log.1"))
    handler = logging.FileHandler(paths.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    log.addHandler(handler)
    if Path("/dev/log").exists():
        log.addHandler(_Syslog())
    log.setLevel(logging.INFO)
    log.propagate = False


class _Syslog(logging.Handler):
    """Sends warnings and errors to syslog through the C library; logging.handlers is slow to import."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        import syslog

        self._syslog = syslog
        syslog.openlog("hetsched-node", syslog.LOG_PID, syslog.LOG_DAEMON)

    def emit(self, record: logging.LogRecord) -> None:
        level = self._syslog.LOG_ERR if record.levelno >= logging.ERROR else self._syslog.LOG_WARNING
        self._syslog.syslog(level, record.getMessage())


@contextlib.contextmanager
def _watchdog(job: HookJob, hook: Hook) -> Iterator[None]:
    """Give the job back and leave when the prolog hangs, in a call into the driver for instance."""

    def give_up() -> None:
        log.error("job %d: the prolog did not end within %d s", job.job_id, _PROLOG_LIMIT_S)
        hook.give_back(job.job_id, "its prolog hangs")
        os._exit(0)

    timer = threading.Timer(_PROLOG_LIMIT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _prolog(options: argparse.Namespace) -> int:
    from pyhetsched.node import prolog

    job = job_from(os.environ, options.node)
    try:
        hook, _ = _hook(options)
    except (HetschedError, OSError) as error:
        give_back(job.job_id, f"this node is not set up: {error}")
        raise
    with _watchdog(job, hook):
        try:
            with mode_lock(hook.paths, False, hook.clock, MODE_WAIT_S):
                prolog.run(job, hook)
        except NotNowError as error:
            hook.give_back(job.job_id, str(error))
        _start_courier(options, hook)
    return 0


def _epilog(options: argparse.Namespace) -> int:
    from pyhetsched.node import epilog

    hook, _ = _hook(options)
    epilog.run(job_from(os.environ, options.node), hook)
    _start_courier(options, hook)
    return 0


def _boot(options: argparse.Namespace) -> int:
    from pyhetsched.node import boot

    hook, settings = _hook(options)
    booted = options.rebooted or boot.has_booted(hook)
    outcome = boot.run(options.node, hook, booted, settings.destroy_foreign)
    _start_courier(options, hook)
    return _say(outcome)


def _reconcile(options: argparse.Namespace) -> int:
    from pyhetsched.node import boot, modes

    hook, _ = _hook(options)
    if options.if_pending and not hook.paths.pending.exists():
        return 0
    with mode_lock(hook.paths, False, hook.clock, MODE_WAIT_S):
        outcome = boot.run(options.node, hook, booted=False)
    return _say(replace(outcome, notes=(*outcome.notes, *modes.run(options.node, hook, outcome.modes))))


def _start_courier(options: argparse.Namespace, hook: Hook) -> None:
    own = (
        [sys.argv[0]] if Path(sys.argv[0]).name == "hetsched-node" else [sys.executable, "-m", __spec__.name]
    )
    config = ["--config", str(options.config)] if options.config else []
    with contextlib.suppress(OSError):
        courier.start(hook.paths, [*own, *config, "deliver", "--node", options.node])


def _deliver(options: argparse.Namespace) -> int:
    from pyhetsched.node import boot
    from pyhetsched.node.rpc import flush

    hook, settings = _hook(options)

    def deliver() -> None:
        hook.rpc = _LateRpc(settings)  # a channel that has failed waits before it tries again
        if hook.paths.pending.exists():
            with mode_lock(hook.paths, False, hook.clock, MODE_WAIT_S):
                boot.run(options.node, hook, booted=False)
        else:
            flush(hook.rpc, hook.journal)

    return 0 if courier.run(hook.paths, deliver, hook.clock) else 1


def _say(outcome: Any) -> int:
    for note in outcome.notes:
        log.warning("%s", note)
        sys.stderr.write(f"hetsched-node: {note}\n")
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from pyhetsched.node import boot

    hook, _ = _hook(options)
    notes = boot.sweep(options.node, hook)
    for note in notes:
        sys.stderr.write(f"hetsched-node: {note}\n")
    return 1 if notes else 0


def _show(options: argparse.Namespace) -> int:
    settings = node_settings.load(options.config)
    records, damaged = Journal(paths_of(options.node, settings)).records()
    with NvmlDriver() as driver:
        gpus = driver.gpus()
    if options.json:
        shown = {"gpus": [asdict(gpu) for gpu in gpus], "damaged": damaged,
                 "records": [json.loads(_as_json(record)) for record in records]}  # fmt: skip
        sys.stdout.write(json.dumps(shown, indent=1) + "\n")
        return 0
    for gpu in gpus:
        sys.stdout.write(f"GPU {gpu.index}  {gpu.model_key or gpu.name}  MIG {gpu.mig_mode}  {gpu.uuid}\n")
        for instance in gpu.instances:
            sys.stdout.write(
                f"  {instance.profile} at {instance.start}  {instance.mig_uuid or 'no compute instance'}\n"
            )
    for record in records:
        states = ", ".join(
            f"{r.profile} on GPU {r.gpu_index} at {r.start} {r.state.value}" for r in record.reservations
        )
        sys.stdout.write(f"job {record.job_id}: {states}\n")
    return 0


def _as_json(record: Any) -> str:
    return json.dumps(asdict(record), default=lambda value: value.value)


if __name__ == "__main__":
    sys.exit(main())
