"""The page for users says what the rules do, row by row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from submit_example import CLUSTER, given, request

from pyhetsched.model import Verdict
from pyhetsched.submit import decide
from pyhetsched.submit.rules.directives import KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "users.md").read_text(encoding="utf-8")


def rows(columns: int) -> list[list[str]]:
    """The body rows of all tables with this many columns; code marks and escapes are taken off."""
    found = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == columns and cells[0].startswith("`"):
            found.append([cell.strip("`").replace("\\|", "|") for cell in cells])
    return found


EXAMPLES = rows(3)


@pytest.mark.parametrize(("written", "gets", "told"), EXAMPLES, ids=[row[0] for row in EXAMPLES])
def test_example(written: str, gets: str, told: str) -> None:
    outcome = decide(request(written), CLUSTER)
    assert given(outcome) == gets
    assert (outcome.message.removeprefix("hetsched: ") or "-") == told


def test_every_directive_is_explained_and_read() -> None:
    directives = [row[0] for row in rows(2)]
    assert [text.partition("=")[0] for text in directives] == list(KEYS)
    for text in directives:
        assert "directive" not in decide(request(f"--gres=gpu:1 #HETSCHED {text}"), CLUSTER).message


def test_every_kind_of_answer_is_shown() -> None:
    shown = {decide(request(written), CLUSTER).verdict for written, _, _ in EXAMPLES}
    assert shown == set(Verdict)
    assert len(EXAMPLES) > 50
