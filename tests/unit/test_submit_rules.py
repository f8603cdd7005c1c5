"""The rules of submit, case by case, on the example cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from submit_example import CLUSTER, NODES, PARTITIONS, given, node, request

from pyhetsched.model import ClusterView, GpuGroup, JobField, NodeView, SliceAsk, SubmitOutcome, SubmitRequest, Verdict
from pyhetsched.submit import SubmitPolicy, decide

ON_AMPERE_AND_HOPPER = "-C a100|h100"


def answer(text: str, view: ClusterView = CLUSTER, policy: SubmitPolicy | None = None) -> SubmitOutcome:
    outcome = decide(request(text), view, policy)
    assert not outcome.broken_rules
    return outcome


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("--gres=gpu:1g.10gb:1", "--gres=shard:4 -C a100|h100"),
        ("--gres=gpu:1g.10gb", "--gres=shard:4 -C a100|h100"),
        ("--gres=gpu:A100:1G.10GB:1", "--gres=shard:4 -C a100"),
        ("--gres=gpu:a100_1g.10gb:1", "--gres=shard:4 -C a100"),
        ("--gres=gpu:nvidia_a100_80gb_pcie_1g.10gb:1", "--gres=shard:4 -C a100"),
        ("--gpus-per-node=1g.10gb:1", "--gres=shard:4 -C a100|h100"),
        ("-G 1g.10gb:1", "--gres=shard:4 -C a100|h100 -N 1"),
        ("-N 2 -G 1g.10gb:4", "--gres=shard:8 -C a100|h100"),
        ("-n 2 --gpus-per-task=1g.10gb:1", "--tres-per-task=gres/shard:4 -C a100|h100"),
        ("-n 2 --tres-per-task=gres/gpu:1g.10gb:1", "--tres-per-task=gres/shard:4 -C a100|h100"),
        ("-n 2 --tres-per-task=cpu:3,gres/gpu:1g.10gb:1", "--tres-per-task=cpu=3,gres/shard:4 -C a100|h100"),
        ("srun --gres=gpu:1g.10gb:1", "--gres=shard:4 -C a100|h100"),
        ("salloc --gres=gpu:1g.10gb:1", "--gres=shard:4 -C a100|h100"),
        ("--gres=gpu:a100_3g.40gb:2", "--gres=shard:30 -C a100"),
        ("--gres=gpu:7g.80gb:1", "--gres=shard:31 -C a100|h100"),
        ("--gres=gpu:3g.40gb:1,gpu:2g.20gb:1,gpu:1g.10gb:2", "--gres=shard:31 -C a100|h100"),
        ("--gres=gpu:1g.10gb:1,nic:1", "--gres=nic:1,shard:4 -C a100|h100"),
        ("--gres=gpu:1g.10gb+me:1", "--gres=shard:4 -C a100|h100"),
        ("--gres=gpu:2g.12gb:1", "--gres=shard:2 -C a30"),
        ("--gres=gpu:3g.40gb:3", "--gres=gpu:2 -C (a100|h100)&mig"),
        ("--gres=gpu:a100_3g.40gb:8", "--gres=gpu:a100:4 -C a100"),
        ("-C rack1 --gres=gpu:1g.10gb:1", "--gres=shard:4 -C rack1&(a100|h100)"),
        ("-C 'rack1|a30' --gres=gpu:1g.10gb:1", "--gres=shard:4 -C (rack1|a30)&(a100|h100)"),
        ("-C '[a100|h100]' --gres=gpu:1g.10gb:1", "--gres=shard:4"),
        ("-C '[a30|h100]' --gres=gpu:1g.10gb:1", "--gres=shard:4 -x a30-0"),
        ("-x a100-0 -C '[a30|h100]' --gres=gpu:1g.10gb:1", "--gres=shard:4 -x a[30,100]-0"),
        ("--gres=gpu:1g.10gb:1 #HETSCHED types=h100", "--gres=shard:4 -C h100"),
    ],
)
def test_slices_by_name(text: str, result: str) -> None:
    outcome = answer(text)
    assert given(outcome) == result
    assert outcome.ask.kind == "slices"
    assert outcome.message.startswith("hetsched: ")


def test_a_slice_leaves_nothing_of_the_gpu_behind() -> None:
    asked = request("-n 2 --gpus-per-task=1g.10gb:1 --cpus-per-gpu=4 --mem-per-gpu=4096")
    outcome = decide(asked, CLUSTER)
    assert outcome.changes[JobField.TRES_BIND] == ""
    assert outcome.changes[JobField.CPUS_PER_TRES] == ""
    assert outcome.changes[JobField.MIN_CPUS] == "8"
    assert outcome.changes[JobField.MEM_PER_TRES] == ""
    assert outcome.changes[JobField.MEMORY_PER_NODE_MIB] == "8192"
    assert outcome.ask.per_task
    assert outcome.ask.slices == (SliceAsk("1g.10gb", 1),)
    assert {"SLURM_GPUS", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND", "SLURM_CPUS_PER_GPU"} <= set(
        outcome.drop_environment
    )
    assert "--cpus-per-gpu=4 became 8 CPUs" in outcome.message


def test_slices_of_several_cards_are_cut_from_whole_ones() -> None:
    ask = answer("--gres=gpu:3g.40gb:3").ask
    assert (ask.cut_whole, ask.gpus_per_node, ask.shards) == (True, 2, 0)
    assert answer("--gres=gpu:3g.40gb:3", policy=SubmitPolicy(allow_cut_whole=False)).verdict is Verdict.REFUSED


@pytest.mark.parametrize(
    ("text", "result", "chosen"),
    [
        ("--gres=gpu:20gb:1", "--gres=shard:7 -C a100|h100", "1g.20gb on a100 or h100"),
        ("--gres=gpu:12gb:1", "--gres=shard:2 -C a30", "2g.12gb on a30"),
        ("--gres=gpu:1 #HETSCHED min-vram=40G", "--gres=shard:15 -C a100|h100", "3g.40gb on a100 or h100"),
        ("#HETSCHED min-vram=40G", "--gres=shard:15 -C a100|h100", "3g.40gb on a100 or h100"),
        ("--gres=gpu:1 #HETSCHED min-cc=8.0", "--gres=shard:1 -C a30", "1g.6gb on a30"),
        ("--gres=gpu:1 #HETSCHED min-cc=9", "--gres=shard:4 -C h100", "1g.10gb on h100"),
        ("--gres=gpu:1 #HETSCHED types=a100,h100", "--gres=shard:4 -C a100|h100", "1g.10gb on a100 or h100"),
        ("--gres=gpu:1 #HETSCHED types=a100,h100 slices=no", "-C a100|h100", "whole a100"),
        ("--gres=gpu:1 #HETSCHED not-slower-than=v100 min-vram=30G", "--gres=gpu:v100:1", "whole v100"),
        ("--gres=gpu:1 #HETSCHED not-slower-than=v100 slices=only", "--gres=shard:4 -C a30", "4g.24gb on a30"),
        ("--gres=gpu:80gb:1", "--gres=gpu:a100:1", "whole a100"),
        ("--gres=gpu:20gb:2", "--gres=gpu:v100:2", "whole v100"),
        ("-n 2 --gpus-per-task=20gb:1", "--tres-per-task=gres/gpu:v100:1", "whole v100"),
        ("--gres=gpu:40gb:2", "--gres=gpu:h100:2 -C whole", "whole h100"),
        ("--gres=gpu:20gb:2 #HETSCHED slices=ok", "--gres=shard:14 -C a100|h100", "1g.20gb on a100 or h100"),
        ("-G 20gb:1", "--gres=shard:7 -C a100|h100 -N 1", "1g.20gb on a100 or h100"),
        (
            "-n 3 --gpus-per-task=20gb:1 #HETSCHED slices=ok",
            "--tres-per-task=gres/shard:7 -C a100|h100",
            "1g.20gb on a100 or h100",
        ),
        ("--gres=gpu:a100:1 #HETSCHED min-vram=40G slices=ok", "--gres=shard:15 -C a100", "3g.40gb on a100"),
        ("--comment=hetsched:min-vram=40G,types=h100 srun --gres=gpu:1", "--gres=shard:15 -C h100", "3g.40gb on h100"),
    ],
)
def test_the_smallest_thing_that_satisfies_a_need(text: str, result: str, chosen: str) -> None:
    outcome = answer(text)
    assert given(outcome) == result
    assert [c.name for c in outcome.candidates if c.chosen] == [chosen]
    assert all(candidate.reason for candidate in outcome.candidates)
    assert any(not c.chosen and c.admissible for c in outcome.candidates) or "min" in text or "types" in text


def test_the_record_says_what_else_would_have_done() -> None:
    outcome = answer("--gres=gpu:20gb:1")
    by_name = {c.name: c for c in outcome.candidates}
    assert by_name["whole v100"].admissible
    assert by_name["whole v100"].score == 32.112
    assert not by_name["1g.10gb on a100 or h100"].admissible
    assert by_name["1g.10gb on a100 or h100"].reason == "10 GB are less than 20 GB"
    assert outcome.policy.startswith("smallest first")
    assert [c.score for c in outcome.candidates] == sorted(c.score for c in outcome.candidates)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", "unchanged"),
        ("--gres=gpu:1", "unchanged"),
        ("--gres=gpu:v100:2", "unchanged"),
        ("-C v100 --gres=gpu:2", "unchanged"),
        ("-N 2 -G 2", "unchanged"),
        ("-N 2 -n 2 --gpus-per-task=1", "unchanged"),
        ("--gres=gpu:a100:1 #HETSCHED min-vram=40G", "unchanged"),
        ("--gres=nic:1", "unchanged"),
        ("--gres=gpu:x:y:z", "unchanged"),
        ("-C 'a100&(' --gres=gpu:1", "unchanged"),
        ("--gres=gpu:0", "unchanged"),
        ("--gres=gpu:h100:2", "-C whole"),
        ("--gres=gpu:2", "-C whole"),
        ("-G 4", "-C whole"),
        ("-n 2 --gpus-per-task=1", "-C whole"),
        ("-n 4 --ntasks-per-gpu=2", "-C whole"),
        ("--gpus-per-socket=1", "-C whole"),
        ("-C 'h100|v100' --gres=gpu:2", "-C (h100|v100)&whole"),
        ("-C '[h100|v100]' --gres=gpu:2", "-x h100-0"),
        ("--gres=gpu:h100:1 --exclusive", "-C whole"),
        ("--gres=gpu:a100:1 --exclusive", "unchanged"),
        ("--gres=gpu:A100:1", "--gres=gpu:a100:1"),
        ("--gres=gpu:nvidia_a100_80gb_pcie:1", "--gres=gpu:a100:1"),
    ],
)
def test_whole_gpus(text: str, result: str) -> None:
    outcome = answer(text)
    assert given(outcome) == result
    assert (outcome.verdict is Verdict.UNCHANGED) == (not outcome.message)


def test_whole_gpus_are_asked_for_by_model_too() -> None:
    ask = answer("--gres=gpu:1").ask
    assert (ask.kind, ask.gpus_per_node) == ("whole", 1)
    assert set(ask.model_keys) == {"A100-80GB", "H100-80GB-SXM", "A30-24GB", "V100-32GB"}
    assert answer("--gres=gpu:h100:2").ask.model_keys == ("H100-80GB-SXM",)
    assert answer("").ask.kind == "plain"


@pytest.mark.parametrize(
    ("text", "works"),
    [
        ("--gres=gpu:a10O:1", "--gres=gpu:a100:1"),
        ("--gres=gpu:h200:1", "--gres=gpu:h100:1"),
        ("--gres=gpu:1g.1Ogb:1", "--gres=gpu:1g.10gb:1"),
        ("--gres=gpu:2g.10gb:1", "--gres=gpu:2g.12gb:1"),
        ("--gres=gpu:b200_1g.10gb:1", "--gres=gpu:1g.10gb:1"),
        ("--gres=gpu:1c.3g.40gb:1", "3g.40gb"),
        ("--gres=gpu:1g", "--gres=gpu:1gb:1"),
        ("-C v100 --gres=gpu:1g.10gb:1", "--gres=gpu:1"),
        ("-C v100 --gres=gpu:a100:1", "--gres=gpu:v100:1"),
        ("-w v100-0 --gres=gpu:1g.10gb:1", "-w"),
        ("-p old --gres=gpu:1g.10gb:1", "-p gpu"),
        ("-p old --gres=gpu:a100:1", "-p gpu"),
        ("--gres=gpu:3g.40gb:9", "--gres=gpu:3g.40gb:8"),
        ("--gres=gpu:1g.10gb:1,gpu:3g.40gb:40", "--gres=gpu:1g.10gb:1"),
        ("--gres=gpu:200gb:1", "--gres=gpu:80gb:1"),
        ("--gres=gpu:1 #HETSCHED min-vram=1T", "--gres=gpu:80gb:1"),
        ("--gres=gpu:1 #HETSCHED min-cc=12.0", "--gres=gpu:1"),
        ("--gres=gpu:v100:9", "--gres=gpu:v100:4"),
        ("--gres=gpu:a100:9", "--gres=gpu:a100:1"),
        ("-G v100:9", "--gres=gpu:v100:4"),
        ("--gres=gpu:a100:2", "--gres=gpu:h100:2, --gres=gpu:v100:2 or one GPU with --gres=gpu:a100:1"),
        ("-G a100:2", "-N 2 --gres=gpu:a100:1"),
        ("-C a100 --gres=gpu:2", "or leave out -C and write --gres=gpu:h100:2 or --gres=gpu:v100:2"),
        ("-w h100-0 --gres=gpu:h100:2", "every h100 that -w h100-0 leaves is in MIG mode"),
        ("--gres=gpu:1g10gb:1", "--gres=gpu:1g.10gb:1"),
        ("--gres=gpu:mig-1g.10gb:1", "there are: a100, a30, h100; write --gres=gpu:1g.10gb:1"),
        ("--gres=shard:4", "--gres=gpu:1g.10gb:1"),
        ("--gres=shard:a100:20", "--gres=gpu:7g.80gb:1"),
        ("--gres=gpu:1g.10gb:1,gpu:1", "not both"),
        ("--gres=gpu:1g.10gb:1 --gpus-per-task=1g.10gb:1", "--gres=gpu:1g.10gb:1"),
        ("--gres=gpu:1g.10gb:1 --exclusive", "--gres=gpu:1g.10gb:1"),
        ("--gpus-per-socket=1g.10gb:1", "--gres=gpu:1g.10gb:1"),
        ("srun -G 1g.10gb:1", "--gres=gpu:1g.10gb:1"),
        ("srun -n 2 --gpus-per-task=1g.10gb:1", "--gres=gpu:1g.10gb:2"),
        ("srun -G 20gb:1", "--gres=gpu:a30:1"),
        ("-N 2 -G 1g.10gb:3", "--gres=gpu:1g.10gb:2 for each node"),
        ("-N 1-3 -G 1g.10gb:3", "--gres=gpu:1g.10gb:3"),
        ("-n 8 --gpus-per-task=1g.10gb:1", "-N 2 --ntasks-per-node=7"),
        ("--gpus-per-task=1g.10gb:8", "--gpus-per-task=1g.10gb:7"),
        ("-n 3 --ntasks-per-gpu=2 --gres=gpu:1g.10gb:2", "-n 4"),
        ("--gres=gpu:1g.10gb:1 #HETSCHED min-vram=40G", "drop"),
        ("--gres=gpu:1g.10gb:1 #HETSCHED slices=no", "leave out"),
        ("--gres=gpu:1g.10gb:1 #HETSCHED types=a30", "drop"),
        ("--gres=gpu:1,gpu:v100:1 #HETSCHED min-vram=4G", "--gres=gpu:N"),
        ("--gres=gpu:1 #HETSCHED min-vram=40G #HETSCHED min-vram=20G", "one of them"),
        ("--gres=gpu:1 --comment=hetsched:min-vram=20G #HETSCHED min-vram=40G", "one of them"),
        ("--gres=gpu:1 #HETSCHED min-vrm=40G", "min-vram"),
        ("--gres=gpu:1 #HETSCHED min-vram=40", "min-vram=40G"),
        ("--gres=gpu:1 #HETSCHED types=a1O0", "types=a100"),
        ("--gres=gpu:1 #HETSCHED slices=maybe", "ok, only, no"),
        ("--gres=gpu:1 #HETSCHED not-slower-than=abacus", "not-slower-than=v100"),
    ],
)
def test_refusals_say_what_works(text: str, works: str) -> None:
    outcome = answer(text)
    assert outcome.verdict is Verdict.REFUSED
    assert works in outcome.message
    assert len(outcome.message) < 400
    assert not outcome.changes
    assert outcome.ask.kind == "plain"


@pytest.mark.parametrize(
    "text", ["--gres=gpu:1g.10gb:1 #HETSCHED opt-out", "--gres=gpu:a100:2 --comment=hetsched:opt-out"]
)
def test_opting_out_leaves_everything_alone(text: str) -> None:
    outcome = answer(text)
    assert given(outcome) == "unchanged"
    assert "opted out" in outcome.became
    assert answer(text, policy=SubmitPolicy(allow_opt_out=False)).verdict is Verdict.REFUSED


@pytest.mark.parametrize(
    ("text", "verdict"), [("gpu:1g.10gb:1", "refused"), ("gpu:20gb:1", "refused"), ("gpu:1", "unchanged")]
)
def test_without_a_view_only_slices_are_refused(text: str, verdict: str) -> None:
    outcome = answer(f"--gres={text}", ClusterView())
    assert given(outcome) == verdict
    assert ("cannot be seen now" in outcome.message) == (verdict == "refused")


def test_candidates_are_kept_with_a_refusal() -> None:
    outcome = answer("--gres=gpu:200gb:1")
    assert outcome.candidates
    assert not any(candidate.admissible for candidate in outcome.candidates)


def test_policy_options() -> None:
    assert given(answer("--gres=gpu:20gb:1", policy=SubmitPolicy(slices="no"))) == "--gres=gpu:a30:1"
    assert given(answer("--gres=gpu:20gb:2", policy=SubmitPolicy(many_by_need="slices"))).startswith("--gres=shard:14")
    assert answer("--gres=gpu:1g.10gb:1", policy=SubmitPolicy(announce=False)).message == ""
    flex = "--gres=gpu:3g.40gb:1 #HETSCHED flex=yes"
    assert answer(flex, policy=SubmitPolicy(allow_flex=True)).ask.flex
    assert not answer(flex).ask.flex


def test_nodes_that_are_down_come_last_but_are_not_forgotten() -> None:
    down = tuple(replace(each, usable=not each.name.startswith(("a100", "h100"))) for each in NODES)
    view = ClusterView(down, PARTITIONS)
    assert given(answer("--gres=gpu:20gb:1", view)) == "--gres=gpu:a30:1"
    assert given(answer("--gres=gpu:1g.10gb:1", view)) == "--gres=shard:4 -C a100|h100"
    dark = ClusterView(tuple(replace(each, usable=False) for each in NODES), PARTITIONS)
    for text in ("--gres=gpu:20gb:1", "--gres=gpu:20gb:2", "-n 2 --gpus-per-task=20gb:1", "--gres=gpu:h100:2"):
        assert given(answer(text, dark)) == given(answer(text))


def test_a_profile_that_costs_differently_is_had_where_it_costs_least() -> None:
    view = ClusterView((node("small-0", "a100s", "A100-40GB", shards=31), *NODES))
    outcome = answer("--gres=gpu:1g.10gb:1", view)
    assert given(outcome) == "--gres=shard:4 -C a100|h100"
    behind = [c for c in outcome.candidates if not c.chosen]
    assert [c.name for c in behind] == ["1 slice 1g.10gb on a100s"]
    assert "7 of 31 shards" in behind[0].reason


def test_types_that_nodes_do_not_carry_as_features_are_kept_to_by_excluding_nodes() -> None:
    bare = tuple(replace(each, features=frozenset()) for each in NODES)
    outcome = answer("--gres=gpu:1g.10gb:1", ClusterView(bare, PARTITIONS))
    assert given(outcome) == "--gres=shard:4 -x a30-0"


def test_unknown_models_serve_no_slices_but_whole_gpus() -> None:
    view = ClusterView((node("a100-0", "a100", None, shards=31),))
    assert answer("--gres=gpu:1g.10gb:1", view).verdict is Verdict.REFUSED
    assert given(answer("--gres=gpu:a100:1", view)) == "unchanged"


def test_a_site_without_mig_keeps_its_own_shards() -> None:
    group = GpuGroup("v100", "V100-32GB", 4, False, 8)
    view = ClusterView((NodeView("v100-0", frozenset({"v100"}), (group,)),))
    assert given(answer("--gres=shard:4", view)) == "unchanged"


def test_directives_are_read_wherever_they_stand() -> None:
    asked = SubmitRequest(
        tres_per_node="gres/gpu:1",
        comment="my job hetsched:types=a100,h100,class=train",
        script_lines=("#HETSCHED Min_Vram=40960M  preemptible=yes # a remark", "# another", "min-cc=8"),
        batch=True,
    )
    outcome = decide(asked, CLUSTER)
    assert given(outcome) == "--gres=shard:15 -C a100|h100"
    assert outcome.asked == "gpu:1 min-vram=40960M preemptible=yes min-cc=8 types=a100,h100 class=train"
