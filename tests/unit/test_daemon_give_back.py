"""A job that is given back is never kept from nodes that it cannot do without: Slurm would hold it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from daemon_world import World

from pyhetsched.slurm.allocation import NodeAllocation


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, ("node0", "node1", "node2"))


def give_back(world: World, **changes: object) -> dict[str, str]:
    """Let a job on node0 be given back there; return what Slurm was told of it."""
    world.slurm.submit(7, "1g.10gb", shards=4)
    world.slurm.allocate(7)
    world.slurm.known[7] = job = dataclasses.replace(world.slurm.known[7], **changes)  # type: ignore[arg-type]
    world.daemon.allocator.learn(job)
    world.daemon.allocator.give_back(job, "node0", "no place")
    assert world.slurm.requeued == [7]
    return world.slurm.updates[-1][1]


def test_it_is_kept_from_the_node_that_had_no_place(world: World) -> None:
    assert give_back(world) == {"ExcNodeList": "node0", "StartTime": "now"}


def test_a_job_that_requires_the_node_waits_for_it(world: World) -> None:
    assert give_back(world, required_nodes="node[0-1]") == {"ExcNodeList": "", "StartTime": "now+1"}


def test_a_job_of_several_nodes_keeps_as_many(world: World) -> None:
    two = tuple(NodeAllocation(name, (), {0: 4}) for name in ("node0", "node1"))
    assert give_back(world, node_list="node[0-1]", nodes=two)["ExcNodeList"] == "node0"
    three = (*two, NodeAllocation("node2", (), {0: 4}))
    world.slurm.requeued.clear()
    assert give_back(world, node_list="node[0-2]", nodes=three) == {"ExcNodeList": "", "StartTime": "now+2"}


def test_a_job_whose_constraint_no_other_node_meets_waits(world: World) -> None:
    assert give_back(world, features="a100&mig") == {"ExcNodeList": "node0", "StartTime": "now"}
    world.slurm.requeued.clear()
    first, *others = world.slurm.nodes()
    marked = dataclasses.replace(first, features=(*first.features, "rack1"))
    world.slurm.nodes = lambda: [marked, *others]  # type: ignore[method-assign]
    world.daemon.watcher.refresh()
    assert give_back(world, features="a100&rack1") == {"ExcNodeList": "", "StartTime": "now+2"}
