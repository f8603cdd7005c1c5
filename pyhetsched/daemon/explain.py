"""Everything that is known of one job, told to those who may see it."""

from __future__ import annotations

import re
from collections.abc import Callable

from pyhetsched.daemon.allocator import Allocator
from pyhetsched.daemon.auth import Caller
from pyhetsched.daemon.journal import user_name
from pyhetsched.errors import RequestError, SlurmError
from pyhetsched.rpc import convert
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.slurm.admin_comment import decode
from pyhetsched.slurm.allocation import AllocatedJob
from pyhetsched.slurm.gateway import Gateway
from pyhetsched.store.decisions import DecisionStore, KnownJob
from pyhetsched.store.reservations import ReservationStore

#: How squeue shows the elements of an array that still wait.
_WAITING = re.compile(r"^(\d+)_\[[0-9,%:-]*(?:\.\.\.)?\]$")
_VALID = "write a job id as squeue shows it (12, 12_3, 12+1) or a decision id"


class Explainer:
    """Puts together what Slurm, the decisions and the reservations say of a job."""

    def __init__(
        self, gateway: Gateway, allocator: Allocator, store: DecisionStore, reservations: ReservationStore
    ) -> None:
        self._gateway = gateway
        self._allocator = allocator
        self._store = store
        self._reservations = reservations
        #: Told the decision of a job that Slurm has, before its record is read: see `RepeatedSubmits.used`.
        self.on_seen: Callable[[str], object] = lambda decision_id: None

    def explain(self, text: str, me: Caller) -> pb.ExplainReply | None:
        """Return all about the job ``text`` names, None where there is nothing that ``me`` may see.

        Raises `RequestError` for text that is no job id.
        """
        text = _WAITING.sub(r"\1", text)
        if not text or len(text) > 64 or not text.isascii() or not all(c.isalnum() or c in "_+" for c in text):
            raise RequestError(f"{text!r} is no job id; {_VALID}")
        if not text[0].isdigit() or (len(text) == 16 and not text.isdigit()):
            return self._decision(text, me)
        jobs = self._live(text)
        if jobs:
            live, others = jobs[0], jobs[1:]
            found = decode(live.admin_comment)
            if found:
                self.on_seen(found[0])
            reply = self._reply(_state_of(live), live.job_id, found[0] if found else "", live.uid, me)
            if reply is not None:
                reply.others.extend(job.id_text for job in others if job.uid == live.uid)
            return reply
        known = self._known(text)
        if known is None:
            return self._decision(text, me) if len(text) == 16 else None
        state = pb.JobState(
            job_id=known.job_id, id_text=known.id_text, user=known.user, name=known.name, state="UNKNOWN"
        )
        return self._reply(state, known.job_id, known.decision_id, known.uid, me)

    def _live(self, text: str) -> list[AllocatedJob]:
        """Return the job that is meant, and after it, where ``text`` names an array or heterogeneous job, its others.

        Elements that still wait are one job to Slurm, with the number of the array.
        """
        try:
            jobs = self._gateway.jobs(text)
        except SlurmError:
            return []
        meant = [job for job in jobs if text in (job.id_text, str(job.job_id))]
        if not text.isdigit():
            return (meant or [job for job in jobs if job.id_text == text.partition("_")[0]])[:1]
        return [*meant[:1], *(job for job in jobs if job not in meant[:1])]

    def _known(self, text: str) -> KnownJob | None:
        by_text = self._store.jobs_of_text(text)
        if by_text:
            return by_text[0]
        # Slurm's job ids have 32 bits; a database has no place for much larger numbers.
        return self._store.job(int(text)) if text.isdigit() and len(text) <= 10 else None

    def _decision(self, decision_id: str, me: Caller) -> pb.ExplainReply | None:
        decisions = [d for d in self._store.of_job(-1, decision_id) if me.may_see(d.uid)]
        if not decisions:
            return None
        return pb.ExplainReply(decisions=map(convert.decision_message, decisions))

    def _reply(self, state: pb.JobState, job_id: int, decision_id: str, uid: int, me: Caller) -> pb.ExplainReply | None:
        if not me.may_see(uid):
            return None
        reservations = [r for r in self._reservations.of_job(job_id) if r.uid == uid]
        decisions = [d for d in self._store.of_job(job_id, decision_id) if d.uid in (uid, 0)]
        return pb.ExplainReply(
            job=state,
            decisions=map(convert.decision_message, decisions),
            reservations=[convert.reservation_message(r, user_name(r.uid)) for r in reservations],
        )


def _state_of(job: AllocatedJob) -> pb.JobState:
    return pb.JobState(
        job_id=job.job_id, id_text=job.id_text, user=job.user, name=job.name, state=job.state, reason=job.reason,
        nodes=job.node_list, partition=job.partition, submit_s=job.submit_s, start_s=job.start_s, end_s=job.end_s,
        exit_code=job.exit_code,
    )  # fmt: skip
