"""One to many at submit: several small slices in place of one larger, where only these could start now. Pure.

Slurm gives a job shards of one GPU per node: the leaves lie together on one GPU or, where no GPU has room for all and
the job may have several nodes, on one GPU of each. Ranks that share a GPU need a collectives library that allows it,
which the site declares (`pyhetsched.mig.flex`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyhetsched.config import SubmitConfig
from pyhetsched.errors import LayoutError
from pyhetsched.mig.flex import CollectiveSupport
from pyhetsched.mig.profiles import GpuModel, model_by_key, weight
from pyhetsched.mig.steering import NodeGpus, PickRule, predictor_of
from pyhetsched.model import JobAsk, JobField, SliceAsk, SubmitOutcome, SubmitRequest

_MOST_ON_A_GPU = 7


def support_of(config: SubmitConfig) -> CollectiveSupport:
    """Return what the site declares of its jobs' collectives library."""
    return CollectiveSupport(_version(config.flex_nccl), _version(config.flex_cuda_driver), config.flex_patched)


def flexed(
    request: SubmitRequest, outcome: SubmitOutcome, nodes: Sequence[NodeGpus], pick: PickRule,
    support: CollectiveSupport,
) -> SubmitOutcome:  # fmt: skip
    """Return ``outcome`` with one small slice for each of the job's tasks in place of its larger one, if only
    that could start now on one of ``nodes``, which are those that the job may use; else as it is.
    """
    ask = outcome.ask
    tasks = request.num_tasks or request.ntasks_per_node
    if not (_one_slice(ask) and support.shares_a_gpu and tasks > 1 and request.min_nodes <= 1):
        return outcome
    if _starts((ask.slices[0].profile,), nodes, pick):
        return outcome
    try:
        leaves = list(_common_leaves(ask, tasks))
    except LayoutError:
        return outcome  # a model that is not in the catalogue any more
    for leaf, shards in leaves:
        if _starts((leaf,) * tasks, nodes, pick):
            return _with_leaves(outcome, leaf, tasks, shards)
    for leaf, shards in leaves if _may_spread(request) else ():
        if _starts_spread(leaf, tasks, nodes, pick):
            return _spread(outcome, leaf, tasks, shards // tasks)
    return outcome


def _one_slice(ask: JobAsk) -> bool:
    return ask.flex and ask.kind == "slices" and ask.shards > 0 and not ask.per_task and (
        len(ask.slices) == 1 and ask.slices[0].count == 1
    )  # fmt: skip


def _starts(profiles: tuple[str, ...], nodes: Sequence[NodeGpus], pick: PickRule) -> bool:
    """Whether Slurm would start a job with these profiles now, on a GPU that has a legal place for them."""
    for node in nodes:
        predictor = predictor_of(node.model, pick)
        ask = predictor.ask(profiles)
        if ask is not None and predictor.start(node.gpus, ask) not in (None, node.gpus):
            return True
    return False


def _may_spread(request: SubmitRequest) -> bool:
    """Whether the tasks may lie on several nodes. The steps of srun and salloc could not find their shards there."""
    free = request.max_nodes != 1 and not (request.ntasks_per_node or request.required_nodes or request.tres_per_task)
    return request.batch and free


def _starts_spread(leaf: str, tasks: int, nodes: Sequence[NodeGpus], pick: PickRule) -> bool:
    """Whether the tasks could start now, each with its leaf, as many on a node as the GPU there has room for."""
    left = tasks
    for node in nodes:
        room = (n for n in range(min(left, _MOST_ON_A_GPU), 0, -1) if _starts((leaf,) * n, [node], pick))
        left -= next(room, 0)
    return not left


def _common_leaves(ask: JobAsk, tasks: int) -> Iterator[tuple[str, int]]:
    """Leaves, one for each task, that stand for the slice on every model of the job, and their shards in all."""
    models = [model_by_key(key) for key in ask.model_keys]
    for name in dict.fromkeys(p.name for model in models[:1] for p in model.profiles):
        if all(_stands_for(model, name, tasks, ask.slices[0].profile) for model in models):
            shards = {weight(model, name) * tasks for model in models}
            if len(shards) == 1:
                yield name, shards.pop()


def _stands_for(model: GpuModel, name: str, tasks: int, asked: str) -> bool:
    """Whether ``tasks`` slices have at least the compute and the memory slices of the one asked for."""
    whole = model.profile(asked)
    leaf = next((p for p in model.profiles if p.name == name and not p.variant), None)
    if leaf is None or leaf.compute_slices >= whole.compute_slices:
        return False
    return tasks * leaf.compute_slices >= whole.compute_slices and tasks * leaf.size >= whole.size


def _with_leaves(outcome: SubmitOutcome, leaf: str, tasks: int, shards: int) -> SubmitOutcome:
    ask = replace(outcome.ask, slices=(SliceAsk(leaf, tasks),), shards=shards)
    return _served(outcome, ask, {}, f"{tasks} x {leaf}, one for each task", f"{shards} shards")


def _spread(outcome: SubmitOutcome, leaf: str, tasks: int, shards: int) -> SubmitOutcome:
    ask = replace(outcome.ask, slices=(SliceAsk(leaf, 1),), shards=shards, per_task=True)
    how = f"{tasks} x {leaf}, one for each task, on GPUs of several nodes"
    by_task = {JobField.TRES_PER_TASK: f"gres/shard:{shards}"}
    return _served(outcome, ask, by_task, how, f"{shards} shards for each task")


def _served(
    outcome: SubmitOutcome, ask: JobAsk, by_task: Mapping[JobField, str], how: str, shards: str
) -> SubmitOutcome:
    """Return ``outcome`` with the shards of ``ask`` in place of the slice's, on the node or ``by_task``."""
    field, old = JobField.TRES_PER_NODE, f"gres/shard:{outcome.ask.shards}"
    written = outcome.changes.get(field, "").split(",")
    if old not in written:
        return outcome
    new = () if by_task else (f"gres/shard:{ask.shards}",)
    per_node = ",".join(word for entry in written for word in (new if entry == old else (entry,)))
    said = f"{how}, in place of {outcome.ask.slices[0].profile}, which could not start now"
    return replace(
        outcome, ask=ask, changes={**outcome.changes, field: per_node, **by_task}, became=f"{said} ({shards})",
        message=f"hetsched: {outcome.asked} -> {said}" if outcome.message else "",
    )  # fmt: skip


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if text else None
