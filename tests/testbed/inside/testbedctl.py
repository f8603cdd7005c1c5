#!/usr/bin/python3 -sE
"""testbedctl: start, stop and disturb the daemons of a run, from inside it.

usage: testbedctl list
       testbedctl revive
       testbedctl start|stop|restart|kill|pause|resume|reload|pid|log NAME...

NAME is a name of `list` (munged, mariadbd, slurmdbd, slurmctld, hetschedd, slurmd@NODE) or
'slurmd@*' for all nodes. start and restart wait until the daemon answers; stop waits until it is gone;
kill is SIGKILL; pause and resume are SIGSTOP and SIGCONT; reload is SIGHUP; revive starts or resumes all that
does not run; log prints the log's path.
"""

from __future__ import annotations

import fnmatch
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(os.path.realpath(__file__)).parent))

import hetsched_part  # noqa: E402
from cluster import load_cluster  # noqa: E402
from daemons import Daemon, DaemonError, slurm_daemons  # noqa: E402

SIGNALS = {"pause": signal.SIGSTOP, "resume": signal.SIGCONT, "reload": signal.SIGHUP}


def all_daemons() -> dict[str, Daemon]:
    """Every daemon of this run by name."""
    daemons = slurm_daemons(load_cluster())
    if hetsched_part.installed():
        daemons.append(hetsched_part.hetschedd())
    return {daemon.name: daemon for daemon in daemons}


def act(verb: str, daemon: Daemon) -> None:
    """Do one verb to one daemon."""
    if verb in ("stop", "restart"):
        daemon.stop()
    elif verb == "kill":
        daemon.stop(signal.SIGKILL)
    elif verb in SIGNALS:
        daemon.send(SIGNALS[verb])
    elif verb == "pid":
        print(daemon.pid() or "")
    elif verb == "log":
        print(daemon.log)
    if verb in ("start", "restart"):
        daemon.start()
        daemon.wait_ready()


def revive(daemon: Daemon) -> None:
    """Have it run, whatever was done to it."""
    if daemon.pid() is None:
        daemon.start()
        daemon.wait_ready()
    else:
        daemon.send(signal.SIGCONT)


def main(argv: list[str]) -> int:
    """Parse and act; 0 done, 1 failed, 2 usage."""
    verbs = {"start", "stop", "restart", "kill", "pid", "log", *SIGNALS}
    daemons = all_daemons()
    if argv == ["list"]:
        for name, daemon in daemons.items():
            print(f"{name:20} {daemon.pid() or 'not running'}")
        return 0
    if argv == ["revive"]:
        for daemon in daemons.values():
            revive(daemon)
        return 0
    if len(argv) < 2 or argv[0] not in verbs:
        print(__doc__, file=sys.stderr)
        return 2
    for pattern in argv[1:]:
        chosen = [daemon for name, daemon in daemons.items() if fnmatch.fnmatchcase(name, pattern)]
        if not chosen:
            print(f"testbedctl: no daemon '{pattern}'; there are: {' '.join(daemons)}", file=sys.stderr)
            return 2
        for daemon in chosen:
            try:
                act(argv[0], daemon)
            except DaemonError as error:
                print(f"testbedctl: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
