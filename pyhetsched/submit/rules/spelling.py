"""Reads every spelling: ``--gres``, ``-G``, ``--gpus-per-*``, ``--tres-per-task``, ``--ntasks-per-gpu``."""

from __future__ import annotations

import re

from pyhetsched.errors import RequestError
from pyhetsched.mig.names import looks_like_slice
from pyhetsched.slurm.gres import GresEntry, GresError, parse_gres
from pyhetsched.submit.draft import Draft, Scope, Want, Wanted
from pyhetsched.submit.registry import rule

_MEMORY = re.compile(r"(\d{1,6})g(?:i?b)?", re.IGNORECASE)
_GIGA = 2**30


@rule("spelling")
def read_spelling(draft: Draft) -> Draft:
    """Fill ``wanted`` and ``others``; what Slurm itself cannot read is left to Slurm, unless a slice is meant."""
    wanted: list[Wanted] = []
    others: dict[Scope, tuple[GresEntry, ...]] = {}
    for scope in Scope:
        text = scope.text(draft.request)
        try:
            entries = parse_gres(text)
        except GresError as error:
            if any(looks_like_slice(part) for part in re.split(r"[,:=]", text)):
                raise RequestError(f"{error}; a slice is written --gres=gpu:1g.10gb:1") from error
            return draft.change(unreadable=True)
        mine = [entry for entry in entries if entry.kind == "gres" and entry.name in ("gpu", "shard")]
        wanted += [read for entry in mine if (read := _wanted(entry, scope)) is not None]
        others[scope] = tuple(entry for entry in entries if entry not in mine)
    if not wanted:
        wanted += _by_tasks(draft)
    return draft.change(wanted=tuple(wanted), spelled=tuple(wanted), others=others)


def _wanted(entry: GresEntry, scope: Scope) -> Wanted | None:
    if entry.amount == 0:
        return None
    if entry.name == "shard":
        return Wanted(scope, Want.SHARD, entry.amount, entry.type or "")
    if entry.type is None:
        if entry.amount % _GIGA == 0:
            size = entry.amount // _GIGA
            raise RequestError(
                f"gpu:{size}g is a count to Slurm; for memory write --gres=gpu:{size}gb:1, for a slice gpu:1g.10gb:1"
            )
        return Wanted(scope, Want.WHOLE, entry.amount)
    found = _MEMORY.fullmatch(entry.type)
    if found is not None:
        return Wanted(scope, Want.MEMORY, entry.amount, entry.type, int(found[1]))
    want = Want.SLICE if looks_like_slice(entry.type) else Want.WHOLE
    return Wanted(scope, want, entry.amount, entry.type)


def _by_tasks(draft: Draft) -> list[Wanted]:
    """``--ntasks-per-gpu`` allocates GPUs with no GRES given (sbatch(1)): tasks over tasks per GPU."""
    per_gpu, tasks = draft.request.ntasks_per_tres, draft.request.num_tasks
    if per_gpu <= 0 or tasks <= 0:
        return []
    return [Wanted(Scope.JOB, Want.WHOLE, -(-tasks // per_gpu), implied=True)]
