"""The comparison of ways to deal with holes, on small workloads: its bookkeeping and its verdict."""

import random
from collections import Counter

import pytest

from pyhetsched.mig.profiles import model_by_key, space_of_model
from pyhetsched.mig.steering import PickRule
from pyhetsched.mig.workload import SliceJob, Way, arrivals, best_fill, run

A100 = model_by_key("A100-80GB")
MIX = {"1g.10gb": 4.0, "2g.20gb": 3.0, "3g.40gb": 3.0, "7g.80gb": 1.0}
HOUR_S = 3600.0


@pytest.mark.parametrize("way", list(Way))
def test_every_way_serves_one_job_whole(way: Way) -> None:
    outcome = run(way, A100, [SliceJob(0, 10.0, HOUR_S, "3g.40gb")], 1, 1, 2 * HOUR_S)
    assert outcome.started == outcome.allocations == 1
    assert outcome.slice_hours == pytest.approx(3.0)
    assert outcome.utilisation == pytest.approx(3 / 14)


def test_handing_back_alone_meets_holes_and_steering_none() -> None:
    jobs = arrivals(A100, MIX, 8, 6 * HOUR_S, random.Random(3))
    naive = run(Way.HAND_BACK, A100, jobs, 2, 4, 6 * HOUR_S)
    predicted = run(Way.NEXT_START, A100, jobs, 2, 4, 6 * HOUR_S)
    assert naive.handed_back_share > predicted.handed_back_share > 0.0
    for rule in PickRule:
        steered = run(Way.STEER, A100, jobs, 2, 4, 6 * HOUR_S, rule=rule)
        assert steered.handed_back == 0
        assert steered.utilisation > 0.8


def test_no_way_serves_more_than_there_is() -> None:
    jobs = arrivals(A100, MIX, 4, 4 * HOUR_S, random.Random(5), load=3.0)
    for way in Way:
        outcome = run(way, A100, jobs, 1, 4, 4 * HOUR_S, warm_up_s=HOUR_S)
        assert 0.5 < outcome.utilisation <= 1.0


def test_the_exact_fill_is_the_best_of_all() -> None:
    space, rng = space_of_model(A100), random.Random(1)
    compute = [space.geometry.shapes[k].compute for k in space.kinds]
    for _ in range(20):
        states = []
        for _gpu in range(2):
            state = 0
            for _instance in range(rng.randint(0, 3)):
                kind = rng.choice(space.kinds)
                starts = space.starts(state, kind)
                state = space.put(state, kind, rng.choice(starts)) if starts else state
            states.append(state)
        waiting = tuple(rng.randint(0, 2) for _ in space.kinds)
        filled = best_fill(space, tuple(states), waiting)
        total = Counter({k: sum(c[k] for c in filled) for k in range(len(waiting))})
        assert all(total[k] <= n for k, n in enumerate(waiting))
        served = sum(n * compute[k] for k, n in total.items())
        best = max(
            sum((x + y) * c for x, y, c in zip(a, b, compute, strict=True))
            for a in space.multisets(states[0])
            for b in space.multisets(states[1])
            if all(x + y <= n for x, y, n in zip(a, b, waiting, strict=True))
        )
        assert served == best
