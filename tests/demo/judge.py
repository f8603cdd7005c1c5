"""Whether a request ended as it had to."""

from __future__ import annotations

from typing import Any

from cluster_view import Outcome, gpus_seen, slices_seen, uuids_seen


def problems(outcome: Outcome) -> list[str]:
    """Everything that is not as wanted, empty if all is well."""
    wanted = outcome.request.wanted
    if wanted.refused:
        return _refusal(outcome)
    if outcome.status or not outcome.jobs:
        return [f"it was not accepted: {outcome.said or 'without a word'}"]
    found = [f"job {job} is {state}" for job, state in zip(outcome.jobs, outcome.states, strict=True)
             if state not in ("COMPLETED", "RUNNING")]  # fmt: skip
    strayed = [node for node in outcome.nodes if node not in wanted.nodes]
    found += [f"it ran on {node}, not on {' or '.join(wanted.nodes)}" for node in strayed]
    if not all(explained["decisions"] for explained in outcome.explained):
        found.append("hetsched has no record of it")
    return found + (_slices(outcome) if wanted.slices else _whole(outcome))


def _refusal(outcome: Outcome) -> list[str]:
    if not outcome.status:
        return ["it was accepted, and had to be refused"]
    names = outcome.request.wanted.names
    return [] if names in outcome.said else [f"the refusal does not name {names}: {outcome.said}"]


def _slices(outcome: Outcome) -> list[str]:
    wanted = sorted(outcome.request.wanted.slices)
    found = []
    for job, output, explained in zip(outcome.jobs, outcome.outputs, outcome.explained, strict=True):
        seen, made = sorted(slices_seen(output)), _last_run(explained)
        if seen != wanted:
            found.append(f"job {job} saw {', '.join(seen) or 'no slice'} instead of {', '.join(wanted)}")
        if sorted(item["profile"] for item in made) != wanted:
            found.append(f"job {job}: the record names other slices than {', '.join(wanted)}")
        if sorted(item["mig_uuid"] for item in made) != sorted(uuids_seen(output)):
            found.append(f"job {job} saw other slices than the record names")
    everything = [uuid for output in outcome.outputs for uuid in uuids_seen(output)]
    if len(set(everything)) != len(everything):
        found.append("one slice was seen twice")
    return found


def _whole(outcome: Outcome) -> list[str]:
    wanted = outcome.request.wanted.gpus
    seen = [len(gpus_seen(output)) for output in outcome.outputs]
    return [f"it saw {number} GPUs instead of {wanted}" for number in seen if number != wanted]


def _last_run(explained: dict[str, Any]) -> list[dict[str, Any]]:
    """The slices of the job's last start; one that was given back has those of earlier starts, too."""
    reservations = explained["reservations"]
    last = max((item["restart_count"] for item in reservations), default=0)
    return [item for item in reservations if item["restart_count"] == last]
