"""Requests repeat: what was decided about the same request on the same picture of the cluster is decided again.

Users submit the same script a hundred times over; `decide` is pure, so its outcome can be kept.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

from pyhetsched.model import ClusterView, SubmitOutcome, SubmitRequest
from pyhetsched.submit import SubmitPolicy, decide

_MOST = 2000
_LONGEST_COMMENT = 2000

#: What no rule may look at: it tells whose request it is, not what is asked.
SET_ASIDE = frozenset({"uid", "user_name", "job_name", "submit_host"})
_asked = attrgetter(*(field.name for field in fields(SubmitRequest) if field.name not in SET_ASIDE))


class DecisionMemory:
    """Outcomes by request, for one view and one policy; all is forgotten when either changes. Safe between threads."""

    def __init__(self) -> None:
        self._kept: tuple[ClusterView | None, SubmitPolicy, dict[tuple[object, ...], SubmitOutcome]]
        self._kept = (None, SubmitPolicy(), {})

    def decide(self, request: SubmitRequest, view: ClusterView, policy: SubmitPolicy) -> SubmitOutcome:
        """Return what `pyhetsched.submit.decide` returns."""
        kept_view, kept_policy, outcomes = self._kept
        if kept_view is not view or kept_policy != policy or len(outcomes) >= _MOST:
            outcomes = {}
            self._kept = (view, policy, outcomes)
        key = _asked(request)
        outcome = outcomes.get(key)
        if outcome is None:
            outcome = decide(request, view, policy)
            # What a failing rule was passed over for may be something that is over soon.
            # A comment has no bound, and what is remembered must have one.
            if not outcome.broken_rules and len(request.comment) <= _LONGEST_COMMENT:
                outcomes[key] = outcome
        return outcome
