"""Slurm's commands print what owners of jobs wrote, whatever its bytes are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyhetsched.node.giveback import run_command
from pyhetsched.slurm.commands import run, show_jobs
from pyhetsched.slurm.gpu_jobs import owners_text


def test_one_name_that_is_no_text_hides_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [{"job_id": number, "user_id": 1, "name": "NAME", "job_state": ["RUNNING"]} for number in (1, 2)]
    document = json.dumps({"jobs": jobs}).encode().replace(b"NAME", b"\xff\x80", 1)
    (tmp_path / "document").write_bytes(document)
    script = tmp_path / "scontrol"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/document\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [job.job_id for job in show_jobs("", 30.0)] == [1, 2]


def test_output_that_is_no_text_is_read_all_the_same() -> None:
    assert run("printf", "a\\377b", timeout_s=30).stdout == "a\ufffdb"
    assert run_command(["printf", "a\\377b"]) == (0, "a\ufffdb")


class _Job:
    name = "train"

    @property
    def comment(self) -> str:
        return b"\xff".decode("utf-8")


def test_a_text_that_pyslurm_cannot_read_is_empty() -> None:
    assert owners_text(_Job(), "name") == "train"
    assert owners_text(_Job(), "comment") == ""
