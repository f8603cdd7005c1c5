"""``--cpus-per-gpu``, ``--mem-per-gpu`` and ``--ntasks-per-gpu`` beside slices, which Slurm does not see as GPUs."""

from __future__ import annotations

from pyhetsched.errors import RequestError
from pyhetsched.model import JobField
from pyhetsched.slurm.gres import parse_per_gpu
from pyhetsched.submit.draft import Draft
from pyhetsched.submit.placing import PER_GPU_ENVIRONMENT, tasks_per_node
from pyhetsched.submit.registry import rule


@rule("companions")
def per_gpu_options(draft: Draft) -> Draft:
    """Turn amounts per GPU into amounts for the job or the node, and say so."""
    if draft.ask.kind != "slices":
        return draft
    request = draft.request
    if request.cpus_per_tres:
        draft = _cpus(draft)
    if request.mem_per_tres:
        draft = _memory(draft)
    if request.ntasks_per_tres:
        draft = _tasks(draft)
    if request.cpus_per_tres or request.mem_per_tres:
        draft = draft.change(drop_environment=(*draft.drop_environment, *PER_GPU_ENVIRONMENT))
    return draft


def _slices_per_node(draft: Draft) -> int:
    count = sum(item.count for item in draft.ask.slices)
    return count * tasks_per_node(draft) if draft.ask.per_task else count


def _cpus(draft: Draft) -> Draft:
    each = parse_per_gpu(draft.request.cpus_per_tres)
    changes = {**draft.changes, JobField.CPUS_PER_TRES: ""}
    if not each:
        return draft.change(changes=changes)
    nodes = max(draft.request.min_nodes, 1)
    count = each * _slices_per_node(draft) * nodes
    changes[JobField.MIN_CPUS] = str(count)
    return draft.change(changes=changes).say(f"--cpus-per-gpu={each} became {count} CPUs for the job")


def _memory(draft: Draft) -> Draft:
    each = parse_per_gpu(draft.request.mem_per_tres)
    changes = {**draft.changes, JobField.MEM_PER_TRES: ""}
    if not each:
        return draft.change(changes=changes)
    amount = each * _slices_per_node(draft)
    changes[JobField.MEMORY_PER_NODE_MIB] = str(amount)
    return draft.change(changes=changes).say(f"--mem-per-gpu={each}M became --mem={amount}M")


def _tasks(draft: Draft) -> Draft:
    """Slurm counts these tasks by GPUs; with shards the count of tasks must stand by itself."""
    each = draft.request.ntasks_per_tres
    tasks = each * _slices_per_node(draft) * max(draft.request.min_nodes, 1)
    if draft.request.num_tasks != tasks:
        instead = f"write -n {tasks} instead of --ntasks-per-gpu={each}"
        raise RequestError(f"--ntasks-per-gpu does not count slices; {instead}")
    return draft.change(changes={**draft.changes, JobField.NTASKS_PER_TRES: ""})
