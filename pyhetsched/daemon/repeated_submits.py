"""Requests repeat: a burst of the same submit is parsed and decided once.

Each job of the burst has a decision and a record of its own, and is steered around MIG holes anew. A reply is given
again only on the very same picture of the cluster, under the same modes and configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyhetsched.clock import Clock
from pyhetsched.daemon.journal import new_id
from pyhetsched.daemon.submitter import Steered, Submitted, Submitter
from pyhetsched.model import Decision

_MOST = 2000
_LONGEST = 4096

Circumstances = tuple[object, ...] | None
"""What an outcome depends on besides the request and the GPUs; None while hetsched is switched off."""


@dataclass(frozen=True, slots=True)
class _Kept:
    reply: bytes
    decision: Decision
    steered: Steered | None


@dataclass(frozen=True, slots=True)
class Again:
    """The reply to a request that came before, and the decision that is to be recorded under a new id."""

    reply: bytes
    decision: Decision
    decision_id: str


class RepeatedSubmits:
    """Replies by request, both as bytes. Safe between threads: who loses a race decides once more than he had to."""

    def __init__(self, submitter: Submitter, clock: Clock) -> None:
        self._submitter = submitter
        self._clock = clock
        self._circumstances: Circumstances = None
        self._kept: dict[bytes, dict[tuple[str, ...], _Kept]] = {}

    def again(self, body: bytes) -> Again | None:
        """Return the reply to the request ``body``, None where it must be decided first."""
        variants = self._kept.get(body)
        if variants is None or not _same(self._circumstances, self._submitter.circumstances()):
            return None
        kept = next(iter(variants.values()))
        decision_id = new_id()
        if kept.steered is not None:
            holes = self._submitter.steer(decision_id, kept.steered)
            if holes not in variants:
                self._submitter.withdraw(decision_id)
                return None
            kept = variants[holes]
        reply = kept.reply.replace(kept.decision.id.encode(), decision_id.encode())
        return Again(reply, kept.decision, decision_id)

    def note(self, again: Again) -> None:
        """Record what was decided; after the reply, for slurmctld waits for that."""
        self._submitter.note(replace(again.decision, id=again.decision_id, time_s=self._clock.now_s()))

    def keep(self, body: bytes, circumstances: Circumstances, submitted: Submitted, reply: bytes) -> None:
        """Keep the reply to a request that was decided under ``circumstances``, if it may be given again."""
        if circumstances is None or not submitted.repeatable or submitted.decision is None:
            return
        if len(body) + len(reply) > _LONGEST:  # what is remembered must have a bound
            return
        if not _same(self._circumstances, circumstances) or len(self._kept) >= _MOST:
            self._kept = {}
            self._circumstances = circumstances
        steered = submitted.steered
        variants = self._kept.get(body, {}) if steered else {}
        key = steered.holes if steered else ()
        if len(variants) < _MOST // 100:
            self._kept[body] = {**variants, key: _Kept(reply, submitted.decision, steered)}


def _same(these: Circumstances, those: Circumstances) -> bool:
    if these is None or those is None or len(these) != len(those):
        return False
    return all(a is b for a, b in zip(these, those, strict=True))
