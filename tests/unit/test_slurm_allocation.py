"""Reading what Slurm allocated, and what a job may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhetsched.errors import DataError, RequestError
from pyhetsched.model import JobAsk, SliceAsk
from pyhetsched.slurm import admin_comment
from pyhetsched.slurm.allocation import NodeAllocation, parse_gres_detail, parse_show_job
from pyhetsched.slurm.hosts import expand, fold

# As Slurm 26.05.5 prints it (data_parser v0.0.45), cut to what is read.
RUNNING = {
    "job_id": 12, "array_job_id": {"set": True, "infinite": False, "number": 10},
    "array_task_id": {"set": True, "infinite": False, "number": 2}, "name": "x\nAdminComment=hetsched:{}",
    "user_name": "alice", "user_id": 2001, "job_state": ["RUNNING"], "nodes": "a100-[0-1]",
    "gres_detail": ["shard:a100:4(0/31,4/31,0/31,0/31)", "gpu:a100:2(IDX:0,3)"], "batch_flag": True, "requeue": True,
    "restart_cnt": 1, "admin_comment": "", "excluded_nodes": "", "partition": "gpu", "account": "physics",
    "het_job_id": {"set": False, "infinite": False, "number": 0},
    "exit_code": {"return_code": {"set": True, "infinite": False, "number": 1}, "signal": {"id": {"set": False}}},
    "tasks": {"set": True, "infinite": False, "number": 2},
}  # fmt: skip


def test_a_running_job_is_read() -> None:
    (job,) = parse_show_job({"jobs": [RUNNING]})
    assert job.nodes == (NodeAllocation("a100-0", (), {1: 4}), NodeAllocation("a100-1", (0, 3), {}))
    assert (job.id_text, job.restart_count, job.uid, job.exit_code, job.tasks) == ("10_2", 1, 2001, "1:0", 2)
    assert job.on("a100-7") == NodeAllocation("a100-7")


def test_a_part_of_a_heterogeneous_job_has_its_own_name() -> None:
    part = {**RUNNING, "het_job_id": {"set": True, "number": 11}, "het_job_offset": {"set": True, "number": 1}}
    assert parse_show_job({"jobs": [part]})[0].id_text == "11+1"


@pytest.mark.parametrize("document", [{}, {"jobs": [{}]}, {"jobs": None}, {"jobs": [{**RUNNING, "user_id": "alice"}]}])
def test_another_shape_is_an_error_of_ours(document: dict[str, object]) -> None:
    with pytest.raises(DataError, match="unknown shape"):
        parse_show_job(document)


@pytest.mark.parametrize(
    ("text", "gpus", "shards"),
    [
        ("", (), {}),
        ("(null)", (), {}),
        ("gpu:a100:3(IDX:0-2)", (0, 1, 2), {}),
        ("gpu:1(IDX:3)", (3,), {}),
        ("gpu:a100:2(IDX:0,2),shard:a100:4(0/31,4/31,0/31,0/31)", (0, 2), {1: 4}),
        ("shard:8(4/31,4/31)", (), {0: 4, 1: 4}),
        ("shard:a100:3(3/8,-/8,-/8,0/8)", (), {0: 3}),
        ("gpu:nvidia_a100-80gb:1(IDX:N/A)", (), {}),
    ],
)
def test_gres_detail(text: str, gpus: tuple[int, ...], shards: dict[int, int]) -> None:
    assert parse_gres_detail(text) == (gpus, shards)


profiles = st.sampled_from(["1g.10gb", "3g.40gb", "7g.80gb", "1g.10gb+me"])
asks = st.builds(
    JobAsk,
    kind=st.sampled_from(["plain", "whole", "slices"]),
    slices=st.lists(st.builds(SliceAsk, profiles, st.integers(1, 9)), max_size=4).map(tuple),
    per_task=st.booleans(), gpus_per_node=st.integers(0, 16), cut_whole=st.booleans(),
    model_keys=st.lists(st.sampled_from(["A100-80GB", "H100-80GB-SXM"]), unique=True).map(tuple),
    shards=st.integers(0, 500), flex=st.booleans(),
)  # fmt: skip


@given(asks, st.text(max_size=20), st.sampled_from(["", "a100-0", "a[1-3],b"]))
def test_an_ask_comes_back_out_of_the_admin_comment(ask: JobAsk, around: str, exclusions: str) -> None:
    around = around.replace("hetsched:{", "")
    text = around + admin_comment.encode("0123abcd", ask, exclusions) + around
    assert admin_comment.decode(text) == ("0123abcd", ask)
    assert admin_comment.owners_exclusions(text) == exclusions


@given(st.text())
def test_any_text_may_stand_there(text: str) -> None:
    for value in (text, "hetsched:" + text, "hetsched:{" + text, 'hetsched:{"d":' + text):
        admin_comment.decode(value)
        admin_comment.owners_exclusions(value)


@pytest.mark.parametrize(
    "text",
    ["", "hetsched:", "hetsched:{}", 'hetsched:{"d":"x"}', 'hetsched:{"d":"x","k":"root"}', "hetsched:[1]",
     'hetsched:{"d":"x","k":"slices","s":[["1g.10gb"]]}'],
)  # fmt: skip
def test_a_damaged_comment_is_no_ask(text: str) -> None:
    assert admin_comment.decode(text) is None


def test_host_lists_fold_and_expand_and_never_resolve_groups() -> None:
    assert fold(["gpu2", "gpu1", "gpu3"]) == "gpu[1-3]"
    assert expand("gpu[1-2],x") == ("gpu1", "gpu2", "x")
    assert expand("@all") == ("@all",)
    assert len(expand("n[0-255]c[0-255]")) == 65536
    for endless in ("n[1-999999999]", "n[1-9999]x[1-9999]", "n[1-10-99999999]", "n[-99999999]", "n[99999999999]",
                    "a,n[1-70000/2]", "n[1-3]!n[1-999999]"):  # fmt: skip
        with pytest.raises(RequestError, match="65536|not a host list"):
            expand(endless)
    with pytest.raises(RequestError, match="not a host list"):
        expand("gpu[1-")
