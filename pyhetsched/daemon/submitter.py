"""Answering a submit: the same rules for the plugin, for a dry run and in shadow mode."""

from __future__ import annotations

import logging
from dataclasses import replace

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
from pyhetsched.submit import SubmitPolicy, decide_modify

log = logging.getLogger(__name__)

_MOST_ARRAY = 200


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

    def submit(self, request: SubmitRequest) -> tuple[SubmitOutcome, str]:
        """Return what Slurm is to do with the request of a job that is being submitted, and the decision's id."""
        user = user_name(request.uid)
        mode = self._modes.of(user, request.account, self._partition(request))
        if mode is Mode.OFF:
            return SubmitOutcome(Verdict.UNCHANGED, JobAsk("plain")), ""
        outcome = self._decide(request)
        decision = self._decision(request, outcome, mode, user)
        if not request.test_only:
            self.counts[outcome.verdict] += 1
            self._journal.recorder.record(decision)
        if mode is Mode.SHADOW:
            outcome = SubmitOutcome(Verdict.UNCHANGED, outcome.ask)
        return self._with_comment(request, outcome, decision.id), decision.id

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
        return outcome, self._decision(request, outcome, mode, user)

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
        outcome = self._memory.decide(request, self._watcher.view, policy)
        if not outcome.ask.flex:
            return outcome
        partitions = {name for name in self._partition(request).split(",") if name}
        excluded = names(outcome.changes.get(JobField.EXCLUDED_NODES, request.excluded_nodes))
        return self._steerer.flexed(request, outcome, partitions, excluded)

    def _partition(self, request: SubmitRequest) -> str:
        if request.partition:
            return request.partition
        return next((p.name for p in self._watcher.view.partitions if p.is_default), "")

    def _with_comment(self, request: SubmitRequest, outcome: SubmitOutcome, decision_id: str) -> SubmitOutcome:
        if outcome.verdict is Verdict.REFUSED:
            return outcome
        owners = outcome.changes.get(JobField.EXCLUDED_NODES, request.excluded_nodes)
        changes = {**outcome.changes, JobField.ADMIN_COMMENT: encode(decision_id, outcome.ask, owners)}
        if outcome.ask.kind == "slices" or wants_several(outcome.ask):
            partitions = {name for name in self._partition(request).split(",") if name}
            # Slurm refuses a job that both requires and excludes a node.
            holes = [] if request.required_nodes else self._steerer.holes(outcome.ask, partitions, names(owners))
            if holes:
                changes[JobField.EXCLUDED_NODES] = with_nodes(owners, holes)
            self._steerer.submitted()
        return replace(outcome, verdict=Verdict.REWRITTEN, changes=changes)

    def _decision(self, request: SubmitRequest, outcome: SubmitOutcome, mode: Mode, user: str) -> Decision:
        detail: dict[str, object] = {"changes": {field.value: value for field, value in outcome.changes.items()}}
        if outcome.broken_rules:
            log.error("rules of submit failed and were passed over: %s", ", ".join(outcome.broken_rules))
            detail["broken_rules"] = list(outcome.broken_rules)
        if request.array_inx:
            detail["array"] = request.array_inx[:_MOST_ARRAY]
        return Decision(
            id=new_id(), time_s=self._clock.now_s(), kind="submit", job_id=0, uid=request.uid, user=user,
            mode=mode.value, asked=outcome.asked, became=outcome.became, outcome=outcome.verdict.value,
            message=outcome.message, candidates=outcome.candidates, policy=outcome.policy,
            partition=self._partition(request), account=request.account, detail=detail,
        )  # fmt: skip
