"""The systemd units: what systemd itself says of them, and that they name what is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).parents[2] / "systemd"
UNITS = sorted((*SYSTEMD.glob("*.service"), *SYSTEMD.glob("*.timer")))
COMMANDS = {"/usr/sbin/hetschedd", "/usr/sbin/hetsched-node", "/bin/kill"}


def values(unit: Path, key: str) -> list[str]:
    """The values of a key of a unit."""
    return re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        return  # a container has none; machines with systemd check it
    for unit in UNITS:
        # The commands are not installed where the unit tests run.
        text = re.sub(r"^(Exec\w+=)/usr/sbin/\S+", r"\1/bin/true", unit.read_text(encoding="utf-8"), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / unit.name) for unit in UNITS)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_only_what_make_install_installs(unit: Path) -> None:
    commands = [value for key in (r"ExecStart\w*", "ExecReload") for value in values(unit, key)]
    assert {command.split()[0].lstrip("-") for command in commands} <= COMMANDS


def test_the_daemon_is_tried_for_ever() -> None:
    unit = SYSTEMD / "hetschedd.service"
    assert (values(unit, "Restart"), values(unit, "StartLimitIntervalSec")) == (["always"], ["0"])


def test_the_order_is_daemon_before_slurmctld_and_nodes_before_slurmd() -> None:
    assert values(SYSTEMD / "hetschedd.service", "Before") == ["slurmctld.service"]
    assert values(SYSTEMD / "hetsched-node.service", "Before") == ["slurmd.service"]


def test_the_sample_configuration_is_valid_and_so_is_every_default_in_it() -> None:
    from pyhetsched.config import Config, parse

    text = (SYSTEMD / "hetsched.toml").read_text(encoding="utf-8")
    assert parse(text) == Config()
    # A commented line "# key = value" is a default or an example: it has to be readable.
    uncommented = re.sub(r"^# (\w+ = |\[)", r"\1", text, flags=re.MULTILINE)
    assert parse(uncommented)
