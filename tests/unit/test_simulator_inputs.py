"""Job lists: Gavel's CSV, sacct in both forms, SWF."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pyhetsched.errors import ConfigError, DataError
from pyhetsched.simulator.accounting import read_sacct
from pyhetsched.simulator.gavel_jobs import read_gavel_jobs
from pyhetsched.simulator.scenario import guess_format
from pyhetsched.simulator.swf import read_swf
from pyhetsched.simulator.tables import load_table
from pyhetsched.simulator.trace import make_trace

TYPES = {"a100": 1.0, "v100": 0.5}

PARSABLE = """JobIDRaw|Submit|ElapsedRaw|AllocTRES|User|Account|Partition|JobName|TimelimitRaw
11|2026-01-02T00:00:10|100|billing=4,cpu=4,gres/gpu:v100=2,gres/gpu=2|ann|physics|gpu|train|60
11.batch|2026-01-02T00:00:10|100|cpu=4,gres/gpu=2|||||
12|2026-01-02T00:00:00|50|cpu=4|bob|physics|cpu|sort|
13|2026-01-02T00:00:00|30|cpu=1,gres/gpu=1|bob|chem|gpu|run|UNLIMITED
14|2026-01-02T00:00:30|0|gres/gpu=1|bob|chem|gpu|cancelled|5
"""


def test_sacct_parsable(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(PARSABLE)
    trace = read_sacct(path, TYPES)
    assert trace.job_ids.tolist() == [13, 11]
    assert trace.arrival_s.tolist() == [0.0, 10.0]
    assert trace.gang.tolist() == [1, 2]
    # 100 s on a V100 at half speed are 50 units of work, so 50 s on an A100.
    assert trace.total_steps.tolist() == [30.0, 50.0]
    assert trace.throughput.tolist() == [[1.0, 0.5], [1.0, 0.5]]
    assert trace.account[1] == ("physics", "ann")
    assert trace.job_class[1] == "ann/train"
    assert trace.limit_s.tolist() == [np.inf, 3600.0]
    assert guess_format(path) == "sacct"


def test_sacct_json(tmp_path: Path) -> None:
    def job(number: int, **time: object) -> dict[str, object]:
        gpus = [{"type": "gres", "name": "gpu", "count": 4}, {"type": "gres", "name": "gpu:v100", "count": 4}]
        return {
            "job_id": number, "user": "ann", "account": "physics", "partition": "gpu", "name": "train",
            "tres": {"allocated": [{"type": "cpu", "name": "", "count": 8}, *gpus], "requested": []}, "time": time,
        }  # fmt: skip

    limit = {"set": True, "infinite": False, "number": 10}
    jobs = [
        job(1, submission=1_700_000_005, elapsed=60, limit=limit),
        job(2, submission=1_700_000_000, elapsed=60, limit={"set": True, "infinite": True, "number": 0}),
        job(3, submission=1_700_000_000, elapsed=0, limit=limit),
    ]
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": jobs}))
    trace = read_sacct(path, TYPES)
    assert trace.job_ids.tolist() == [2, 1]
    assert trace.arrival_s.tolist() == [0.0, 5.0]
    assert trace.gang.tolist() == [4, 4]
    assert trace.total_steps.tolist() == [30.0, 30.0]
    assert trace.limit_s.tolist() == [np.inf, 600.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not the output of sacct"),
        ('{"jobs": [{}]}', r"jobs\[0\]"),
        ("JobIDRaw|Submit\n1|2\n", "no AllocTRES, ElapsedRaw column"),
        ("JobIDRaw|Submit|ElapsedRaw|AllocTRES\n1|now|5|gres/gpu=1\n", ":2:"),
        ("JobIDRaw|Submit|ElapsedRaw|AllocTRES\n", "no job"),
    ],
)
def test_broken_accounting_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "jobs"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_sacct(path, TYPES)


SWF = """; Version: 2.2
1 0 5 100 4 -1 -1 4 200 -1 1 7 3 2 1 1 -1 -1
2 9 -1 50 -1 -1 -1 8 -1 -1 1 8 3 2 1 -1 -1 -1
3 12 -1 -1 4 -1 -1 4 100 -1 0 8 3 2 1 1 -1 -1
"""


def test_swf(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text(SWF)
    trace = read_swf(path, TYPES, processors_per_gpu=4)
    assert trace.job_ids.tolist() == [1, 2]
    assert trace.gang.tolist() == [1, 2]
    assert trace.total_steps.tolist() == [100.0, 50.0]
    assert trace.limit_s.tolist() == [200.0, np.inf]
    assert trace.account[0] == ("group3", "user7")
    assert guess_format(path) == "swf"


@pytest.mark.parametrize(("text", "message"), [("1 2 3\n", "3 fields"), ("a b\n", ":1:"), ("; nothing\n", "no job")])
def test_broken_swf_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "log.swf"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_swf(path, TYPES)


CSV = """job_id,arrival_time_s,job_type,scale_factor,total_steps,priority_weight,SLO,duration_v100_s\
,partition,profile,preemptible,account,time_limit_s
4,7.5,A3C,1,100,2.0,1.5,50,gpu,1g.10gb,yes,physics/ann,600
"""


def test_gavel_list_with_slurm_columns(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(CSV)
    trace = read_gavel_jobs(path, load_table(None, ("v100", "k80")))
    assert trace.deadline_s.tolist() == [75.0]
    assert (trace.partition, trace.profile, trace.account) == (("gpu",), ("1g.10gb",), (("physics", "ann"),))
    assert trace.preemptible.tolist() == [True]
    assert trace.limit_s.tolist() == [600.0]
    assert guess_format(path) == "gavel"
    with pytest.raises(DataError, match="steps_per_s_"):
        read_gavel_jobs(path)


def test_broken_gavel_list_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(CSV + "5,soon,A3C,1,100,1,,50,,,,,\n")
    with pytest.raises(DataError, match=":3:"):
        read_gavel_jobs(path, load_table(None, ("v100",)))


def test_missing_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        guess_format(tmp_path / "nothing")
    for read in (read_gavel_jobs, lambda path: read_swf(path, TYPES), lambda path: read_sacct(path, TYPES)):
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path / "nothing")


def test_traces_are_checked_and_sorted() -> None:
    trace = make_trace(("a",), [5.0, 1.0], [1, 2], [1.0, 2.0], [[1.0], [1.0]], job_class=["late", "early"])
    assert trace.job_class == ("early", "late")
    assert trace.gang.tolist() == [2, 1]
    with pytest.raises(DataError, match="job 0: gang"):
        make_trace(("a",), [0.0], [0], [1.0], [[1.0]])
    with pytest.raises(DataError, match="no throughput on b"):
        trace.on_types(("b",))
