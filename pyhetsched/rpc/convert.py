"""Messages to values and back."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from pyhetsched.model import (
    Candidate,
    Decision,
    GpuReport,
    JobField,
    MigInstance,
    Reservation,
    SubmitOutcome,
    SubmitRequest,
    Verdict,
)
from pyhetsched.rpc.gen import hook_pb2, services_pb2

_REQUEST_FIELDS = [field.name for field in fields(SubmitRequest)]
_SEQUENCES = ("script_lines", "gpu_environment")
_VERDICTS = {
    Verdict.UNCHANGED: hook_pb2.UNCHANGED,
    Verdict.REWRITTEN: hook_pb2.REWRITTEN,
    Verdict.REFUSED: hook_pb2.REFUSED,
}


def submit_request(message: hook_pb2.SubmitRequest) -> SubmitRequest:
    """Return the request that ``message`` carries."""
    values: dict[str, Any] = {name: getattr(message, name) for name in _REQUEST_FIELDS}
    return SubmitRequest(**{**values, **{name: tuple(values[name]) for name in _SEQUENCES}})


def submit_request_message(request: SubmitRequest) -> hook_pb2.SubmitRequest:
    """Return the message for ``request``."""
    return hook_pb2.SubmitRequest(**{name: getattr(request, name) for name in _REQUEST_FIELDS})


def touched_fields(message: hook_pb2.ModifyRequest) -> frozenset[JobField]:
    """Return the fields that a change sets."""
    names = {hook_pb2.Field.Name(number) for number in message.touched}
    return frozenset(field for field in JobField if field.value in names)


def verdict(value: Verdict) -> hook_pb2.Verdict.ValueType:
    """Return the message's word for ``value``."""
    return _VERDICTS[value]


def submit_reply(outcome: SubmitOutcome, decision_id: str) -> hook_pb2.SubmitReply:
    """Return the reply that makes Slurm do ``outcome``."""
    reply = hook_pb2.SubmitReply(
        verdict=_VERDICTS[outcome.verdict], user_message=outcome.message, decision_id=decision_id,
        drop_environment=outcome.drop_environment,
    )  # fmt: skip
    for field, value in outcome.changes.items():
        reply.changes.add(field=hook_pb2.Field.Value(field.value), value=value)
    return reply


def decision_message(decision: Decision) -> services_pb2.Decision:
    """Return the message for ``decision``."""
    plain = {
        name: getattr(decision, name)
        for name in Decision.__dataclass_fields__
        if name not in ("candidates", "detail")
    }
    detail = json.dumps(dict(decision.detail), default=str) if decision.detail else ""
    return services_pb2.Decision(**plain, candidates=map(_candidate, decision.candidates), detail_json=detail)


def reservation_message(item: Reservation, user: str = "") -> services_pb2.Reservation:
    """Return the message for ``item``."""
    return services_pb2.Reservation(
        id=item.id, job_id=item.job_id, restart_count=item.restart_count, node=item.node, gpu_index=item.gpu_index,
        profile=item.profile, start=item.start, size=item.size, state=item.state.value, mig_uuid=item.mig_uuid,
        gi_id=item.gi_id or 0, ci_id=item.ci_id or 0, changed_s=item.changed_s, note=item.note, user=user,
    )  # fmt: skip


def gpu_report(message: services_pb2.Gpu) -> GpuReport:
    """Return what a node says of one GPU."""
    return GpuReport(
        index=message.index, minor=message.minor, uuid=message.uuid, model_key=message.model or None,
        name=message.gres_type, memory_mib=message.memory_mib, mig_mode=message.mig_mode or "unknown",
        utilization_pct=message.utilization_pct if message.HasField("utilization_pct") else None,
        instances=tuple(
            MigInstance(item.profile, item.start, item.size, item.gi_id, mig_uuid=item.uuid) for item in message.slices
        ),
    )  # fmt: skip


def _candidate(item: Candidate) -> services_pb2.Candidate:
    return services_pb2.Candidate(
        name=item.name, chosen=item.chosen, admissible=item.admissible, score=item.score, reason=item.reason
    )
