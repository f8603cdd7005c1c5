"""Which slices a job must get on each GPU that Slurm gave to it: pure, and suspicious.

What is asked comes from a record that the job's owner cannot edit; what Slurm allocated is what limits
counted. Only where the two agree is anything cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyhetsched.errors import LayoutError
from pyhetsched.mig.layout import Layout, choose_starts
from pyhetsched.mig.profiles import GpuModel, Profile, weight
from pyhetsched.model import JobAsk


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """The instances that one GPU must hold for a job; a GPU that is not ours to cut does not appear."""

    gpu_index: int
    model: GpuModel
    profiles: tuple[Profile, ...]


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """What a job needs on one node.

    ``slices_per_task`` is 0 where every task sees all of the job's slices. ``mismatch`` says why nothing is
    cut although Slurm gave shards or GPUs in MIG mode: the allocation is not what was asked. ``flex``: the job's
    slices stand for one larger, one for each task.
    """

    gpus: tuple[GpuNeed, ...] = ()
    slices_per_task: int = 0
    mismatch: str = ""
    flex: bool = False

    @property
    def empty(self) -> bool:
        """Whether the job has nothing to do with MIG on this node."""
        return not self.gpus and not self.mismatch


def node_needs(ask: JobAsk | None, gpus: tuple[int, ...], shards: Mapping[int, int],
               mig_gpus: Mapping[int, GpuModel]) -> NodeNeeds:  # fmt: skip
    """Return what a job with ``ask`` needs on a node where it holds ``gpus`` (indexes) and ``shards`` (by index).

    ``mig_gpus`` are the GPUs of the node that are in MIG mode, by index, with their models.
    """
    whole = {index: mig_gpus[index] for index in gpus if index in mig_gpus}
    sliced = {index: count for index, count in shards.items() if index in mig_gpus}
    if not whole and not sliced:
        return NodeNeeds()
    if sliced:
        return _from_shards(ask, sliced, mig_gpus)
    if ask is not None and ask.cut_whole:
        return _from_whole_gpus(ask, whole)
    return NodeNeeds(tuple(GpuNeed(index, model, (model.whole_profile,)) for index, model in sorted(whole.items())))


def _from_shards(ask: JobAsk | None, shards: Mapping[int, int], models: Mapping[int, GpuModel]) -> NodeNeeds:
    if ask is None or ask.kind != "slices":
        return NodeNeeds(mismatch="Slurm gave shards, but no slice was asked for when the job was submitted")
    found: list[GpuNeed] = []
    for index, count in sorted(shards.items()):
        model = models[index]
        if ask.model_keys and model.key not in ask.model_keys:
            return NodeNeeds(mismatch=f"the slices were asked for on {', '.join(ask.model_keys)}, not on {model.key}")
        try:
            profiles = _profiles(ask, model)
        except LayoutError as error:
            return NodeNeeds(mismatch=str(error))
        unit = sum(weight(model, profile) for profile in profiles)
        times = count // unit if ask.per_task and unit else 1
        if not times or unit * times != count:
            return NodeNeeds(mismatch=f"{_text(ask)} takes {unit} shards of a {model.key}, but Slurm gave {count}")
        found.append(GpuNeed(index, model, profiles * times))
    if len(found) > 1 and not ask.per_task:
        return NodeNeeds(mismatch=f"Slurm spread the shards of {_text(ask)} over {len(found)} GPUs")
    per_task = sum(item.count for item in ask.slices)
    if ask.flex and not ask.per_task and per_task > 1:
        return NodeNeeds(tuple(found), 1, flex=True)
    return NodeNeeds(tuple(found), per_task if ask.per_task else 0, flex=ask.flex and ask.per_task)


def _from_whole_gpus(ask: JobAsk, gpus: Mapping[int, GpuModel]) -> NodeNeeds:
    """Deal the slices over GPUs that the job owns alone: largest first, on the first GPU that has room."""
    held: dict[int, list[Profile]] = {index: [] for index in sorted(gpus)}
    for item in ask.slices:
        for _ in range(item.count):
            for index, profiles in held.items():
                model = gpus[index]
                try:
                    wanted = [*profiles, model.profile(item.profile)]
                except LayoutError as error:
                    return NodeNeeds(mismatch=str(error))
                if choose_starts(Layout.empty(model), wanted) is not None:
                    profiles.append(wanted[-1])
                    break
            else:
                return NodeNeeds(mismatch=f"{_text(ask)} does not fit on the {len(gpus)} GPUs that Slurm gave")
    needs = (GpuNeed(index, gpus[index], tuple(profiles)) for index, profiles in held.items() if profiles)
    return NodeNeeds(tuple(needs))


def _profiles(ask: JobAsk, model: GpuModel) -> tuple[Profile, ...]:
    return tuple(model.profile(item.profile) for item in ask.slices for _ in range(item.count))


def _text(ask: JobAsk) -> str:
    return " and ".join(f"{item.count} x {item.profile}" for item in ask.slices)
