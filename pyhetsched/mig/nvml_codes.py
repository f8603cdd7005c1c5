"""NVML's return codes (``nvmlReturn_t`` of nvml.h), in the words of this project, and how Slurm counts GPUs."""

from __future__ import annotations

from collections.abc import Sequence

INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
IN_USE = 19
INSUFFICIENT_RESOURCES = 23

#: Codes that mean that this machine has no NVIDIA driver, and so no GPU in MIG mode.
ABSENT = frozenset({DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND})

#: Plain words for codes whose own text says less, or that pynvml has no text for.
TEXTS = {
    NO_PERMISSION: "not permitted; it takes root and access to the MIG configuration capability",
    GPU_IS_LOST: "the GPU has fallen off the bus",
    RESET_REQUIRED: "the GPU must be reset first",
    IN_USE: "in use by a client",
    INSUFFICIENT_RESOURCES: "no room at this place",
}


def indexes_by_minor(minors: Sequence[int | None]) -> list[int]:
    """Return the index that Slurm uses for each GPU, given device minors in NVML's order.

    A GPU that has fallen off the bus cannot say its minor (None): it keeps the place that the others leave
    free, so that the loss of one never renames another.
    """
    known = {minor for minor in minors if minor is not None}
    holes = iter(sorted(set(range(len(minors) + len(known))) - known))
    filled = [next(holes) if minor is None else minor for minor in minors]
    ranks = {minor: rank for rank, minor in enumerate(sorted(filled))}
    return [ranks[minor] for minor in filled]
