"""The slices of a cluster as text that round-trips: what ``hetsched mig export`` writes and ``plan`` reads.

One line a GPU: node and index, model, layout. ``-`` is a GPU in MIG mode without instances, ``off`` one that
is not in MIG mode; an instance that a job holds is followed by ``=`` and the job id::

    a100-0:0 A100-80GB 1g.10gb@0,3g.40gb@4=4711
    a100-0:1 A100-80GB -
    h100-1:0 H100-80GB-SXM off

Empty lines and what follows a ``#`` are passed over. A demand is written ``2g.20gb=12,1g.10gb=40``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyhetsched.errors import DataError, HetschedError
from pyhetsched.mig.layout import Layout
from pyhetsched.mig.profiles import GpuModel, model_by_key

_LINE = re.compile(r"^(?P<node>[^\s:]+):(?P<index>\d+)\s+(?P<model>\S+)\s+(?P<layout>\S+)$")


@dataclass(frozen=True, slots=True)
class GpuSlices:
    """One GPU: where it is, its layout (None: not in MIG mode), and by start the job that holds an instance."""

    node: str
    index: int
    model: GpuModel
    layout: Layout | None
    holders: Mapping[int, int] = field(default_factory=dict)

    @property
    def held(self) -> Layout:
        """The instances that jobs hold."""
        placements = () if self.layout is None else self.layout.placements
        return Layout(self.model, tuple(p for p in placements if p.start in self.holders))

    @property
    def idle(self) -> Layout:
        """The instances that no job holds."""
        placements = () if self.layout is None else self.layout.placements
        return Layout(self.model, tuple(p for p in placements if p.start not in self.holders))

    def with_layout(self, layout: Layout) -> GpuSlices:
        """The same GPU, holders included, with another layout."""
        return replace(self, layout=layout)

    def __str__(self) -> str:
        if self.layout is None:
            text = "off"
        else:
            text = ",".join(f"{p}={self.holders[p.start]}" if p.start in self.holders else str(p) for p in self.layout)
        return f"{self.node}:{self.index} {self.model.key} {text or '-'}"


def format_inventory(gpus: Iterable[GpuSlices]) -> str:
    """The text of ``gpus``, one line each."""
    return "".join(f"{gpu}\n" for gpu in gpus)


def parse_inventory(text: str, name: str = "inventory") -> tuple[GpuSlices, ...]:
    """The GPUs that ``text`` describes; raises :class:`DataError` with ``name`` and the line."""
    gpus: list[GpuSlices] = []
    seen: set[tuple[str, int]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        try:
            gpu = _parse_line(content)
        except HetschedError as error:
            raise DataError(f"{name}, line {number}: {error}") from error
        if (gpu.node, gpu.index) in seen:
            raise DataError(f"{name}, line {number}: {gpu.node}:{gpu.index} occurs twice")
        seen.add((gpu.node, gpu.index))
        gpus.append(gpu)
    return tuple(gpus)


def _parse_line(content: str) -> GpuSlices:
    found = _LINE.match(content)
    if found is None:
        raise DataError(f"{content!r} is not NODE:INDEX MODEL LAYOUT, such as a100-0:0 A100-80GB 3g.40gb@4")
    model = model_by_key(found["model"])
    node, index = found["node"], int(found["index"])
    if found["layout"] == "off":
        return GpuSlices(node, index, model, None)
    holders: dict[int, int] = {}
    placements = []
    for item in found["layout"].split(","):
        placement, held, job = item.partition("=")
        placements.append(placement)
        if held:
            start = placement.rpartition("@")[2]
            if not job.isdecimal() or not start.isdecimal():
                raise DataError(f"{item!r} is not PROFILE@START=JOBID")
            holders[int(start)] = int(job)
    return GpuSlices(node, index, model, Layout.parse(model, ",".join(placements)), holders)


def parse_demand(text: str) -> Counter[str]:
    """Slices by profile name from ``2g.20gb=12,1g.10gb=40``; raises :class:`DataError`."""
    demand: Counter[str] = Counter()
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, given, number = item.partition("=")
        if not given or not number.isdecimal():
            raise DataError(f"{item!r} is not PROFILE=COUNT, such as 1g.10gb=40")
        demand[name.strip()] += int(number)
    return demand
