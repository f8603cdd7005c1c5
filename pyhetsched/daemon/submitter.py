"""Answering a submit: the same rules for the plugin, for a dry run and in shadow mode."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from pyhetsched.clock import Clock
from pyhetsched.config import Config
from pyhetsched.daemon.decision_memory import DecisionMemory
from pyhetsched.daemon.journal import Journal, new_id, user_name
from pyhetsched.daemon.modes import Modes
from pyhetsched.daemon.pool_demand import wants_several
from pyhetsched.daemon.steerer import Steerer
from pyhetsched.daemon.steering_plan import names, with_nodes
from pyhetsched.daemon.watcher import Watcher
from pyhetsched.mig.profiles import mig_models, weights_of
from pyhetsched.model import Decision, JobAsk, JobField, Mode, SubmitOutcome, SubmitRequest, Verdict
from pyhetsched.slurm.admin_comment import encode
from pyhetsched.slurm.hosts import fold
from pyhetsched.submit import SubmitPolicy, decide_modify

log = logging.getLogger(__name__)

_MOST_ARRAY = 200


@dataclass(frozen=True, slots=True)
class Steered:
    """What a submit is steered by, and the nodes that it was kept from."""

    ask: JobAsk
    partitions: frozenset[str]
    excluded: frozenset[str]
    nodes_wanted: int = 1
    holes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Submitted:
    """What Slurm is to do with a submit, and what was recorded (None where hetsched is off).

    ``repeatable`` is whether the same request would get the same outcome, steering apart, on the same picture.
    """

    outcome: SubmitOutcome
    decision: Decision | None = None
    steered: Steered | None = None
    repeatable: bool = False


class Submitter:
    """Decides on requests and records the decisions; never waits for Slurm or the database."""

    def __init__(
        self, watcher: Watcher, steerer: Steerer, modes: Modes, journal: Journal, config: Config, clock: Clock
    ) -> None:
        self._watcher = watcher
        self._steerer = steerer
        self._modes = modes
        self._journal = journal
        self._clock = clock
        self._memory = DecisionMemory()
        self.config = config
        self.counts = dict.fromkeys(Verdict, 0)

    def submit(self, request: SubmitRequest) -> Submitted:
        """Return what Slurm is to do with the request of a job that is being submitted, and what was recorded."""
        user = user_name(request.uid)
        mode = self._modes.of(user, request.account, self._partition(request))
        if mode is Mode.OFF:
            return Submitted(SubmitOutcome(Verdict.UNCHANGED, JobAsk("plain")))
        outcome = self._decide(request)
        decision_id = new_id()
        steered = self._steered(decision_id, request, outcome) if mode is Mode.ENFORCE else None
        decision = self._decision(decision_id, request, outcome, mode, user, steered)
        if not request.test_only:
            self.note(decision)
        repeatable = not (request.test_only or outcome.broken_rules or outcome.ask.flex)
        if mode is Mode.SHADOW:
            outcome = SubmitOutcome(Verdict.UNCHANGED, outcome.ask)
        return Submitted(self._marked(request, outcome, decision_id, steered), decision, steered, repeatable)

    def circumstances(self) -> tuple[object, ...] | None:
        """Return what an outcome depends on besides the request and the GPUs; None while hetsched is switched off."""
        return None if self._modes.disabled() else (self._watcher.standing_view, self.config, *self._modes.settings())

    def note(self, decision: Decision) -> None:
        """Count and record a decision on a submit."""
        self.counts[Verdict(decision.outcome)] += 1
        self._journal.recorder.record(decision)

    def steer(self, decision_id: str, steered: Steered, ahead: bool = False) -> tuple[str, ...]:
        """Return the nodes that a job must be kept from as things are now, or one that may follow (``ahead``)."""
        return tuple(self._steerer.admit(
            decision_id, steered.ask, steered.partitions, steered.excluded, steered.nodes_wanted, ahead
        ))  # fmt: skip

    def withdraw(self, decision_id: str) -> None:
        """Take back a job that was steered."""
        self._steerer.submits.withdraw(decision_id)

    def warm_up(self) -> None:
        """Decide on a slice once, so that what is computed for a GPU model is there before slurmctld waits for it."""
        self._decide(SubmitRequest(tres_per_node="gres/gpu:1g.10gb:1", batch=True))
        for model in mig_models():
            weights_of(model)

    def would_run(self, request: SubmitRequest) -> tuple[SubmitOutcome, Decision]:
        """Return what would be done with ``request``; nothing is recorded or counted."""
        user = request.user_name or user_name(request.uid)
        mode = self._modes.of(user, request.account, self._partition(request))
        outcome = self._decide(request)
        return outcome, self._decision(new_id(), request, outcome, mode, user)

    def modify(
        self, request: SubmitRequest, touched: frozenset[JobField], ask: JobAsk | None, privileged: bool
    ) -> tuple[Verdict, str]:
        """Return whether somebody may change ``touched`` of a job that may have ``ask`` to what ``request`` says."""
        return decide_modify(request, touched, ask, privileged=privileged)

    def _decide(self, request: SubmitRequest) -> SubmitOutcome:
        options = self.config.submit
        policy = SubmitPolicy(
            slices=options.slices, many_by_need=options.many_by_need, allow_cut_whole=options.allow_cut_whole,
            allow_flex=options.allow_flex, allow_opt_out=options.allow_opt_out, announce=options.announce,
        )  # fmt: skip
        outcome = self._memory.decide(request, self._watcher.standing_view, policy)
        if not outcome.ask.flex:
            return outcome
        return self._steerer.flexed(request, outcome, *self._allowed(request, outcome))

    def _allowed(self, request: SubmitRequest, outcome: SubmitOutcome) -> tuple[frozenset[str], frozenset[str]]:
        """Return the partitions that a job may have, and the nodes that its owner or a rule excludes."""
        partitions = frozenset(name for name in self._partition(request).split(",") if name)
        return partitions, names(outcome.changes.get(JobField.EXCLUDED_NODES, request.excluded_nodes))

    def _partition(self, request: SubmitRequest) -> str:
        if request.partition:
            return request.partition
        return next((p.name for p in self._watcher.standing_view.partitions if p.is_default), "")

    def _steered(self, decision_id: str, request: SubmitRequest, outcome: SubmitOutcome) -> Steered | None:
        # Slurm refuses a job that both requires and excludes a node.
        if outcome.verdict is Verdict.REFUSED or request.required_nodes or request.test_only:
            return None
        if outcome.ask.kind != "slices" and not wants_several(outcome.ask):
            return None
        steered = Steered(outcome.ask, *self._allowed(request, outcome), max(1, request.min_nodes))
        return replace(steered, holes=self.steer(decision_id, steered))

    def _marked(
        self, request: SubmitRequest, outcome: SubmitOutcome, decision_id: str, steered: Steered | None
    ) -> SubmitOutcome:
        """Return ``outcome`` with the mark by which the job is known from now on, and away from holes."""
        if outcome.verdict is Verdict.REFUSED:
            return outcome
        owners = outcome.changes.get(JobField.EXCLUDED_NODES, request.excluded_nodes)
        changes = {**outcome.changes, JobField.ADMIN_COMMENT: encode(decision_id, outcome.ask, owners)}
        if steered is not None and steered.holes:
            changes[JobField.EXCLUDED_NODES] = with_nodes(owners, steered.holes)
        return replace(outcome, verdict=Verdict.REWRITTEN, changes=changes)

    def _decision(self, decision_id: str, request: SubmitRequest, outcome: SubmitOutcome, mode: Mode, user: str,
                  steered: Steered | None = None) -> Decision:  # fmt: skip
        detail: dict[str, object] = {"changes": {field.value: value for field, value in outcome.changes.items()}}
        if outcome.broken_rules:
            log.error("rules of submit failed and were passed over: %s", ", ".join(outcome.broken_rules))
            detail["broken_rules"] = list(outcome.broken_rules)
        if request.array_inx:
            detail["array"] = request.array_inx[:_MOST_ARRAY]
        if steered is not None and steered.holes:
            detail["kept_from_for_now"] = fold(steered.holes)
        return Decision(
            id=decision_id, time_s=self._clock.now_s(), kind="submit", job_id=0, uid=request.uid, user=user,
            mode=mode.value, asked=outcome.asked, became=outcome.became, outcome=outcome.verdict.value,
            message=outcome.message, candidates=outcome.candidates, policy=outcome.policy,
            partition=self._partition(request), account=request.account, detail=detail,
        )  # fmt: skip
