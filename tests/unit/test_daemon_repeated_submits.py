"""Repeated submits: answered from memory, each with a decision of its own, and never when anything has changed."""

from __future__ import annotations

from typing import Any

from pyhetsched.clock import ManualClock
from pyhetsched.daemon.repeated_submits import RepeatedSubmits
from pyhetsched.daemon.submitter import Steered, Submitted
from pyhetsched.model import Decision, JobAsk, SubmitOutcome, Verdict
from pyhetsched.rpc.gen import hook_pb2 as pb

BODY = b"a request"
FIRST = "0123456789abcdef"


class _Submitter:
    """What the memory needs of the submitter: circumstances, steering, records."""

    def __init__(self) -> None:
        self.now: tuple[object, ...] | None = (object(), object())
        self.holes: tuple[str, ...] = ()
        self.noted: list[str] = []
        self.withdrawn: list[str] = []

    def circumstances(self) -> tuple[object, ...] | None:
        return self.now

    def steer(self, decision_id: str, steered: Steered, ahead: bool = False) -> tuple[str, ...]:
        return self.holes

    def withdraw(self, decision_id: str) -> None:
        self.withdrawn.append(decision_id)

    def note(self, decision: Decision) -> None:
        self.noted.append(decision.id)


def decision(decision_id: str) -> Decision:
    return Decision(decision_id, 1.0, "submit", 0, 2001, "enforce", "gpu:1", "", "rewritten", user="alice")


def memory(steered: Steered | None = None, **submitted: Any) -> tuple[RepeatedSubmits, _Submitter, ManualClock]:
    clock, submitter = ManualClock(), _Submitter()
    found = RepeatedSubmits(submitter, clock)  # type: ignore[arg-type]
    keep(found, submitter, steered, **submitted)
    return found, submitter, clock


def keep(found: RepeatedSubmits, submitter: _Submitter, steered: Steered | None = None, **submitted: Any) -> None:
    reply = pb.HookReply(version=1)
    reply.submit.verdict = pb.REWRITTEN
    reply.submit.decision_id = FIRST
    reply.submit.changes.add(field=pb.ADMIN_COMMENT, value=f'hetsched:{{"d":"{FIRST}"}}')
    outcome = SubmitOutcome(Verdict.REWRITTEN, JobAsk("whole"))
    values = {"decision": decision(FIRST), "steered": steered, "repeatable": True, **submitted}
    found.keep(BODY, submitter.now, Submitted(outcome, **values), reply.SerializeToString())


def test_a_repeated_request_gets_the_same_reply_and_a_decision_of_its_own() -> None:
    found, submitter, _ = memory()
    again = found.again(BODY)
    assert again is not None
    reply = pb.HookReply.FromString(again.reply).submit
    assert reply.decision_id != FIRST
    assert reply.changes[0].value == f'hetsched:{{"d":"{reply.decision_id}"}}'
    assert submitter.noted == []
    found.note(again)
    assert submitter.noted == [reply.decision_id]


def test_nothing_is_remembered_of_other_circumstances() -> None:
    found, submitter, _ = memory()
    assert found.again(b"another request") is None
    submitter.now = (object(), object())
    assert found.again(BODY) is None
    submitter.now = None  # switched off
    assert found.again(BODY) is None


def test_what_may_not_be_repeated_is_not() -> None:
    found, _, _ = memory(repeatable=False)
    assert found.again(BODY) is None


def test_steering_is_done_anew_each_time() -> None:
    steered = Steered(JobAsk("slices"), frozenset(), frozenset(), holes=("n1",))
    found, submitter, _ = memory(steered)
    submitter.holes = ("n1",)
    assert found.again(BODY) is not None
    submitter.holes = ("n2",)
    assert found.again(BODY) is None
    assert len(submitter.withdrawn) == 1, "it is decided anew, and counted once"


def test_a_burst_brings_replies_for_the_next_and_records_those_that_are_used() -> None:
    found, submitter, clock = memory()
    replies = []
    for _ in range(4):
        clock.sleep_s(0.01)
        again = found.again(BODY, may_spare=True)
        assert again is not None
        replies.append(pb.HookReply.FromString(again.reply))
    assert [len(reply.spare) for reply in replies[:2]] == [0, 0], "two are no burst"
    spares = replies[2].spare
    assert len(spares) == 15
    assert replies[2].spare_ms == 200
    ids = {spare.decision_id for spare in spares} | {replies[2].submit.decision_id}
    assert len(ids) == 16
    assert all(spare.changes[0].value == f'hetsched:{{"d":"{spare.decision_id}"}}' for spare in spares)
    used = [spares[0].decision_id, spares[3].decision_id]
    found.used([*used, "never heard of"])
    found.used(used)  # the plan sees the jobs as well
    assert submitter.noted == used


def test_whoever_keeps_no_connection_gets_no_spares() -> None:
    found, _, _ = memory()
    for _ in range(5):
        again = found.again(BODY)
        assert again is not None
        assert not pb.HookReply.FromString(again.reply).spare


def test_a_pause_ends_a_burst() -> None:
    found, _, clock = memory()
    for _ in range(5):
        clock.sleep_s(1.0)
        again = found.again(BODY, may_spare=True)
        assert again is not None
        assert not pb.HookReply.FromString(again.reply).spare
