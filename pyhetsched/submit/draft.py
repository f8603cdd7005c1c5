"""What the rules of submit hand to one another: the request as read so far, and the answer as it grows."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyhetsched.model import Candidate, ClusterView, JobAsk, JobField, SubmitRequest, Verdict
from pyhetsched.slurm.gres import GresEntry
from pyhetsched.submit.fleet import Fleet, fleet_of
from pyhetsched.submit.policy import SlicesWish, SubmitPolicy


class Scope(enum.Enum):
    """For what a count of GPUs is meant."""

    NODE = JobField.TRES_PER_NODE
    JOB = JobField.TRES_PER_JOB
    SOCKET = JobField.TRES_PER_SOCKET
    TASK = JobField.TRES_PER_TASK

    def text(self, request: SubmitRequest) -> str:
        """What the request says for this scope."""
        return {
            Scope.NODE: request.tres_per_node,
            Scope.JOB: request.tres_per_job,
            Scope.SOCKET: request.tres_per_socket,
            Scope.TASK: request.tres_per_task,
        }[self]

    @property
    def option(self) -> str:
        """The option of sbatch that fills it."""
        return {
            Scope.NODE: "--gres",
            Scope.JOB: "-G",
            Scope.SOCKET: "--gpus-per-socket",
            Scope.TASK: "--gpus-per-task",
        }[self]


class Want(enum.Enum):
    """What an entry asks for."""

    WHOLE = "whole"
    SLICE = "slice"
    MEMORY = "memory"
    SHARD = "shard"


@dataclass(frozen=True, slots=True)
class Wanted:
    """``count`` GPUs or slices for ``scope``; ``type`` is as the user wrote it, empty if there was none."""

    scope: Scope
    want: Want
    count: int
    type: str = ""
    memory_gb: int = 0
    implied: bool = False

    def __str__(self) -> str:
        head = "shard" if self.want is Want.SHARD else "gpu"
        return ":".join([head, *([self.type] if self.type else []), str(self.count)])


@dataclass(frozen=True, slots=True)
class Wishes:
    """What ``#HETSCHED`` lines and ``--comment=hetsched:`` say; None where they say nothing.

    ``min_vram_gb`` is in the nominal gigabytes of product and profile names.
    """

    min_vram_gb: float | None = None
    min_cc: tuple[int, int] | None = None
    types: tuple[str, ...] = ()
    not_slower_than: str | None = None
    slices: SlicesWish | None = None
    preemptible: bool | None = None
    job_class: str | None = None
    flex: bool | None = None
    opt_out: bool = False
    written: tuple[str, ...] = ()

    @property
    def has_needs(self) -> bool:
        """Whether they narrow what kind of GPU may serve."""
        return bool(
            self.min_vram_gb is not None
            or self.min_cc is not None
            or self.types
            or self.not_slower_than is not None
            or self.slices == "only"
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """The state between two rules; ``settled`` once no later rule may decide anything.

    ``spelled`` is what the user wrote, ``wanted`` the same in the site's own spelling; ``others`` is what the
    TRES fields hold beside GPUs.
    """

    request: SubmitRequest
    view: ClusterView
    policy: SubmitPolicy
    fleet: Fleet
    wanted: tuple[Wanted, ...] = ()
    spelled: tuple[Wanted, ...] = ()
    others: Mapping[Scope, tuple[GresEntry, ...]] = field(default_factory=dict)
    unreadable: bool = False
    wishes: Wishes = Wishes()
    verdict: Verdict = Verdict.UNCHANGED
    ask: JobAsk = JobAsk("plain")
    became: str = ""
    messages: tuple[str, ...] = ()
    changes: Mapping[JobField, str] = field(default_factory=dict)
    drop_environment: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    score_means: str = ""
    settled: bool = False

    @classmethod
    def start(cls, request: SubmitRequest, view: ClusterView, policy: SubmitPolicy) -> Draft:
        """The draft before any rule."""
        return cls(request, view, policy, fleet_of(request, view))

    def change(self, **fields: object) -> Draft:
        """A copy with these fields replaced."""
        return replace(self, **fields)  # type: ignore[arg-type]

    def refused(self, message: str) -> Draft:
        """A copy that refuses the request with ``message``, keeping the candidates."""
        nothing: dict[JobField, str] = {}
        return replace(
            self, verdict=Verdict.REFUSED, messages=(message,), settled=True, changes=nothing, drop_environment=()
        )

    def say(self, message: str) -> Draft:
        """A copy with one more sentence for the user."""
        return replace(self, messages=(*self.messages, message))

    @property
    def slices_wanted(self) -> tuple[Wanted, ...]:
        """The entries that name a slice."""
        return tuple(each for each in self.wanted if each.want is Want.SLICE)

    @property
    def interactive(self) -> bool:
        """Whether the client is srun or salloc, which keep their own ``-G`` for the step."""
        return not self.request.batch
