"""Processes that ask Slurm for the daemon's serving side.

A call of pyslurm holds the interpreter's lock until slurmctld answers, starting a program stops every thread until
the program runs, and reading its JSON holds the lock again. A submit that is being answered must feel none of it:
slurmctld waits for that answer, and while it does it may answer nobody.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from pyhetsched.errors import SlurmError

_WORKERS = 3
_START_S = 60.0

# In a worker: what answers its calls, or the error with which it could not be made.
_slurm: Any = None


class Workers:
    """Calls methods of what ``make`` makes in each of the worker processes, which are made anew when one dies.

    ``make`` and all arguments and answers pass between processes. Raises what ``make`` raises.
    """

    def __init__(self, make: Callable[[], Any], timeout_s: float) -> None:
        self._make = make
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._pool = self._new_pool()
        # Started now rather than when the first job waits for them; each says whether it has pyslurm.
        for future in [self._pool.submit(_call, "ready", ()) for _ in range(_WORKERS)]:
            future.result(_START_S)

    def call(self, method: str, *arguments: Any) -> Any:
        """Return what ``method`` returns; raises `SlurmError`, also when no answer comes in time."""
        for last in (False, True):
            pool = self._pool
            try:
                return pool.submit(_call, method, arguments).result(self._timeout_s * 2)
            except TimeoutError as error:
                raise SlurmError(method, f"no answer within {self._timeout_s * 2:g} s") from error
            except (BrokenProcessPool, RuntimeError) as error:
                if last:
                    raise SlurmError(method, f"the worker process ended: {error}") from error
                with self._lock:
                    if self._pool is pool:
                        pool.shutdown(wait=False)
                        self._pool = self._new_pool()
        raise AssertionError("the second try returns or raises")

    def close(self) -> None:
        """End the workers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(_WORKERS, context, initializer=_settle, initargs=(self._make,))


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    if isinstance(_slurm, SlurmError):
        raise _slurm
    return None if method == "ready" else getattr(_slurm, method)(*arguments)


def _settle(make: Callable[[], Any]) -> None:
    """Workers stand behind the daemon, which answers slurmctld, and leave signals to it."""
    import signal

    global _slurm  # noqa: PLW0603 - what an initializer of a process pool makes can live nowhere else
    os.nice(5)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        _slurm = make()
    except SlurmError as error:
        _slurm = error
    threading.Thread(target=_leave_with_parent, name="parent", daemon=True).start()


def _leave_with_parent() -> None:
    """End this worker when the daemon is gone; the pool's pipes stay open as long as one worker lives."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)
