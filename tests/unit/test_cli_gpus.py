"""What ``hetsched gpus`` prints for a map."""

from __future__ import annotations

from pyhetsched.cli.gpus import rows
from pyhetsched.rpc.gen import services_pb2 as pb


def made(profile: str, start: int, size: int, job_id: int = 0, user: str = "", state: str = "running") -> pb.Slice:
    return pb.Slice(profile=profile, start=start, size=size, job_id=job_id, user=user, state=state)


def shown(*slices: pb.Slice) -> tuple[str, str]:
    gpu = pb.Gpu(index=0, gres_type="a100", model="A100-80GB", mig_mode="on", shards=31, slices=slices)
    (row,) = rows(pb.MapReply(nodes=[pb.NodeGpus(name="n0", state="MIXED", gpus=[gpu])]))
    return row["map"], row["holders"]


def test_each_job_has_its_letter() -> None:
    mix = (made("4g.40gb", 0, 4, 15, "bob"), made("2g.20gb", 4, 2, 16, "alice"), made("1g.10gb", 6, 1, 14, "bob"))
    assert shown(*mix) == ("aaaabbc.", "a=4g.40gb bob 15, b=2g.20gb alice 16, c=1g.10gb bob 14")


def test_slices_of_one_kind_and_user_are_folded_with_jobs_in_the_order_of_the_letters() -> None:
    array = [made("1g.10gb", start, 1, job_id, "alice") for start, job_id in enumerate((24, 22, 13))]
    assert shown(*array) == ("abc.....", "a-c=1g.10gb alice 24,22,13")


def test_jobs_are_named_as_squeue_shows_them() -> None:
    array = [made("1g.10gb", start, 1, job_id, "alice") for start, job_id in enumerate((24, 13))]
    array[0].id_text, array[1].id_text = "13_5", "13_6"
    assert shown(*array) == ("ab......", "ab=1g.10gb alice 13_5,13_6")


def test_two_slices_of_one_job_share_a_letter() -> None:
    assert shown(made("3g.40gb", 0, 4, 7, "bob"), made("3g.40gb", 4, 4, 7, "bob")) == ("aaaaaaaa", "a=3g.40gb bob 7")


def test_slices_of_others_have_letters_of_their_own_and_no_name() -> None:
    hidden = shown(made("4g.40gb", 0, 4), made("2g.20gb", 4, 2, 16, "alice"), made("1g.10gb", 6, 1))
    assert hidden == ("aaaabbc.", "a=4g.40gb in use, b=2g.20gb alice 16, c=1g.10gb in use")


def test_foreign_instances_and_slices_in_the_making_are_named() -> None:
    assert shown(made("2g.20gb", 0, 2, state="foreign"), made("1g.10gb", 2, 1, 5, "bob", "creating")) == (
        "##a.....", "#=2g.20gb foreign, a=1g.10gb bob creating 5",
    )  # fmt: skip


def test_free_gpus_that_are_alike_are_folded() -> None:
    gpus = [pb.Gpu(index=i, gres_type="a30", model="A30-24GB", mig_mode="on", shards=4) for i in range(2)]
    nodes = [pb.NodeGpus(name=f"n{i}", state="IDLE", gpus=gpus) for i in range(2)]
    (row,) = rows(pb.MapReply(nodes=nodes))
    assert (row["nodelist"], row["gpu"], row["map"], row["holders"]) == ("n[0-1]", "0-1", "....", "-")


def test_whole_gpus_of_one_job_on_a_node_are_folded() -> None:
    gpus = [pb.Gpu(index=i, gres_type="h100", mig_mode="off", holder="3 (bob)") for i in range(2)]
    nodes = [pb.NodeGpus(name=f"n{i}", state="MIXED", gpus=gpus) for i in range(2)]
    found = [(row["nodelist"], row["gpu"], row["holders"]) for row in rows(pb.MapReply(nodes=nodes))]
    assert found == [("n0", "0-1", "3 (bob)"), ("n1", "0-1", "3 (bob)")]
    assert len(rows(pb.MapReply(nodes=nodes), unfolded=True)) == 4
