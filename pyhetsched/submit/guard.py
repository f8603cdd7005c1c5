"""What the owner of a job may change of it afterwards: the other half of the rules of submit.

Slurm lets an owner edit Gres and Features of a pending job (slurm.conf(5), job_submit plugins may veto it), so
whoever holds a small slice could make it a large one.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pyhetsched.mig.names import looks_like_slice
from pyhetsched.mig.profiles import catalogue, models_of_type
from pyhetsched.model import JobAsk, JobField, SubmitRequest, Verdict
from pyhetsched.slurm.gres import GresEntry, GresError, parse_gres

_TRES = (JobField.TRES_PER_NODE, JobField.TRES_PER_JOB, JobField.TRES_PER_SOCKET, JobField.TRES_PER_TASK)
_GUARDED = frozenset(
    {
        *_TRES,
        JobField.TRES_BIND,
        JobField.CPUS_PER_TRES,
        JobField.MEM_PER_TRES,
        JobField.NTASKS_PER_TRES,
        JobField.FEATURES,
    }
)


def decide_modify(
    fields: SubmitRequest, touched: Collection[JobField], ask: JobAsk | None, *, privileged: bool = False
) -> tuple[Verdict, str]:
    """Whether a change to a job may pass (:attr:`Verdict.UNCHANGED`) or is refused, and the sentence for that.

    ``fields`` holds the new values, ``touched`` what the caller set (even to nothing), ``ask`` what the job was
    given at submit, None if that is not known. Root, SlurmUser and operators (``privileged``) may do all.
    """
    if privileged:
        return Verdict.UNCHANGED, ""
    texts = [_value(fields, field) for field in _TRES if field in touched or _value(fields, field)]
    if any(_names_slice(text) for text in texts):
        return _refused("a job that exists cannot be given slices or shards", "--gres=gpu:1g.10gb:1, for example")
    changed = _GUARDED.intersection(touched)
    if ask is not None and ask.kind == "slices" and changed:
        what = ", ".join(sorted(field.value.lower() for field in changed))
        wanted = ",".join(f"gpu:{item.profile}:{item.count}" for item in ask.slices)
        return _refused(f"this job holds slices ({wanted}), so {what} cannot be changed", "what you want now")
    if ask is not None and _could_gather(changed, ask, texts):
        return _refused("two or more GPUs on a node must be placed when the job is submitted", _wish(texts))
    return Verdict.UNCHANGED, ""


def _could_gather(changed: Collection[JobField], ask: JobAsk, texts: list[str]) -> bool:
    """Whether the change could put two or more whole GPUs on cards in MIG mode."""
    if any(_may_be_cut(entry) for text in texts for entry in _gpus(text) if entry.amount > 1 or len(_gpus(text)) > 1):
        return True
    models = [catalogue()[key] for key in ask.model_keys if key in catalogue()]
    return ask.gpus_per_node > 1 and JobField.FEATURES in changed and any(model.mig_capable for model in models)


def _may_be_cut(entry: GresEntry) -> bool:
    models = models_of_type(entry.type) if entry.type else ()
    return not models or any(model.mig_capable for model in models)


def _refused(why: str, instead: str) -> tuple[Verdict, str]:
    return Verdict.REFUSED, f"hetsched: {why}; cancel the job and submit it again with {instead}"


def _value(fields: SubmitRequest, field: JobField) -> str:
    return {
        JobField.TRES_PER_NODE: fields.tres_per_node,
        JobField.TRES_PER_JOB: fields.tres_per_job,
        JobField.TRES_PER_SOCKET: fields.tres_per_socket,
        JobField.TRES_PER_TASK: fields.tres_per_task,
    }.get(field, "")


def _names_slice(text: str) -> bool:
    parts = re.split(r"[,:=/]", text.casefold())
    return "shard" in parts or any(looks_like_slice(part) or re.fullmatch(r"\d+gi?b", part) for part in parts)


def _gpus(text: str) -> tuple[GresEntry, ...]:
    try:
        return tuple(entry for entry in parse_gres(text) if entry.name == "gpu")
    except GresError:
        return ()


def _wish(texts: list[str]) -> str:
    text = next((text for text in texts if text), "")
    return f"--gres={text.replace('gres/', '')[:100]}" if text else "the GPUs you want now"
