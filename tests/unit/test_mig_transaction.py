"""The life of a slice: legal steps only, and recovery from every combination of journal, GPU and jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhetsched.errors import MigError
from pyhetsched.mig.transaction import LEGAL, StepKind, Unfinished, advance, owned, recover, settle
from pyhetsched.model import MigInstance, Reservation, ReservationState

STATES = tuple(ReservationState)
RESERVED, CREATING, READY, RUNNING, DESTROYING, GONE, FAILED = STATES
LIVE, OVER = 7, 8

WHOLE = MigInstance("3g.40gb", 4, 4, 2, 0, "MIG-a")
SHAPES = {
    "absent": (),
    "whole": (WHOLE,),
    "without compute instance": (replace(WHOLE, ci_id=None, mig_uuid=""),),
    "another uuid": (replace(WHOLE, mig_uuid="MIG-b"),),
    "another id": (replace(WHOLE, gi_id=1),),
    "another profile": (replace(WHOLE, profile="4g.40gb"),),
    "another start": (replace(WHOLE, start=0),),
    "with a neighbour": (WHOLE, MigInstance("1g.10gb", 0, 1, 9, 0, "MIG-n")),
}


def reservation(state: ReservationState, job_id: int = LIVE, name: str = "r") -> Reservation:
    made = state in (READY, RUNNING, DESTROYING)
    return Reservation(
        name, job_id, 0, 1001, "node0", 0, "3g.40gb", 4, 4, state,
        mig_uuid="MIG-a" if made else "", gi_id=2 if made else None, ci_id=0 if made else None,
    )  # fmt: skip


def apply(
    entries: Sequence[Reservation], shown: Mapping[int, Sequence[MigInstance]], steps: Sequence[object]
) -> tuple[list[Reservation], dict[int, list[MigInstance]]]:
    """Play the steps on values."""
    by_id = {entry.id: entry for entry in entries}
    left = {index: list(instances) for index, instances in shown.items()}
    for step in steps:
        if step.kind is StepKind.DESTROY:  # type: ignore[attr-defined]
            left[step.gpu_index].remove(step.instance)  # type: ignore[attr-defined]
        if step.reservation is not None:  # type: ignore[attr-defined]
            entry = step.reservation  # type: ignore[attr-defined]
            by_id[entry.id] = settle(by_id[entry.id], step, 1.0)  # type: ignore[arg-type]
    return list(by_id.values()), left


@pytest.mark.parametrize(("state", "to"), list(itertools.product(STATES, STATES)))
def test_only_legal_steps_are_taken(state: ReservationState, to: ReservationState) -> None:
    if to in LEGAL[state]:
        moved = advance(reservation(state), to, 5.0, note="why")
        assert (moved.state, moved.changed_s, moved.note) == (to, 5.0, "why")
    else:
        with pytest.raises(MigError, match="cannot follow"):
            advance(reservation(state), to, 5.0)


def test_ends_are_ends() -> None:
    assert not LEGAL[GONE]
    assert not LEGAL[FAILED]


def test_every_state_reaches_an_end() -> None:
    reached = {GONE, FAILED}
    for _ in STATES:
        reached |= {state for state in STATES if LEGAL[state] & reached}
    assert reached == set(STATES)


def single_cases() -> Iterator[tuple[ReservationState, str, int, Unfinished, bool]]:
    return itertools.product(STATES, SHAPES, (LIVE, OVER), Unfinished, (False, True))


@pytest.mark.parametrize(("state", "shape", "job_id", "unfinished", "lagging"), list(single_cases()))
def test_recovery_from_every_state(
    state: ReservationState, shape: str, job_id: int, unfinished: Unfinished, lagging: bool
) -> None:
    entry, shown = reservation(state, job_id), {0: SHAPES[shape]}
    live = frozenset({LIVE})
    steps = recover([entry], shown, live, unfinished, lagging)
    # What is destroyed was ours, by all that is known of it.
    for step in steps:
        if step.kind is StepKind.DESTROY:
            assert step.instance is not None
            assert owned(entry, step.instance, lagging)
    # A finished slice of a live job is never touched.
    if job_id == LIVE and state in (READY, RUNNING):
        assert all(step.kind is not StepKind.DESTROY for step in steps)
    entries, left = apply([entry], shown, steps)
    # Nothing of a job that is over is left, in the journal or on the GPU.
    if job_id == OVER:
        assert not any(e.state.holds_space for e in entries)
        assert not any(owned(entry, instance, lagging) for instance in left[0])
    # Recovering again finds nothing more to do.
    again = recover(entries, left, live, unfinished, lagging)
    assert all(step.kind is StepKind.REPORT_FOREIGN for step in again)


@pytest.mark.parametrize(("state", "shape"), list(itertools.product(STATES, SHAPES)))
def test_an_instance_is_kept_claimed_or_reported(state: ReservationState, shape: str) -> None:
    entry = reservation(state)
    steps = recover([entry], {0: SHAPES[shape]}, frozenset({LIVE}))
    destroyed = {s.instance.gi_id for s in steps if s.kind is StepKind.DESTROY and s.instance}
    foreign = {s.instance.gi_id for s in steps if s.kind is StepKind.REPORT_FOREIGN and s.instance}
    kept = {i.gi_id for i in SHAPES[shape]} - destroyed - foreign
    assert not destroyed & foreign
    assert all(owned(entry, i) for i in SHAPES[shape] if i.gi_id in kept | destroyed)
    assert not any(owned(entry, i) for i in SHAPES[shape] if i.gi_id in foreign)


def test_a_gpu_that_cannot_be_asked_is_left_alone() -> None:
    assert recover([reservation(READY, OVER)], {1: (WHOLE,)}, frozenset())[0].kind is StepKind.REPORT_FOREIGN
    assert len(recover([reservation(READY, OVER)], {}, frozenset())) == 0


def test_a_live_claim_beats_a_dead_one() -> None:
    dead, alive = reservation(DESTROYING, OVER, "dead"), reservation(READY, LIVE, "alive")
    for entries in ([dead, alive], [alive, dead]):
        [step] = recover(entries, {0: (WHOLE,)}, frozenset({LIVE}))
        assert (step.kind, step.reservation) == (StepKind.MARK_GONE, dead)


def test_a_journal_that_lags_owns_what_was_only_reserved() -> None:
    entry = reservation(RESERVED, OVER)
    [step] = recover([entry], {0: (WHOLE,)}, frozenset(), lagging=True)
    assert step.kind is StepKind.DESTROY
    kinds = {step.kind for step in recover([entry], {0: (WHOLE,)}, frozenset())}
    assert kinds == {StepKind.MARK_GONE, StepKind.REPORT_FOREIGN}


def test_a_slice_that_vanished_under_its_job_has_failed() -> None:
    [step] = recover([reservation(RUNNING)], {0: ()}, frozenset({LIVE}))
    assert step.kind is StepKind.MARK_FAILED
    assert "not on the GPU any more" in step.note


def test_a_complete_creation_can_be_finished() -> None:
    [step] = recover([reservation(CREATING)], {0: (WHOLE,)}, frozenset({LIVE}), Unfinished.FINISH)
    done = settle(reservation(CREATING), step, 3.0)
    assert (done.state, done.gi_id, done.ci_id, done.mig_uuid) == (READY, 2, 0, "MIG-a")


@st.composite
def journals(draw: st.DrawFn) -> tuple[list[Reservation], list[MigInstance]]:
    entries, shown = [], []
    for number in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, 6))
        state = draw(st.sampled_from(STATES))
        known = draw(st.booleans()) and state is not RESERVED
        gi_id = draw(st.integers(7, 14))
        entries.append(
            Reservation(
                f"r{number}", draw(st.integers(1, 4)), 0, 1, "n", 0, "1g.10gb", start, 1, state,
                mig_uuid=f"MIG-{gi_id}" if known else "", gi_id=gi_id if known else None,
            )
        )  # fmt: skip
        if draw(st.booleans()):
            shown.append(MigInstance("1g.10gb", start, 1, gi_id, 0, f"MIG-{gi_id}"))
    return entries, list({instance.gi_id: instance for instance in shown}.values())


@given(journals(), st.frozensets(st.integers(1, 4)), st.sampled_from(Unfinished), st.booleans())
def test_recovery_of_whole_journals(
    journal: tuple[list[Reservation], list[MigInstance]],
    live: frozenset[int],
    unfinished: Unfinished,
    lagging: bool,
) -> None:
    entries, shown = journal
    steps = recover(entries, {0: shown}, live, unfinished, lagging)
    gone = [step.instance for step in steps if step.kind is StepKind.DESTROY]
    assert len(gone) == len({i.gi_id for i in gone if i})
    for step in steps:
        if step.kind is StepKind.DESTROY:
            claims = [e for e in entries if step.instance and owned(e, step.instance, lagging)]
            assert claims
    after, left = apply(entries, {0: shown}, steps)
    again = recover(after, left, live, unfinished, lagging)
    assert all(step.kind is StepKind.REPORT_FOREIGN for step in again)
