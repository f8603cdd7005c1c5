"""What the daemon knows of jobs besides their reservations, and what it finds out behind the answer."""

from __future__ import annotations

import logging
import queue
import threading

from pyhetsched.daemon.allocator import Allocator
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.giveback import GiveBack
from pyhetsched.daemon.journal import Journal
from pyhetsched.errors import HetschedError, SlurmError, StoreError
from pyhetsched.model import JobAsk, ReservationState
from pyhetsched.store.decisions import DecisionStore

log = logging.getLogger(__name__)

_MOST_WAITING = 10_000


class Tracker:
    """Learns of jobs in a thread of its own, so that no hook waits for it."""

    def __init__(
        self, allocator: Allocator, book: Book, giveback: GiveBack, store: DecisionStore, journal: Journal
    ) -> None:
        self._allocator = allocator
        self._book = book
        self._giveback = giveback
        self._store = store
        self._journal = journal
        self._queue: queue.Queue[int] = queue.Queue(maxsize=_MOST_WAITING)

    def learn_later(self, job_id: int) -> None:
        """Look the job up soon; when too many wait, this one is not remembered."""
        try:
            self._queue.put_nowait(job_id)
        except queue.Full:
            log.info("job %d: too many jobs start at once to remember them all", job_id)

    def run(self) -> None:
        """Look up jobs for ever (a daemon thread)."""
        while True:
            job_id = self._queue.get()
            try:
                job = self._allocator.load(job_id)
                if job is not None:
                    self._allocator.learn(job)
            except HetschedError as error:
                log.info("job %d: cannot be looked up: %s", job_id, error)
            except Exception:  # noqa: BLE001 - one strange job must not end the thread
                log.exception("job %d: cannot be learned", job_id)

    def finished(self, job_id: int, restart_count: int = 0) -> None:
        """A run of a job has ended (or gone back to the queue): close what was reserved and never made."""
        try:
            # The hook may have been kept waiting, and the job runs again by now.
            never_made = [
                r for r in self._book.of_job(job_id)
                if r.state is ReservationState.RESERVED and not self._allocator.serves(r)
            ]  # fmt: skip
            self._book.close(never_made, "the job ended before its slices were made")
        except (SlurmError, StoreError) as error:
            log.warning("job %d: what was reserved for it is closed later: %s", job_id, error)
        self._allocator.forget(job_id, restart_count)

    def ran(self, job_id: int) -> None:
        """A job runs on its slices: what kept it from other nodes is over."""
        self._giveback.ran(job_id)

    def ask_of_text(self, id_text: str) -> JobAsk | None:
        """Return what the job that a user writes as ``12``, ``12_3`` or ``12+1`` may have, None if not known.

        Slurm must not be asked here: it holds its locks while it waits for our answer.
        """
        if id_text.isdigit():
            return self._allocator.ask_of(int(id_text))
        try:
            known = self._store.jobs_of_text(id_text)
        except HetschedError as error:
            log.warning("job %s: %s", id_text, error)
            return None
        return self._allocator.ask_of(known[0].job_id) if known else None

    def refused_change(self, id_text: str, uid: int, text: str) -> None:
        """Record that a change to a job was refused."""
        job_id = int(id_text) if id_text.isdigit() else 0
        self._journal.event("modify", "refused", text, job_id=job_id, uid=uid)

    def start(self) -> None:
        """Start learning."""
        threading.Thread(target=self.run, name="tracker", daemon=True).start()
