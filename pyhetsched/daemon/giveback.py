"""Giving a job back to the queue: nothing held, nothing drained, no loop.

Slurm puts no limit on requeues by a prolog, so the limit is here: each time a job is given back it is kept
away from the node where it had no place; when no node is left, the exclusions are lifted and it waits, twice
as long each time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from pyhetsched.clock import Clock
from pyhetsched.config import AllocationConfig
from pyhetsched.daemon.holdings import RUNNING
from pyhetsched.errors import SlurmError, StoreError
from pyhetsched.slurm.admin_comment import owners_exclusions
from pyhetsched.slurm.allocation import AllocatedJob
from pyhetsched.slurm.gateway import Gateway
from pyhetsched.slurm.hosts import expand, fold
from pyhetsched.store.reservations import Exclusion, ExclusionStore

log = logging.getLogger(__name__)


class GiveBack:
    """Gives jobs back, and lifts the exclusions again when they have done their work."""

    def __init__(self, gateway: Gateway, store: ExclusionStore, config: AllocationConfig, clock: Clock) -> None:
        self._gateway = gateway
        self._store = store
        self._clock = clock
        self.config = config
        self._lock = threading.Lock()
        self._known = {item.job_id: item for item in store.all()}

    def give_back(self, job: AllocatedJob, node: str, elsewhere: Collection[str]) -> str:
        """Requeue a batch job away from ``node``; return what was done, for the record.

        ``elsewhere`` are all nodes that could serve it. Raises `SlurmError` when Slurm refuses the requeue.
        """
        plan = self._plan(job, node, elsewhere)
        wait_s = self._wait_s(plan) if not plan.ours else 0.0
        if not job.requeue:
            self._gateway.update(job.job_id, {"Requeue": "1"})
        self._save(plan)
        self._gateway.requeue(job.job_id)
        # Only now: while the job was starting its excluded nodes could not be changed.
        fields = {"ExcNodeList": fold({*expand(plan.owners), *expand(plan.ours)}),
                  "StartTime": f"now+{round(wait_s)}" if wait_s else "now"}  # fmt: skip
        try:
            self._gateway.update(job.job_id, fields)
        except SlurmError as error:
            log.warning("job %d is back in the queue, but %s could not be set: %s", job.job_id, fields, error)
        if plan.ours:
            return f"kept away from {plan.ours}"
        return f"no other node can serve it: tried again in {wait_s:g} s"

    def times(self, job_id: int) -> int:
        """Return how often a job has been given back since it last ran."""
        known = self._known.get(job_id)
        return known.times if known else 0

    def bounced(self) -> dict[int, tuple[str, ...]]:
        """Return the nodes from which jobs are kept for now, by job."""
        now_s = self._clock.now_s()
        current = [item for item in list(self._known.values()) if item.ours and item.until_s > now_s]
        return {item.job_id: expand(item.ours) for item in current}

    def ran(self, job_id: int) -> None:
        """Forget a job that runs or has ended."""
        with self._lock:
            if self._known.pop(job_id, None):
                self._store_forget(job_id)

    def lift(self, freed_node: str | None = None) -> None:
        """Lift exclusions that are over, or that name ``freed_node``, where something has just been freed."""
        now_s = self._clock.now_s()
        for item in list(self._known.values()):
            # A clock that has stepped back must not prolong an exclusion.
            over = not now_s < item.until_s <= now_s + self.config.exclude_s
            if item.ours and (over or (freed_node is not None and freed_node in expand(item.ours))):
                self._lift_one(item, expand(item.ours) if over else (freed_node or "",))

    def _lift_one(self, item: Exclusion, nodes: Collection[str]) -> None:
        left = [node for node in expand(item.ours) if node not in nodes]
        try:
            self._gateway.update(item.job_id, {"ExcNodeList": fold({*expand(item.owners), *left})})
        except SlurmError as error:
            log.debug("job %d: exclusions not lifted: %s", item.job_id, error)
            if self._has_ended(item.job_id):
                self.ran(item.job_id)
            return
        self._save(Exclusion(item.job_id, item.owners, fold(left), item.until_s, item.times))

    def _has_ended(self, job_id: int) -> bool:
        """Whether the job is over; False where Slurm cannot be asked, for then it is tried again."""
        try:
            found = [job for job in self._gateway.jobs(str(job_id)) if job.job_id == job_id]
        except SlurmError:
            return False
        return not any(job.state in RUNNING or job.state == "PENDING" for job in found)

    def _plan(self, job: AllocatedJob, node: str, elsewhere: Collection[str]) -> Exclusion:
        known = self._known.get(job.job_id)
        owners = owners_exclusions(job.admin_comment)
        ours = {node, *expand(known.ours if known else "")}
        left = set(elsewhere) - ours - set(expand(owners))
        # Slurm holds a job (BadConstraints) that is kept from a node which it requires, or has too few nodes left.
        if ours.intersection(expand(job.required_nodes)) or len(left) < max(1, len(expand(job.node_list))):
            ours = set()
        until_s = self._clock.now_s() + self.config.exclude_s
        return Exclusion(job.job_id, owners, fold(ours), until_s, (known.times if known else 0) + 1)

    def _wait_s(self, plan: Exclusion) -> float:
        return min(self.config.backoff_max_s, self.config.backoff_first_s * 2.0 ** min(plan.times - 1, 20))

    def _save(self, item: Exclusion) -> None:
        with self._lock:
            self._known[item.job_id] = item
        try:
            self._store.save(item)
        except StoreError as error:
            log.warning("job %d: exclusion kept in memory only: %s", item.job_id, error)

    def _store_forget(self, job_id: int) -> None:
        try:
            self._store.forget(job_id)
        except StoreError as error:
            log.warning("job %d: exclusion could not be deleted: %s", job_id, error)
