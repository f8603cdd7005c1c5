"""``hetschedd``: read the configuration, serve, reload on SIGHUP, stop on SIGTERM."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click

from pyhetsched import __version__
from pyhetsched.clock import RealClock
from pyhetsched.config import Config, config_path, load
from pyhetsched.daemon.auth import uid_of
from pyhetsched.errors import ConfigError, HetschedError, RequestError
from pyhetsched.mig.profiles import catalogue
from pyhetsched.slurm.hosts import expand

log = logging.getLogger("hetschedd")

_TICK_S = 1.0
_SWITCH_S = 0.0005


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", "-c", "path", type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--check-config", is_flag=True, help="Say whether the configuration file is right, and exit.")
@click.version_option(__version__, "-V", "--version", prog_name="hetschedd")
def main(path: Path | None, check_config: bool) -> None:
    """Run the hetsched daemon beside slurmctld.

    It answers slurmctld's hooks on a unix socket, and compute nodes and the hetsched command over gRPC.
    SIGHUP reads the configuration again and keeps the old one if the new one is wrong.
    """
    path = path or config_path()
    try:
        config = load(path)
        check(config)
    except ConfigError as error:
        raise SystemExit(f"hetschedd: {error}") from error
    if check_config:
        click.echo(f"{path}: ok")
        return
    from pyhetsched.daemon.logs import set_up

    set_up(config.daemon.log_level)
    try:
        _run(config, path)
    except HetschedError as error:
        raise SystemExit(f"hetschedd: {error}") from error


def check(config: Config) -> None:
    """Raise `ConfigError` for what a look at single values cannot tell.

    Users, GPU models and policies that do not exist, options that a policy has not, host lists that are none.
    """
    wrong: list[str] = []
    names = [("slurm.user", config.slurm.user), *(("access.operators", name) for name in config.access.operators)]
    for key, name in names:
        try:
            uid_of(name)
        except ConfigError as error:
            wrong.append(f"{key}: {error}")
    wrong += [
        f"gpus.{gres_type}.model: unknown {entry.model!r}; known: {', '.join(catalogue())}"
        for gres_type, entry in config.gpus.items()
        if entry.model not in catalogue()
    ]
    wrong += [*_wrong_hosts(config), *_wrong_policy(config)]
    if wrong:
        raise ConfigError("\n".join(wrong))


def _wrong_hosts(config: Config) -> Iterator[str]:
    try:
        expand(config.pool.nodes)
    except RequestError as error:
        yield f"pool.nodes: {error}"


def _wrong_policy(config: Config) -> Iterator[str]:
    if config.policy.mode == "off":
        return
    # Late: policies bring solvers, which a daemon without rounds need not load.
    from pyhetsched.policies.registry import resolve

    try:
        info, preset = resolve(config.policy.name)
        info.options({**preset, **config.policy.options})
    except ConfigError as error:
        yield f"policy: {error}"


def _run(config: Config, path: Path) -> None:
    # Imported here, for `--check-config` must work where there is no Slurm.
    from pyhetsched.daemon.alone import stay_alone
    from pyhetsched.daemon.daemon import Daemon
    from pyhetsched.daemon.notify import Notifier
    from pyhetsched.rpc.munge import Munge
    from pyhetsched.slurm.gateway import SlurmGateway

    stop, hup = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: hup.set())
    # With the usual 5 ms, a submit could wait for that long behind each thread that serves a prolog.
    sys.setswitchinterval(_SWITCH_S)
    stay_alone(config.daemon.hook_socket)
    gateway = SlurmGateway(config.slurm.conf, config.slurm.command_timeout_s)
    daemon = Daemon(config, gateway, Munge(), RealClock())
    notifier = Notifier()
    daemon.start()
    log.info("hetschedd %s serves on %s", __version__, config.daemon.socket)
    notifier.ready(f"serving on {config.daemon.socket}")
    tick_s = min(_TICK_S, notifier.watchdog_s / 3 or _TICK_S)
    while not stop.wait(tick_s):
        if daemon.alive():
            notifier.alive()
        if hup.is_set():
            hup.clear()
            notifier.reloading()
            _reload(daemon, path)
            notifier.ready(f"serving on {config.daemon.socket}")
    notifier.stopping()
    daemon.stop()
    gateway.close()


def _reload(daemon: object, path: Path) -> None:
    from pyhetsched.daemon.daemon import Daemon

    assert isinstance(daemon, Daemon)
    try:
        config = load(path)
        check(config)
        daemon.reload(config)
    except ConfigError as error:
        log.error("the old configuration is kept: %s", error)
    else:
        log.info("configuration read again from %s", path)
