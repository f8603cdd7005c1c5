"""Making and handing in decisions: one place that fills what every record must have."""

from __future__ import annotations

import functools
import pwd
import secrets
import time
from collections.abc import Mapping

from pyhetsched.clock import Clock
from pyhetsched.model import Candidate, Decision
from pyhetsched.slurm.allocation import AllocatedJob
from pyhetsched.store.recorder import Recorder

_NAMES_KEPT_S = 60.0


def new_id() -> str:
    """Return a fresh id for a decision or a set of reservations."""
    return secrets.token_hex(8)


def user_name(uid: int) -> str:
    """Return the name of ``uid``, or the number as text where there is none; as of a minute ago at most.

    A site's directory service can take milliseconds for it, and slurmctld waits meanwhile.
    """
    return _user_name(uid, int(time.monotonic() // _NAMES_KEPT_S))


@functools.lru_cache(maxsize=4096)
def _user_name(uid: int, _minute: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Journal:
    """Records decisions about jobs."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self.recorder = recorder
        self._clock = clock

    def job(self, kind: str, job: AllocatedJob, outcome: str, message: str = "", *, asked: str = "", became: str = "",
            node: str = "", mode: str = "enforce", candidates: tuple[Candidate, ...] = (), policy: str = "",
            detail: Mapping[str, object] | None = None) -> Decision:  # fmt: skip
        """Record what was decided about a job that Slurm has numbered, and return the record."""
        decision = Decision(
            id=new_id(), time_s=self._clock.now_s(), kind=kind, job_id=job.job_id, uid=job.uid, user=job.user,
            mode=mode, asked=asked, became=became, outcome=outcome, message=message, candidates=candidates,
            policy=policy, node=node, partition=job.partition, account=job.account, detail=detail or {},
        )  # fmt: skip
        self.recorder.record(decision)
        return decision

    def event(self, kind: str, outcome: str, message: str, *, job_id: int = 0, uid: int = 0, node: str = "",
              detail: Mapping[str, object] | None = None) -> Decision:  # fmt: skip
        """Record something that is not about a job, or of which only the job's number is known."""
        decision = Decision(
            id=new_id(), time_s=self._clock.now_s(), kind=kind, job_id=job_id, uid=uid, user=user_name(uid),
            mode="enforce", asked="", became="", outcome=outcome, message=message, node=node, detail=detail or {},
        )  # fmt: skip
        self.recorder.record(decision)
        return decision
