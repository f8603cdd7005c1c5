"""kill -9 before and after every NVML call and every journal write: nothing leaks, nothing is shared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from node_world import World, die_at_write

from pyhetsched.node import boot

ALL_CALLS = 400  # more than any hook makes


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path, monkeypatch, "A100-80GB:1")
    world.prolog(1)  # the inventory is there, as after a boot
    world.node.ctl("policy", "log=off")
    return world


def crash_at_call(world: World, act: Callable[[], object], number: int, moment: str) -> bool:
    world.node.ctl("fault", "clear")
    world.node.ctl("fault", "add", "--call", "*", "--skip", str(number), "--kill", moment)
    killed = world.crash(act)
    world.node.ctl("fault", "clear")
    return killed


def crash_at_write(world: World, act: Callable[[], object], number: int, after: bool) -> bool:
    def die() -> None:
        die_at_write(number, after)
        act()

    return world.crash(die)


def no_trace(world: World, job_id: int) -> None:
    assert world.layout() == set()
    assert not world.paths.record(job_id).exists()
    assert world.visible(job_id) == ""


def changing_calls(world: World, act: Callable[[], object]) -> list[int]:
    """The numbers of the calls worth crashing at: every one, thinned out where nothing can have changed."""
    world.node.ctl("policy", "log=on")
    calls = world.folder / "nvml" / f"{world.node.name}.calls"
    before = len(calls.read_text().splitlines()) if calls.exists() else 0
    assert not world.crash(act)
    names = [line.split()[3] for line in calls.read_text().splitlines()[before:]]
    world.node.ctl("policy", "log=off")
    telling = [n for n, name in enumerate(names) if "Create" in name or "Destroy" in name]
    near = {n + step for n in telling for step in (-1, 0, 1)}
    return sorted(n for n in range(len(names)) if n in near or n % 9 == 0)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_epilog_undoes_a_prolog_killed_at_any_call(world: World, moment: str) -> None:
    world.daemon.plan(7, ("3g.40gb", 4), ("1g.10gb", 0))
    numbers = changing_calls(world, lambda: world.prolog(7))
    assert world.epilog(7)
    assert len(numbers) > 10
    for number in numbers:
        assert crash_at_call(world, lambda: world.prolog(7), number, moment), number
        assert "STATE=ready" not in world.visible(7) or world.layout() == {("3g.40gb", 4), ("1g.10gb", 0)}
        assert world.epilog(7)
        no_trace(world, 7)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_prolog_that_runs_again_finishes_or_starts_over(world: World, moment: str) -> None:
    world.daemon.plan(7, ("3g.40gb", 4), ("1g.10gb", 0))
    numbers = changing_calls(world, lambda: world.prolog(7))
    assert world.epilog(7)
    for number in numbers:
        assert crash_at_call(world, lambda: world.prolog(7), number, moment), number
        world.prolog(7)
        assert world.layout() == {("3g.40gb", 4), ("1g.10gb", 0)}
        assert world.visible(7).startswith("STATE=ready")
        assert world.epilog(7)
        no_trace(world, 7)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_second_epilog_ends_what_the_first_began(world: World, moment: str) -> None:
    world.daemon.plan(7, ("3g.40gb", 4), ("1g.10gb", 0))
    world.prolog(7)
    numbers = changing_calls(world, lambda: world.epilog(7))
    for number in numbers:
        world.prolog(7)
        assert crash_at_call(world, lambda: world.epilog(7), number, moment), number
        assert world.epilog(7)
        no_trace(world, 7)


@pytest.mark.parametrize("after", [False, True])
def test_every_write_of_the_prolog_may_be_its_last(world: World, after: bool) -> None:
    world.daemon.plan(7, ("3g.40gb", 4), ("1g.10gb", 0))
    number = 0
    while crash_at_write(world, lambda: world.prolog(7), number, after):
        assert world.epilog(7)
        no_trace(world, 7)
        number += 1
    assert number >= 4  # blocked, creating, ready, environment
    assert world.epilog(7)


@pytest.mark.parametrize("after", [False, True])
def test_every_write_of_the_epilog_may_be_its_last(world: World, after: bool) -> None:
    world.daemon.plan(7, ("3g.40gb", 4), ("1g.10gb", 0))
    number = 0
    while True:
        world.prolog(7)
        killed = crash_at_write(world, lambda: world.epilog(7), number, after)
        assert world.epilog(7)
        no_trace(world, 7)
        if not killed:
            break
        number += 1
    assert number >= 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_reboot_after_a_crash_leaves_no_record(world: World, moment: str) -> None:
    world.daemon.plan(7, ("3g.40gb", 4), ("1g.10gb", 0))
    numbers = changing_calls(world, lambda: world.prolog(7))
    assert world.epilog(7)
    for number in numbers[::4]:
        assert crash_at_call(world, lambda: world.prolog(7), number, moment)
        world.node.ctl("reboot")
        world.boot_id = f"boot-{moment}-{number}"
        boot.run("node0", world.hook(), boot.has_booted(world.hook()))
        no_trace(world, 7)


def test_a_crash_in_a_rollback_is_undone_too(world: World) -> None:
    world.daemon.plan(7, ("3g.40gb", 4), ("1g.10gb", 0))
    for moment in ("before", "after"):
        world.node.ctl("fault", "clear")
        world.node.ctl(
            "fault", "add", "--call", "nvmlGpuInstanceCreateComputeInstance", "--skip", "1", "--fail", "23"
        )
        world.node.ctl("fault", "add", "--call", "nvmlGpuInstanceDestroy", "--kill", moment)
        assert world.crash(lambda: world.prolog(7))
        world.node.ctl("fault", "clear")
        assert world.epilog(7)
        no_trace(world, 7)


def test_a_stall_only_delays(world: World) -> None:
    world.daemon.plan(7, ("1g.10gb", 0))
    world.node.ctl("fault", "add", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--stall", "1")
    world.prolog(7)
    assert world.visible(7).startswith("STATE=ready")
    assert world.daemon.reports[-1].slices[0].nvml_s > 0.9
