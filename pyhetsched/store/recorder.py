"""Records are written behind the answer: a slow, locked or full database never delays a submit."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from pyhetsched.errors import StoreError
from pyhetsched.model import Decision
from pyhetsched.store.decisions import DecisionStore

log = logging.getLogger(__name__)

_BATCH = 200
_RETRY_S = 1.0
_GATHER_S = 0.2


class Recorder:
    """Writes decisions from a bounded queue in its own thread.

    What does not fit into the queue is counted in ``lost``; what the database refuses is tried again until
    it takes it. ``listeners`` are called with each decision as it is handed in.
    """

    def __init__(self, store: DecisionStore, length: int) -> None:
        self._store = store
        self._queue: queue.Queue[Decision | None] = queue.Queue(maxsize=length)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self.lost = 0
        self.failing = ""
        self.listeners: list[Callable[[Decision], None]] = []

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def record(self, decision: Decision) -> None:
        """Hand in one decision; never waits and never raises."""
        try:
            self._queue.put_nowait(decision)
        except queue.Full:
            self.lost += 1
        for listener in list(self.listeners):
            listener(decision)

    def alive(self) -> bool:
        """Return whether the writing thread runs."""
        return self._thread.is_alive()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all that was handed in is written; return False if that took longer."""
        done = threading.Event()
        self._hurry.set()

        def wait() -> None:
            self._queue.join()
            done.set()

        threading.Thread(target=wait, daemon=True).start()
        return done.wait(timeout_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what is left, then end the thread; what cannot be written by then is counted as lost."""
        self._stopping.set()
        self._hurry.set()
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            log.error("records are lost at shutdown: %d waiting", self._queue.qsize())
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            batch, end = self._take()
            self._write(batch)
            for _ in range(len(batch) + end):
                self._queue.task_done()
            if end:
                return

    def _take(self) -> tuple[list[Decision], bool]:
        batch: list[Decision] = []
        item = self._queue.get()
        # One transaction for what comes in the next moment, too: each costs as much as many records.
        self._hurry.wait(_GATHER_S)
        self._hurry.clear()
        while item is not None:
            batch.append(item)
            if len(batch) >= _BATCH:
                return batch, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _write(self, batch: list[Decision]) -> None:
        while batch:
            try:
                self._store.add(batch)
            except StoreError as error:
                if not self.failing:
                    log.error("decisions cannot be written, will try again: %s", error)
                self.failing = str(error)
                if self._stopping.wait(_RETRY_S):
                    self.lost += len(batch)
                    return
            else:
                self.failing = ""
                return
