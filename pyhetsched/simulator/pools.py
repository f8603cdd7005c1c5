"""Free devices of a simulated Slurm cluster: whole GPUs by node, and slices by geometry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyhetsched.mig import profiles
from pyhetsched.mig.profiles import GpuModel


class Pool(Protocol):
    """The devices of one type; ``free`` and ``total`` in the unit jobs are counted in (GPUs, or shards)."""

    free: int
    total: int

    def take(self, size: int, profile: str) -> object | None:
        """Hold devices for a job and return them, None if there is no room."""
        ...

    def give_back(self, held: object) -> None:
        """Free what :meth:`take` returned."""
        ...


class WholeGpus:
    """GPUs not in MIG mode: a job gets the fullest node that can hold it, else as few nodes as can be."""

    def __init__(self, node_sizes: Sequence[int]) -> None:
        self._free = list(node_sizes)
        self.total = self.free = sum(node_sizes)

    def take(self, size: int, profile: str) -> list[tuple[int, int]] | None:
        """Hold ``size`` GPUs; return (node, GPUs) pairs."""
        if size > self.free or profile:
            return None
        best, room = -1, 1 << 30
        for node, free in enumerate(self._free):
            if size <= free < room:
                best, room = node, free
                if free == size:
                    break
        picked = [(best, size)] if best >= 0 else self._spread(size)
        for node, count in picked:
            self._free[node] -= count
        self.free -= size
        return picked

    def _spread(self, size: int) -> list[tuple[int, int]]:
        picked = []
        for node in sorted(range(len(self._free)), key=lambda node: -self._free[node]):
            count = min(size, self._free[node])
            picked.append((node, count))
            size -= count
            if not size:
                break
        return picked

    def give_back(self, held: object) -> None:
        """Free the GPUs of a job."""
        assert isinstance(held, list)
        for node, count in held:
            self._free[node] += count
            self.free += count


class SlicedGpus:
    """GPUs in MIG mode, counted in shards by Slurm and cut by geometry.

    Slurm picks a GPU by its shard count alone; where the geometry then has no place left the job
    is given back (``misses``), as the controller's prolog hook does, and another GPU is tried.
    """

    def __init__(self, count: int, model: GpuModel) -> None:
        self._space = profiles.space_of_model(model)
        self._weights = profiles.weights_of(model)
        self._shape = {name: index for index, profile in enumerate(model.profiles)
                       for name in (profile.name, *profile.other_names)}  # fmt: skip
        self._state = [0] * count
        self._placed: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self.shards_per_gpu = self._weights.shards_per_gpu
        self._shards = [self.shards_per_gpu] * count
        self.total = self.free = self.shards_per_gpu * count
        self.misses = 0

    def weight(self, profile: str) -> int | None:
        """Return the shards a slice costs, None if this model has no such profile."""
        shape = self._shape.get(profile)
        return None if shape is None else self._weights.by_shape[shape]

    def take(self, size: int, profile: str) -> tuple[int, int, int] | None:
        """Create one slice; return (GPU, profile number, start). ``size`` is its weight in shards."""
        shape = self._shape.get(profile)
        if shape is None or size > self.free:
            return None
        # Slurm fills the GPU with the least free shards that still admits the job.
        for gpu in sorted(range(len(self._shards)), key=self._shards.__getitem__):
            if self._shards[gpu] < size:
                continue
            start = self._space.best_start(self._state[gpu], shape)
            if start is None:
                self.misses += 1
                continue
            self._placed[gpu].append((shape, start))
            self._state[gpu] = self._space.put(self._state[gpu], shape, start)
            self._shards[gpu] -= size
            self.free -= size
            return gpu, shape, start
        return None

    def give_back(self, held: object) -> None:
        """Destroy a slice."""
        assert isinstance(held, tuple)
        gpu, shape, start = held
        self._placed[gpu].remove((shape, start))
        state = 0
        for other, at in self._placed[gpu]:
            state = self._space.put(state, other, at)
        self._state[gpu] = state
        self._shards[gpu] += self._weights.by_shape[shape]
        self.free += self._weights.by_shape[shape]
