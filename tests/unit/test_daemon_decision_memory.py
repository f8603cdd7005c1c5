"""A decision that is remembered is the decision that would be made."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from submit_example import CLUSTER

from pyhetsched.daemon.decision_memory import SET_ASIDE, DecisionMemory
from pyhetsched.model import SubmitRequest
from pyhetsched.submit import SubmitPolicy, decide

POLICY = SubmitPolicy()
SLICE = SubmitRequest(tres_per_node="gres/gpu:1g.10gb:1", batch=True, min_nodes=1, max_nodes=1)


def test_the_same_request_of_another_user_has_the_same_outcome() -> None:
    memory = DecisionMemory()
    first = memory.decide(replace(SLICE, uid=1, job_name="a"), CLUSTER, POLICY)
    again = memory.decide(replace(SLICE, uid=2, job_name="b", submit_host="login2"), CLUSTER, POLICY)
    assert again is first
    assert first == decide(SLICE, CLUSTER, POLICY)


@pytest.mark.parametrize("name", sorted({field.name for field in fields(SubmitRequest)} - SET_ASIDE))
def test_a_request_that_differs_in_anything_else_is_decided_anew(name: str) -> None:
    memory = DecisionMemory()
    memory.decide(SLICE, CLUSTER, POLICY)
    value = getattr(SLICE, name)
    other = {bool: not value, int: 3, str: "x", tuple: ("x",)}[type(value)]
    asked = replace(SLICE, **{name: other})
    assert memory.decide(asked, CLUSTER, POLICY) == decide(asked, CLUSTER, POLICY)


@pytest.mark.parametrize("uid", [0, 1, 2001])
def test_no_rule_looks_at_what_is_set_aside(uid: int) -> None:
    for gres in ("gres/gpu:1", "gres/gpu:20gb:1", "gres/gpu:a100:2", "gres/gpu:a10O:1"):
        asked = replace(SLICE, tres_per_node=gres)
        whose = replace(asked, uid=uid, user_name="root", job_name="job", submit_host="login1")
        assert decide(whose, CLUSTER, POLICY) == decide(asked, CLUSTER, POLICY)


def test_all_is_forgotten_with_a_new_view_or_policy() -> None:
    memory = DecisionMemory()
    first = memory.decide(SLICE, CLUSTER, POLICY)
    assert memory.decide(SLICE, replace(CLUSTER), POLICY) is not first
    silent = memory.decide(SLICE, CLUSTER, replace(POLICY, announce=False))
    assert silent.message == ""
