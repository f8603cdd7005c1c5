"""The configuration file: what is valid, and what is said of what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyhetsched.config import Config, load, parse
from pyhetsched.errors import ConfigError
from pyhetsched.node import settings

SAMPLE = Path(__file__).parents[2] / "systemd" / "hetsched.toml"


def test_an_empty_file_is_the_defaults() -> None:
    assert parse("") == Config()


def test_the_sample_is_valid_as_shipped_and_with_every_line_taken_in() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    assert parse(text) == Config()
    # Lines of the form "# key = value  # remark" become keys; the prose has no "=".
    taken_in = re.sub(r"^# ((?:\[[\w.]+\]|\w+ = ).*)$", r"\1", text, flags=re.MULTILINE)
    config = parse(taken_in)
    assert config.gpus["a100"].model == "A100-80GB"
    assert config.daemon.listen == ("0.0.0.0:6820",)


def test_the_sample_names_every_key() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    for section, field in Config.model_fields.items():
        if section == "gpus":
            continue
        keys = field.annotation.model_fields  # type: ignore[union-attr]
        missing = [key for key in keys if not re.search(rf"^# {key} = ", text, re.MULTILINE)]
        assert missing == [], f"[{section}] of {SAMPLE.name}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[daemon", "not valid TOML"),
        ("[deamon]\n", "deamon: unknown key; valid here: access, allocation"),
        ("[daemon]\nsokcet = '/x'", "daemon.sokcet: unknown key; valid here: .*socket"),
        ("[daemon]\nsocket = 'run/x'", "daemon.socket: write an absolute path instead of 'run/x'"),
        ("[daemon]\nlisten = ['6820']", "write HOST:PORT, such as 0.0.0.0:6820, instead of '6820'"),
        ("[daemon]\nlisten = ['h:70000']", "write HOST:PORT"),
        ("[daemon]\nmetrics_listen = 'x'", "write HOST:PORT"),
        ("[mode]\ndefault = 'on'", "mode.default: .*'off', 'shadow' or 'enforce'"),
        ("[mode]\npercent = 101", "mode.percent: .*less than or equal to 100"),
        ("[allocation]\nexclude_s = 0", "allocation.exclude_s: .*greater than or equal to 0.001"),
        ("[gpus.a100]\nmodle = 'A100-80GB'", "gpus.a100.modle: unknown key; valid here: model"),
    ],
)
def test_a_mistake_is_named_with_its_key(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"hetsched.toml: .*{said}|hetsched.toml: {said}"):
        parse(text)


def test_every_mistake_gets_a_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("[mode]\ndefault = 'x'\npercent = -1\n")
    assert len(str(caught.value).splitlines()) == 2


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin.toml")


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e300", "0", "1e-9"])
@pytest.mark.parametrize(
    "key", ["slurm.snapshot_s", "steering.most_s", "pool.period_s", "policy.round_s", "node.deadline_s"]
)
def test_no_time_is_endless_or_nothing(key: str, value: str) -> None:
    section, _, name = key.partition(".")
    with pytest.raises(ConfigError, match=name):
        parse(f"[{section}]\n{name} = {value}\n")
    if section == "node":
        with pytest.raises(ConfigError, match=name):
            settings.parse(f"[node]\n{name} = {value}\n", "x")
