"""The first process of a run: starts boot.py's work in a child, reaps whatever is orphaned, and ends
with the child's status; the kernel then kills all that is left in the namespace."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def run_boot(argv: list[str]) -> int:
    """The child: boots and runs the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    import boot

    try:
        return boot.main(argv)
    except KeyboardInterrupt:
        return 130


def main() -> None:
    """Fork, reap, exit."""
    child = os.fork()
    if child == 0:
        status = run_boot(sys.argv[1:])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def forward(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the whole group already
    signal.signal(signal.SIGTERM, forward)
    while True:
        pid, status = os.wait()
        if pid == child:
            sys.exit(os.waitstatus_to_exitcode(status) % 256)


if __name__ == "__main__":
    main()
