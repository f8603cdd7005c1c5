"""Keeping a job from the slices of others: owners of device nodes, and device rules of cgroups.

To use an instance a process must open two device nodes, ``/dev/nvidia-caps/nvidia-cap<minor>`` of its GPU
instance and of its compute instance, besides ``/dev/nvidia<minor>``; the driver makes them readable by all.

* *owner*: they belong to the job's user, mode 0400. So that nvidia-modprobe, which any user may run, does not
  restore the driver's default, ``DeviceFileModify: 0`` is written to each capability's file under /proc first
  (nv-caps.c of the open kernel modules reads it when the file is closed). Two jobs of one user can open each
  other's slices.
* *cgroup*: that, and the rules of `pyhetsched.node.device_filter`, which tell jobs of one user apart.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyhetsched.errors import MigError
from pyhetsched.node.device_filter import DeviceFilter, FilterUnavailable

log = logging.getLogger("hetsched.node")

_FIELD = re.compile(r"^(DeviceFile\w+):\s*(\d+)\s*$", re.MULTILINE)
_MAJOR = re.compile(r"^\s*(\d+)\s+nvidia-caps$", re.MULTILINE)
_DEFAULT_MODE = 0o444


@dataclass(frozen=True, slots=True)
class Capability:
    """One capability: its file under /proc, the minor of its device node, and the driver's mode for it."""

    file: Path
    minor: int
    mode: int = _DEFAULT_MODE


class Isolation:
    """Restricts slices to a job, or to its user, and lifts the restriction again.

    ``method`` is none, owner, cgroup, or auto: the strictest that works here. ``note`` says after `restrict`
    why something less strict than cgroup was taken. ``root`` is "/" but in tests.
    """

    def __init__(
        self, method: str = "auto", root: Path = Path("/"), device_filter: DeviceFilter | None = None
    ) -> None:
        self._asked = method
        self._proc = root / "proc/driver/nvidia/capabilities"
        self._devices = root / "proc/devices"
        self._dev = root / "dev/nvidia-caps"
        self._filter = device_filter or DeviceFilter(mountinfo=root / "proc/self/mountinfo")
        self.note = ""

    def restrict(self, job_id: int, uid: int, gpu_minor: int, gi_id: int, ci_id: int) -> None:
        """Keep everybody else from a slice; raises `MigError` when that cannot be done as configured."""
        if self._asked == "none":
            self._filter.withdraw()
            return
        if self._asked == "auto" and not self._proc.is_dir():
            self._noted(f"slices are not kept apart: {self._proc} is not there")
            return
        capabilities = self._read_both(gpu_minor, gi_id, ci_id)
        self._give(capabilities, uid)
        if self._asked == "owner":
            self._filter.withdraw()
            return
        try:
            self._filter.grant(job_id, self._major(), [capability.minor for capability in capabilities])
        except FilterUnavailable as error:
            if self._asked != "auto":
                raise
            self._noted(f"slices are kept from other users, but not from other jobs of one user: {error}")

    def capabilities(self, gpu_minor: int, gi_id: int, ci_id: int | None) -> tuple[Capability, ...]:
        """Return what is to be lifted once this slice is gone; nothing where nothing can be read."""
        if ci_id is None or not self._proc.is_dir():
            return ()
        try:
            return self._read_both(gpu_minor, gi_id, ci_id)
        except MigError as error:
            log.info("nothing to lift: %s", error)
            return ()

    def lift(self, capabilities: Iterable[Capability]) -> None:
        """Give the device nodes of a destroyed slice back to root with the driver's mode; no job may open them."""
        capabilities = tuple(capabilities)
        if not capabilities:
            return
        try:
            self._filter.revoke([capability.minor for capability in capabilities])
        except (MigError, OSError) as error:
            log.warning("device rules were left as they are: %s", error)
        for capability in capabilities:
            try:
                if self._path(capability).exists():
                    self._own(capability, 0, capability.mode)
            except (MigError, OSError) as error:
                log.info("nvidia-cap%d was left as it is: %s", capability.minor, error)

    def forget(self, job_id: int) -> None:
        """Remove what was made for a job besides its slices."""
        self._filter.forget(job_id)

    def _noted(self, text: str) -> None:
        if text != self.note:
            log.info("%s", text)
        self.note = text

    def _give(self, capabilities: Iterable[Capability], uid: int) -> None:
        for capability in capabilities:
            try:
                with capability.file.open("a", encoding="ascii") as switch:
                    switch.write("DeviceFileModify: 0\n")
                self._own(capability, uid, 0o400)
            except OSError as error:
                raise MigError(f"the slice cannot be kept from other users: {error}") from error

    def _read_both(self, gpu_minor: int, gi_id: int, ci_id: int) -> tuple[Capability, ...]:
        instance = self._proc / f"gpu{gpu_minor}" / "mig" / f"gi{gi_id}"
        return (_read(instance / "access"), _read(instance / f"ci{ci_id}" / "access"))

    def _path(self, capability: Capability) -> Path:
        return self._dev / f"nvidia-cap{capability.minor}"

    def _own(self, capability: Capability, uid: int, mode: int) -> None:
        path = self._path(capability)
        if not path.exists():
            path.parent.mkdir(mode=0o755, exist_ok=True)
            os.mknod(path, stat.S_IFCHR, os.makedev(self._major(), capability.minor))
        # Closed to all before it changes hands, so that it is never open to both users.
        os.chmod(path, 0)
        os.chown(path, uid, 0)
        os.chmod(path, mode)

    def _major(self) -> int:
        try:
            found = _MAJOR.search(self._devices.read_text(encoding="ascii"))
        except OSError as error:
            raise FilterUnavailable(f"{self._devices} cannot be read: {error}") from error
        if found is None:
            raise FilterUnavailable(f"{self._devices} names no nvidia-caps")
        return int(found[1])


def _read(file: Path) -> Capability:
    try:
        fields = {name: int(value) for name, value in _FIELD.findall(file.read_text(encoding="ascii"))}
        return Capability(file, fields["DeviceFileMinor"], fields.get("DeviceFileMode", _DEFAULT_MODE))
    except (OSError, KeyError) as error:
        raise MigError(f"{file} does not say which device node it means: {error!r}") from error
