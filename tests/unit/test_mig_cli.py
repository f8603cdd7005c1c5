"""``hetsched mig`` prints weights, layouts and plans without a daemon."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyhetsched.cli.mig import mig


def call(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(mig, list(arguments), input=stdin)


def test_weights_as_json() -> None:
    result = call("weights", "A100-80GB", "--json")
    assert result.exit_code == 0
    weights = {"1g.10gb": 4, "1g.10gb+me": 4, "1g.20gb": 7, "2g.20gb": 8, "3g.40gb": 15, "4g.40gb": 16, "7g.80gb": 31}
    assert json.loads(result.stdout) == {"model": "A100-80GB", "shards_per_gpu": 31, "weights": weights}


def test_layouts_as_json() -> None:
    record = json.loads(call("layouts", "a100-80gb", "--json").stdout)
    assert (record["legal_count"], record["maximal_count"]) == (298, 19)
    assert len(record["legal"]) == 298
    assert record["profiles"] == ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    more = json.loads(call("layouts", "A100-80GB", "--all-profiles", "--json").stdout)
    assert "1g.20gb" in more["profiles"]
    assert more["legal_count"] > 298
    few = json.loads(call("layouts", "A100-80GB", "--profile", "3g.40gb", "--json").stdout)
    assert few["legal"] == ["-", "3g.40gb@0", "3g.40gb@4", "3g.40gb@0,3g.40gb@4"]


def test_text_forms() -> None:
    assert "A30-24GB: 4 shards per GPU" in call("weights", "A30-24GB").stdout
    assert "5 of them maximal" in call("layouts", "A30-24GB").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("weights", "A100"), "known: A30-24GB"),
        (("weights", "T4"), "has no MIG"),
        (("layouts", "A30-24GB", "--profile", "3g.40gb"), "has no profile"),
    ],
)
def test_usage_errors_say_what_there_is(arguments: tuple[str, ...], words: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")


def test_plans_are_printed_as_steps(tmp_path: Path) -> None:
    inventory = tmp_path / "slices"
    inventory.write_text("a:0 A100-80GB 3g.40gb@4=12,1g.10gb@0\n")
    result = call("plan", "--dry-run", "--want", "2g.20gb=1", str(inventory))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["create  a:0 2g.20gb@2", "# 1 GPUs used after this"]
    record = json.loads(
        call("plan", "--use-idle", "--want", "4g.40gb=1", "--json", "-", stdin=inventory.read_text()).stdout
    )
    assert record["steps"] == [
        {"step": "destroy", "node": "a", "gpu": 0, "profile": "1g.10gb", "start": 0},
        {"step": "create", "node": "a", "gpu": 0, "profile": "4g.40gb", "start": 0},
    ]
    assert record["after"] == ["a:0 A100-80GB 4g.40gb@0,3g.40gb@4=12"]


def test_what_finds_no_place_exits_one() -> None:
    result = call("plan", "--want", "7g.80gb=2", "-", stdin="a:0 A100-80GB -\n")
    assert result.exit_code == 1
    assert "no place for 1 x 7g.80gb" in result.stdout


def test_compaction_is_printed() -> None:
    text = "a:0 A100-80GB 1g.10gb@6=7\nb:0 A100-80GB 4g.40gb@0=8\n"
    result = call("plan", "--compact", "--json", "-", stdin=text)
    steps = json.loads(result.stdout)["steps"]
    assert [(s["step"], s["node"]) for s in steps] == [("drain", "a"), ("resume", "a")]
    assert "dry when jobs 7 end" in steps[0]["reason"]


def test_malformed_inventories_are_usage_errors() -> None:
    result = call("plan", "-", stdin="nonsense\n")
    assert result.exit_code == 2
    assert "line 1" in result.output
