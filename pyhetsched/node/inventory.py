"""The node as NVML shows it, as messages and as the flag file that the shell hooks read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pyhetsched.instances import GpuReport
from pyhetsched.mig.nvml import NvmlDriver
from pyhetsched.node.paths import NodePaths, write_atomically

if TYPE_CHECKING:
    from pyhetsched.rpc.gen import services_pb2 as pb

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def inventory(driver: NvmlDriver, gpus: Iterable[GpuReport], boot: str) -> pb.GpuInventory:
    """Return what the daemon is told of this node's GPUs."""
    from pyhetsched.rpc.gen import services_pb2 as pb

    return pb.GpuInventory(
        gpus=[gpu_message(gpu) for gpu in gpus], driver_version=driver.driver_version(), boot_id=boot
    )


def gpu_message(gpu: GpuReport) -> pb.Gpu:
    """Return one GPU as a message; a GPU that has no minor (it is lost) has minor 0 and mode unknown."""
    from pyhetsched.rpc.gen import services_pb2 as pb

    slices = [
        pb.Slice(profile=i.profile, start=i.start, size=i.size, uuid=i.mig_uuid, gi_id=i.gi_id)
        for i in gpu.instances
    ]
    return pb.Gpu(
        index=gpu.index, model=gpu.model_key or "", uuid=gpu.uuid, mig_mode=gpu.mig_mode, slices=slices,
        minor=max(gpu.minor, 0), memory_mib=gpu.memory_mib, utilization_pct=gpu.utilization_pct,
    )  # fmt: skip


def write_mig_gpus(paths: NodePaths, modes: dict[int, str], wanted: Iterable[int] = ()) -> None:
    """Write which GPUs are in MIG mode now, or might be (a mode that cannot be asked counts).

    ``wanted`` are GPUs that should be, though they are not: their jobs must be seen to as well.
    """
    possible = {index for index, mode in modes.items() if mode in ("on", "pending-off", "unknown")}
    text = f",{','.join(map(str, sorted(possible.union(wanted))))},\n"
    write_atomically(paths.mig_gpus, text, 0o644, durable=False)
    if remembered_mig_gpus(paths) != possible.union(wanted):
        write_atomically(paths.remembered_mig_gpus, text)


def remembered_mig_gpus(paths: NodePaths) -> frozenset[int]:
    """Return the GPUs that were in MIG mode when this node was last looked at, also before a reboot."""
    return _read(paths.remembered_mig_gpus) or frozenset()


def read_mig_gpus(paths: NodePaths) -> frozenset[int] | None:
    """Return the indexes that the last inventory wrote, None if there was none."""
    return _read(paths.mig_gpus)


def _read(path: Path) -> frozenset[int] | None:
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    return frozenset(int(part) for part in text.strip().split(",") if part.isdigit())
