"""The gRPC service of rounds: the last ones, the policy and its mode, and what another policy would do."""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from pyhetsched.daemon.auth import caller
from pyhetsched.daemon.journal import Journal
from pyhetsched.daemon.round_process import WouldRow
from pyhetsched.daemon.round_record import RoundSummary
from pyhetsched.daemon.rounds import Rounds
from pyhetsched.daemon.services import guarded
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.rpc.gen import services_pb2_grpc

_DEFAULT_LIMIT = 100
_MOST = 10_000


class PolicyService(services_pb2_grpc.PolicyServicer):
    """Rounds, for people and tools."""

    def __init__(self, rounds: Rounds, journal: Journal) -> None:
        self._rounds = rounds
        self._journal = journal

    @guarded
    def Get(self, request: pb.GetPolicyRequest, context: grpc.ServicerContext) -> pb.PolicyReply:
        """Tell policy, mode and the last rounds; they name no job."""
        return self._reply(request.limit)

    @guarded
    def Set(self, request: pb.SetPolicyRequest, context: grpc.ServicerContext) -> pb.PolicyReply:
        """Set mode and policy; for root, SlurmUser and operators."""
        me = caller()
        if not me.privileged:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{me.name} is no operator; ask one to set the policy")
        self._rounds.set(request.mode, request.name)
        policy = self._rounds.policy
        self._journal.event("mode", policy.mode, f"rounds: policy {policy.name}, mode {policy.mode}", uid=me.uid)
        return self._reply(1)

    @guarded
    def WouldRound(self, request: pb.WouldRoundRequest, context: grpc.ServicerContext) -> pb.WouldRoundReply:
        """Tell what a policy would do now with the jobs that the caller may see; another than ours, to operators."""
        me = caller()
        if (request.policy or request.options) and not me.privileged:
            text = f"{me.name} is no operator; leave out the policy to see what the configured one would do"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, text)
        limit = min(request.limit or _DEFAULT_LIMIT, _MOST)
        found = self._rounds.would(request.policy, dict(request.options), _MOST)
        rows = [row for row in found.rows if me.may_see(row.wish.job.uid)][:limit]
        reply = pb.WouldRoundReply(jobs=map(_job, rows))
        if found.summary is not None:
            reply.round.CopyFrom(_round(found.summary))
        return reply

    def _reply(self, limit: int) -> pb.PolicyReply:
        policy = self._rounds.policy
        rounds: Iterable[RoundSummary] = list(self._rounds.summaries)[-limit:]
        return pb.PolicyReply(
            mode=policy.mode, name=policy.name, round_s=policy.round_s, rounds=map(_round, rounds),
            failing=self._rounds.failing,
        )  # fmt: skip


def _round(summary: RoundSummary) -> pb.Round:
    return pb.Round(**{name: getattr(summary, name) for name in RoundSummary.__dataclass_fields__})


def _job(row: WouldRow) -> pb.RoundJob:
    wish = row.wish
    return pb.RoundJob(
        job_id=wish.job.job_id, user=wish.job.user, name=wish.job.name, rank=wish.rank, gpus=wish.job.gpus,
        wanted=wish.wanted, prefer=wish.prefer, why=wish.why,
        candidates=[
            pb.Candidate(name=c.name, chosen=c.chosen, admissible=c.admissible, score=c.score, reason=c.reason)
            for c in row.candidates
        ],
    )  # fmt: skip
