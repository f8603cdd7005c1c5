"""The demo's scenario, played on the cluster of the tests."""

from __future__ import annotations

import sys
from pathlib import Path

from conftest import Slurm, run_as

DEMO = Path(__file__).parents[1] / "demo" / "demo.py"


def test_the_demo_ends_well(quiet_cluster: Slurm) -> None:
    ran = run_as("root", "env", "HETSCHED_TESTBED_RUN=1", sys.executable, str(DEMO), timeout_s=280)
    assert ran.status == 0, ran.out[-6000:] + ran.err
    assert "each ended as expected" in ran.out
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120
