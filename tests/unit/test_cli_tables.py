"""Tables as squeue prints them."""

from __future__ import annotations

import click
import pytest

from pyhetsched.cli.decisions import _row
from pyhetsched.cli.output import document, print_table
from pyhetsched.rpc.gen import services_pb2 as pb

ROWS = [{"node": "a100-0", "gpu": "0"}, {"node": "v100-0", "gpu": "12"}]
FIELDS = ("node", "gpu")


@pytest.mark.parametrize(
    ("columns", "noheader", "printed"),
    [
        (None, False, "NODE    GPU\na100-0  0\nv100-0  12\n"),
        (None, True, "a100-0  0\nv100-0  12\n"),
        ("GPU, node", False, "GPU  NODE\n0    a100-0\n12   v100-0\n"),
        ("help", False, "node\ngpu\n"),
    ],
)
def test_columns(capsys: pytest.CaptureFixture[str], columns: str | None, noheader: bool, printed: str) -> None:
    print_table(ROWS, FIELDS, FIELDS, columns, noheader)
    assert capsys.readouterr().out == printed


def test_an_unknown_column_is_refused_with_those_there_are() -> None:
    with pytest.raises(click.BadParameter, match="unknown column 'gpus'; there are node, gpu"):
        print_table(ROWS, FIELDS, FIELDS, "gpus", False)


def test_counts_are_numbers_in_json() -> None:
    told = document(pb.StatusReply(submits=24))
    assert (told["submits"], told["refused"]) == (24, 0)


@pytest.mark.parametrize(
    ("outcome", "became", "message", "shown"),
    [
        ("rewritten", "1 slice", "hetsched: gpu:1 -> 1 slice", ("1 slice", "-")),
        ("rewritten", "1 slice", "hetsched: gpu:1 -> 1 slice; one a task", ("1 slice", "one a task")),
        ("refused", "refused", "hetsched: gpu:1 is too much", ("-", "gpu:1 is too much")),
        ("unchanged", "unchanged", "", ("-", "-")),
        ("gone", "", "", ("-", "-")),
    ],
)
def test_no_column_repeats_another(outcome: str, became: str, message: str, shown: tuple[str, str]) -> None:
    row = _row(pb.Decision(asked="gpu:1", outcome=outcome, became=became, message=message))
    assert (row["became"], row["message"]) == shown
