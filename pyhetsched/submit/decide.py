"""The one entry: what is to be done with a request, decided by the rules in order."""

from __future__ import annotations

import logging

from pyhetsched.errors import RequestError
from pyhetsched.model import ClusterView, JobAsk, SubmitOutcome, SubmitRequest, Verdict
from pyhetsched.submit.draft import Draft, Scope
from pyhetsched.submit.limits import beyond_limits
from pyhetsched.submit.policy import SubmitPolicy
from pyhetsched.submit.registry import rules

log = logging.getLogger(__name__)

MOST_MESSAGE = 1000


def decide(request: SubmitRequest, view: ClusterView, policy: SubmitPolicy | None = None) -> SubmitOutcome:
    """What is to be done with ``request`` on the cluster that ``view`` shows; pure, and it never raises.

    A rule that fails with anything but :class:`RequestError` is passed over and named in ``broken_rules``: the
    job is then treated as if that rule did not exist.
    """
    beyond = beyond_limits(request, view)
    if beyond:
        return SubmitOutcome(
            Verdict.REFUSED, JobAsk("plain"), asked="too long to be read", became="refused",
            message=f"hetsched: {beyond}",
        )  # fmt: skip
    broken: list[str] = []
    try:
        draft = Draft.start(request, view, policy or SubmitPolicy())
    except Exception as error:  # noqa: BLE001  (fail open: a bug here must not cost a job)
        log.error("the cluster view cannot be read for a request", exc_info=error)
        return SubmitOutcome(Verdict.UNCHANGED, JobAsk("plain"), became="unchanged", broken_rules=("fleet",))
    for name, apply in rules():
        try:
            draft = apply(draft)
        except RequestError as error:
            draft = draft.refused(str(error))
        except Exception as error:  # noqa: BLE001  (fail open, and say which rule it was)
            log.error("rule %s of submit failed and was passed over", name, exc_info=error)
            broken.append(name)
        if draft.verdict is Verdict.REFUSED:
            break
    return _outcome(draft, tuple(broken))


def asked_text(draft: Draft) -> str:
    """What the user asked for, in one line, in the words of sbatch."""
    parts = []
    for each in draft.spelled:
        if each.implied:
            parts.append(f"--ntasks-per-gpu={draft.request.ntasks_per_tres}")
        elif each.scope is Scope.NODE:
            parts.append(str(each))
        else:
            joint = " " if each.scope is Scope.JOB else "="
            parts.append(f"{each.scope.option}{joint}{str(each).removeprefix('gpu:')}")
    return " ".join([*parts, *draft.wishes.written]) or "no GPU"


def _outcome(draft: Draft, broken: tuple[str, ...]) -> SubmitOutcome:
    refused = draft.verdict is Verdict.REFUSED
    return SubmitOutcome(
        verdict=draft.verdict,
        ask=JobAsk("plain") if refused else draft.ask,
        asked=asked_text(draft)[:MOST_MESSAGE],
        became="refused" if refused else draft.became or "unchanged",
        message=_message(draft),
        changes=draft.changes,
        drop_environment=draft.drop_environment,
        candidates=draft.candidates,
        policy=draft.score_means,
        broken_rules=broken,
    )


def _message(draft: Draft) -> str:
    sentences = list(draft.messages)
    if draft.verdict is Verdict.REWRITTEN:
        if not draft.policy.announce:
            return ""
        sentences.insert(0, f"{asked_text(draft)} -> {draft.became}")
    return f"hetsched: {'; '.join(sentences)}"[:MOST_MESSAGE] if sentences else ""
