"""Tables as squeue prints them."""

from __future__ import annotations

import click
import pytest

from pyhetsched.cli.output import print_table

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
