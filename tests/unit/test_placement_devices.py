"""Devices, migrations, contention and packing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyhetsched.placement.contention import contention, least_contended, spread
from pyhetsched.placement.devices import assign_devices, kept, servers_of
from pyhetsched.placement.migration import gpu_cost, migrations, relabel
from pyhetsched.placement.packing import pack
from pyhetsched.placement.rounds import Gangs
from pyhetsched.policies.contract import ClusterState, GpuType, PairTable


def gangs_of(rows: list[int], columns: list[int]) -> Gangs:
    return Gangs(np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64))


@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=8))
def test_gangs_get_their_size_in_distinct_devices(sizes: list[int]) -> None:
    servers = servers_of(64, 4)
    placed = assign_devices(
        gangs_of(list(range(len(sizes))), [0] * len(sizes)), sizes, range(len(sizes)), [servers], {}
    )
    held = [device for _, devices in placed.values() for device in devices]
    assert len(held) == len(set(held)) == sum(sizes)
    for job, (_, devices) in placed.items():
        # 64 devices are room enough never to split what fits a server.
        assert spread(devices, servers)[0] == max(1, sizes[job] // 4)


def test_jobs_keep_their_devices_and_others_go_around_them() -> None:
    servers = [servers_of(8, 4)]
    before = {5: (0, (0, 1)), 6: (0, (2,))}
    after = assign_devices(gangs_of([0, 1], [0, 0]), [2, 4], [5, 7], servers, before)
    assert after[7] == (0, (4, 5, 6, 7)) or len(set(after[7][1])) == 4
    assert after[5] == before[5] or not set(before[5][1]).isdisjoint(after[7][1])
    again = assign_devices(gangs_of([0, 1], [0, 0]), [2, 4], [5, 7], servers, after)
    assert again == after
    assert kept(after, again) == 2


def test_gang_larger_than_a_server_stays_behind_one_switch() -> None:
    servers = servers_of(32, 4, per_switch=2)
    placed = assign_devices(gangs_of([0], [0]), [8], [1], [servers], {})
    assert spread(placed[1][1], servers) == (2, 1)


@given(st.permutations(range(4)), st.permutations(range(3)))
def test_a_permuted_plan_moves_nobody(nodes: list[int], gpus: list[int]) -> None:
    old = [[frozenset({10 * node + gpu}) for gpu in range(3)] for node in range(4)]
    old[3] = [frozenset({99})] * 3
    gang = {**{10 * n + g: 1 for n in range(3) for g in range(3)}, 99: 3}
    new = [[old[node][gpu] for gpu in gpus] for node in nodes]
    assert migrations(old, relabel(old, new, gang)) == 0


def test_relabelling_never_moves_more_jobs_than_the_plan_itself() -> None:
    old = [[frozenset({1}), frozenset({2})], [frozenset({3}), frozenset()]]
    new = [[frozenset({3}), frozenset({4})], [frozenset({2}), frozenset({1})]]
    gang = {1: 1, 2: 1, 3: 1, 4: 1}
    better = relabel(old, new, gang)
    assert migrations(old, better) == 0
    assert migrations(old, new) == 3
    assert gpu_cost(frozenset({1}), frozenset({2}), {1: 2, 2: 1}) == 0.75


def test_contention_counts_others_on_shared_links_only() -> None:
    servers = servers_of(16, 4, per_switch=2)
    alone = contention({1: (0, 1, 2, 3)}, servers)
    shared = contention({1: (0, 1, 4, 5), 2: (2, 3, 8, 9)}, servers)
    assert alone == {1: 0.0}
    # Both use server 0's uplink with half of their gang.
    assert shared[1] == shared[2] == 0.5
    assert least_contended([(6, 7, 10, 11), (12, 13, 14, 15)], {1: (0, 1, 4, 5)}, servers) == 1


def test_packing_is_a_maximum_weight_matching_above_the_threshold() -> None:
    rates = np.zeros((1, 2, 2))
    rates[0] = [[0.3, 0.9], [0.8, 0.4]]
    pairs = PairTable(("a", "b"), rates)
    state = ClusterState.from_arrays(
        (GpuType("v100", 2),), np.ones((4, 1)), np.ones(4, dtype=np.int64), np.ones(4),
        job_class=[0, 1, 0, 1], pairs=pairs,
    )  # fmt: skip
    packed = pack(state, [(0, 0), (1, 0)], [2, 3])
    assert {(p.host, p.guest) for p in packed} == {(0, 3), (1, 2)}
    assert all(p.gain > 1.0 for p in packed)
    assert pack(state, [(0, 0)], [2]) == ()
    assert pack(state, [(0, 0)], [3], threshold=1.8) == ()
