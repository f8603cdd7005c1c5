"""Requests repeat: a burst of the same submit is parsed and decided once.

Each job of the burst has a decision and a record of its own, and is steered around MIG holes anew. A reply is given
again only on the very same picture of the cluster, under the same modes and configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyhetsched.clock import Clock
from pyhetsched.daemon.journal import new_id
from pyhetsched.daemon.submitter import Steered, Submitted, Submitter
from pyhetsched.model import Decision
from pyhetsched.rpc.gen import hook_pb2 as pb

_MOST = 2000
_MOST_VARIANTS = 20
_MOST_SPARES = 5000
_DROPPED_AT_ONCE = 32
_LONGEST = 4096
_BURST = 3
#: Shorter than spares hold: who asks more seldom would not use them.
_BURST_GAP_S = 0.19
_SPARES, _SPARES_STEERED = 15, 12
#: So long may the plugin use a spare: what an administrator changes meanwhile is not in it.
_FOR_SPARE_MS = pb.HookReply(spare_ms=200).SerializeToString()
#: By then a plan has seen the jobs that are waiting, or slurmctld has said that they start.
_SPARE_KEPT_S = 60.0

Circumstances = tuple[object, ...] | None
"""What an outcome depends on besides the request and the GPUs; None while hetsched is switched off."""


@dataclass(frozen=True, slots=True)
class _Kept:
    reply: bytes
    as_spare: bytes
    decision: Decision
    steered: Steered | None


@dataclass(frozen=True, slots=True)
class Again:
    """The reply to a request that came before, and the decision that is to be recorded under a new id."""

    reply: bytes
    decision: Decision
    decision_id: str


@dataclass(slots=True)
class _Burst:
    last_s: float
    count: int = 1


class RepeatedSubmits:
    """Replies by request, both as bytes. Safe between threads: who loses a race decides once more than he had to."""

    def __init__(self, submitter: Submitter, clock: Clock) -> None:
        self._submitter = submitter
        self._clock = clock
        # One object, so that no thread meets the replies of other circumstances than it has looked at.
        self._memory: tuple[Circumstances, dict[bytes, dict[tuple[str, ...], _Kept]]] = (None, {})
        self._bursts: dict[bytes, _Burst] = {}
        self._spares: dict[str, tuple[Decision, float]] = {}

    def again(self, body: bytes, may_spare: bool = False) -> Again | None:
        """Return the reply to the request ``body``, None where it must be decided first.

        With ``may_spare`` it brings, in a burst, replies to the next requests like it; see ``spare`` in hook.proto.
        """
        circumstances, replies = self._memory
        variants = replies.get(body)
        if variants is None or not _same(circumstances, self._submitter.circumstances()):
            return None
        found = self._next(variants)
        if found is None:
            return None
        kept, decision_id = found
        reply = kept.reply.replace(kept.decision.id.encode(), decision_id.encode())
        if may_spare and self._in_burst(body) and len(self._spares) < _MOST_SPARES:
            reply = self._with_spares(reply, variants)
        return Again(reply, kept.decision, decision_id)

    def note(self, again: Again) -> None:
        """Record what was decided; after the reply, for slurmctld waits for that."""
        self._record(again.decision, again.decision_id)

    def used(self, decision_ids: Iterable[str]) -> int:
        """Record those of the decisions that were given ahead: the plugin, or a job in Slurm, says they are used.

        Returns how many these are.
        """
        found = 0
        for decision_id in decision_ids:
            decision, _ = self._spares.pop(decision_id, (None, 0.0))
            if decision is not None:
                self._record(decision, decision_id)
                found += 1
        return found

    def keep(self, body: bytes, circumstances: Circumstances, submitted: Submitted, reply: bytes) -> None:
        """Keep the reply to a request that was decided under ``circumstances``, if it may be given again."""
        if circumstances is None or not submitted.repeatable or submitted.decision is None:
            return
        if len(body) + len(reply) > _LONGEST:  # what is remembered must have a bound
            return
        kept_under, replies = self._memory
        if not _same(kept_under, circumstances) or len(replies) >= _MOST:
            replies, self._bursts = {}, {}
            self._memory = (circumstances, replies)
        steered = submitted.steered
        variants = replies.get(body, {}) if steered else {}
        key = steered.holes if steered else ()
        if len(variants) < _MOST_VARIANTS:
            as_spare = pb.HookReply(spare=[pb.HookReply.FromString(reply).submit]).SerializeToString()
            replies[body] = {**variants, key: _Kept(reply, as_spare, submitted.decision, steered)}

    def _next(self, variants: dict[tuple[str, ...], _Kept], ahead: bool = False) -> tuple[_Kept, str] | None:
        """Return the reply that suits the GPUs now, and a decision id for it."""
        kept, decision_id = next(iter(variants.values())), new_id()
        if kept.steered is not None:
            holes = self._submitter.steer(decision_id, kept.steered, ahead)
            if holes not in variants:
                self._submitter.withdraw(decision_id)
                return None
            kept = variants[holes]
        return kept, decision_id

    def _in_burst(self, body: bytes) -> bool:
        self._drop_old()
        now_s = self._clock.monotonic_s()
        burst = self._bursts.get(body)
        if burst is None or now_s - burst.last_s > _BURST_GAP_S:
            self._bursts[body] = _Burst(now_s)
            return False
        burst.last_s = now_s
        burst.count += 1
        return burst.count >= _BURST

    def _with_spares(self, reply: bytes, variants: dict[tuple[str, ...], _Kept]) -> bytes:
        until_s = self._clock.monotonic_s() + _SPARE_KEPT_S
        steered = next(iter(variants.values())).steered is not None
        parts = [reply]
        for _ in range(_SPARES_STEERED if steered else _SPARES):
            found = self._next(variants, ahead=True)
            if found is None:
                break
            kept, decision_id = found
            parts.append(kept.as_spare.replace(kept.decision.id.encode(), decision_id.encode()))
            self._spares[decision_id] = (kept.decision, until_s)
        # Messages put one after the other are read as one: https://protobuf.dev/programming-guides/encoding/
        return b"".join((*parts, _FOR_SPARE_MS))

    def _drop_old(self) -> None:
        """Forget spares that were not used, a few at a time: a submit waits, and the oldest come first."""
        now_s = self._clock.monotonic_s()
        for decision_id, (_, until_s) in list(itertools.islice(self._spares.items(), _DROPPED_AT_ONCE)):
            if until_s > now_s:
                return
            self._spares.pop(decision_id, None)

    def _record(self, decision: Decision, decision_id: str) -> None:
        self._submitter.note(replace(decision, id=decision_id, time_s=self._clock.now_s()))


def _same(these: Circumstances, those: Circumstances) -> bool:
    if these is None or those is None or len(these) != len(those):
        return False
    return all(a is b for a, b in zip(these, those, strict=True))
