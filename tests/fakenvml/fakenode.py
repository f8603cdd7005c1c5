"""Nodes with fake GPUs for Python tests: build the library, make nodes, run pynvml in processes of their own.

    node = FakeNode(tmp_path, "a100-0", gpus=["A100-80GB:2"])
    with node.worker() as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        gi = nvml.create(gpu, 19, 6)

Every attribute of a worker is a call that runs in its process: a function of ``pynvml``, or one of
``nvml_worker.py``.  NVML's errors come back as `NvmlCodeError`; a worker that was killed raises `WorkerDiedError`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "fakenvml"

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
RESET_REQUIRED = 16
IN_USE = 19
INSUFFICIENT_RESOURCES = 23
VERSION_MISMATCH = 25


class NvmlCodeError(Exception):
    """A call that answered another code than NVML_SUCCESS."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class WorkerDiedError(Exception):
    """The worker's process ended in the middle of a call."""


@functools.cache
def build() -> Path:
    """Build the library and its tools once; the folder they are in."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-C", str(HERE), f"OUT={BUILD}"], check=True)
    return BUILD


class Worker:
    """One process with pynvml in it."""

    def __init__(self, environment: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, str(HERE / "nvml_worker.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environment), text=True, bufsize=1,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the process, if it still runs, and wait for it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it was killed, and a call to it is not flushed
                pipe.close()
        self._process.wait(timeout=30)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=30)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerDiedError(f"the worker died in {name} with status {self._process.wait(timeout=30)}")
        answer = json.loads(line)
        if "code" in answer:
            raise NvmlCodeError(answer["code"], answer["text"])
        return answer["value"]


class FakeNode:
    """A node with fake GPUs.

    MIG is on where a GPU has it unless ``mig`` is false.  Everybody may configure unless ``permission`` says
    otherwise, so that tests need no root.
    """

    def __init__(self, folder: Path, name: str = "node0", gpus: Sequence[str] = ("A100-80GB",), *, mig: bool = True,
                 permission: str = "allow", caps: bool = False) -> None:
        self.tools = build()
        self.folder = folder
        self.name = name
        arguments = [word for gpu in gpus for word in ("--gpu", gpu)]
        if caps:
            arguments += ["--caps-root", str(folder / "caps"), "--caps-kind", "file"]
        self.ctl("init", *arguments, "--mig", "on" if mig else "off")
        self.ctl("policy", f"permission={permission}")

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to see this node's GPUs."""
        kept = {key: value for key, value in os.environ.items() if key not in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")}
        return kept | {
            "FAKE_NVML_DIR": str(self.folder),
            "FAKE_NVML_NODE": self.name,
            "LD_LIBRARY_PATH": str(self.tools),
        }

    def ctl(self, *words: str) -> str:
        """Run fake-nvml-ctl; what it printed."""
        command = [str(self.tools / "fake-nvml-ctl"), "--dir", str(self.folder), "--node", self.name, *words]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def show(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.ctl("show"))
        return shown

    def uses(self) -> list[dict[str, Any]]:
        used: list[dict[str, Any]] = json.loads(self.ctl("uses"))
        return used

    def layout(self, gpu: int = 0) -> set[tuple[str, int]]:
        """The (profile, start) of each instance on a GPU."""
        return {(gi["profile"], gi["start"]) for gi in self.show()["gpus"][gpu]["instances"]}

    def worker(self, *, privileged: bool = True) -> Worker:
        """A process with pynvml, initialised.  Unprivileged: without CAP_SYS_ADMIN whoever runs the tests."""
        prefix: list[str] = []
        if not privileged and os.geteuid() == 0:
            setpriv = shutil.which("setpriv") or "setpriv"
            prefix = [setpriv, "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
        worker = Worker(self.environment, prefix)
        worker.nvmlInit()
        return worker

    def tool(self, name: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start fake-cuda-hold or fake-nvidia-smi with more environment variables."""
        return subprocess.Popen([str(self.tools / name), *words], env=self.environment | environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, name: str, *words: str, **environment: str) -> tuple[int, str]:
        """Run a tool to its end: status and output."""
        process = self.tool(name, *words, **environment)
        out, err = process.communicate(timeout=30)
        return process.returncode, out + err


def shared_instances(folder: Path) -> list[str]:
    """One line for each instance that processes of two jobs used, on any node of a state directory.

    An instance made for one job must be used by no other, even later; a GPU without MIG by no two jobs at a time.
    Empty is what a scheduler wants to see here.
    """
    found = []
    for log in sorted(folder.glob("*.uses")):
        jobs: dict[str, set[str]] = {}
        for line in log.read_text().splitlines():
            _, event, _, _, job, gpu, gi, ci, serial, uuid = line.split()
            if event == "conflict":
                found.append(f"{log.stem}: job {job} was on GPU {gpu} instance {gi}/{ci} beside another job")
            if event == "open" and serial != "0":
                jobs.setdefault(f"{uuid} serial {serial}", set()).add(job)
        shared = {which: ", ".join(sorted(seen)) for which, seen in jobs.items() if len(seen) > 1}
        found += [f"{log.stem}: {which}: jobs {seen}" for which, seen in shared.items()]
    return found
