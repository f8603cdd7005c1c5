"""Reading of throughput tables."""

from __future__ import annotations

import numpy as np
import pytest

from pyhetsched.errors import DataError
from pyhetsched.throughput.tables import gavel_isolated, gavel_pairs, read_isolated, read_pairs

HEAD = "job_type,scale_factor,worker_type,steps_per_s"


def test_shipped_table_is_whole() -> None:
    table = gavel_isolated()
    assert table.rates.shape == (83, 3)
    assert len(table.at_gang(1)) == 26
    row = table.row("ResNet-50 (batch size 128)", 2)
    assert table.rates[row, 2] == 0
    assert table.rates[row, 0] > 0


def test_shipped_pairs_fit_the_table() -> None:
    table = gavel_isolated()
    rates = gavel_pairs(table)
    assert rates.shape == (3, 83, 83)
    gangs = np.array([gang for _, gang in table.classes])
    assert (rates[:, gangs[:, None] != gangs[None, :]] == 0).all()
    assert ((rates > 0) == (rates.transpose(0, 2, 1) > 0)).all()


def test_types_come_in_the_order_asked_for() -> None:
    table = read_isolated([HEAD, "a,1,x,1.5", "a,1,y,2.5", "a,1,z,9"], ("y", "x"))
    np.testing.assert_allclose(table.rates, [[2.5, 1.5]])


def test_unknown_class_is_named() -> None:
    with pytest.raises(DataError, match="no 'GPT' on 4 GPUs"):
        gavel_isolated().row("GPT", 4)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["job_type,worker_type,steps_per_s", "a,x,1"], "line 1: no column scale_factor"),
        ([HEAD, "a,one,x,1"], "line 2"),
        ([HEAD, "a,1,x,1", "a,1,x,fast"], "line 3"),
    ],
)
def test_malformed_table_names_the_line(lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_isolated(lines, ("x",))


def test_malformed_pairs_name_the_line() -> None:
    table = read_isolated([HEAD, "a,1,x,1"], ("x",))
    head = "worker_type,scale_factor,job_type_a,job_type_b,steps_per_s_a,steps_per_s_b"
    assert read_pairs([head, "x,1,a,a,0.5,0.5", "y,1,a,a,1,1"], table)[0, 0, 0] == 0.5
    with pytest.raises(DataError, match="line 2"):
        read_pairs([head, "x,1,a,a,0.5,slow"], table)
