"""The pool follows demand with hysteresis, within its budget, and touches idle cards only."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pyhetsched.mig.pool import Card, PoolDemand, PoolMemory, PoolSettings, cards_needed, decide
from pyhetsched.mig.profiles import model_by_key

A100, H100 = model_by_key("A100-80GB"), model_by_key("H100-80GB-SXM")
QUICK = PoolSettings(spare_cards=0, grow_after_s=0.0, shrink_after_s=0.0, changes_per_hour=100)


def cards(on: int, off: int, per_node: int = 4, idle: bool = True) -> list[Card]:
    modes = [True] * on + [False] * off
    return [Card(f"n{i // per_node}", i % per_node, H100, mode, idle) for i, mode in enumerate(modes)]


def test_demand_is_counted_in_cards() -> None:
    assert cards_needed(H100, {"1g.10gb": 7}) == 1
    assert cards_needed(H100, {"3g.40gb": 3}) == 2
    assert cards_needed(H100, {"7g.80gb": 2, "1g.10gb": 1}) == 3
    assert cards_needed(H100, {"1g.5gb": 2}) == 0
    assert cards_needed(H100, {}) == 0


def test_the_pool_grows_only_when_the_need_lasts() -> None:
    settings, demand = PoolSettings(spare_cards=0, grow_after_s=120.0), PoolDemand(pending_cards=2)
    first = decide(settings, cards(0, 4), demand, PoolMemory(), 0.0)
    assert not first.enable
    assert "waiting" in first.reason
    second = decide(settings, cards(0, 4), demand, first.memory, 119.0)
    assert not second.enable
    third = decide(settings, cards(0, 4), demand, second.memory, 120.0)
    assert [c.index for c in third.enable] == [0, 1]
    calm = decide(settings, cards(0, 4), PoolDemand(), second.memory, 119.5)
    assert calm.memory.more_since_s is None


def test_a_recent_peak_keeps_cards_and_the_spare_is_a_dead_band() -> None:
    settings = PoolSettings(spare_cards=1, shrink_after_s=0.0)
    assert not decide(settings, cards(3, 1), PoolDemand(recent_cards=2), PoolMemory(), 0.0).disable
    assert not decide(settings, cards(3, 1), PoolDemand(recent_cards=1), PoolMemory(), 0.0).disable
    assert len(decide(settings, cards(4, 0), PoolDemand(recent_cards=1), PoolMemory(), 0.0).disable) == 2


def test_the_hourly_budget_holds_and_returns() -> None:
    settings = PoolSettings(spare_cards=0, grow_after_s=0.0, changes_per_hour=2)
    first = decide(settings, cards(0, 8), PoolDemand(pending_cards=5), PoolMemory(), 0.0)
    assert len(first.enable) == 2
    spent = decide(settings, cards(2, 6), PoolDemand(pending_cards=5), first.memory, 1800.0)
    assert not spent.enable
    assert "budget" in spent.reason
    later = decide(settings, cards(2, 6), PoolDemand(pending_cards=5), spent.memory, 3601.0)
    assert len(later.enable) == 2


def test_ampere_is_changed_only_where_the_site_allows_the_reset() -> None:
    ampere = [Card("a", i, A100, False, True) for i in range(2)]
    refused = decide(QUICK, ampere, PoolDemand(pending_cards=1), PoolMemory(), 0.0)
    assert not refused.enable
    assert "no idle card may be changed" in refused.reason
    allowed = PoolSettings(spare_cards=0, grow_after_s=0.0, allow_reset=True)
    assert decide(allowed, ampere, PoolDemand(pending_cards=1), PoolMemory(), 0.0).enable == (ampere[0],)


def test_cards_join_nodes_that_have_some_so_that_whole_nodes_stay_whole() -> None:
    mixed = [Card("a", 0, H100, False, True), Card("b", 0, H100, True, True), Card("b", 1, H100, False, True)]
    assert decide(QUICK, mixed, PoolDemand(pending_cards=2), PoolMemory(), 0.0).enable == (mixed[2],)


def test_a_job_of_several_whole_gpus_gets_its_cards_back() -> None:
    settings = PoolSettings(fewest_cards=0, spare_cards=0, grow_after_s=0.0, shrink_after_s=60.0)
    pool = cards(2, 2)
    demand = PoolDemand(recent_cards=2, whole_asks=(4,))
    first = decide(settings, pool, demand, PoolMemory(), 0.0)
    assert not first.disable
    second = decide(settings, pool, demand, first.memory, 60.0)
    assert {(c.node, c.index) for c in second.disable} == {("n0", 0), ("n0", 1)}
    assert "whole GPUs" in second.reason
    busy = [Card(c.node, c.index, H100, c.mig_on, idle=not c.mig_on) for c in pool]
    assert not decide(settings, busy, demand, first.memory, 60.0).disable


@settings(deadline=None)
@given(
    st.integers(0, 8),
    st.integers(0, 8),
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10), st.booleans()), max_size=20),
    st.integers(0, 5),
    st.integers(0, 2),
)
def test_no_history_breaks_the_rules(
    on: int, off: int, demands: list[tuple[int, int, bool]], budget: int, spare: int
) -> None:
    settings = PoolSettings(1, 6, spare, 60.0, 300.0, budget)
    pool, memory, changes = cards(on, off), PoolMemory(), list[float]()
    for step, (pending, recent, whole) in enumerate(demands):
        now = step * 100.0
        demand = PoolDemand(pending, recent, (2,) if whole else ())
        decision = decide(settings, pool, demand, memory, now)
        memory = decision.memory
        assert not (decision.enable and decision.disable)
        assert all(c.idle and not c.mig_on for c in decision.enable)
        assert all(c.idle and c.mig_on for c in decision.disable)
        changed = {(c.node, c.index) for c in (*decision.enable, *decision.disable)}
        pool = [Card(c.node, c.index, c.model, c.mig_on ^ ((c.node, c.index) in changed), c.idle) for c in pool]
        changes += [now] * len(changed)
        assert sum(1 for t in changes if t > now - 3600.0) <= budget
        if decision.enable:
            assert sum(c.mig_on for c in pool) <= 6
