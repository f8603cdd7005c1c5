"""Runs pynvml calls that come as JSON lines on standard input; answers go to standard output.

A request is ``[function, argument...]``.  Handles travel as ``{"handle": number}``.  An answer is
``{"value": ...}``, or ``{"code": ..., "text": ...}`` for an NVML error.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml


def encode(value: Any) -> Any:
    if isinstance(value, ctypes.Structure):
        return {field[0]: encode(getattr(value, field[0])) for field in value._fields_ if field[0] != "value"}
    if isinstance(value, ctypes._Pointer):
        return {"handle": ctypes.cast(value, ctypes.c_void_p).value}
    if isinstance(value, ctypes._SimpleCData):
        return value.value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return {key: encode(item) for key, item in vars(value).items()}
    if isinstance(value, list | tuple | ctypes.Array):
        return [encode(item) for item in value]
    return value


def decode(value: Any) -> Any:
    return ctypes.c_void_p(value["handle"]) if isinstance(value, dict) else value


def create(device: Any, profile_id: int, start: int, size: int | None = None) -> Any:
    """A GPU instance at ``start``; the size is the profile's unless given."""
    if size is None:
        size = placements(device, profile_id)[0][1]
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile_id, ctypes.byref(place))


def create_ci(gi: Any, profile_id: int, start: int, size: int) -> Any:
    place = pynvml.c_nvmlComputeInstancePlacement_t(start, size)
    return pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, profile_id, ctypes.byref(place))


def _placements(query: Callable[..., Any], kind: Any, owner: Any, profile_id: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint()
    query(owner, profile_id, None, ctypes.byref(count))
    places = (kind * count.value)()
    query(owner, profile_id, places, ctypes.byref(count))
    return [(place.start, place.size) for place in places]


def placements(device: Any, profile_id: int) -> list[tuple[int, int]]:
    return _placements(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, pynvml.c_nvmlGpuInstancePlacement_t, device,
                       profile_id)


def ci_placements(gi: Any, profile_id: int) -> list[tuple[int, int]]:
    return _placements(pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements,
                       pynvml.c_nvmlComputeInstancePlacement_t, gi, profile_id)


def instances(device: Any, profile_id: int) -> list[Any]:
    count = ctypes.c_uint()
    found = (pynvml.c_nvmlGpuInstance_t * 16)()
    pynvml.nvmlDeviceGetGpuInstances(device, profile_id, found, ctypes.byref(count))
    return list(found[: count.value])


def compute_instances(gi: Any, profile_id: int) -> list[Any]:
    count = ctypes.c_uint()
    found = (pynvml.c_nvmlComputeInstance_t * 8)()
    pynvml.nvmlGpuInstanceGetComputeInstances(gi, profile_id, found, ctypes.byref(count))
    return list(found[: count.value])


def field(device: Any, field_id: int) -> tuple[int, int]:
    """Return code and value of one field."""
    value = pynvml.nvmlDeviceGetFieldValues(device, [field_id])[0]
    return value.nvmlReturn, value.value.uiVal


def profiles(device: Any) -> dict[str, Any]:
    """All GPU instance profiles by name, found as tools do: by counting constants until INVALID_ARGUMENT."""
    found = {}
    for constant in range(64):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, constant)
        except pynvml.NVMLError_InvalidArgument:
            break
        except pynvml.NVMLError_NotSupported:
            continue
        name = info.name.decode() if isinstance(info.name, bytes) else info.name
        found[name] = info
    return {name: encode(info) for name, info in found.items()}


def churn(device: Any, profile_id: int, ci_profile_id: int) -> None:
    """Create and destroy for ever: something to be killed in."""
    while True:
        gi = pynvml.nvmlDeviceCreateGpuInstance(device, profile_id)
        ci = pynvml.nvmlGpuInstanceCreateComputeInstance(gi, ci_profile_id)
        pynvml.nvmlComputeInstanceDestroy(ci)
        pynvml.nvmlGpuInstanceDestroy(gi)


OWN = {function.__name__: function for function in (
    create, create_ci, placements, ci_placements, instances, compute_instances, field, profiles, churn)}


def answer(request: list[Any]) -> dict[str, Any]:
    function = OWN.get(request[0]) or getattr(pynvml, request[0])
    try:
        return {"value": encode(function(*map(decode, request[1:])))}
    except pynvml.NVMLError as error:
        return {"code": error.value, "text": str(error)}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
