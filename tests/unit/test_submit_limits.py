"""Requests of any length and any characters get an answer that the plugin can use."""

from __future__ import annotations

import pytest
from submit_example import NODES, PARTITIONS

from pyhetsched.model import ClusterView, SubmitRequest, Verdict
from pyhetsched.slurm.admin_comment import decode, encode
from pyhetsched.submit import decide

VIEW = ClusterView(nodes=NODES, partitions=PARTITIONS, mig_feature="mig", whole_feature="whole")
MOST_OF_A_VALUE = 4096  # VALUE_BYTES_MAX of job_submit_hetsched.c
FIELDS = ("features", "prefer", "excluded_nodes", "required_nodes", "tres_per_job", "tres_bind", "mem_per_tres")
TEXTS = (
    "a100\n", "\x1b[2J", "a100\x7f", "a100&" * 1000 + "a100", ",".join(f"host{i}x{i * 7}" for i in range(400)),
    "\u00e9" * 950, '"' * 1900, "\\" * 1900, "n[1-999999999]", "n[1-10-99999999]", "x" * 70_000,
)  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_every_answer_can_be_used_by_the_plugin(field: str, text: str) -> None:
    request = SubmitRequest(tres_per_node="gres/gpu:1g.10gb:1", batch=True, **{field: text})
    outcome = decide(request, VIEW)
    owners = "" if outcome.verdict is Verdict.REFUSED else request.excluded_nodes
    for value in (*outcome.changes.values(), encode("d" * 16, outcome.ask, owners)):
        assert len(value.encode()) <= MOST_OF_A_VALUE
        assert not any(ord(c) < 32 or ord(c) == 127 for c in value)
    assert outcome.broken_rules == ()


def test_the_sentence_names_the_option_and_the_bound() -> None:
    outcome = decide(SubmitRequest(tres_per_node="gres/gpu:1", excluded_nodes="x" * 2000), VIEW)
    assert outcome.verdict is Verdict.REFUSED
    assert outcome.message.startswith("hetsched: --exclude has 2000 bytes; write at most 1900")
    outcome = decide(SubmitRequest(tres_per_node="gres/gpu:1", features="a100\nb"), VIEW)
    assert "--constraint holds a control character" in outcome.message


def test_more_hosts_than_there_are_are_not_expanded_while_slurmctld_waits() -> None:
    for field in ("excluded_nodes", "required_nodes"):
        outcome = decide(SubmitRequest(tres_per_node="gres/gpu:1", **{field: "n[1-65000]"}), VIEW)  # type: ignore[arg-type]
        assert outcome.verdict is Verdict.REFUSED
        assert "names 65000 nodes, more than there are" in outcome.message


def test_what_is_recorded_of_a_long_comment_is_short() -> None:
    outcome = decide(SubmitRequest(tres_per_node="gres/gpu:1", comment="hetsched:types=" + "a100," * 10_000), VIEW)
    assert len(outcome.asked) <= 1000
    assert len(outcome.message) <= 1000


def test_an_admin_comment_keeps_names_as_they_are() -> None:
    outcome = decide(SubmitRequest(tres_per_node="gres/gpu:1g.10gb:1"), VIEW)
    text = encode("d", outcome.ask, "kn\u00f6del")
    assert "kn\u00f6del" in text
    assert decode(text) == ("d", outcome.ask)
