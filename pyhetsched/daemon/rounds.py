"""Rounds at run time: a thread that asks for one now and then, and a process of its own that makes it."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from pyhetsched.clock import Clock, RealClock
from pyhetsched.config import Config, PolicyConfig
from pyhetsched.daemon.journal import Journal
from pyhetsched.daemon.modes import Modes
from pyhetsched.daemon.round_process import RoundReply, RoundRequest, round_process
from pyhetsched.daemon.round_record import RoundSummary, event_of
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.errors import HetschedError, RequestError, SolverError
from pyhetsched.model import Mode

log = logging.getLogger(__name__)

_REMEMBERED = 50
# On top of the policy's own budget: looking at ten thousand jobs, and some hundred updates.
_REST_S = 60.0
_LAST_RESORT = "fifo"
# What a policy would do is told again for so long: many who ask at once cost one look.
_KEPT_S = 5.0

StartProcess = Callable[[Connection, Config], Any]


class Rounds:
    """Makes a round every ``policy.round_s`` while rounds are on; takes back what they set when they are switched off.

    ``options`` of the configured policy do not go to another that is set by name.
    """

    def __init__(
        self, watcher: Watcher, modes: Modes, journal: Journal, config: Config,
        start_process: StartProcess | None = None, rest_s: float = _REST_S, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._watcher = watcher
        self._modes = modes
        self._journal = journal
        self._start_process = start_process or _start_process
        self._rest_s = rest_s
        self._clock = clock or RealClock()
        self._kept: tuple[RoundRequest | None, float, RoundReply] = (None, 0.0, RoundReply())
        self._wake = threading.Event()
        self._stopping = False
        self._asking = threading.Lock()
        self._looking = threading.Lock()
        self._connection: Connection | None = None
        self._process: Any = None
        self._config = config
        self._policy = config.policy
        self._hung: dict[str, str] = {}
        self._last_reasons: tuple[str, ...] = ()
        self.failing = ""
        self.summaries: deque[RoundSummary] = deque(maxlen=_REMEMBERED)

    @property
    def policy(self) -> PolicyConfig:
        """What holds now: the file's, or what was set since."""
        return self._policy

    def take(self, config: Config) -> None:
        """Take over a configuration that was read again."""
        self._config, self._policy = config, config.policy
        self._hung.clear()
        self._wake.set()

    def set(self, mode: str = "", name: str = "") -> None:
        """Set mode and policy until the daemon starts again; raises `RequestError` for what there is none of."""
        policy = self._policy
        if mode:
            valid = [item.value for item in Mode]
            if mode not in valid:
                raise RequestError(f"unknown mode {mode!r}; write one of {', '.join(valid)}")
            policy = policy.model_copy(update={"mode": mode})
        if name and name != policy.name:
            self.would(name, {}, 1)
            policy = policy.model_copy(update={"name": name, "options": {}})
        self._policy = policy
        self._hung.clear()
        self._wake.set()

    def would(self, name: str, options: Mapping[str, str], limit: int) -> RoundReply:
        """Return what a policy would do now (the configured one for ""); nothing is changed.

        Raises `RequestError` for an unknown policy or option, `SolverError` when no answer can be had.
        """
        other = bool(name) and name != self._policy.name
        given = {} if other else self._policy.options
        policy = self._policy.model_copy(
            update={"name": name or self._policy.name, "options": {**given, **options}}
        )
        reply = self._would(self._request("would", policy, limit))
        if reply.invalid:
            raise RequestError(reply.invalid)
        if reply.failed:
            raise SolverError(reply.failed)
        return reply

    def run(self) -> None:
        """Make rounds until `stop`."""
        while not self._stopping:
            self._wake.wait(self._policy.round_s)
            self._wake.clear()
            try:
                self._turn()
            except HetschedError as error:
                self._failed(str(error))
            except Exception:  # noqa: BLE001 - jobs are served without rounds, if in another order
                log.exception("a round failed")
                self._failed("a round failed; see the log")

    def stop(self) -> None:
        """End `run` and the process."""
        self._stopping = True
        self._wake.set()
        self._drop()

    def _would(self, request: RoundRequest) -> RoundReply:
        with self._looking:
            kept, since_s, reply = self._kept
            same = kept is not None and (kept.policy, kept.limit) == (request.policy, request.limit)
            if not same or self._clock.monotonic_s() - since_s > _KEPT_S:
                reply = self._ask(request)
                self._kept = (request, self._clock.monotonic_s(), reply)
            return reply

    def _turn(self) -> None:
        if self._stopping:
            return
        if self._policy.mode == Mode.OFF.value or self._modes.disabled():
            if self._connection is not None:
                self._note(self._ask(self._request("withdraw", self._policy)))
                self._drop()
            return
        policy = self._policy
        if policy.name in self._hung:
            policy = policy.model_copy(update={"name": _LAST_RESORT, "options": {}})
        reply = self._ask(self._request("round", policy))
        if self._policy.name in self._hung and reply.summary is not None:
            reasons = (self._hung[self._policy.name], *reply.summary.reasons)
            reply = replace(reply, summary=replace(reply.summary, reasons=reasons))
        self._note(reply)

    def _note(self, reply: RoundReply) -> None:
        if reply.failed or reply.invalid:
            self._failed(reply.failed or reply.invalid)
            return
        self.failing = ""
        for decision in reply.decisions:
            self._journal.recorder.record(decision)
        summary = reply.summary
        if summary is not None:
            self.summaries.append(summary)
            if reply.decisions or summary.reasons != self._last_reasons:
                self._journal.recorder.record(event_of(summary))
            self._last_reasons = summary.reasons

    def _failed(self, text: str) -> None:
        if text != self.failing:
            log.warning("no round was made: %s", text)
        self.failing = text

    def _request(self, kind: str, policy: PolicyConfig, limit: int = 0) -> RoundRequest:
        keep_days = self._config.store.keep_days
        return RoundRequest(kind, self._watcher.view, self._modes.table(), policy, keep_days, limit)

    def _ask(self, request: RoundRequest) -> RoundReply:
        """Ask the process, started if need be; one that does not answer in time is killed."""
        with self._asking:
            if self._connection is None:
                ours, theirs = multiprocessing.Pipe()
                self._process = self._start_process(theirs, self._config)
                theirs.close()
                self._connection = ours
            patience_s = request.policy.budget_s + self._rest_s
            try:
                self._connection.send(request)
                if self._connection.poll(patience_s):
                    reply: RoundReply = self._connection.recv()
                    return reply
            except (OSError, EOFError) as error:
                self._drop()
                raise SolverError(f"the process that makes rounds ended: {error or 'it is started again'}") from error
            self._drop()
            name = request.policy.name
            text = f"{name}: no answer within {patience_s:g} s; {_LAST_RESORT} answers until a policy is set anew"
            if request.kind == "round":
                self._hung[name] = text
            raise SolverError(text)

    def _drop(self) -> None:
        connection, process = self._connection, self._process
        self._connection = self._process = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()


def _start_process(connection: Connection, config: Config) -> Any:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=round_process, args=(connection, config), name="hetschedd-rounds", daemon=True)
    process.start()
    return process
