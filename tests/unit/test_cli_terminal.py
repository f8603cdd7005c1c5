"""Names that users choose do nothing to the terminal of the admin who looks at them."""

from __future__ import annotations

import pytest

from pyhetsched.cli.explain import lines
from pyhetsched.cli.output import print_table, shown
from pyhetsched.rpc.gen import services_pb2 as pb

EVIL = "\x1b]0;owned\x07\x1b[2J\n\u202egpu\u200b\x9b31m\r"


def harmless(text: str) -> bool:
    """Whether a terminal only writes it."""
    return all(c.isprintable() or c == "\n" for c in text)


def test_nothing_of_an_explanation_is_acted_on() -> None:
    decision = pb.Decision(
        kind="submit", outcome="refused", mode="enforce", asked=EVIL, became=EVIL, message=EVIL,
        candidates=[pb.Candidate(name=EVIL, reason=EVIL, chosen=True), pb.Candidate(name=EVIL, reason=EVIL)],
    )  # fmt: skip
    job = pb.JobState(job_id=1, name=EVIL, user="alice", state="PENDING", reason=EVIL, nodes=EVIL)
    reply = pb.ExplainReply(job=job, decisions=[decision], reservations=[pb.Reservation(node="a", note=EVIL)])
    for line in lines(reply, verbose=True):
        assert line.isprintable(), repr(line)


def test_a_table_keeps_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"account": EVIL}, {"account": "physics"}], ("account",), ("account",), None, False)
    out = capsys.readouterr().out
    assert harmless(out)
    assert len(out.splitlines()) == 3


def test_what_is_printable_is_shown_as_it_is() -> None:
    assert shown("Größe 日本 'x'") == "Größe 日本 'x'"
    assert shown("a\x1bb\nc") == "a\\x1bb\\nc"
