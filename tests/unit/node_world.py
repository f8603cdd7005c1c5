"""A node with fake GPUs, its hooks, and a stand-in of the daemon, all in the test's own process.

Crashes are real: `World.crash` forks, runs, and is killed by SIGKILL at the chosen instant.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fakenvml"))

from fakenode import FakeNode  # noqa: E402

from pyhetsched.clock import Clock, RealClock  # noqa: E402
from pyhetsched.errors import UnreachableError  # noqa: E402
from pyhetsched.mig.nvml import NvmlDriver  # noqa: E402
from pyhetsched.mig.profiles import model_by_key  # noqa: E402
from pyhetsched.node import environment, epilog, paths, prolog  # noqa: E402
from pyhetsched.node.hook import Hook, HookJob  # noqa: E402
from pyhetsched.node.isolation import Isolation  # noqa: E402
from pyhetsched.node.journal import Journal  # noqa: E402
from pyhetsched.node.settings import NodeSettings  # noqa: E402
from pyhetsched.node.slices import SliceEngine  # noqa: E402
from pyhetsched.rpc.gen import services_pb2 as pb  # noqa: E402

NODE = "node0"
UID = 1001
BOOT = "boot-1"


class StandInDaemon:
    """Answers from what a test has laid down, and remembers what it was told."""

    def __init__(self, model: str) -> None:
        self.model = model_by_key(model)
        self.plans: dict[int, pb.PreparePlan] = {}
        self.reconcile_plan = pb.ReconcilePlan()
        self.release_plan = pb.ReleasePlan()
        self.reports: list[pb.ReportRequest] = []
        self.reconciles: list[pb.ReconcileRequest] = []
        self.away = False

    def plan(
        self, job_id: int, *slices: tuple[str, int], gpu: int = 0, per_task: int = 0, uid: int = UID
    ) -> pb.PreparePlan:
        """Plan slices, given as (profile, start), on one GPU; reservation ids are ``JOB.N``."""
        planned = []
        for number, (name, start) in enumerate(slices):
            profile = self.model.profile(name)
            planned.append(
                pb.SlicePlan(
                    reservation_id=f"{job_id}.{number}", gpu_index=gpu, profile=profile.name, start=start,
                    gi_profile_const=profile.gi_profile_const, gi_profile_id=profile.gi_profile_id, size=profile.size,
                )
            )  # fmt: skip
        plan = pb.PreparePlan(
            action=pb.PreparePlan.CREATE, job_id=job_id, uid=uid, slices=planned, slices_per_task=per_task
        )
        self.plans[job_id] = plan
        return plan

    def prepare(self, request: pb.PrepareRequest) -> pb.PreparePlan:
        self._answer()
        return self.plans.get(request.job_id, pb.PreparePlan(action=pb.PreparePlan.NOTHING))

    def report(self, request: pb.ReportRequest) -> pb.Ack:
        self._answer()
        self.reports.append(request)
        return pb.Ack()

    def release(self, request: pb.ReleaseRequest) -> pb.ReleasePlan:
        self._answer()
        return self.release_plan

    def reconcile(self, request: pb.ReconcileRequest) -> pb.ReconcilePlan:
        self._answer()
        self.reconciles.append(request)
        return self.reconcile_plan

    def _answer(self) -> None:
        if self.away:
            raise UnreachableError("hetschedd does not answer at unix:/nowhere")

    def last_states(self) -> dict[str, str]:
        """The state of each reservation as reported last."""
        return {item.reservation_id: item.state for report in self.reports for item in report.slices}


class World:
    """One node."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        gpus: str = "A100-80GB:2",
        isolation: str = "none",
        **node: Any,
    ) -> None:
        self.folder = folder
        self.node = FakeNode(folder / "nvml", NODE, [gpus], **node)
        self.daemon = StandInDaemon(gpus.partition(":")[0])
        self.paths = paths.paths_of(
            NODE, NodeSettings(state_dir=str(folder / "state"), run_dir=str(folder / "run"))
        )
        self.paths.create()
        self.journal = Journal(self.paths)
        self.given_back: dict[int, str] = {}
        self.jobs_over: set[int] = set()
        self.clock: Clock = RealClock()
        self.boot_id = BOOT
        self.isolation = Isolation(isolation, folder / "nvml" / "caps")
        monkeypatch.setenv("FAKE_NVML_DIR", str(folder / "nvml"))
        monkeypatch.setenv("FAKE_NVML_NODE", NODE)
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(self.node.tools / "libnvidia-ml.so.1")))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def hook(self, patience_s: float = 0.0) -> Hook:
        """A fresh hook, as a new process would have it."""

        def engine(driver: NvmlDriver) -> SliceEngine:
            return SliceEngine(
                driver, self.paths, self.journal, self.clock, self.isolation, self.boot_id,
                lambda job_id: job_id in self.jobs_over,
            )  # fmt: skip

        return Hook(
            self.paths, self.journal, self.clock, self.daemon, NvmlDriver, engine, self.boot_id, patience_s,
            self._give_back,
        )  # fmt: skip

    def _give_back(self, job_id: int, why: str) -> bool:
        self.given_back[job_id] = why
        return True

    def job(self, job_id: int, *gpus: int, uid: int = UID) -> HookJob:
        return HookJob(job_id, uid, NODE, gpus or (0,))

    def prolog(self, job_id: int, *gpus: int) -> None:
        prolog.run(self.job(job_id, *gpus), self.hook())

    def epilog(self, job_id: int, wait_s: float = 0.0) -> bool:
        return epilog.run(self.job(job_id), self.hook(), wait_s)

    def visible(self, job_id: int) -> str:
        """What the task prolog would read; "" if there is nothing."""
        try:
            return self.paths.environment(job_id).read_text()
        except FileNotFoundError:
            return ""

    def layout(self, gpu: int = 0) -> set[tuple[str, int]]:
        return self.node.layout(gpu)

    def crash(self, act: Callable[[], object]) -> bool:
        """Run ``act`` in a child that may be killed by a fault; return whether it was killed."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                act()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return True
        assert os.WEXITSTATUS(status) == 0, "the child failed by itself"
        return False


def die_at_write(number: int, after: bool) -> None:
    """Make this process die at its write number ``number`` (from 0) of any file of the node."""
    real, count = paths.write_atomically, 0

    def write(*arguments: Any, **options: Any) -> None:
        nonlocal count
        if count == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*arguments, **options)
        if count == number and after:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    from pyhetsched.node import boot, inventory, journal

    for module in (paths, environment, inventory, journal, boot):
        module.write_atomically = write  # type: ignore[attr-defined]
