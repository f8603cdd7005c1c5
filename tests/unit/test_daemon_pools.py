"""The pool decides, orders and hands out changes of MIG mode: in nodes, within the budget, on idle nodes only."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from daemon_world import Running
from simulated_slurm import SimulatedSlurm

from pyhetsched.cli.mig_live import Changes, changes_to, differences
from pyhetsched.clock import ManualClock
from pyhetsched.config import parse
from pyhetsched.daemon.journal import Journal
from pyhetsched.daemon.pool_demand import demand_of
from pyhetsched.daemon.pools import Pools
from pyhetsched.daemon.steering_plan import Planner, SteeringState
from pyhetsched.mig.inventory import parse_inventory
from pyhetsched.mig.profiles import model_by_key
from pyhetsched.model import GpuReport, JobAsk, SliceAsk
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.slurm.admin_comment import encode
from pyhetsched.slurm.snapshot import PendingJob, RawNode
from pyhetsched.store.decisions import DecisionStore
from pyhetsched.store.recorder import Recorder
from pyhetsched.store.reservations import NodeReport

MODEL = model_by_key("A100-80GB")
SLICE = JobAsk("slices", (SliceAsk("1g.10gb", 1),), model_keys=("A100-80GB",), shards=4)
PAIR = JobAsk("whole", gpus_per_node=2, model_keys=("A100-80GB",))
QUICK = 'enabled = true\nnodes = "node[0-1]"\nallow_reset = true\ngrow_after_s = 0\nshrink_after_s = 0\nrecent_s = 0\n'


class Used(SimulatedSlurm):
    """Slurm that says which nodes' GPUs it has given away."""

    used: frozenset[str] = frozenset()

    def nodes(self) -> list[RawNode]:
        found = super().nodes()
        return [dataclasses.replace(n, gres_used={"gpu:a100": int(n.name in self.used)}) for n in found]


class Site:
    """A daemon with two nodes of two A100 in the pool."""

    def __init__(self, folder: Path, text: str = QUICK) -> None:
        self.slurm, self.clock = Used(), ManualClock(1000.0)
        self.url = f"sqlite:///{folder}/h.db"
        self.waiting: dict[int, JobAsk] = {}
        self.start(text)

    def start(self, text: str = QUICK) -> None:
        """Start, or start anew."""
        self.config = parse(f'[gpus.a100]\nmodel = "A100-80GB"\n[pool]\n{text}')
        self.daemon = Running(self.slurm, self.url, self.clock, self.config)
        decisions = DecisionStore(self.daemon.database)
        self.recorder = Recorder(decisions, 100)
        self.recorder.start()
        journal = Journal(self.recorder, self.clock)
        self.pools = Pools(
            self.daemon.watcher, self.daemon.book, journal, decisions, self.config, self.clock, lambda: self.waiting
        )

    def report(self, node: str, mode: str) -> None:
        """A node says in which mode both its GPUs are."""
        gpus = tuple(GpuReport(i, i, f"GPU-{node}-{i}", "A100-80GB", "A100", 81920, mode) for i in range(2))
        self.daemon.watcher.note_report(NodeReport(node, self.clock.now_s(), "boot", "1", gpus))

    def step(self, after_s: float = 1.0) -> dict[str, str]:
        """Decide once; the orders that then stand."""
        self.clock.advance(after_s)
        self.daemon.watcher.refresh()
        self.pools.step()
        return {node: wanted for node in ("node0", "node1") if (wanted := self.pools.wanted(node))}

    def outcomes(self) -> list[str]:
        self.recorder.flush(5.0)
        return [d.outcome for d in DecisionStore(self.daemon.database).recent(100, kind="pool")]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    for node in ("node0", "node1"):
        made.report(node, "off")
    return made


def test_waiting_slices_bring_one_node_into_mig_mode(site: Site) -> None:
    assert site.step() == {}
    site.waiting = {1: SLICE}
    assert site.step() == {"node0": "on"}
    changes = site.pools.changes("node0")
    assert [(c.gpu_index, c.on, c.reset_allowed) for c in changes] == [(0, True, True), (1, True, True)]
    assert site.pools.changes("node1") == []
    site.report("node0", "on")
    assert site.step() == {}
    assert site.pools.closed_to_slices() == {"node1"}
    assert site.pools.closed_to_whole() == {"node0"}
    assert site.outcomes() == ["ordered", "changed"]


def test_nothing_changes_on_a_node_of_which_slurm_has_given_a_gpu_away(site: Site) -> None:
    site.waiting = {1: SLICE}
    assert site.step() == {"node0": "on"}
    site.slurm.used = frozenset({"node0"})
    assert site.pools.changes("node0") == []
    site.slurm.used = frozenset()
    assert len(site.pools.changes("node0")) == 2


def test_a_busy_node_is_not_chosen(site: Site) -> None:
    site.slurm.used = frozenset({"node0"})
    site.waiting = {1: SLICE}
    assert site.step() == {"node1": "on"}


def test_a_job_for_two_gpus_gets_one_node_and_not_two(site: Site) -> None:
    for node in ("node0", "node1"):
        site.report(node, "on")
    site.waiting = {1: PAIR, 2: SLICE}
    site.slurm.used = frozenset({"node1"})  # the slice runs there; nothing else is wanted
    first = site.step()
    assert list(first.values()) == ["off"]
    site.report(*first, "off")
    assert site.step() == {}


def test_orders_are_given_up_in_time(site: Site) -> None:
    site.waiting = {1: SLICE}
    site.step()
    site.waiting = {}
    assert site.step(after_s=301.0) == {}
    assert site.outcomes() == ["ordered", "given-up"]


def test_a_failure_is_told_and_ends_the_order(site: Site) -> None:
    site.waiting = {1: SLICE}
    site.step()
    site.pools.failed("node0", "GPU 1: in use by pid 7")
    assert site.pools.wanted("node0") == ""
    assert site.outcomes() == ["ordered", "failed"]


def test_the_hourly_budget_outlives_a_restart(tmp_path: Path) -> None:
    site = Site(tmp_path, QUICK + "hourly_changes = 1\n")
    for node in ("node0", "node1"):
        site.report(node, "off")
    site.waiting = dict.fromkeys(range(20), SLICE)
    assert site.step() == {"node0": "on"}
    site.report("node0", "on")
    assert site.step() == {}
    site.outcomes()
    site.start(QUICK + "hourly_changes = 1\n")
    assert site.step() == {}
    assert site.step(after_s=3601.0) == {"node1": "on"}


def test_a_need_must_last(tmp_path: Path) -> None:
    site = Site(tmp_path, QUICK + "\n")
    site.start('enabled = true\nnodes = "node[0-1]"\nallow_reset = true\ngrow_after_s = 60\n')
    site.report("node0", "off")
    site.waiting = {1: SLICE}
    assert site.step() == {}
    assert site.step(after_s=59.0) == {}
    assert site.step(after_s=2.0) == {"node0": "on"}


def test_without_leave_to_reset_ampere_stays_as_it_is(tmp_path: Path) -> None:
    site = Site(tmp_path, QUICK.replace("allow_reset = true", "allow_reset = false"))
    site.report("node0", "off")
    site.waiting = {1: SLICE}
    assert site.step() == {}


@pytest.mark.parametrize(("mode", "changes"), [("on", 0), ("off", 2), ("pending-on", 2)])
def test_operators_order_what_is_not_so_yet(tmp_path: Path, mode: str, changes: int) -> None:
    site = Site(tmp_path, 'nodes = "node0"')
    site.report("node0", mode)
    reply = site.pools.apply(pb.ApplyRequest(modes=[pb.NodeMode(node="node0", on=True)]), 0)
    assert len(reply.ordered) == 1
    assert len(site.pools.changes("node0")) == changes
    reply = site.pools.apply(pb.ApplyRequest(modes=[pb.NodeMode(node="node1", on=True)]), 0)
    assert "not in the pool" in reply.refused[0]


def test_what_keeps_the_pool_from_working_is_said(tmp_path: Path) -> None:
    site = Site(tmp_path, 'enabled = true\nnodes = "node0,node7"\n[steering]\nenabled = false')
    assert [text.split(":")[0] for text in site.pools.warnings()] == [
        "pool.enabled needs steering.enabled", "pool.nodes",
    ]  # fmt: skip
    site.report("node0", "pending-on")
    assert any("not all in one MIG mode" in text for text in site.pools.warnings())


def test_demand_counts_whole_nodes() -> None:
    assert demand_of(MODEL, 4, [], [], 0).nodes == 0
    assert demand_of(MODEL, 4, ["1g.10gb"] * 7 * 4, [], 0).nodes == 1
    assert demand_of(MODEL, 4, ["1g.10gb"] * 7 * 4, [SLICE], 0).nodes == 2
    assert demand_of(MODEL, 4, [], [PAIR], 0).whole_asks == (1,)
    assert demand_of(MODEL, 4, [], [PAIR], 2).whole_asks == ()
    assert demand_of(MODEL, 1, [], [PAIR], 0).whole_asks == ()
    assert demand_of(model_by_key("H100-80GB-SXM"), 4, [], [SLICE, PAIR], 0).nodes == 0


def pending(job_id: int, ask: JobAsk, excluded: str = "") -> PendingJob:
    return PendingJob(job_id, encode(f"{job_id:016x}", ask), 1, ("gpu",), excluded_nodes=excluded)


def planned(site: Site, *jobs: PendingJob) -> Any:
    site.daemon.watcher.refresh()
    state = SteeringState(
        (), site.daemon.watcher.view, {}, closed_to_slices=site.pools.closed_to_slices(),
        closed_to_whole=site.pools.closed_to_whole(), pool=site.daemon.watcher.pool_nodes,
    )  # fmt: skip
    return Planner().plan(jobs, state)


def test_waiting_jobs_keep_off_nodes_in_the_other_mode(site: Site) -> None:
    site.report("node0", "on")
    changes = planned(site, pending(1, SLICE), pending(2, PAIR)).changes
    assert changes == {1: frozenset({"node1"}), 2: frozenset({"node0"})}


def test_no_job_is_kept_from_all_its_nodes(site: Site) -> None:
    """Slurm would hold it."""
    plan = planned(site, pending(1, SLICE), pending(2, PAIR, excluded="node0"))
    assert plan.changes == {2: frozenset()} or plan.changes == {}
    assert set(plan.waiting) == {1, 2}


THERE = parse_inventory("n:0 A100-80GB 1g.10gb@0,3g.40gb@4=7\nn:1 A100-80GB -\n")


@pytest.mark.parametrize(
    ("text", "destroy", "modes", "impossible"),
    [
        ("n:0 A100-80GB 1g.10gb@0,3g.40gb@4\nn:1 A100-80GB -\n", 0, 0, 0),
        ("n:0 A100-80GB 3g.40gb@4", 1, 0, 0),
        ("n:0 A100-80GB -", 1, 0, 1),
        ("n:1 A100-80GB 1g.10gb@0", 0, 0, 1),
        ("n:1 A100-80GB off", 0, 0, 1),
        ("n:0 A100-80GB off\nn:1 A100-80GB off", 1, 1, 1),
        ("m:0 A100-80GB -", 0, 0, 1),
    ],
)
def test_what_leads_from_one_layout_to_another(text: str, destroy: int, modes: int, impossible: int) -> None:
    changes: Changes = changes_to(THERE, parse_inventory(text))
    assert (len(changes.destroy), len(changes.modes), len(changes.impossible)) == (destroy, modes, impossible)
    assert len(changes.lines()) == destroy + modes + impossible


def test_differences_are_told_one_a_line() -> None:
    assert differences(THERE, THERE) == []
    wanted = parse_inventory("n:0 A100-80GB off\nn:1 H100-80GB-SXM -\nx:0 A100-80GB -\n")
    assert differences(THERE, wanted) == [
        "n:0 has 1g.10gb@0,3g.40gb@4, not MIG mode off", "n:1 is a A100-80GB, not a H100-80GB-SXM", "x:0 is not there",
    ]  # fmt: skip
