"""Rounds: what a policy wants, the fewest updates for it, what is left alone, and the ladder when a policy fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyhetsched.clock import ManualClock
from pyhetsched.config import PolicyConfig, parse
from pyhetsched.daemon.modes import ModeTable
from pyhetsched.daemon.round_changes import STEPS, Applied, Change, Picture, changes, withdrawals
from pyhetsched.daemon.round_plan import RoundPlan, RoundSettings, plan
from pyhetsched.daemon.round_process import RoundReply, RoundRequest, RoundWorker
from pyhetsched.daemon.round_reach import types_of_view
from pyhetsched.daemon.round_tables import Tables
from pyhetsched.daemon.round_worth import Appraiser, PastRuns, Workload, slug
from pyhetsched.daemon.rounds import Rounds
from pyhetsched.errors import ConfigError, RequestError, SlurmError, SolverError
from pyhetsched.model import ClusterView, Decision, GpuGroup, JobAsk, Mode, NodeView, SliceAsk
from pyhetsched.policies.registry import policy as register
from pyhetsched.slurm.admin_comment import encode
from pyhetsched.slurm.gpu_jobs import GpuJob, counts, parse_site_factors
from pyhetsched.store.database import Database
from pyhetsched.store.decisions import DecisionStore
from pyhetsched.store.runs import Run, RunStore
from pyhetsched.throughput.estimator import Ground
from pyhetsched.throughput.tables import ThroughputTable

MODELS = {"a100": "A100-80GB", "h100": "H100-80GB-SXM", "v100": "V100-32GB"}
# What the site has measured: "grows" gains much from an h100, "same" nothing, "old" is fastest on a v100.
TABLE = ThroughputTable(
    (("grows", 1), ("same", 1), ("old", 1)), ("a100", "h100", "v100"), np.array([[4.0, 12, 1], [5, 5, 5], [1, 1, 3]])
)
ENFORCE = ModeTable(Mode.ENFORCE, {})


def node(name: str, gpu_type: str, count: int = 4, mig: bool = False, usable: bool = True) -> NodeView:
    features = frozenset({gpu_type, "mig" if mig else "whole"})
    group = GpuGroup(gpu_type, MODELS[gpu_type], count, mig, 31 if mig else 0)
    return NodeView(name, features, (group,), frozenset({"gpu"}), usable=usable)


VIEW = ClusterView((node("a0", "a100", mig=True), node("h0", "h100"), node("v0", "v100"), node("v1", "v100")))


def waiting(job_id: int, gpus: int = 1, ask: JobAsk | None = None, **more: Any) -> GpuJob:
    known = ask or JobAsk("whole", gpus_per_node=gpus)
    values = dict(user="alice", uid=1001, name="train", account="bio", partitions=("gpu",), gpus=gpus, limit_s=3600.0,
                  submit_s=1000.0 + job_id, admin_comment=encode(f"{job_id:016x}", known))  # fmt: skip
    return GpuJob(job_id, "PENDING", **{**values, **more})


def running(job_id: int, nodes: str, gpus: int = 1, **more: Any) -> GpuJob:
    values = dict(user="bob", uid=1002, name="other", partitions=("gpu",), gpus=gpus, nodes=nodes, limit_s=3600.0,
                  submit_s=500.0, start_s=600.0, run_s=60.0)  # fmt: skip
    return GpuJob(job_id, "RUNNING", **{**values, **more})


def planned(
    jobs: list[GpuJob], classes: Mapping[int, str] | None = None, name: str = "min-jct", view: ClusterView = VIEW,
    runs: PastRuns | None = None, **settings: Any,
) -> RoundPlan:  # fmt: skip
    types = [item.name for item in types_of_view(view)]
    appraiser = Appraiser(types, MODELS, [TABLE], runs or PastRuns())
    return plan(jobs, view, appraiser, classes or {}, RoundSettings(name, **settings), ManualClock(5000.0))


def by_job(found: RoundPlan) -> dict[int, Any]:
    return {wish.job.job_id: wish for wish in found.wishes}


# What is wanted


def test_a_job_that_is_known_to_gain_prefers_the_type_it_gains_from() -> None:
    found = planned([waiting(1)], {1: "grows"})
    wish = found.wishes[0]
    assert (wish.wanted, wish.prefer, wish.rank) == ("h100", "h100", 1)
    assert "h100 is 3 times as fast" in wish.why
    seconds = {item.name: item.score for item in found.candidates(wish)}
    assert seconds["v100"] == pytest.approx(12 * seconds["h100"])
    assert [item.name for item in found.candidates(wish) if item.chosen] == ["h100"]


def test_a_preference_keeps_within_the_jobs_own_constraint() -> None:
    # Slurm tries --prefer in place of --constraint, so it must say both.
    found = planned([waiting(1, features="a100|h100"), waiting(2, features="whole")], {1: "grows", 2: "grows"})
    assert {w.job.job_id: w.prefer for w in found.wishes} == {1: "(a100|h100)&h100", 2: "whole&h100"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "not known"),
        ({"gres_type": "v100"}, "only v100"),
        ({"features": "[a100|h100]"}, "no feature"),
        ({"features": "a100"}, "only a100"),
        ({"gpus": 0, "shards": 4, "ask": JobAsk("slices", (SliceAsk("1g.10gb", 1),), shards=4)}, "only put in order"),
    ],
)
def test_without_knowledge_or_choice_nothing_is_preferred(more: dict[str, Any], why: str) -> None:
    classes = {1: "grows"} if more and "shards" not in more else {}
    found = planned([waiting(1, **more)], classes)
    assert found.wishes[0].prefer == ""
    assert why in found.wishes[0].why


def test_types_that_are_equally_fast_are_all_welcome() -> None:
    assert "equally fast" in planned([waiting(1)], {1: "same"}).wishes[0].why


def test_who_gains_little_leaves_the_fast_type_to_who_gains_much() -> None:
    half = ThroughputTable((("half", 1),), ("a100", "h100", "v100"), np.array([[0.9, 1.0, 0.8]]))
    types = [item.name for item in types_of_view(VIEW)]
    jobs = [waiting(job_id) for job_id in range(1, 25)]
    classes = {job.job_id: "grows" if job.job_id % 2 else "half" for job in jobs}
    found = plan(jobs, VIEW, Appraiser(types, MODELS, [TABLE, half], PastRuns()), classes, RoundSettings(),
                 ManualClock(5000.0))  # fmt: skip
    modest = [wish for wish in found.wishes if classes[wish.job.job_id] == "half"]
    eager = [wish for wish in found.wishes if classes[wish.job.job_id] == "grows"]
    assert sum(wish.wanted == "h100" for wish in eager) > sum(wish.wanted == "h100" for wish in modest)
    assert any(wish.prefer == "v100" for wish in modest)


def test_short_jobs_go_first_and_past_runs_say_what_is_short() -> None:
    runs = PastRuns([Run(9, float(n), "alice", f"quick_{n}", "v100", 1, 60.0, n + 60.0) for n in range(3)])
    found = planned([waiting(1), waiting(2, name="quick_77")], runs=runs)
    assert [wish.job.job_id for wish in found.wishes] == [2, 1]


def test_jobs_that_opted_out_or_are_unknown_or_parts_of_others_are_only_counted() -> None:
    jobs = [waiting(1, ask=JobAsk("whole")), waiting(2, admin_comment=""), waiting(3, het=True), waiting(4),
            waiting(5, ask=JobAsk("plain"))]  # fmt: skip
    found = planned(jobs, dict.fromkeys(range(1, 6), "grows"))
    assert [wish.job.job_id for wish in found.wishes] == [4]
    assert found.pending == 5


def test_held_and_dependent_jobs_are_not_planned_for() -> None:
    jobs = [waiting(1, reason="JobHeldAdmin"), waiting(2, reason="Dependency"), waiting(3, reason="Priority")]
    assert [wish.job.job_id for wish in planned(jobs).wishes] == [3]


def test_what_runs_stays_even_on_a_node_that_is_being_drained() -> None:
    view = replace(VIEW, nodes=(node("a0", "a100", mig=True), node("h0", "h100", usable=False), node("v0", "v100")))
    found = planned([running(8, "h0", gpus=4), waiting(1)], {1: "grows"}, view=view)
    assert found.running == 1
    assert found.reasons == ()
    assert by_job(found)[1].wanted in ("a100", "v100")


def test_a_job_on_several_types_holds_all_of_them() -> None:
    mixed = running(8, "h0,v0", gpus=6, node_count=2, by_type=(("h100", 4), ("v100", 2)))
    found = planned([mixed, waiting(1)], {1: "grows"})
    assert found.running == 1
    assert by_job(found)[1].wanted == "a100"
    assert planned([waiting(1, gpus=2, by_type=(("a100", 1), ("h100", 1)))]).wishes == ()


def test_slices_and_whole_gpus_are_counted_in_one_unit() -> None:
    ask = JobAsk("slices", (SliceAsk("1g.10gb", 1),), model_keys=("A100-80GB",), shards=4)
    found = planned([waiting(1, gpus=0, shards=4, ask=ask), waiting(2)])
    assert {item.name: item.count for item in found.types} == {"a100": 124, "h100": 124, "v100": 248}
    assert by_job(found)[1].wanted == "a100"


@pytest.mark.parametrize("name", ["max-min", "finish-time", "makespan", "fifo", "allox", "isolated", "hierarchical"])
def test_every_kind_of_policy_gives_every_job_a_place(name: str) -> None:
    jobs = [waiting(n) for n in range(1, 9)] + [running(20, "h0", gpus=2)]
    found = planned(jobs, {1: "grows", 2: "old"}, name)
    assert sorted(wish.job.job_id for wish in found.wishes) == list(range(1, 9))
    assert [wish.rank for wish in found.wishes] == list(range(1, 9))


def test_jobs_that_no_node_can_serve_are_left_out() -> None:
    assert planned([waiting(1, gpus=64)]).wishes == ()
    assert planned([waiting(1, features="nosuch&")]).wishes == ()


# The ladder


@pytest.fixture
def _bad_policies() -> Iterator[None]:
    from pyhetsched.policies import registry

    @register("test-raises", summary="a bug", fall_to=("fifo",))
    def raises(state: Any, options: Any, context: Any) -> Any:
        raise ZeroDivisionError("a bug of its own")

    yield
    del registry._POLICIES["test-raises"]


@pytest.mark.usefixtures("_bad_policies")
def test_a_policy_with_a_bug_costs_its_order_and_the_record_says_so() -> None:
    found = planned([waiting(1), waiting(2)], name="test-raises")
    assert found.policy == "fifo"
    assert found.reasons == ("test-raises: ZeroDivisionError: a bug of its own",)
    assert len(found.wishes) == 2


def test_a_policy_without_time_falls_down_its_ladder() -> None:
    found = planned([waiting(1), waiting(2)], name="max-min", budget_s=-1.0)
    assert found.policy != "max-min"
    assert any("time budget used up" in reason for reason in found.reasons)


def test_an_unknown_policy_is_the_one_thing_that_is_refused() -> None:
    with pytest.raises(ConfigError, match="no policy 'nosuch'"):
        planned([waiting(1)], name="nosuch")


# The fewest updates


def wanted(found: RoundPlan, mode: Mode = Mode.ENFORCE, modes: ModeTable = ENFORCE, points: int = 1000,
           **picture: Any) -> list[Change]:  # fmt: skip
    values: dict[str, Any] = {"applied": {}, "told": {}, "factors": {}, **picture}
    return changes(found, mode, modes, Picture(**values), points)


def test_places_are_spread_between_the_bounds_and_nothing_is_set_twice() -> None:
    found = planned([waiting(n) for n in range(1, 101)])
    first = wanted(found)
    factors = {change.job.job_id: change.site_factor or 0 for change in first}
    assert (max(factors.values()), min(factors.values())) == (1000, -1000)
    assert len(set(factors.values())) <= 2 * STEPS + 1
    applied = {change.job.job_id: change.after for change in first}
    assert wanted(found, applied=applied, factors=factors) == []


def test_a_small_move_in_a_long_queue_is_no_update() -> None:
    jobs = [waiting(n) for n in range(1, 101)]
    first = {change.job.job_id: change.after for change in wanted(planned(jobs))}
    factors = {job_id: item.site_factor for job_id, item in first.items()}
    assert wanted(planned(jobs[1:]), applied=first, factors=factors) == []


def test_a_lone_job_needs_no_place() -> None:
    assert wanted(planned([waiting(1)])) == []


@pytest.mark.parametrize(
    ("job", "picture"),
    [
        (waiting(1, prefer="v100"), {}),
        (waiting(1, prefer="v100"), {"applied": {1: Applied("h100")}}),
        (waiting(1), {"applied": {1: Applied("a100")}}),
    ],
)
def test_an_owners_word_on_preferences_is_left_alone(job: GpuJob, picture: dict[str, Any]) -> None:
    found = wanted(planned([job], {1: "grows"}), **picture)
    assert [change for change in found if change.prefer is not None] == []


def test_a_start_uses_a_preference_up_so_it_is_set_again() -> None:
    found = wanted(planned([waiting(1, restarts=1)], {1: "grows"}), applied={1: Applied("h100", 0, 0)})
    assert [(change.prefer, change.after) for change in found] == [("h100", Applied("h100", 0, 1))]


def test_a_factor_that_somebody_else_set_is_left_alone() -> None:
    jobs = [waiting(1), waiting(2), waiting(3)]
    found = wanted(planned(jobs), factors={1: 77, 2: 0}, applied={3: Applied("", 5)})
    assert {change.job.job_id for change in found if change.site_factor is not None} <= {2, 3}


def test_without_multifactor_priorities_only_types_are_preferred() -> None:
    found = wanted(planned([waiting(1), waiting(2)], {1: "grows", 2: "grows"}), factors=None)
    assert all(change.site_factor is None and change.prefer == "h100" for change in found)


def test_the_narrower_mode_holds() -> None:
    found = planned([waiting(1), waiting(2, user="carl"), waiting(3, account="off")], dict.fromkeys((1, 2, 3), "grows"))
    modes = ModeTable(Mode.ENFORCE, {"user=carl": "shadow", "account=off": "off"})
    assert {c.job.job_id: c.mode for c in wanted(found, modes=modes)} == {1: Mode.ENFORCE, 2: Mode.SHADOW}
    assert {c.mode for c in wanted(found, Mode.SHADOW, modes)} == {Mode.SHADOW}
    assert wanted(found, modes=ModeTable(Mode.ENFORCE, {}, disabled=True)) == []


def test_what_was_set_is_taken_back_when_a_job_leaves_enforce() -> None:
    job = waiting(1, prefer="h100")
    modes = ModeTable(Mode.ENFORCE, {"user=alice": "off"})
    picture: dict[str, Any] = {"applied": {1: Applied("h100", 300)}, "factors": {1: 300}}
    found = wanted(planned([job], {1: "grows"}), modes=modes, **picture)
    assert [(change.prefer, change.site_factor, change.wish) for change in found] == [("", 0, None)]
    taken = withdrawals([job, running(2, "h0")], Picture(told={}, **picture))
    assert [(change.prefer, change.site_factor) for change in taken] == [("", 0)]


def test_updates_of_one_round_are_bounded() -> None:
    jobs = [waiting(n) for n in range(1, 1201)]
    found = wanted(planned(jobs, {job.job_id: "grows" for job in jobs}))
    assert sum(change.prefer is not None for change in found) <= 100
    assert sum(change.site_factor is not None for change in found) <= 500


# What it is worth


def test_classes_are_written_as_they_can_be_behind_class() -> None:
    assert slug("ResNet-18 (batch size 16)") == "resnet-18-batch-size-16"
    tables, said = Tables().of(["v100", "a100"], "")
    found = Appraiser(["a100", "v100"], MODELS, tables, PastRuns()).appraise(
        [Workload("u", "n", 3, "ResNet-18-batch-size-16", 100.0)]
    )
    assert said == []
    assert found.ground[0].tolist() == [Ground.ASSUMED, Ground.KNOWN]
    assert found.work[0] == pytest.approx(100.0 * np.sqrt(found.rates[0].prod()))


def test_a_sites_table_is_read_and_a_wrong_one_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("job_type,scale_factor,worker_type,steps_per_s\nBert,1,A100,4\nBert,1,H100,9\n")
    tables, said = Tables().of(["a100", "h100"], str(path))
    assert said == []
    assert [table.types for table in tables] == [("a100", "h100")]
    path.write_text("job_type,steps\nBert,4\n")
    assert "cannot be used" in Tables().of(["a100"], str(path))[1][0]
    assert "cannot be used" in Tables().of(["a100"], str(tmp_path / "none.csv"))[1][0]


def test_past_runs_measure_types_and_carry_over_to_others() -> None:
    runs = [Run(n, float(n), "alice", "train", "v100", 1, 1200.0, 1.0) for n in range(4)]
    twice = (("v100", 800.0), ("h100", 200.0))
    runs += [Run(n, float(n), "carl", "fit", name, 1, s, 1.0) for n in range(4) for name, s in twice]
    found = Appraiser(["h100", "v100"], MODELS, [], PastRuns(runs)).appraise([Workload("alice", "train", 1)])
    assert found.ground[0].tolist() == [Ground.INFERRED, Ground.MEASURED]
    assert (found.work / found.rates[0]).tolist() == pytest.approx([300.0, 1200.0])


def test_what_nothing_is_known_of_is_guessed_and_said_to_be() -> None:
    found = Appraiser(["h100", "v100", "odd"], MODELS, [], PastRuns()).appraise([Workload("u", "n", 1, "", 60.0)])
    assert (found.ground == Ground.ASSUMED).all()
    assert found.rates[0, 0] > found.rates[0, 2] > found.rates[0, 1]


def test_slurms_words_are_read() -> None:
    assert counts({"gpu": 2, "gpu:a100": 1, "gpu:h100": 1}) == (2, 0, (("a100", 1), ("h100", 1)))
    assert counts({"gpu:v100": 3}) == (3, 0, (("v100", 3),))
    assert counts({"shard": 4}) == (0, 4, ())
    assert parse_site_factors(" 8|0\n10|-77\nodd\n") == {8: 0, 10: -77}


# The process


@dataclass
class Queue:
    """Slurm as far as rounds talk to it."""

    jobs: list[GpuJob]
    updates: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    factors: dict[int, int] = field(default_factory=dict)
    refuse: str = ""

    def gpu_jobs(self) -> list[GpuJob]:
        return self.jobs

    def site_factors(self) -> dict[int, int]:
        return self.factors

    def order_by(self, job_id: int, site_factor: int) -> None:
        self.update(job_id, {"SiteFactor": str(site_factor)})

    def update(self, job_id: int, fields: Mapping[str, str]) -> None:
        if self.refuse:
            raise SlurmError("scontrol update", self.refuse)
        self.updates.append((job_id, dict(fields)))
        self.factors[job_id] = int(fields.get("SiteFactor", self.factors.get(job_id, 0)))
        self.jobs = [replace(j, prefer=fields.get("Prefer", j.prefer)) if j.job_id == job_id else j for j in self.jobs]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    base = Database(f"sqlite:///{tmp_path}/hetsched.db")
    yield base
    base.close()


@pytest.fixture
def site_table(tmp_path: Path) -> str:
    path = tmp_path / "mine.csv"
    rows = "".join(f"grows,1,{t},{r}\n" for t, r in (("a100", 4), ("h100", 12), ("v100", 1)))
    path.write_text("job_type,scale_factor,worker_type,steps_per_s\n" + rows)
    return str(path)


def asked(store: DecisionStore, job: GpuJob, text: str) -> None:
    """The decision of a job's submit."""
    decision_id = f"{job.job_id:016x}"
    store.add([Decision(decision_id, 1.0, "submit", 0, job.uid, "enforce", text, "", "unchanged")])


def round_of(worker: RoundWorker, kind: str = "round", mode: str = "enforce", **policy: Any) -> RoundReply:
    return worker.answer(RoundRequest(kind, VIEW, ENFORCE, PolicyConfig(mode=mode, **policy)))  # type: ignore[arg-type]


def worker_on(queue: Queue, database: Database) -> RoundWorker:
    return RoundWorker(queue, database, ManualClock(5000.0))  # type: ignore[arg-type]


def test_a_round_sets_prefer_and_records_why_and_a_new_process_remembers(
    database: Database, site_table: str
) -> None:
    store = DecisionStore(database)
    queue = Queue([waiting(1), waiting(2)])
    for job in queue.jobs:
        asked(store, job, f"gpu:1 class={'grows' if job.job_id == 1 else 'other'}")
    reply = round_of(worker_on(queue, database), throughputs=site_table)
    assert reply.failed == ""
    assert (1, {"Prefer": "h100", "SiteFactor": queue.updates[0][1]["SiteFactor"]}) in queue.updates
    record = next(item for item in reply.decisions if item.job_id == 1)
    assert (record.kind, record.outcome, record.mode) == ("round", "preferred", "enforce")
    assert record.detail["class"] == "grows"
    assert [item.name for item in record.candidates][0] == "h100"
    store.add(reply.decisions)
    queue.updates.clear()
    assert round_of(worker_on(queue, database), throughputs=site_table).decisions == ()
    assert queue.updates == []


def test_shadow_touches_nothing_and_says_each_thing_once(database: Database, site_table: str) -> None:
    queue = Queue([waiting(1), waiting(2)])
    asked(DecisionStore(database), queue.jobs[0], "gpu:1 class=grows")
    worker = worker_on(queue, database)
    first = round_of(worker, mode="shadow", throughputs=site_table)
    assert {item.mode for item in first.decisions} == {"shadow"}
    assert "prefers h100" in next(item.became for item in first.decisions if item.job_id == 1)
    assert round_of(worker, mode="shadow", throughputs=site_table).decisions == ()
    assert queue.updates == []


def test_switching_off_takes_back_what_was_set(database: Database, site_table: str) -> None:
    queue = Queue([waiting(1), waiting(2)])
    asked(DecisionStore(database), queue.jobs[0], "gpu:1 class=grows")
    worker = worker_on(queue, database)
    round_of(worker, throughputs=site_table)
    reply = round_of(worker, "withdraw")
    assert {item.outcome for item in reply.decisions} == {"withdrawn"}
    assert {job.prefer for job in queue.jobs} == {""}
    assert set(queue.factors.values()) == {0}
    assert round_of(worker, "withdraw").decisions == ()


def test_an_update_that_slurm_refuses_is_tried_again(database: Database) -> None:
    queue = Queue([waiting(1), waiting(2)], refuse="Job is no longer pending execution")
    worker = worker_on(queue, database)
    reply = round_of(worker)
    assert reply.summary is not None
    assert (reply.decisions, reply.summary.refused) == ((), 2)
    queue.refuse = ""
    assert len(round_of(worker).decisions) == 2


def test_of_an_array_the_elements_that_run_do_not_keep_the_others_from_it(database: Database) -> None:
    queue = Queue([waiting(1, array=True), waiting(2)], refuse="1_[3]: Job is no longer pending execution")
    assert [item.job_id for item in round_of(worker_on(queue, database)).decisions] == [1]


def test_runs_that_ended_well_are_recorded_once(database: Database) -> None:
    ended = replace(running(5, "h0", gpus=2), state="COMPLETED", run_s=90.0, end_s=700.0)
    strange = [replace(ended, job_id=6, nodes="h0,v0", node_count=2), replace(ended, job_id=7, gpus=0, shards=4)]
    worker = worker_on(Queue([ended, *strange]), database)
    round_of(worker)
    round_of(worker)
    assert RunStore(database).recent(9) == [Run(5, 600.0, "bob", "other", "h100", 2, 90.0, 700.0)]


def test_would_changes_nothing_and_tells_as_many_as_are_asked_for(database: Database) -> None:
    queue = Queue([waiting(1), waiting(2)])
    worker = worker_on(queue, database)
    request = RoundRequest("would", VIEW, ENFORCE, PolicyConfig(name="fifo"), limit=1)
    reply = worker.answer(request)
    assert reply.summary is not None
    assert (reply.summary.policy, reply.summary.pending) == ("fifo", 2)
    assert [row.wish.job.job_id for row in reply.rows] == [1]
    assert queue.updates == []
    assert "no policy" in round_of(worker, "would", name="nosuch").invalid


def test_what_was_asked_a_moment_ago_is_not_looked_at_again(database: Database) -> None:
    worker, asked_for = worker_on(Queue([waiting(1)]), database), []
    rounds, _ = rounds_with(lambda request: asked_for.append(request) or worker.answer(request))
    assert rounds.would("", {}, 10) is rounds.would("", {}, 10)
    rounds.would("fifo", {}, 10)
    assert [request.policy.name for request in asked_for] == ["min-jct", "fifo"]
    rounds.stop()


def test_a_slurm_that_is_away_fails_the_round_and_no_more(database: Database) -> None:
    class Away(Queue):
        def gpu_jobs(self) -> list[GpuJob]:
            raise SlurmError("Jobs.load", "Unable to contact slurm controller")

    assert "Unable to contact" in round_of(worker_on(Away([]), database)).failed


# The serving side


@dataclass
class _Stage:
    """Stands where watcher, modes, journal and recorder would."""

    view: ClusterView = VIEW
    records: list[Decision] = field(default_factory=list)

    def table(self) -> ModeTable:
        return ENFORCE

    def disabled(self) -> bool:
        return False

    @property
    def recorder(self) -> _Stage:
        return self

    def record(self, decision: Decision) -> None:
        self.records.append(decision)


def rounds_with(answer: Any, rest_s: float = 5.0) -> tuple[Rounds, _Stage]:
    """Rounds whose process is a thread that answers by a function (None: never)."""

    def start(connection: Connection, config: Any) -> None:
        mine = connection._handle  # type: ignore[attr-defined]
        import os
        from multiprocessing.connection import Connection as Pipe

        own = Pipe(os.dup(mine))

        def serve() -> None:
            with own:
                while True:
                    try:
                        reply = answer(own.recv())
                    except (EOFError, OSError):
                        return
                    if reply is not None:
                        own.send(reply)

        threading.Thread(target=serve, daemon=True).start()

    stage = _Stage()
    config = parse('[policy]\nmode = "enforce"\nbudget_s = 0.05\n')
    held: Any = stage
    return Rounds(held, held, held, config, start, rest_s), stage


def test_a_policy_that_hangs_is_ended_and_another_answers_and_says_why(database: Database) -> None:
    worker = worker_on(Queue([waiting(1), waiting(2)]), database)
    rounds, stage = rounds_with(lambda r: None if r.policy.name == "min-jct" else worker.answer(r), 0.2)
    with pytest.raises(SolverError, match="min-jct: no answer within"):
        rounds._turn()
    rounds._turn()
    assert rounds.summaries[-1].policy == "fifo"
    assert "min-jct: no answer" in rounds.summaries[-1].reasons[0]
    assert any(item.outcome == "fell back" for item in stage.records)
    rounds.stop()


def test_a_policy_is_looked_at_before_it_is_taken(database: Database) -> None:
    worker = worker_on(Queue([waiting(1)]), database)
    rounds, _ = rounds_with(worker.answer)
    with pytest.raises(RequestError, match="no policy 'nosuch'"):
        rounds.set(name="nosuch")
    with pytest.raises(RequestError, match="unknown mode"):
        rounds.set(mode="on")
    rounds.set("shadow", "max-min")
    assert (rounds.policy.mode, rounds.policy.name) == ("shadow", "max-min")
    rounds.take(parse(""))
    assert (rounds.policy.mode, rounds.policy.name) == ("off", "min-jct")
    rounds.stop()


def test_no_process_is_started_while_rounds_are_off(database: Database) -> None:
    rounds, stage = rounds_with(lambda request: pytest.fail("asked"))
    rounds.set("off")
    rounds._turn()
    assert stage.records == []
    rounds.stop()
