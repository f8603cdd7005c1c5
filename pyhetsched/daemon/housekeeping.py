"""What must be done now and then: lift exclusions, drop what ended unseen, forget what is too old."""

from __future__ import annotations

import logging
import threading

from pyhetsched.clock import Clock
from pyhetsched.config import Config
from pyhetsched.daemon.allocator import Allocator
from pyhetsched.daemon.book import Book
from pyhetsched.daemon.giveback import GiveBack
from pyhetsched.daemon.holdings import RUNNING
from pyhetsched.daemon.stuck import Stuck
from pyhetsched.errors import HetschedError
from pyhetsched.model import ReservationState
from pyhetsched.slurm.gateway import Gateway
from pyhetsched.store.decisions import DecisionStore
from pyhetsched.store.reservations import ReservationStore

log = logging.getLogger(__name__)

_PERIOD_S = 5.0
_UNSEEN_S = 60.0
_FORGET_EVERY_S = 3600.0


class Housekeeping:
    """Runs in a thread of its own; a failure is logged and tried again in the next period."""

    def __init__(
        self, gateway: Gateway, allocator: Allocator, book: Book, giveback: GiveBack,
        decisions: DecisionStore, reservations: ReservationStore, config: Config, clock: Clock,
    ) -> None:  # fmt: skip
        self._gateway = gateway
        self._allocator = allocator
        self._book = book
        self._giveback = giveback
        self._decisions = decisions
        self._reservations = reservations
        self._clock = clock
        self.config = config
        self._stopping = threading.Event()
        self._forgot_s = float("-inf")
        self._stuck = Stuck(gateway, allocator, clock)

    def run(self) -> None:
        """Work until `stop`."""
        self._try(self._learn_running)
        while not self._stopping.wait(_PERIOD_S):
            self._try(self._giveback.lift)
            self._try(self._drop_unseen)
            self._try(self._stuck.release)
            self._try(self._forget)

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()

    def _learn_running(self) -> None:
        """After a restart: learn which jobs hold GPUs."""
        for job in self._gateway.jobs(""):
            if job.state in RUNNING:
                self._allocator.learn(job)

    def _drop_unseen(self) -> None:
        """Close reservations that were never made although their job has long gone elsewhere."""
        old_s = self._clock.now_s() - _UNSEEN_S
        for item in self._book.open():
            unmade = item.state is ReservationState.RESERVED and item.changed_s < old_s
            if unmade and not self._allocator.serves(item):
                self._book.close([item], "the job never started on it")

    def _forget(self) -> None:
        if self._clock.monotonic_s() - self._forgot_s < _FORGET_EVERY_S:
            return
        self._forgot_s = self._clock.monotonic_s()
        before_s = self._clock.now_s() - self.config.store.keep_days * 86400.0
        self._decisions.forget_before(before_s)
        self._reservations.forget_before(before_s)

    def _try(self, function: object) -> None:
        assert callable(function)
        try:
            function()
        except HetschedError as error:
            log.warning("housekeeping: %s", error)
        except Exception:  # noqa: BLE001 - the next period must come
            log.exception("housekeeping failed")
