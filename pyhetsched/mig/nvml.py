"""The driver of NVML: the one importer of pynvml.

A session is opened once per process and kept (`NvmlDriver` is a context manager). GPUs are named by the
index that Slurm counts, which is their order by device minor. Instances are always looked up anew by their
GPU instance id: a handle or a list position from before a change is never used after it.

Rules followed here, from nvml.h and the MIG user guide: a GPU instance comes first, then its compute
instance; destroying goes the other way; a call on the parent may be refused (code 4) inside containers;
setting the MIG mode can return success while the activation status says otherwise.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from pyhetsched.errors import MigError, NvmlCallError
from pyhetsched.instances import GpuReport, MigInstance
from pyhetsched.mig.nvml_codes import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    TEXTS,
    indexes_by_minor,
)

_FIELD_RESETLESS_MIG = 184
_ARRAY = 16  # at least as many instances of one profile as any GPU holds


@dataclass(frozen=True, slots=True)
class _Gpu:
    handle: Any
    minor: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class _ProfileInfo:
    gi_profile_id: int
    compute_slices: int
    name: str


def preload() -> None:
    """Load the binding, which takes as long as a call to the daemon; nothing is initialised."""
    import pynvml  # noqa: F401


class NvmlDriver:
    """One session with NVML; ``nvml_s`` is the time spent inside its calls so far.

    Every method raises `NvmlCallError` with the code of the call that failed, and `MigError` when NVML
    answers success but the result read back is not what was asked for.
    """

    def __init__(self) -> None:
        self.nvml_s = 0.0
        self._lib: Any = None
        self._by_index: dict[int, _Gpu] = {}
        self._profiles: dict[int, tuple[_ProfileInfo, ...]] = {}
        self._names: dict[tuple[int, int], str] = {}

    def __enter__(self) -> NvmlDriver:
        import pynvml

        self._lib = pynvml
        self._call("nvmlInit")
        self.refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call("nvmlShutdown")
        self._by_index.clear()

    def refresh(self) -> None:
        """Look the GPUs up again; a change of MIG mode can renumber minors and void handles."""
        count = int(self._call("nvmlDeviceGetCount"))
        gpus = [self._open(position) for position in range(count)]
        indexes = indexes_by_minor([None if gpu.lost else gpu.minor for gpu in gpus])
        self._by_index = dict(sorted(zip(indexes, gpus, strict=True)))
        self._profiles.clear()

    def _open(self, position: int) -> _Gpu:
        try:
            handle = self._call("nvmlDeviceGetHandleByIndex", position)
            return _Gpu(handle, int(self._call("nvmlDeviceGetMinorNumber", handle)))
        except NvmlCallError as error:
            if error.code != GPU_IS_LOST:
                raise
            return _Gpu(None, -1, lost=True)

    # What is there

    @property
    def indexes(self) -> tuple[int, ...]:
        """The indexes of all GPUs, lost ones too."""
        return tuple(self._by_index)

    def driver_version(self) -> str:
        """Return the version of the kernel driver."""
        return str(self._call("nvmlSystemGetDriverVersion"))

    def minor(self, index: int) -> int:
        """Return the device minor of a GPU, as in ``/dev/nvidia<minor>``."""
        return self._gpu(index).minor

    def uuid(self, index: int) -> str:
        """Return the UUID of a GPU."""
        return str(self._call("nvmlDeviceGetUUID", self._gpu(index).handle))

    def index_of(self, uuid: str) -> int | None:
        """Return the index that the GPU with ``uuid`` has now, None if it is not there."""
        for index, gpu in self._by_index.items():
            if not gpu.lost and self.uuid(index) == uuid:
                return index
        return None

    def learn_name(self, index: int, gi_profile_id: int, name: str) -> None:
        """Call the profile with this id ``name`` on this GPU, so that the catalogue need not be read."""
        self._names[index, gi_profile_id] = name

    def mig_mode(self, index: int) -> str:
        """Return on, off, none (no MIG on this model), pending-on, pending-off or unknown."""
        if self._by_index.get(index) is None or self._by_index[index].lost:
            return "unknown"
        try:
            current, pending = self._call("nvmlDeviceGetMigMode", self._gpu(index).handle)
        except NvmlCallError as error:
            if error.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                return "none"
            if error.code in (NO_PERMISSION, GPU_IS_LOST):
                return "unknown"
            raise
        if current == pending:
            return "on" if current else "off"
        return "pending-on" if pending else "pending-off"

    def gpus(self) -> tuple[GpuReport, ...]:
        """Return every GPU with its instances; what cannot be asked is unknown, never a guess."""
        return tuple(self.report(index) for index in self._by_index)

    def report(self, index: int) -> GpuReport:
        """Return one GPU with its instances; a lost one has no name and the mode unknown."""
        gpu = self._by_index[index]
        if gpu.lost:
            return GpuReport(index, gpu.minor, "", None, "lost", 0, "unknown")
        name, memory_mib = self._identity(index)
        model = _catalogue_model(name, memory_mib)
        mode = self.mig_mode(index)
        return GpuReport(
            index=index,
            minor=gpu.minor,
            uuid=self.uuid(index),
            model_key=model.key if model is not None else None,
            name=name,
            memory_mib=memory_mib,
            mig_mode=mode,
            instances=() if mode == "unknown" else self.instances(index),
            utilization_pct=self.utilization_pct(index),
        )

    def instances(self, index: int) -> tuple[MigInstance, ...]:
        """Return the GPU instances of one GPU by start, those without a compute instance too.

        Raises `MigError` where the mode cannot be read: that is not to say that nothing is there.
        """
        mode = self.mig_mode(index)
        if mode == "unknown":
            raise MigError(f"GPU {index}: its MIG mode cannot be read, so nothing is known of its instances")
        if mode not in ("on", "pending-off"):
            return ()
        gpu = self._gpu(index)
        compute = self._mig_devices(gpu)
        found = [
            self._instance(index, info, handle, compute)
            for info in self._profile_infos(index)
            for handle in self._instances_of(gpu, info.gi_profile_id)
        ]
        return tuple(sorted((i for i in found if i is not None), key=lambda i: (i.start, i.gi_id)))

    def processes(self, index: int) -> tuple[int, ...]:
        """Return the ids of processes that run on any part of a GPU; empty does not prove that none does."""
        gpu = self._gpu(index)
        pids: set[int] = set()
        for handle in (gpu.handle, *(self._mig_handles(gpu) if self.mig_mode(index) == "on" else ())):
            try:
                pids |= {int(p.pid) for p in self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle)}
            except NvmlCallError as error:
                if error.code not in (NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED):
                    raise
        return tuple(sorted(pids))

    def utilization_pct(self, index: int) -> int | None:
        """Return how busy a GPU was in its last sample period, None where that is not told (in MIG mode never)."""
        try:
            return int(self._call("nvmlDeviceGetUtilizationRates", self._gpu(index).handle).gpu)
        except NvmlCallError as error:
            if error.code not in (NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                raise
            return None

    def holders(self, index: int, gi_id: int) -> tuple[int, ...]:
        """Return the ids of processes that run on an instance; empty does not prove that none does."""
        gpu = self._gpu(index)
        pids: set[int] = set()
        for handle in self._mig_handles(gpu):
            if self._call("nvmlDeviceGetGpuInstanceId", handle) != gi_id:
                continue
            try:
                pids |= {int(p.pid) for p in self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle)}
            except NvmlCallError as error:
                if error.code not in (NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED):
                    raise
        return tuple(sorted(pids))

    # Instances

    def create_slice(self, index: int, gi_profile_id: int, start: int, size: int) -> MigInstance:
        """Create a GPU instance at ``start`` and the compute instance that fills it, and read them back.

        When the compute instance fails, the GPU instance is destroyed again before the error is raised.
        """
        gi_id = self.create_gpu_instance(index, gi_profile_id, start, size)
        try:
            self.create_compute_instance(index, gi_id)
            made = self.find(index, gi_id)
            if (
                made is None
                or made.ci_id is None
                or not made.mig_uuid
                or (made.start, made.size) != (start, size)
            ):
                raise MigError(
                    f"GPU {index}: instance {gi_id} was reported made, but reading back shows {made}"
                )
        except MigError:
            self.destroy_slice(index, gi_id)
            raise
        return made

    def create_gpu_instance(self, index: int, gi_profile_id: int, start: int, size: int) -> int:
        """Create a GPU instance without a compute instance and return its id."""
        placement = self._lib.c_nvmlGpuInstancePlacement_t(start, size)
        handle = self._call(
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            self._gpu(index).handle, gi_profile_id, ctypes.byref(placement),
        )  # fmt: skip
        return int(self._call("nvmlGpuInstanceGetInfo", handle).id)

    def create_compute_instance(self, index: int, gi_id: int) -> int:
        """Create the compute instance that spans a GPU instance and return its id."""
        handle = self._call("nvmlDeviceGetGpuInstanceById", self._gpu(index).handle, gi_id)
        made = self._call("nvmlGpuInstanceCreateComputeInstance", handle, self._full_compute_profile(handle))
        return int(self._call("nvmlComputeInstanceGetInfo", made).id)

    def destroy_slice(self, index: int, gi_id: int) -> None:
        """Destroy the compute instances of a GPU instance, then the GPU instance; one that is gone is fine.

        Raises `NvmlCallError` with `IN_USE` while something holds it; try again later, nothing is forced.
        """
        gpu = self._gpu(index)
        try:
            handle = self._call("nvmlDeviceGetGpuInstanceById", gpu.handle, gi_id)
        except NvmlCallError as error:
            if error.code == NOT_FOUND:
                return
            raise
        for ci_id in sorted(ci for gi, ci in self._mig_devices(gpu) if gi == gi_id):
            self._destroy_compute_instance(handle, ci_id)
        self._call("nvmlGpuInstanceDestroy", handle)
        if self.find(index, gi_id) is not None:
            raise MigError(f"GPU {index}: instance {gi_id} was reported destroyed, but it is still there")

    def find(self, index: int, gi_id: int) -> MigInstance | None:
        """Return the instance with this GPU instance id, read anew, or None."""
        return next((i for i in self.instances(index) if i.gi_id == gi_id), None)

    # Mode

    def resetless(self, index: int) -> bool | None:
        """Return whether the MIG mode of this GPU changes without a reset; None where the driver cannot say."""
        values = self._call("nvmlDeviceGetFieldValues", self._gpu(index).handle, [_FIELD_RESETLESS_MIG])
        return bool(values[0].value.uiVal) if values[0].nvmlReturn == 0 else None

    def set_mig_mode(self, index: int, enable: bool) -> str:
        """Ask for a MIG mode and return the mode that results: on, off, pending-on or pending-off.

        Three things are checked: the call's code, the activation status that it fills, and the current and
        pending mode read back. A pending mode is a state to report (it takes a reset or a reboot), not an
        error to retry. Raises `NvmlCallError` when the activation status is anything but that. Look the
        GPU up by its UUID afterwards: its index may have changed.
        """
        uuid = self.uuid(index)
        activation = int(self._call("nvmlDeviceSetMigMode", self._gpu(index).handle, int(enable)))
        self.refresh()
        # The call can unbind the device and give it another minor, and so another index.
        now = self.index_of(uuid)
        mode = "unknown" if now is None else self.mig_mode(now)
        if activation not in (0, RESET_REQUIRED):
            raise self._error("nvmlDeviceSetMigMode (activation)", activation)
        wanted = ("on", "pending-on") if enable else ("off", "pending-off")
        if mode not in wanted:
            raise MigError(f"GPU {index}: MIG mode was set, but reading back shows {mode}")
        return mode

    # Plumbing

    def _call(self, name: str, *arguments: object) -> Any:
        begun = time.perf_counter()
        try:
            return getattr(self._lib, name)(*arguments)
        except self._lib.NVMLError as error:
            raise self._error(name, int(error.value)) from error
        finally:
            self.nvml_s += time.perf_counter() - begun

    def _error(self, call: str, code: int) -> NvmlCallError:
        text = TEXTS.get(code)
        if text is None:
            try:
                text = str(self._lib.nvmlErrorString(code))
            except self._lib.NVMLError:
                text = "failed"
        return NvmlCallError(call, code, text)

    def _gpu(self, index: int) -> _Gpu:
        gpu = self._by_index.get(index)
        if gpu is None:
            raise MigError(f"there is no GPU {index} on this node; there are {list(self._by_index)}")
        if gpu.lost:
            raise self._error(f"GPU {index}", GPU_IS_LOST)
        return gpu

    def _identity(self, index: int) -> tuple[str, int]:
        handle = self._gpu(index).handle
        try:
            memory_mib = int(self._call("nvmlDeviceGetMemoryInfo", handle).total) >> 20
        except NvmlCallError as error:
            if error.code not in (NO_PERMISSION, NOT_SUPPORTED):
                raise
            memory_mib = 0
        return str(self._call("nvmlDeviceGetName", handle)), memory_mib

    def _profile_infos(self, index: int) -> tuple[_ProfileInfo, ...]:
        if index not in self._profiles:
            handle = self._gpu(index).handle
            infos = (self._profile_info(handle, c) for c in range(self._lib.NVML_GPU_INSTANCE_PROFILE_COUNT))
            self._profiles[index] = tuple(info for info in infos if info is not None)
        return self._profiles[index]

    def _profile_info(self, handle: object, const: int) -> _ProfileInfo | None:
        try:
            info = self._call("nvmlDeviceGetGpuInstanceProfileInfo", handle, const)
        except NvmlCallError as error:
            # This profile is not on this GPU, or the driver's list of constants is shorter than the binding's.
            if error.code in (NOT_SUPPORTED, INVALID_ARGUMENT):
                return None
            raise
        name = info.name.decode(errors="replace") if isinstance(info.name, bytes) else str(info.name)
        return _ProfileInfo(int(info.id), int(info.sliceCount), name.removeprefix("MIG ").strip())

    def _instances_of(self, gpu: _Gpu, gi_profile_id: int) -> list[Any]:
        handles = (self._lib.c_nvmlGpuInstance_t * _ARRAY)()
        count = ctypes.c_uint(_ARRAY)
        self._call("nvmlDeviceGetGpuInstances", gpu.handle, gi_profile_id, handles, ctypes.byref(count))
        return list(handles[: count.value])

    def _instance(
        self, index: int, info: _ProfileInfo, handle: object, compute: dict[tuple[int, int], str]
    ) -> MigInstance | None:
        try:
            shown = self._call("nvmlGpuInstanceGetInfo", handle)
        except NvmlCallError as error:
            if error.code == NOT_FOUND:  # somebody else destroyed it since it was listed
                return None
            raise
        gi_id = int(shown.id)
        ci_id, uuid = next(((ci, u) for (gi, ci), u in sorted(compute.items()) if gi == gi_id), (None, ""))
        name = self._profile_name(index, info)
        return MigInstance(name, int(shown.placement.start), int(shown.placement.size), gi_id, ci_id, uuid)

    def _profile_name(self, index: int, info: _ProfileInfo) -> str:
        key = (index, info.gi_profile_id)
        if key not in self._names:
            model = _catalogue_model(*self._identity(index))
            known = [
                p.name for p in (model.profiles if model else ()) if p.gi_profile_id == info.gi_profile_id
            ]
            self._names[key] = known[0] if known else info.name
        return self._names[key]

    def _mig_handles(self, gpu: _Gpu) -> list[Any]:
        handles = []
        for slot in range(int(self._call("nvmlDeviceGetMaxMigDeviceCount", gpu.handle))):
            try:
                handles.append(self._call("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, slot))
            except NvmlCallError as error:
                if error.code not in (NOT_FOUND, INVALID_ARGUMENT):  # an empty slot, not the end
                    raise
        return handles

    def _mig_devices(self, gpu: _Gpu) -> dict[tuple[int, int], str]:
        devices = {}
        for handle in self._mig_handles(gpu):
            try:
                gi = int(self._call("nvmlDeviceGetGpuInstanceId", handle))
                ci = int(self._call("nvmlDeviceGetComputeInstanceId", handle))
                devices[gi, ci] = str(self._call("nvmlDeviceGetUUID", handle))
            except NvmlCallError as error:
                if error.code not in (NOT_FOUND, INVALID_ARGUMENT):  # destroyed since it was listed
                    raise
        return devices

    def _full_compute_profile(self, gi_handle: object) -> int:
        best: tuple[int, int] | None = None
        for const in range(self._lib.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = self._call("nvmlGpuInstanceGetComputeInstanceProfileInfo", gi_handle, const, 0)
            except NvmlCallError as error:
                if error.code in (NOT_SUPPORTED, INVALID_ARGUMENT):
                    continue
                raise
            if best is None or int(info.sliceCount) > best[0]:
                best = (int(info.sliceCount), int(info.id))
        if best is None:
            raise MigError("NVML lists no compute instance profile for this GPU instance")
        return best[1]

    def _destroy_compute_instance(self, gi_handle: object, ci_id: int) -> None:
        try:
            handle = self._call("nvmlGpuInstanceGetComputeInstanceById", gi_handle, ci_id)
            self._call("nvmlComputeInstanceDestroy", handle)
        except NvmlCallError as error:
            if error.code != NOT_FOUND:
                raise


def _catalogue_model(name: str, memory_mib: int) -> Any:
    # Read late: a prolog is told the names of its profiles and need not load the catalogue.
    from pyhetsched.mig.profiles import find_model

    return find_model(name, memory_mib or None)
