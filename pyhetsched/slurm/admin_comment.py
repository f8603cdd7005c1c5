"""What a job has the right to travels with the job itself, in its AdminComment.

Only root and Slurm operators can edit that field; the owner of a job can edit Comment, Extra, Gres and
Features, so nothing there is trusted. The text survives requeue, slurmctld's restart and the loss of the
daemon's database. Format: ``hetsched:`` and a compact JSON object, for example
``hetsched:{"d":"3f2a...","k":"slices","s":[["1g.10gb",1]],"m":["A100-80GB"],"w":4}``.
"""

from __future__ import annotations

import json
from typing import Any

from pyhetsched.model import JobAsk, SliceAsk

PREFIX = "hetsched:"
_KINDS = ("plain", "whole", "slices")


def encode(decision_id: str, ask: JobAsk, owners_exclusions: str = "") -> str:
    """Return the AdminComment of a job that came of ``decision_id`` and may have ``ask``.

    ``owners_exclusions`` is what the owner gave as ``--exclude``: hetsched adds nodes to that list while the job
    waits, and must know what to leave when it takes them off again.
    """
    value: dict[str, Any] = {"d": decision_id, "k": ask.kind}
    if ask.slices:
        value["s"] = [[item.profile, item.count] for item in ask.slices]
    if ask.per_task:
        value["t"] = 1
    if ask.gpus_per_node:
        value["g"] = ask.gpus_per_node
    if ask.cut_whole:
        value["c"] = 1
    if ask.model_keys:
        value["m"] = list(ask.model_keys)
    if ask.shards:
        value["w"] = ask.shards
    if ask.flex:
        value["f"] = 1
    if owners_exclusions:
        value["x"] = owners_exclusions
    return PREFIX + json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def decode(text: str) -> tuple[str, JobAsk] | None:
    """Return the decision id and the ask that ``text`` holds, or None where it holds none.

    Text around ours (a site's own AdminComment) is passed over; a damaged one reads as none.
    """
    try:
        value = _object(text)
        return None if value is None else _ask(value)
    except (ValueError, TypeError, KeyError):
        return None


def owners_exclusions(text: str) -> str:
    """Return what the owner excluded at submit, "" where that is not known."""
    try:
        return str((_object(text) or {}).get("x", ""))
    except ValueError:
        return ""


def _object(text: str) -> dict[str, Any] | None:
    start = text.find(PREFIX + "{")
    if start < 0:
        return None
    value, _ = json.JSONDecoder().raw_decode(text, start + len(PREFIX))
    return dict(value)


def _ask(value: dict[str, Any]) -> tuple[str, JobAsk]:
    if value["k"] not in _KINDS:
        raise ValueError(f"unknown kind {value['k']!r}")
    slices = tuple(SliceAsk(str(profile), int(count)) for profile, count in value.get("s", ()))
    ask = JobAsk(
        kind=value["k"],
        slices=slices,
        per_task=bool(value.get("t")),
        gpus_per_node=int(value.get("g", 0)),
        cut_whole=bool(value.get("c")),
        model_keys=tuple(str(key) for key in value.get("m", ())),
        shards=int(value.get("w", 0)),
        flex=bool(value.get("f")),
    )
    return str(value["d"]), ask
