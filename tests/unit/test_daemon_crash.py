"""kill -9 of the daemon before and after every write to its journal, and a fresh one on the same database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_world import CallFailed, Died, World, states

from pyhetsched.rpc.gen import services_pb2

PLAN = services_pb2.PreparePlan
MOST_WRITES = 200


class Story:
    """Jobs that come, are requeued, given back and end, whatever becomes of the daemon in between.

    Each step is what Slurm and the node do: a hook that gets no answer goes on, a node asks again and keeps its
    reports. The daemon dies at one write; the step in which it does is answered by the next daemon.
    """

    def __init__(self, folder: Path, at: int, after: bool) -> None:
        self.world = World(folder)
        self.world.deadly.at, self.world.deadly.after = at + self.world.deadly.writes, after
        self.killed = False
        self.spool: list[Callable[[], object]] = []

    def survive(self, act: Callable[[], object], again: bool = True) -> object:
        """Do something with the daemon; if that kills it, start another and ask it the same, if anybody would."""
        try:
            return act()
        except Died:
            self.killed = True
            self.world.restart()
            return act() if again else None

    def start(self, job_id: int, node: str = "node0", gpu: int = 0, shards: int = 4) -> bool:
        """Slurm allocates a job and its prologs run; return whether it then runs."""
        slurm = self.world.slurm
        slurm.allocate(job_id, node, gpu, shards)
        self.survive(lambda: self.world.daemon.allocate(job_id, node), again=False)
        if slurm.known[job_id].state == "PENDING":
            return False
        at_node = self.world.nodes[node]
        plan = self.survive(lambda: at_node.prepare(job_id))
        assert isinstance(plan, services_pb2.PreparePlan)
        if plan.action != PLAN.CREATE:
            return False
        assert len(plan.slices) == 1
        at_node.make(plan)
        self.tell(lambda: at_node.report(job_id, "ready"))
        slurm.run(job_id)
        return True

    def end(self, job_id: int, node: str = "node0", requeue: bool = False) -> None:
        """The job ends or is requeued; its epilogs run."""
        if requeue:
            self.world.slurm.requeue(job_id)
        else:
            self.world.slurm.end(job_id)
        at_node = self.world.nodes[node]
        gone = at_node.unmake(job_id)
        self.tell(lambda: at_node.report(job_id, "gone", gone))
        self.survive(lambda: self.world.daemon.finish(job_id), again=False)

    def tell(self, report: Callable[[], object]) -> None:
        """What the node reports; it is told again where the daemon did not take it."""
        try:
            self.survive(report)
        except CallFailed:
            self.spool.append(report)

    def run(self) -> None:
        """Three jobs on one GPU of node0, of which the second has no place at first."""
        slurm = self.world.slurm
        slurm.submit(1, "4g.40gb", shards=16)
        slurm.submit(2, "4g.40gb", shards=16)
        slurm.submit(3, "1g.10gb", shards=4)
        assert self.start(1, shards=16)
        assert not self.start(2, shards=16)  # 31 shards less 16 leave 15: Slurm would not do it, and it must fail
        assert slurm.known[2].state == "PENDING"
        assert self.start(3)
        self.end(1, requeue=True)
        assert self.start(2, shards=16)
        assert self.start(1, node="node1", shards=16)
        for job_id, node in ((3, "node0"), (2, "node0"), (1, "node1")):
            self.end(job_id, node)

    def settle(self) -> None:
        """Nothing may be left once the nodes have been compared."""
        for report in self.spool:
            report()
        for node in self.world.nodes.values():
            self.survive(node.reconcile)
            assert node.made == {}
        self.world.clock.advance(120)
        self.survive(lambda: self.world.daemon.housekeeping._drop_unseen())
        self.survive(lambda: self.world.daemon.giveback.lift())
        assert states(self.world.daemon.book.open()) == []
        assert {job.excluded_nodes for job in self.world.slurm.known.values()} <= {"", "node0"}
        assert {job.state for job in self.world.slurm.known.values()} == {"COMPLETED"}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_daemon_may_die_at_every_write(tmp_path: Path, after: bool) -> None:
    for number in range(MOST_WRITES):
        folder = tmp_path / str(number)
        folder.mkdir()
        story = Story(folder, number, after)
        story.run()
        story.settle()
        if not story.killed:
            break
    assert 15 < number < MOST_WRITES


@pytest.mark.parametrize("number", range(20))
def test_the_database_may_be_full_from_any_write_on(tmp_path: Path, number: int) -> None:
    """Three writes fail; the job goes back to the queue as often as it must, and runs in the end."""
    story = Story(tmp_path, MOST_WRITES, after=False)
    slurm, deadly = story.world.slurm, story.world.deadly
    deadly.full_from = deadly.writes + number
    slurm.submit(1, "4g.40gb", shards=16)
    for _ in range(5):
        try:
            if story.start(1, shards=16):
                break
        except CallFailed:  # the prolog then gives the job back by itself
            slurm.requeue(1)
            story.world.daemon.finish(1)
    story.end(1)
    for _ in range(4):
        waiting, story.spool = story.spool, []
        for report in waiting:
            story.tell(report)
    deadly.full_from = MOST_WRITES
    story.settle()
