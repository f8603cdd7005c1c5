"""The book of reservations: what of each GPU is taken, in memory, and journalled before it counts."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence

from pyhetsched.clock import Clock
from pyhetsched.errors import NotNowError
from pyhetsched.mig.layout import Layout, Placement, choose_starts
from pyhetsched.mig.needs import GpuNeed
from pyhetsched.mig.profiles import GpuModel
from pyhetsched.model import MigInstance, Reservation, ReservationState
from pyhetsched.store.reservations import ReservationStore


class Book:
    """Open reservations by id. Every change is written to the store first, so a crash forgets nothing.

    Methods raise `StoreError` when the journal cannot be written; nothing has then changed.
    """

    def __init__(self, store: ReservationStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._open = {item.id: item for item in store.open()}
        self._foreign: dict[tuple[str, int], tuple[MigInstance, ...]] = {}
        self.changed = threading.Condition(self._lock)
        self.listeners: list[Callable[[], None]] = []

    def open(self) -> list[Reservation]:
        """Return all open reservations."""
        with self._lock:
            return list(self._open.values())

    def of_job(self, job_id: int, node: str | None = None) -> list[Reservation]:
        """Return the open reservations of a job (on ``node``), in the order of its tasks."""
        with self._lock:
            mine = [r for r in self._open.values() if r.job_id == job_id and node in (None, r.node)]
        return sorted(mine, key=lambda item: item.id)

    def on_gpu(self, node: str, gpu_index: int) -> list[Reservation]:
        """Return the open reservations on one GPU."""
        with self._lock:
            return [r for r in self._open.values() if r.node == node and r.gpu_index == gpu_index]

    def on_node(self, node: str) -> list[Reservation]:
        """Return the open reservations on a node."""
        with self._lock:
            return [r for r in self._open.values() if r.node == node]

    def set_foreign(self, node: str, instances: dict[int, tuple[MigInstance, ...]]) -> None:
        """Note the instances, by GPU index, that are on ``node`` and not ours."""
        with self.changed:
            for key in [key for key in self._foreign if key[0] == node]:
                del self._foreign[key]
            self._foreign.update({(node, index): found for index, found in instances.items()})
            self.changed.notify_all()

    def foreign(self, node: str, gpu_index: int) -> tuple[MigInstance, ...]:
        """Return the instances on one GPU that are not ours."""
        with self._lock:
            return self._foreign.get((node, gpu_index), ())

    def layout(self, node: str, gpu_index: int, model: GpuModel) -> Layout:
        """Return what is taken on one GPU: open reservations and instances that are not ours."""
        with self._lock:
            taken = [(r.profile, r.start) for r in self.on_gpu(node, gpu_index)]
            taken += [(item.profile, item.start) for item in self._foreign.get((node, gpu_index), ())]
        return Layout(model, tuple(sorted({Placement(model.profile(p), s) for p, s in taken}, key=lambda x: x.start)))

    def reserve(self, set_id: str, job_id: int, restart_count: int, uid: int,
                wanted: Sequence[tuple[str, GpuNeed]]) -> list[Reservation]:  # fmt: skip
        """Reserve all of ``wanted`` (node, need), or nothing.

        Raises `NotNowError` naming the first node whose GPU has no place left (``error.args[1]``).
        """
        now_s = self._clock.now_s()
        made: list[Reservation] = []
        with self.changed:
            for node, need in wanted:
                starts = choose_starts(self.layout(node, need.gpu_index, need.model), need.profiles)
                if starts is None:
                    raise NotNowError(self._no_place(node, need), node)
                for profile, start in zip(need.profiles, starts, strict=True):
                    made.append(Reservation(
                        f"{set_id}-{len(made):03d}", job_id, restart_count, uid, node, need.gpu_index, profile.name,
                        start, profile.size, ReservationState.RESERVED, changed_s=now_s,
                    ))  # fmt: skip
            self._write(made)
        return made

    def update(self, changes: Iterable[Reservation]) -> None:
        """Replace reservations by newer versions of themselves; closed ones leave the book."""
        now_s = self._clock.now_s()
        with self.changed:
            self._write([dataclasses.replace(item, changed_s=now_s) for item in changes])

    def close(self, reservations: Iterable[Reservation], note: str = "") -> None:
        """Mark ``reservations`` as gone."""
        self.update(dataclasses.replace(r, state=ReservationState.GONE, note=note or r.note) for r in reservations)

    def get(self, reservation_id: str) -> Reservation | None:
        """Return an open reservation by its id."""
        with self._lock:
            return self._open.get(reservation_id)

    def _write(self, items: Sequence[Reservation]) -> None:
        if not items:
            return
        self._store.save(items)
        for item in items:
            if item.state.holds_space:
                self._open[item.id] = item
            else:
                self._open.pop(item.id, None)
        self.changed.notify_all()
        for listener in self.listeners:
            listener()

    def _no_place(self, node: str, need: GpuNeed) -> str:
        names = ", ".join(str(profile) for profile in need.profiles)
        there = str(self.layout(node, need.gpu_index, need.model)) or "nothing"
        return f"GPU {need.gpu_index} of {node} holds {there} and has no place for {names}"
