"""A short piece of the random fault campaign (``make chaos`` runs it for longer)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Slurm

sys.path.append(str(Path(__file__).resolve().parent.parent / "chaos"))

from campaign import Campaign, Plan  # noqa: E402
from site_control import Site  # noqa: E402

SEED = 20261130
# The daemons that the campaign starts outlive the objects through which it started them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def site(quiet_cluster: Slurm) -> Iterator[Site]:
    site = Site()
    yield site
    site.restore()


@pytest.mark.timeout(600)
def test_25_random_faults(site: Site, tmp_path: Path) -> None:
    with open(tmp_path / "chaos.log", "w", encoding="utf-8") as log:
        campaign = Campaign(Plan(SEED, faults=25, minutes=3), site, log)
        tally = campaign.run()
    assert tally.violations() == [], (tmp_path / "chaos.log").read_text(encoding="utf-8")
    assert campaign.struck >= 15
    assert tally.run > 5
