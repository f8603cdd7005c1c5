"""Device rules of cgroup v2 that open an instance's device nodes to the tasks of one job alone.

One eBPF program of type BPF_PROG_TYPE_CGROUP_DEVICE is attached to the cgroup under which slurmstepd keeps all
jobs of a node, its *scope*. It lets everything pass but the device nodes of instances (major of nvidia-caps,
minors from 3), which it opens to root and to the job that a map names for the minor: a job is recognised by the
id of its cgroup among the ancestors of the process. Jobs without slices are refused too.

Why the scope and not the job's cgroup: Slurm (26.05) attaches its own program (ConstrainDevices) to the cgroups
of jobs, steps and tasks with BPF_F_ALLOW_OVERRIDE, which a cgroup that carries one with BPF_F_ALLOW_MULTI
refuses, and which displaces those of other cgroups above it unless they were attached with BPF_F_ALLOW_MULTI.
So ours is in force beside Slurm's, and both must allow.

The cgroup of a job does not exist yet when its prolog runs, and may vanish between two steps. It is made here,
under the name that slurmstepd will look for, and holds an empty child of ours until the slices are gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pyhetsched.errors import MigError
from pyhetsched.node import bpf

log = logging.getLogger("hetsched.node")

_PREFIX = "hetsched"
_NAME = f"{_PREFIX}1_"  # the number changes with the program; the major follows
_FIRST_INSTANCE_MINOR = 3  # 1 and 2 are config and monitor, which their modes guard
_DEEPEST_LEVEL = 14  # of a job's cgroup in the whole hierarchy; Slurm's are at 3
_SLURM_UID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ALLOW, _DENY = "allow", "deny"


class FilterUnavailable(MigError):
    """This machine has no device rules of cgroup v2 that could keep jobs apart."""


def program(major: int, owners: int) -> bytes:
    """Return the program's instructions for the major of nvidia-caps and the descriptor of the map.

    The map leads from a minor (u32) to the ids of the job's cgroups (two u64, the second may be 0).
    """
    code = bpf.Assembly()
    code.add(0xBF, dst=6, src=1)  # r6 = context: access and type, major, minor
    code.add(0x61, dst=2, src=6)
    code.add(0x57, dst=2, imm=0xFFFF)
    code.add(0x55, dst=2, imm=2, to=_ALLOW)  # not a character device
    code.add(0x61, dst=2, src=6, off=4)
    code.add(0x55, dst=2, imm=major, to=_ALLOW)
    code.add(0x61, dst=7, src=6, off=8)  # r7 = minor
    code.add(0xA5, dst=7, imm=_FIRST_INSTANCE_MINOR, to=_ALLOW)
    code.add(0x85, imm=bpf.GET_CURRENT_UID_GID)
    code.add(0xBC, dst=0, src=0)
    code.add(0x15, dst=0, imm=0, to=_ALLOW)  # root, by its real uid in the first user namespace
    code.add(0x63, dst=10, src=7, off=-4)
    code.add(0x18, dst=1, src=1, imm=owners)
    code.add(0x00)
    code.add(0xBF, dst=2, src=10)
    code.add(0x07, dst=2, imm=-4)
    code.add(0x85, imm=bpf.MAP_LOOKUP_ELEM)
    code.add(0x15, dst=0, imm=0, to=_DENY)  # nobody's
    code.add(0x79, dst=7, src=0)
    code.add(0x79, dst=8, src=0, off=8)
    for level in range(1, _DEEPEST_LEVEL + 1):
        code.add(0xB7, dst=1, imm=level)
        code.add(0x85, imm=bpf.GET_CURRENT_ANCESTOR_CGROUP_ID)
        code.add(0x15, dst=0, imm=0, to=_DENY)  # no ancestor so deep
        code.add(0x1D, dst=0, src=7, to=_ALLOW)
        code.add(0x1D, dst=0, src=8, to=_ALLOW)
    code.label(_DENY)
    code.add(0xB7, dst=0, imm=0)
    code.add(0x95)
    code.label(_ALLOW)
    code.add(0xB7, dst=0, imm=1)
    code.add(0x95)
    return code.assemble()


class DeviceFilter:
    """The device rules of the jobs of one Slurm node.

    ``variables`` are those of the hook: SLURMD_NODENAME and, from Slurm 26.05, SLURM_JOB_SLUID, after which
    it names a job's cgroup. ``mountinfo`` tells where cgroup v2 is mounted.
    """

    def __init__(
        self, variables: Mapping[str, str] = os.environ, mountinfo: Path = Path("/proc/self/mountinfo")
    ) -> None:
        self._node = variables.get("SLURMD_NODENAME", "")
        self._job_id = variables.get("SLURM_JOB_ID", "")
        self._slurm_uid = variables.get("SLURM_JOB_SLUID", "")
        self._mountinfo = mountinfo

    def grant(self, job_id: int, major: int, minors: Iterable[int]) -> None:
        """Open these device nodes to the tasks of a job, and to no other.

        Raises `FilterUnavailable` when there are no rules in force, `MigError` when there are and the job
        cannot be put into them: it could not use its slices.
        """
        with self._locked() as scope:
            owners = self._ensure(scope, major)
            try:
                ids = self._job_cgroups(self._scope(), job_id)
                for minor in minors:
                    bpf.update(owners, _key(minor), b"".join(map(_id, ids)))
            except OSError as error:
                raise MigError(f"the device rules of job {job_id} cannot be set: {error}") from error
            finally:
                os.close(owners)

    def revoke(self, minors: Iterable[int]) -> None:
        """Close these device nodes to all jobs again; nothing where there are no rules."""
        with contextlib.suppress(FilterUnavailable), self._locked() as scope:
            for found in self._attached(scope).values():
                for owners in found.maps:
                    for minor in minors:
                        bpf.delete(owners, _key(minor))
                found.close()

    def forget(self, job_id: int) -> None:
        """Let go of the cgroups that were made for a job; slurmstepd removes them too, if it comes later."""
        with contextlib.suppress(FilterUnavailable, OSError):
            for holder in self._scope().glob(f"*/{_holder(job_id)}"):
                with contextlib.suppress(OSError):
                    holder.rmdir()
                    holder.parent.rmdir()

    def withdraw(self) -> None:
        """Take the rules out of force, where an earlier configuration has left them."""
        with contextlib.suppress(FilterUnavailable), self._locked() as scope:
            for found in self._attached(scope).values():
                log.info("device rules are taken out of force: %s", found.name)
                bpf.detach(scope, found.descriptor)
                found.close()

    def _ensure(self, scope: int, major: int) -> int:
        """Return the map of the program on the scope, which is attached first if it is not there."""
        wanted = f"{_NAME}{major}"
        attached = self._attached(scope)
        try:
            if wanted in attached:
                return os.dup(attached[wanted].maps[0])
            owners = bpf.create_hash(key_size=4, value_size=16, entries=8192, name="hetsched_owners")
            try:
                loaded = bpf.load_device_program(program(major, owners), wanted)
                try:
                    bpf.attach(scope, loaded)
                finally:
                    os.close(loaded)
            except OSError:
                os.close(owners)
                raise
            for old in attached.values():  # of an earlier version, or from before the driver was loaded anew
                bpf.detach(scope, old.descriptor)
            return owners
        except OSError as error:
            raise FilterUnavailable(f"device rules cannot be attached: {error}") from error
        finally:
            for found in attached.values():
                found.close()

    def _attached(self, scope: int) -> dict[str, bpf.Attached]:
        ours = {}
        try:
            for found in bpf.attached_device_programs(scope):
                if found.name.startswith(_PREFIX):
                    ours[found.name] = found
                else:
                    found.close()
        except OSError as error:
            raise FilterUnavailable(f"device rules cannot be read: {error}") from error
        return ours

    def _job_cgroups(self, scope: Path, job_id: int) -> tuple[int, int]:
        names = [f"job_{job_id}"]
        if self._job_id == str(job_id) and _SLURM_UID.fullmatch(self._slurm_uid):
            names.append(self._slurm_uid)
        ids = []
        for name in names:
            (scope / name / _holder(job_id)).mkdir(parents=True, exist_ok=True)
            ids.append((scope / name).stat().st_ino)
        return ids[0], ids[-1] if len(ids) > 1 else 0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the scope; one prolog or epilog at a time, so that two never attach a program each."""
        try:
            descriptor = os.open(self._scope(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FilterUnavailable(f"the cgroup of Slurm's jobs cannot be opened: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def _scope(self) -> Path:
        names = (f"{self._node}_slurmstepd.scope", "slurmstepd.scope")
        mounts = self._mount_points()
        for mount in mounts:
            for depth in ("*/", "*/*/", "*/*/*/"):  # slices nest; by default it is system.slice
                for name in names:
                    with contextlib.suppress(OSError):  # what is being listed may vanish
                        found = sorted(mount.glob(depth + name))
                        if found:
                            return found[0]
        raise FilterUnavailable(
            f"{mounts[0]} has no slurmstepd.scope: Slurm keeps its jobs in no cgroup v2 "
            "(cgroup.conf: CgroupPlugin=cgroup/v2; slurm.conf: ProctrackType=proctrack/cgroup)"
        )

    def _mount_points(self) -> list[Path]:
        found = []
        with contextlib.suppress(OSError):
            for line in self._mountinfo.read_text(encoding="utf-8").splitlines():
                before, _, after = line.partition(" - ")
                if after.startswith("cgroup2 "):
                    found.append(Path(before.split()[4]))
        if not found:
            raise FilterUnavailable("cgroup v2 is not mounted")
        return found


def _holder(job_id: int) -> str:
    return f"hetsched-{job_id}"


def _key(minor: int) -> bytes:
    return minor.to_bytes(4, bpf.BYTE_ORDER)


def _id(cgroup: int) -> bytes:
    return cgroup.to_bytes(8, bpf.BYTE_ORDER)
