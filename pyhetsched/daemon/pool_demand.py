"""How many nodes in MIG mode the slices of a cluster need, and which jobs want several whole GPUs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pyhetsched.mig.pool import cards_needed
from pyhetsched.mig.profiles import GpuModel
from pyhetsched.model import JobAsk


@dataclass(frozen=True, slots=True)
class Demand:
    """Nodes of one model that running and waiting slices fill; and one 1 for each waiting job that wants whole
    GPUs of a node and could have them only on a node that leaves MIG mode."""

    nodes: int
    whole_asks: tuple[int, ...] = ()


def demand_of(
    model: GpuModel, gpus_per_node: int, held: Iterable[str], waiting: Iterable[JobAsk], idle_whole_gpus: int
) -> Demand:
    """Return the demand on nodes with ``gpus_per_node`` GPUs of ``model``.

    ``held`` are the profiles of slices there now, ``waiting`` the asks of jobs that could start, and
    ``idle_whole_gpus`` the GPUs of the largest node of the model that is idle and not in MIG mode: a job that
    fits it will start there by itself.
    """
    slices = Counter(held)
    whole: list[int] = []
    for ask in waiting:
        if ask.model_keys and model.key not in ask.model_keys:
            continue
        if ask.kind == "slices":
            slices.update({item.profile: item.count for item in ask.slices})
        elif wants_several(ask) and idle_whole_gpus < ask.gpus_per_node <= gpus_per_node:
            whole.append(1)
    cards = cards_needed(model, slices) if slices else 0
    return Demand(-(-cards // max(gpus_per_node, 1)), tuple(whole))


def wants_several(ask: JobAsk) -> bool:
    """Whether a job wants GPUs of a node that reach each other, which GPUs in MIG mode do not."""
    return ask.kind == "whole" and ask.gpus_per_node >= 2
