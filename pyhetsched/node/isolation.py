"""Keeping a job from the slices of others: who owns the device nodes of a slice's capabilities.

To use an instance a process must open two device nodes, ``/dev/nvidia-caps/nvidia-cap<minor>`` of its GPU
instance and of its compute instance, besides ``/dev/nvidia<minor>``; the driver makes them readable by all.
Under *owner* they belong to the job's user, mode 0400. So that nvidia-modprobe, which any user may run, does
not restore the driver's default, ``DeviceFileModify: 0`` is written to each capability's file under /proc
first (nv-caps.c of the open kernel modules reads it when the file is closed).

Two jobs of one user can open each other's slices under *owner*.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyhetsched.errors import ConfigError, MigError

log = logging.getLogger("hetsched.node")

_FIELD = re.compile(r"^(DeviceFile\w+):\s*(\d+)\s*$", re.MULTILINE)
_DEFAULT_MODE = 0o444


@dataclass(frozen=True, slots=True)
class Capability:
    """One capability: its file under /proc, the minor of its device node, and the driver's mode for it."""

    file: Path
    minor: int
    mode: int = _DEFAULT_MODE


class Isolation:
    """Restricts slices to a user and lifts the restriction again.

    ``method`` is auto, none or owner; auto is owner where the driver shows capabilities. ``root`` is "/" but
    in tests. Raises `ConfigError` for a method that this machine cannot do.
    """

    def __init__(self, method: str = "auto", root: Path = Path("/")) -> None:
        if method == "cgroup":
            raise ConfigError(
                "node.isolation: device rules of cgroups are not available; write auto or owner"
            )
        self._proc = root / "proc/driver/nvidia/capabilities"
        self._devices = root / "proc/devices"
        self._dev = root / "dev/nvidia-caps"
        if method == "owner" and not self._proc.is_dir():
            raise ConfigError(
                f"node.isolation: {self._proc} is not there; write auto, or load a driver with MIG"
            )
        self.method = "none" if method == "none" or not self._proc.is_dir() else "owner"

    def restrict(self, uid: int, gpu_minor: int, gi_id: int, ci_id: int) -> None:
        """Give the slice's device nodes to ``uid`` alone; raises `MigError` when that cannot be done."""
        if self.method == "none":
            return
        for capability in self._read_both(gpu_minor, gi_id, ci_id):
            try:
                with capability.file.open("a", encoding="ascii") as switch:
                    switch.write("DeviceFileModify: 0\n")
                self._own(capability, uid, 0o400)
            except OSError as error:
                raise MigError(f"the slice cannot be kept from other users: {error}") from error

    def capabilities(self, gpu_minor: int, gi_id: int, ci_id: int | None) -> tuple[Capability, ...]:
        """Return what is to be lifted once this slice is gone; nothing where nothing can be read."""
        if self.method == "none" or ci_id is None:
            return ()
        try:
            return self._read_both(gpu_minor, gi_id, ci_id)
        except MigError as error:
            log.info("nothing to lift: %s", error)
            return ()

    def lift(self, capabilities: Iterable[Capability]) -> None:
        """Give the device nodes of a destroyed slice back to root, with the driver's mode."""
        for capability in capabilities:
            try:
                self._own(capability, 0, capability.mode)
            except (MigError, OSError) as error:
                log.info("nvidia-cap%d was left as it is: %s", capability.minor, error)

    def _read_both(self, gpu_minor: int, gi_id: int, ci_id: int) -> tuple[Capability, ...]:
        instance = self._proc / f"gpu{gpu_minor}" / "mig" / f"gi{gi_id}"
        return (_read(instance / "access"), _read(instance / f"ci{ci_id}" / "access"))

    def _own(self, capability: Capability, uid: int, mode: int) -> None:
        path = self._dev / f"nvidia-cap{capability.minor}"
        if not path.exists():
            self._make(path, capability.minor)
        # Closed to all before it changes hands, so that it is never open to both users.
        os.chmod(path, 0)
        os.chown(path, uid, 0)
        os.chmod(path, mode)

    def _make(self, path: Path, minor: int) -> None:
        major = re.search(
            r"^\s*(\d+)\s+nvidia-caps$", self._devices.read_text(encoding="ascii"), re.MULTILINE
        )
        if major is None:
            raise MigError(f"{self._devices} names no nvidia-caps, so {path} cannot be made")
        path.parent.mkdir(mode=0o755, exist_ok=True)
        os.mknod(path, stat.S_IFCHR, os.makedev(int(major[1]), minor))


def _read(file: Path) -> Capability:
    try:
        fields = {name: int(value) for name, value in _FIELD.findall(file.read_text(encoding="ascii"))}
        return Capability(file, fields["DeviceFileMinor"], fields.get("DeviceFileMode", _DEFAULT_MODE))
    except (OSError, KeyError) as error:
        raise MigError(f"{file} does not say which device node it means: {error!r}") from error
