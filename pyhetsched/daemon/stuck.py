"""Jobs that Slurm believes to be in their prolog, while nobody runs it.

A slurmctld that stops while PrologSlurmctld runs kills that script, takes the job for configured and loses the
message to the node; once it is back it shows the job as RUNNING with reason Prolog, until its time limit ends it
(seen on 26.05.5). The same happens where slurmd dies in a prolog. Such jobs go back to the queue.
"""

from __future__ import annotations

import logging

from pyhetsched.clock import Clock
from pyhetsched.daemon.allocator import Action, Allocator
from pyhetsched.slurm.gateway import Gateway

log = logging.getLogger(__name__)

_EVERY_S = 10.0


class Stuck:
    """Finds jobs that have been in their prolog for longer than any prolog takes, and gives them back."""

    def __init__(self, gateway: Gateway, allocator: Allocator, clock: Clock) -> None:
        self._gateway = gateway
        self._allocator = allocator
        self._clock = clock
        self._seen_s: dict[tuple[int, int], float] = {}
        self._looked_s = float("-inf")

    def release(self) -> None:
        """Look, now and then; raises `SlurmError` when Slurm cannot be asked."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < _EVERY_S:
            return
        self._looked_s = now_s
        # Times of our own monotonic clock, by job and start: a wall clock may step, and a job may start anew.
        found = self._gateway.in_prolog().items()
        self._seen_s = {key: self._seen_s.get(key, now_s) for key in found}
        patience_s = self._allocator.config.prolog_wait_s
        for job_id, start_s in [key for key, since_s in self._seen_s.items() if now_s - since_s >= patience_s]:
            del self._seen_s[job_id, start_s]
            self._give_back(job_id, patience_s)

    def _give_back(self, job_id: int, patience_s: float) -> None:
        job = self._allocator.load(job_id)
        if job is None or job.reason != "Prolog" or not job.nodes:
            return
        reason = f"its prolog has not ended on {job.node_list} for {patience_s:g} s"
        log.warning("job %d: %s", job_id, reason)
        answer = self._allocator.give_back(job, job.nodes[0].node, reason, away=False)
        if answer.action is Action.KILL:
            self._allocator.cancel(job_id)
