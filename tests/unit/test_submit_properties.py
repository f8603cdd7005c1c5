"""What holds for every request on every cluster."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pyhetsched.mig.profiles import catalogue, mig_models, model_by_key, shards_per_gpu, weight
from pyhetsched.model import (
    ClusterView,
    GpuGroup,
    JobField,
    NodeView,
    PartitionView,
    SubmitOutcome,
    SubmitRequest,
    Verdict,
)
from pyhetsched.slurm.features import FeatureError, is_special, parse_features, satisfies
from pyhetsched.slurm.gres import parse_gres
from pyhetsched.slurm.hosts import expand
from pyhetsched.submit import SubmitPolicy, decide, registry

TRES = (JobField.TRES_PER_NODE, JobField.TRES_PER_JOB, JobField.TRES_PER_SOCKET, JobField.TRES_PER_TASK)
MODELS = ("A100-80GB", "A100-40GB", "H100-80GB-SXM", "A30-24GB", "V100-32GB", "RTX-PRO-6000-Blackwell")


def group(key: str, count: int, mig: bool) -> GpuGroup:
    model = model_by_key(key)
    cut = mig and model.mig_capable
    return GpuGroup(model.gres_type, key, count, cut, shards_per_gpu(model) if cut else 0)


groups = st.builds(group, st.sampled_from(MODELS), st.integers(1, 8), st.booleans())


@st.composite
def clusters(draw: st.DrawFn) -> ClusterView:
    nodes = []
    for index in range(draw(st.integers(0, 5))):
        mine = draw(st.lists(groups, min_size=0, max_size=2, unique_by=lambda g: g.gres_type))
        mark = "mig" if any(g.mig_enabled for g in mine) else "whole"
        labels = {mark, *(g.gres_type for g in mine)} if draw(st.integers(0, 3)) else set()
        labels |= draw(st.sets(st.sampled_from(["rack1", "rack2"])))
        nodes.append(NodeView(f"n{index}", frozenset(labels), tuple(mine), frozenset({"gpu"})))
    return ClusterView(tuple(nodes), (PartitionView("gpu", frozenset(n.name for n in nodes), is_default=True),))


profiles = sorted({p.name for m in mig_models() for p in m.profiles})
others = "a100 h100 v100 A100 a10O h200 20gb 40gb 400gb a100_1g.10gb 1g.1Ogb 1c.3g.40gb"
kinds = st.sampled_from([*profiles, "", *others.split()])
gpus = st.builds(lambda kind, count: f"gres/gpu:{kind}:{count}".replace("::", ":"), kinds, st.integers(0, 40))
lists = st.one_of(st.just(""), st.lists(gpus, min_size=1, max_size=3).map(",".join))
odd = st.sampled_from(
    ["gres/shard:4", "gres/shard:a100:4", "gpu:x:y:z", "gres/nic:1", "cpu=2", "(null)", "gpu:1g", "gpu:("]
)
tres = st.one_of(st.just(""), lists, st.builds("{},{}".format, lists, odd), odd, st.text(max_size=20))
constraints = "a100 v100 rack1|rack2 rack1&(a100|h100) [rack1|rack2] rack1*2 ( other"
features = st.sampled_from(["", *constraints.split()])
lines = st.lists(
    st.sampled_from(
        [
            "min-vram=40G",
            "min-vram=1T",
            "min-vram=4",
            "min-cc=8.0",
            "types=a100,h100",
            "types=x",
            "slices=only",
            "slices=no",
            "slices=ok",
            "not-slower-than=v100",
            "preemptible=yes",
            "class=a",
            "flex=yes",
            "opt-out",
            "what=ever",
        ]
    ),
    max_size=3,
)
small = st.integers(0, 9)
requests = st.builds(
    SubmitRequest,
    tres_per_node=tres,
    tres_per_job=st.one_of(st.just(""), tres),
    tres_per_socket=st.one_of(st.just(""), st.just(""), tres),
    tres_per_task=st.one_of(st.just(""), tres),
    cpus_per_tres=st.sampled_from(["", "gres/gpu:4", "gpu:("]),
    mem_per_tres=st.sampled_from(["", "gres/gpu:4096"]),
    ntasks_per_tres=st.sampled_from([0, 0, 1, 2]),
    features=features,
    partition=st.sampled_from(["", "gpu", "gpu,other", "none"]),
    comment=st.sampled_from(["", "hello", "hetsched:min-vram=20G,min-cc=8.0", "x hetsched:opt-out"]),
    script_lines=lines.map(tuple),
    min_nodes=small,
    max_nodes=small,
    num_tasks=small,
    ntasks_per_node=small,
    required_nodes=st.sampled_from(["", "n0", "n[0-2]"]),
    excluded_nodes=st.sampled_from(["", "n1", "n[", "n[0-99999999999]", "@all"]),
    batch=st.booleans(),
    exclusive=st.booleans(),
)


def shards_in(outcome: SubmitOutcome) -> list[int]:
    return [e.amount for f in TRES for e in parse_gres(outcome.changes.get(f, "")) if e.name == "shard"]


def gpus_per_node(request: SubmitRequest, outcome: SubmitOutcome) -> int:
    text = outcome.changes.get(JobField.TRES_PER_NODE, request.tres_per_node)
    return sum(e.amount for e in parse_gres(text) if e.name == "gpu")


def reachable(request: SubmitRequest, outcome: SubmitOutcome, view: ClusterView) -> list[NodeView]:
    """The nodes that features and excluded nodes leave to the job as rewritten."""
    expression = parse_features(outcome.changes.get(JobField.FEATURES, request.features))
    excluded = set(expand(outcome.changes.get(JobField.EXCLUDED_NODES, "")))
    known = frozenset(f for n in view.nodes for f in n.features)
    return [n for n in view.nodes if n.name not in excluded and satisfies(expression, n.features, known)]


@settings(max_examples=400, deadline=None)
@given(requests, clusters())
def test_every_answer_is_sound(request: SubmitRequest, view: ClusterView) -> None:
    outcome = decide(request, view)
    assert not outcome.broken_rules
    if outcome.verdict is not Verdict.REWRITTEN:
        assert not outcome.changes
        assert not outcome.drop_environment
    if outcome.verdict is Verdict.REFUSED:
        assert outcome.message.startswith("hetsched: ")
        assert len(outcome.message) <= 1000
        assert outcome.message.count(". ") <= 1
    for field in TRES:
        for entry in parse_gres(outcome.changes.get(field, "")):
            assert entry.name != "shard" or entry.type is None
    assert sum(candidate.chosen for candidate in outcome.candidates) <= 1


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(profiles), st.integers(1, 9)), min_size=1, max_size=3), features, clusters())
def test_slices_cost_what_they_weigh(asked: list[tuple[str, int]], own: str, view: ClusterView) -> None:
    text = ",".join(f"gres/gpu:{name}:{count}" for name, count in asked)
    request = SubmitRequest(tres_per_node=text, features=own, batch=True)
    outcome = decide(request, view)
    assert not outcome.broken_rules
    if outcome.verdict is not Verdict.REWRITTEN:
        assert not view.nodes or outcome.verdict is Verdict.REFUSED or not any(n.gpus for n in view.nodes)
        return
    ask = outcome.ask
    assert ask.kind == "slices"
    assert sum(item.count for item in ask.slices) == sum(count for _, count in asked)
    for key in ask.model_keys:
        cost = sum(item.count * weight(catalogue()[key], item.profile) for item in ask.slices)
        room = shards_per_gpu(catalogue()[key])
        assert ask.cut_whole == (ask.gpus_per_node > 0)
        assert cost == ask.shards if not ask.cut_whole else cost <= room * ask.gpus_per_node
        assert ask.shards <= room
    assert shards_in(outcome) == ([] if ask.cut_whole else [ask.shards])
    assert gpus_per_node(request, outcome) == ask.gpus_per_node
    _check_where(request, outcome, view, own)


def _check_where(request: SubmitRequest, outcome: SubmitOutcome, view: ClusterView, own: str) -> None:
    """The user's features stand, and every node left that has shards has them on an admissible model."""
    written = outcome.changes.get(JobField.FEATURES, own)
    assert own in written
    try:
        special = is_special(parse_features(own))
    except FeatureError:
        return
    if special:
        assert written == own
    for left in reachable(request, outcome, view):
        models = {g.model_key for g in left.gpus if g.shards_per_gpu}
        if models and not outcome.ask.cut_whole:
            assert models <= set(outcome.ask.model_keys)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["", "a100:", "h100:", "v100:"]), st.integers(2, 8), features, clusters())
def test_several_whole_gpus_never_meet_on_mig_cards(kind: str, count: int, own: str, view: ClusterView) -> None:
    request = SubmitRequest(tres_per_node=f"gres/gpu:{kind}{count}", features=own, batch=True)
    outcome = decide(request, view)
    assert not outcome.broken_rules
    if outcome.verdict is Verdict.REFUSED or own == "(":
        return
    for left in reachable(request, outcome, view):
        mine = [g for g in left.gpus if not kind or g.gres_type == kind[:-1]]
        if sum(g.count for g in mine) >= count:
            assert not any(g.mig_enabled for g in mine)


@settings(max_examples=200, deadline=None)
@given(requests, clusters(), st.sampled_from([name for name, _ in registry.rules()]))
def test_a_broken_rule_costs_only_itself(request: SubmitRequest, view: ClusterView, name: str) -> None:
    def broken(_: object) -> object:
        raise ZeroDivisionError

    rules = dict(registry.rules())
    original = registry._rules[name]
    registry._rules[name] = broken  # type: ignore[assignment]
    try:
        outcome = decide(request, view, SubmitPolicy())
    finally:
        registry._rules[name] = original
    assert set(outcome.broken_rules) <= {name}
    assert list(rules) == list(registry._rules)
