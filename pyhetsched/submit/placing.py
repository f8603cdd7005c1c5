"""Turns slices, or GPUs, for a node, a job or a task into fields of the job, and says what it did."""

from __future__ import annotations

from collections.abc import Sequence

from pyhetsched.errors import RequestError
from pyhetsched.model import JobAsk, JobField, Verdict
from pyhetsched.slurm.gres import GresEntry, format_gres
from pyhetsched.submit.draft import Draft, Scope
from pyhetsched.submit.fleet import types_of
from pyhetsched.submit.nearest import either
from pyhetsched.submit.slicing import Fit, largest_first
from pyhetsched.submit.steering import keep_to

GPU_ENVIRONMENT = (
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_TRES_BIND",
    "SLURM_NTASKS_PER_GPU",
)
TYPED_ENVIRONMENT = GPU_ENVIRONMENT[:5]
PER_GPU_ENVIRONMENT = ("SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU", "SLURM_GPU_BIND", "SLURM_GPU_FREQ")


def tasks_per_node(draft: Draft) -> int:
    """The most tasks that one node gets when Slurm fills nodes one after the other."""
    request = draft.request
    if request.ntasks_per_node > 0:
        return request.ntasks_per_node
    tasks = max(request.num_tasks, 1)
    nodes = max(request.min_nodes, 1)
    return max(-(-tasks // nodes), 1)


def per_node(
    draft: Draft, scope: Scope, counts: Sequence[int], remedy: str
) -> tuple[tuple[int, ...], dict[JobField, str]]:
    """``counts`` for ``scope`` as counts for the fullest node, and changes to the node counts that this needs.

    A job-wide count goes to one node unless the job fixes more, which then get equal shares. Raises
    :class:`RequestError` with ``remedy`` where the share of a node cannot be told.
    """
    if scope is Scope.TASK:
        return tuple(count * tasks_per_node(draft) for count in counts), {}
    if scope is not Scope.JOB:
        return tuple(counts), {}
    low, high = draft.request.min_nodes, draft.request.max_nodes
    if low == 0 and high == 0:
        return tuple(counts), {JobField.MIN_NODES: "1", JobField.MAX_NODES: "1"}
    low = max(low, 1)
    if high not in (0, low):
        raise RequestError(f"-G cannot be divided over {low} to {high} nodes; write {remedy} for each node")
    if any(count % low for count in counts):
        total = ", ".join(map(str, counts))
        raise RequestError(f"-G {total} cannot be divided evenly over {low} nodes; write {remedy} for each node")
    return tuple(count // low for count in counts), {} if high == low else {JobField.MAX_NODES: str(low)}


def check_client(draft: Draft, scope: Scope, remedy: str) -> None:
    """Refuse what srun and salloc would spoil: they ask again for their own ``-G`` when they start a step."""
    per_node = scope is Scope.NODE and draft.request.gpus_per_node_option
    if draft.interactive and (per_node or scope is not Scope.NODE):
        option = "--gpus-per-node" if per_node else scope.option
        raise RequestError(
            f"srun and salloc keep {option} for their steps, which then cannot find the slice; write {remedy}"
        )


def serve_slices(draft: Draft, fit: Fit, scope: Scope, counts: dict[JobField, str]) -> Draft:
    """The draft with ``fit`` (per node, or per task for :attr:`Scope.TASK`) written into the job's fields."""
    per_task = scope is Scope.TASK
    cut_whole = fit.gpus > 1
    if cut_whole:
        types = types_of(fit.offers)
        entry = GresEntry("gpu", types[0] if len(types) == 1 else None, fit.gpus)
        steer = keep_to(draft, fit.offers, lambda offer: offer.gpus >= fit.gpus)
    else:
        entry = GresEntry("shard", None, fit.shards)
        steer = keep_to(draft, fit.offers, lambda offer: offer.shards > 0)
    ask = JobAsk(
        "slices",
        slices=largest_first(fit.models[0], fit.slices) if cut_whole else fit.slices,
        per_task=per_task,
        gpus_per_node=fit.gpus if cut_whole else 0,
        cut_whole=cut_whole,
        model_keys=tuple(model.key for model in fit.models),
        shards=0 if cut_whole else fit.shards,
        flex=bool(draft.wishes.flex and draft.policy.allow_flex),
    )
    target = Scope.TASK if per_task else Scope.NODE
    return draft.change(
        verdict=Verdict.REWRITTEN,
        ask=ask,
        became=became_text(fit, per_task),
        messages=(*draft.messages, *_one_process(draft, ask)),
        changes={**draft.changes, **_gres_fields(draft, target, entry), **counts, **steer},
        drop_environment=GPU_ENVIRONMENT,
        settled=True,
    )


def _one_process(draft: Draft, ask: JobAsk) -> tuple[str, ...]:
    """A word of warning where one process would hold slices that it cannot use (CUDA shows it the first)."""
    several = sum(item.count for item in ask.slices) > 1
    if not several or (not ask.per_task and max(draft.request.num_tasks, draft.request.ntasks_per_node) > 1):
        return ()
    return ("a process uses one slice only, so start a task for each",)


def whole_fields(draft: Draft, scope: Scope, types: Sequence[str], count: int) -> dict[JobField, str]:
    """The TRES fields that ask ``count`` whole GPUs of one of ``types`` for ``scope``."""
    return _gres_fields(draft, scope, GresEntry("gpu", types[0] if len(types) == 1 else None, count), bind=False)


def became_text(fit: Fit, per_task: bool) -> str:
    """``1 slice 1g.10gb on a100 or h100 (4 shards)``."""
    each = " per task" if per_task else ""
    cost = f"cut from {fit.gpus} whole GPUs" if fit.gpus > 1 else f"{fit.shards} shard{'s' if fit.shards > 1 else ''}"
    return f"{fit.text}{each} on {either(types_of(fit.offers))} ({cost})"


def _gres_fields(draft: Draft, target: Scope, entry: GresEntry, bind: bool = True) -> dict[JobField, str]:
    """All four TRES fields: ``entry`` in one, GPUs out of the rest; what is no GPU stays where it was."""
    fields: dict[JobField, str] = {}
    for scope in Scope:
        kept = draft.others.get(scope, ())
        value = format_gres((*kept, entry) if scope is target else kept)
        if value != scope.text(draft.request):
            fields[scope.value] = value
    if bind and draft.request.tres_bind:
        fields[JobField.TRES_BIND] = ""
    return fields
