"""Rounds: who runs, from shares of time and from an order; idle devices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhetsched.placement.backfill import Board, relative_speed
from pyhetsched.placement.rounds import (
    Gangs,
    choose_by_order,
    choose_by_priority,
    share_priority,
    start_order,
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Throughput [M, J], shares [M, J], gang [M], counts [J]."""
    n_jobs, n_types = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    rate = st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0])
    rates = np.array(draw(st.lists(rate, min_size=n_jobs * n_types, max_size=n_jobs * n_types)))
    shares = np.array(draw(st.lists(st.sampled_from([0.0, 0.1, 0.25]), min_size=len(rates), max_size=len(rates))))
    gang = np.array(draw(st.lists(st.sampled_from([1, 1, 2, 4]), min_size=n_jobs, max_size=n_jobs)))
    counts = draw(st.lists(st.integers(1, 6), min_size=n_types, max_size=n_types))
    return rates.reshape(n_jobs, n_types), shares.reshape(n_jobs, n_types), gang, counts


def check_legal(gangs: Gangs, usable: np.ndarray, gang: np.ndarray, counts: list[int]) -> None:
    assert len(set(gangs.rows.tolist())) == len(gangs.rows)
    assert usable[gangs.rows, gangs.columns].all()
    used = np.bincount(gangs.columns, weights=gang[gangs.rows], minlength=len(counts))
    assert (used <= np.array(counts)).all()


@given(situations())
def test_shares_never_exceed_devices_and_leave_no_fitting_job_beside_idle_ones(situation: tuple) -> None:  # type: ignore[type-arg]
    rates, shares, gang, counts = situation
    usable = rates > 0
    received = np.full(shares.shape, 180.0)
    priority = share_priority(shares, received, received.sum(axis=0), usable)
    gangs = choose_by_priority(priority, np.zeros_like(shares), shares, usable, gang, counts)
    check_legal(gangs, usable, gang, counts)
    left = np.array(counts) - np.bincount(gangs.columns, weights=gang[gangs.rows], minlength=len(counts))
    waiting = np.setdiff1d(np.arange(len(gang)), gangs.rows)
    assert not (usable[waiting] & (gang[waiting, None] <= left)).any()


@given(situations(), st.randoms(use_true_random=False))
def test_orders_and_backfill_never_exceed_devices(situation: tuple, random: object) -> None:  # type: ignore[type-arg]
    rates, _, gang, counts = situation
    usable = rates > 0
    order = list(range(len(gang)))
    random.shuffle(order)  # type: ignore[attr-defined]
    wanted = np.where(usable.any(axis=1), rates.argmax(axis=1), -1).tolist()
    order = [row for row in order if wanted[row] >= 0]
    gangs = choose_by_order(order, wanted, usable, gang.tolist(), counts)
    check_legal(gangs, usable, gang, counts)
    speed = relative_speed(rates)
    board = Board(gangs, speed, gang.tolist(), counts)
    before = speed[gangs.rows, gangs.columns].sum()
    board.admit(order)
    board.upgrade()
    after = board.gangs()
    check_legal(after, usable, gang, counts)
    assert set(gangs.rows.tolist()) <= set(after.rows.tolist())
    assert speed[after.rows, after.columns].sum() >= before - 1e-9


def test_priority_is_share_over_part_received() -> None:
    shares = np.array([[0.5], [0.5], [0.0]])
    received = np.array([[100.0], [300.0], [0.0]])
    priority = share_priority(shares, received, np.array([400.0]), np.ones((3, 1), dtype=bool))
    assert priority[:, 0].tolist() == pytest.approx([2.0, 0.5 / 0.75, 0.0])


def test_job_that_has_nothing_yet_comes_first() -> None:
    priority = share_priority(
        np.array([[0.1], [0.9]]), np.array([[0.0], [10.0]]), np.array([10.0]), np.ones((2, 1), dtype=bool)
    )
    assert priority[0, 0] > priority[1, 0]


def test_types_are_filled_in_the_given_order() -> None:
    ones = np.ones((1, 2))
    usable = ones.astype(bool)
    gangs = choose_by_priority(ones, ones * 0, ones, usable, np.array([1]), [1, 1], type_order=[1, 0])
    assert gangs.columns.tolist() == [1]


def test_newcomer_displaces_the_job_that_loses_least() -> None:
    # Job 0 runs as fast on type 1; job 1 would crawl there; both sit on type 0, which newcomer 2 needs.
    rates = np.array([[1.0, 0.95], [1.0, 0.2], [1.0, 0.1]])
    board = Board(Gangs(np.array([0, 1]), np.array([0, 0])), relative_speed(rates), [1, 1, 1], [2, 1])
    board.admit([2])
    assert board.gangs().by_row(3).tolist() == [1, 0, 0]


def test_idle_faster_device_is_taken() -> None:
    rates = np.array([[2.0, 1.0]])
    board = Board(Gangs(np.array([0]), np.array([1])), relative_speed(rates), [1], [1, 1])
    board.upgrade()
    assert board.gangs().columns.tolist() == [0]


def test_start_order_ranks_by_largest_share() -> None:
    shares = np.array([[0.1, 0.2], [0.7, 0.0], [0.0, 0.0]])
    usable = np.array([[True, True], [True, False], [False, False]])
    order, wanted = start_order(shares, usable)
    assert order.tolist() == [1, 0]
    assert wanted.tolist() == [1, 0, -1]
