"""Keeping jobs apart: owners of device nodes, and the device rules' program, map and cgroups."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_world import World

from pyhetsched.errors import MigError
from pyhetsched.node import bpf
from pyhetsched.node.device_filter import DeviceFilter, FilterUnavailable, program
from pyhetsched.node.isolation import Isolation

MAJOR = 511
CHAR, BLOCK = 2, 1
MAP = 99
READ = 2 << 16


def allows(
    minor: int,
    *,
    owners: dict[int, tuple[int, int]],
    ancestors: list[int],
    uid: int = 1001,
    major: int = MAJOR,
    kind: int = CHAR,
) -> bool:
    """Interpret the program as the kernel would for one open of a device node."""
    text = program(MAJOR, MAP)
    code = [struct.unpack_from("=BBhi", text, at) for at in range(0, len(text), 8)]
    context = [READ | kind, major, minor]
    registers: dict[int, object] = {1: "context"}
    stack: dict[int, int] = {}
    at = 0
    while True:
        op, both, off, imm = code[at]
        dst, src = both & 15, both >> 4
        at += 1
        a, b = registers.get(dst), registers.get(src)
        if op == 0x95:
            return registers[0] == 1
        if op == 0xBF:
            registers[dst] = b
        elif op == 0xBC:
            registers[dst] = int(b) & 0xFFFFFFFF  # type: ignore[call-overload]
        elif op == 0xB7:
            registers[dst] = imm
        elif op == 0x57:
            registers[dst] = int(a) & imm  # type: ignore[call-overload]
        elif op == 0x07:
            registers[dst] = f"stack{imm}"
        elif op == 0x61:
            assert b == "context"
            registers[dst] = context[off // 4]
        elif op == 0x79:
            registers[dst] = b[off // 8]  # type: ignore[index]
        elif op == 0x63:
            stack[off] = int(b)  # type: ignore[call-overload]
        elif op == 0x18:
            assert (src, imm) == (1, MAP)
            registers[dst] = "map"
            at += 1
        elif op == 0x85:
            registers[0] = _helper(imm, registers, stack, owners, ancestors, uid)
        else:
            taken = {0x55: a != imm, 0x15: a == imm, 0x1D: a == b, 0xA5: imm > (a if isinstance(a, int) else 0)}
            at += off if taken[op] else 0


def _helper(
    number: int,
    registers: dict[int, object],
    stack: dict[int, int],
    owners: dict[int, tuple[int, int]],
    ancestors: list[int],
    uid: int,
) -> object:
    if number == bpf.GET_CURRENT_UID_GID:
        return (77 << 32) | uid
    if number == bpf.MAP_LOOKUP_ELEM:
        assert (registers[1], registers[2]) == ("map", "stack-4")
        return owners.get(stack[-4], 0)
    assert number == bpf.GET_CURRENT_ANCESTOR_CGROUP_ID
    level = registers[1]
    assert isinstance(level, int)
    return ancestors[level] if level < len(ancestors) else 0


class TestProgram:
    OWNERS = {30: (700, 701), 40: (800, 0)}
    JOB = [1, 5, 6, 700, 9]
    OTHER = [1, 5, 6, 800, 9]

    def test_a_job_opens_its_own_slice_and_no_other(self) -> None:
        assert allows(30, owners=self.OWNERS, ancestors=self.JOB)
        assert not allows(40, owners=self.OWNERS, ancestors=self.JOB)
        assert not allows(30, owners=self.OWNERS, ancestors=self.OTHER)

    def test_either_name_of_the_jobs_cgroup_counts(self) -> None:
        assert allows(30, owners=self.OWNERS, ancestors=[1, 5, 6, 701, 9])

    def test_an_unused_second_id_matches_nobody(self) -> None:
        assert not allows(40, owners=self.OWNERS, ancestors=[1, 5])

    def test_what_belongs_to_nobody_is_closed(self) -> None:
        assert not allows(31, owners=self.OWNERS, ancestors=self.JOB)

    def test_root_is_let_through(self) -> None:
        assert allows(40, owners=self.OWNERS, ancestors=self.JOB, uid=0)

    @pytest.mark.parametrize("minor", [1, 2])
    def test_config_and_monitor_are_left_to_their_modes(self, minor: int) -> None:
        assert allows(minor, owners={}, ancestors=self.JOB)

    def test_other_devices_are_not_its_business(self) -> None:
        assert allows(40, owners=self.OWNERS, ancestors=self.JOB, major=195)
        assert allows(40, owners=self.OWNERS, ancestors=self.JOB, kind=BLOCK)

    @pytest.mark.parametrize("depth", [1, 14])
    def test_a_job_is_found_at_any_depth(self, depth: int) -> None:
        assert allows(30, owners=self.OWNERS, ancestors=[*range(1, depth + 1), 700, 3])

    def test_deeper_than_that_it_is_refused(self) -> None:
        assert not allows(30, owners=self.OWNERS, ancestors=[*range(1, 16), 700])


class Kernel:
    """Programs on one cgroup and their maps, in memory, with the calls of `pyhetsched.node.bpf`."""

    def __init__(self) -> None:
        self.attached: list[tuple[str, int]] = []  # names of programs, and descriptors of their maps
        self.refusal: OSError | None = None
        self._maps: dict[int, dict[bytes, bytes]] = {}  # by the inode behind a descriptor
        self._loaded: dict[int, tuple[str, int]] = {}
        self._kept: list[int] = []

    def map_at(self, descriptor: int) -> dict[bytes, bytes]:
        return self._maps[os.fstat(descriptor).st_ino]

    def create_hash(self, key_size: int, value_size: int, entries: int, name: str) -> int:
        made = os.memfd_create(name)
        self._kept.append(os.dup(made))
        self._maps[os.fstat(made).st_ino] = {}
        return made

    def load_device_program(self, text: bytes, name: str) -> int:
        if self.refusal:
            raise self.refusal
        made = os.memfd_create(name)
        self._loaded[os.fstat(made).st_ino] = (name, self._kept[-1])
        return made

    def attach(self, cgroup: int, descriptor: int) -> None:
        self.attached.append(self._loaded[os.fstat(descriptor).st_ino])

    def detach(self, cgroup: int, descriptor: int) -> None:
        self.attached.remove(self._loaded[os.fstat(descriptor).st_ino])

    def attached_device_programs(self, cgroup: int) -> list[bpf.Attached]:
        found = []
        for name, owners in self.attached:
            shown = bpf.Attached(name, os.memfd_create(name), [os.dup(owners)])
            self._loaded[os.fstat(shown.descriptor).st_ino] = (name, owners)
            found.append(shown)
        return found

    def update(self, descriptor: int, key: bytes, value: bytes) -> None:
        self.map_at(descriptor)[key] = value

    def delete(self, descriptor: int, key: bytes) -> None:
        self.map_at(descriptor).pop(key, None)

    def owners(self) -> dict[int, tuple[int, ...]]:
        [(_, owners)] = self.attached
        return {struct.unpack("=I", key)[0]: struct.unpack("=QQ", value) for key, value in self.map_at(owners).items()}

    def close(self) -> None:
        for descriptor in self._kept:
            os.close(descriptor)


CALLS = ("create_hash", "load_device_program", "attach", "detach", "attached_device_programs", "update", "delete")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    kernel = Kernel()
    for name in CALLS:
        monkeypatch.setattr(bpf, name, getattr(kernel, name))
    yield kernel
    kernel.close()


@pytest.fixture
def scope(tmp_path: Path) -> Path:
    path = tmp_path / "cgroup/system.slice/slurmstepd.scope"
    path.mkdir(parents=True)
    return path


def filter_of(tmp_path: Path, **variables: str) -> DeviceFilter:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"24 1 0:22 / /sys rw - sysfs sysfs rw\n30 24 0:26 / {tmp_path}/cgroup rw - cgroup2 c rw\n")
    return DeviceFilter({"SLURMD_NODENAME": "n1", **variables}, mountinfo)


class TestFilter:
    def test_each_job_gets_a_cgroup_that_stays_and_its_minors(
        self, tmp_path: Path, scope: Path, kernel: Kernel
    ) -> None:
        filter_of(tmp_path).grant(7, MAJOR, [30, 31])
        filter_of(tmp_path).grant(8, MAJOR, [40])
        seven, eight = ((scope / f"job_{job}").stat().st_ino for job in (7, 8))
        assert kernel.owners() == {30: (seven, 0), 31: (seven, 0), 40: (eight, 0)}
        assert (scope / "job_7/hetsched-7").is_dir()

    def test_slurms_own_id_names_the_cgroup_too(self, tmp_path: Path, scope: Path, kernel: Kernel) -> None:
        filter_of(tmp_path, SLURM_JOB_ID="7", SLURM_JOB_SLUID="sAB7").grant(7, MAJOR, [30])
        assert kernel.owners()[30] == ((scope / "job_7").stat().st_ino, (scope / "sAB7").stat().st_ino)

    @pytest.mark.parametrize(("job", "sluid"), [("8", "sAB7"), ("7", "../../x"), ("7", "")])
    def test_an_id_of_another_job_or_of_no_form_is_not_taken(
        self, tmp_path: Path, scope: Path, kernel: Kernel, job: str, sluid: str
    ) -> None:
        filter_of(tmp_path, SLURM_JOB_ID=job, SLURM_JOB_SLUID=sluid).grant(7, MAJOR, [30])
        assert os.listdir(scope) == ["job_7"]

    def test_revoked_minors_belong_to_nobody(self, tmp_path: Path, scope: Path, kernel: Kernel) -> None:
        rules = filter_of(tmp_path)
        rules.grant(7, MAJOR, [30, 31])
        rules.revoke([30, 99])
        assert list(kernel.owners()) == [31]

    def test_the_cgroups_go_with_the_job(self, tmp_path: Path, scope: Path, kernel: Kernel) -> None:
        rules = filter_of(tmp_path, SLURM_JOB_ID="7", SLURM_JOB_SLUID="sAB7")
        rules.grant(7, MAJOR, [30])
        (scope / "sAB7/step_batch").mkdir()
        filter_of(tmp_path).forget(7)
        assert [str(path.relative_to(scope)) for path in scope.rglob("*")] == ["sAB7", "sAB7/step_batch"]

    def test_a_driver_loaded_anew_gets_a_new_program(self, tmp_path: Path, scope: Path, kernel: Kernel) -> None:
        filter_of(tmp_path).grant(7, MAJOR, [30])
        filter_of(tmp_path).grant(8, MAJOR - 1, [40])
        assert [name for name, _ in kernel.attached] == ["hetsched1_510"]

    def test_no_descriptor_is_lost(self, tmp_path: Path, scope: Path, kernel: Kernel) -> None:
        def work() -> int:
            rules = filter_of(tmp_path)
            rules.grant(7, MAJOR, [30])
            rules.revoke([30])
            rules.forget(7)
            return len(os.listdir("/proc/self/fd"))

        assert work() == work()

    def test_it_is_withdrawn_and_others_are_left(self, tmp_path: Path, scope: Path, kernel: Kernel) -> None:
        filter_of(tmp_path).grant(7, MAJOR, [30])
        kernel.attached.append(("sd_devices", kernel.attached[0][1]))
        filter_of(tmp_path).withdraw()
        assert [name for name, _ in kernel.attached] == ["sd_devices"]

    def test_the_scope_of_this_node_is_preferred(self, tmp_path: Path, scope: Path, kernel: Kernel) -> None:
        own = scope.parent / "n1_slurmstepd.scope"
        own.mkdir()
        filter_of(tmp_path).grant(7, MAJOR, [30])
        assert not os.listdir(scope)
        assert os.listdir(own) == ["job_7"]

    def test_a_refusing_kernel_is_named(self, tmp_path: Path, scope: Path, kernel: Kernel) -> None:
        kernel.refusal = PermissionError("not for you")
        with pytest.raises(FilterUnavailable, match="not for you"):
            filter_of(tmp_path).grant(7, MAJOR, [30])

    def test_a_job_that_cannot_be_put_into_rules_in_force_is_not_run(
        self, tmp_path: Path, scope: Path, kernel: Kernel
    ) -> None:
        filter_of(tmp_path).grant(7, MAJOR, [30])
        (scope / "job_8").write_text("")
        with pytest.raises(MigError, match="of job 8 cannot be set") as caught:
            filter_of(tmp_path).grant(8, MAJOR, [40])
        assert not isinstance(caught.value, FilterUnavailable)

    def test_without_slurms_cgroup_it_says_what_to_set(self, tmp_path: Path) -> None:
        (tmp_path / "cgroup").mkdir()
        with pytest.raises(FilterUnavailable, match="ProctrackType=proctrack/cgroup"):
            filter_of(tmp_path).grant(7, MAJOR, [30])
        filter_of(tmp_path).revoke([30])
        filter_of(tmp_path).forget(7)
        filter_of(tmp_path).withdraw()

    def test_without_cgroup_v2_it_is_unavailable(self, tmp_path: Path) -> None:
        with pytest.raises(FilterUnavailable, match="not mounted"):
            DeviceFilter({}, tmp_path / "none").grant(7, MAJOR, [30])

    def test_a_folder_that_is_no_cgroup_is_refused_by_the_kernel(self, tmp_path: Path, scope: Path) -> None:
        with pytest.raises(FilterUnavailable, match="bpf command"):
            filter_of(tmp_path).grant(7, MAJOR, [30])


def test_an_unknown_machine_has_no_device_rules(tmp_path: Path, scope: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    with pytest.raises(FilterUnavailable, match="s390x"):
        filter_of(tmp_path).grant(7, MAJOR, [30])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return world_with(tmp_path, monkeypatch, "auto")


def world_with(folder: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> World:
    (folder / "nvml" / "caps").mkdir(parents=True)
    world = World(folder, monkeypatch, caps=True, isolation=method)
    world.daemon.plan(7, ("3g.40gb", 4))
    return world


def nodes(world: World) -> list[Path]:
    """The device nodes of the only instance."""
    [shown] = world.node.show()["gpus"][0]["instances"]
    gi = 3 + 9 * shown["gi"]
    return [world.folder / "nvml/caps/dev/nvidia-caps" / f"nvidia-cap{minor}" for minor in (gi, gi + 1)]


class TestJobs:
    def test_only_the_user_can_open_the_slice(self, world: World) -> None:
        world.prolog(7)
        for node in nodes(world):
            status = node.stat()
            assert (status.st_uid, status.st_mode & 0o777) == (1001, 0o400)
        assert world.visible(7).startswith("STATE=ready")

    def test_auto_says_what_it_could_not_do(self, world: World) -> None:
        world.prolog(7)
        assert "not from other jobs of one user" in world.daemon.reports[-1].message

    def test_the_driver_is_told_to_leave_the_nodes_alone(self, world: World) -> None:
        world.prolog(7)
        files = sorted((world.folder / "nvml/caps/proc/driver/nvidia/capabilities/gpu0/mig").rglob("access"))
        assert [file.read_text().splitlines()[-1] for file in files] == ["DeviceFileModify: 0"] * 2

    def test_it_is_lifted_with_the_slice(self, world: World) -> None:
        world.node.ctl("policy", "keep-caps=on")
        world.prolog(7)
        left = nodes(world)
        assert world.epilog(7)
        for node in left:
            status = node.stat()
            assert (status.st_uid, status.st_mode & 0o777) == (0, 0o444)

    def test_a_slice_that_cannot_be_kept_apart_is_not_used(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError("not here")

        monkeypatch.setattr(os, "chown", refuse)
        world.prolog(7)
        assert world.layout() == set()
        assert "kept from other users" in world.daemon.reports[-1].message

    def test_a_configured_cgroup_that_cannot_be_had_sends_the_job_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = world_with(tmp_path, monkeypatch, "cgroup")
        world.prolog(7)
        assert world.layout() == set()
        assert world.daemon.reports[-1].job_must_go_back
        assert "nvidia-caps" in world.daemon.reports[-1].message or "proc/devices" in world.daemon.reports[-1].message

    def test_with_cgroups_the_job_owns_its_minors_until_its_epilog(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: Path, kernel: Kernel
    ) -> None:
        world = world_with(tmp_path, monkeypatch, "cgroup")
        devices = tmp_path / "nvml/caps/proc/devices"
        devices.write_text(f"Character devices:\n  1 mem\n{MAJOR} nvidia-caps\n\nBlock devices:\n  8 sd\n")
        world.isolation = Isolation("cgroup", tmp_path / "nvml/caps", filter_of(tmp_path))
        world.prolog(7)
        minors = [int(node.name.removeprefix("nvidia-cap")) for node in nodes(world)]
        assert sorted(kernel.owners()) == sorted(minors)
        assert world.daemon.reports[-1].message == ""
        assert world.epilog(7)
        assert kernel.owners() == {}
        assert not os.listdir(scope)

    @pytest.mark.parametrize("method", ["owner", "none"])
    def test_a_weaker_choice_takes_earlier_rules_out_of_force(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: Path, kernel: Kernel, method: str
    ) -> None:
        filter_of(tmp_path).grant(6, MAJOR, [30])
        world = world_with(tmp_path, monkeypatch, method)
        world.isolation = Isolation(method, tmp_path / "nvml/caps", filter_of(tmp_path))
        world.prolog(7)
        assert kernel.attached == []
        assert {node.stat().st_mode & 0o777 for node in nodes(world)} == {0o400 if method == "owner" else 0o444}


def test_a_driver_without_capabilities_is_said_to_keep_nobody_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, isolation="auto")
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    assert "not kept apart" in world.daemon.reports[-1].message
    assert world.visible(7).startswith("STATE=ready")


@pytest.mark.parametrize("method", ["owner", "cgroup"])
def test_a_configured_method_without_capabilities_sends_the_job_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    world = World(tmp_path, monkeypatch, isolation=method)
    world.daemon.plan(7, ("1g.10gb", 0))
    world.prolog(7)
    assert world.daemon.reports[-1].job_must_go_back
    assert world.layout() == set()
