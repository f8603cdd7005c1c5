"""The arguments of sbatch that concern GPUs, as the request that slurmctld's plugin would see.

The forms follow sbatch (https://slurm.schedmd.com/sbatch.html): the same TRES strings, the script's #SBATCH
lines under the command line's, the #HETSCHED lines handed on. Options that do not concern GPUs are passed over.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pyhetsched.errors import RequestError
from pyhetsched.model import SubmitRequest

_SCRIPT_BYTES = 65536
_LINE = re.compile(r"^#HETSCHED[\s:]\s*(.*)$")

# (short, long): sbatch's options with a value that may stand as a separate word, and that are passed over.
_PASSED_OVER = (
    ("-J", "--job-name"), ("-o", "--output"), ("-e", "--error"), ("-D", "--chdir"), ("-d", "--dependency"),
    ("-M", "--clusters"), ("-b", "--begin"), ("-i", "--input"), ("-L", "--licenses"), ("-m", "--distribution"),
    ("-S", "--core-spec"), ("-B", "--extra-node-info"), ("-F", "--nodefile"),
    *((None, f"--{name}") for name in (
        "acctg-freq", "batch", "bb", "bbf", "cluster-constraint", "container", "container-id", "cores-per-socket",
        "cpu-freq", "deadline", "delay-boot", "export", "export-file", "extra", "gid", "gpu-bind", "gpu-freq", "hint",
        "kill-on-invalid-dep", "mail-type", "mail-user", "mcs-label", "mem-bind", "mem-per-cpu", "mincpus", "network",
        "ntasks-per-core", "ntasks-per-socket", "open-mode", "power", "priority", "profile", "segment", "signal",
        "sockets-per-node", "switches", "thread-spec", "threads-per-core", "time-min", "tmp", "tres-bind", "uid",
        "wait-all-nodes", "wckey", "wrap",
    )),
)  # fmt: skip


_GPU_OPTIONS = ("--gres", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket", "--tres-per-task",
                "--constraint", "--partition", "--comment", "--nodes", "--nodelist", "--ntasks")  # fmt: skip
_FLAGS = frozenset({"--nice", "--get-user-env", "--contiguous", "--hold", "--wait"})


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RequestError(f"sbatch would not take this: {message}")


def parse(words: Sequence[str], interactive: bool = False) -> SubmitRequest:
    """Return the request that sbatch (or srun, when ``interactive``) would send for ``words``.

    Raises `RequestError` for an option value that sbatch would not take, or a script that cannot be read.
    """
    options, rest = _parser().parse_known_args(list(words))
    _check_names(rest)
    script = next((word for word in rest if not word.startswith("-")), None)
    lines: list[str] = []
    if script is not None and not interactive:
        text = _read(script)
        first, lines = _script_options(text)
        options, _ = _parser().parse_known_args([*first, *words])
    nodes = _range(options.nodes)
    tasks_given = options.ntasks or 0
    per_task, bind = _per_task(options)
    return SubmitRequest(
        partition=options.partition or "", account=options.account or "", qos=options.qos or "",
        comment=options.comment or "", features=options.constraint or "", prefer=options.prefer or "",
        tres_per_node=_tres(options.gres or options.gpus_per_node, options.gres is None),
        tres_per_job=_tres(options.gpus, True), tres_per_socket=_tres(options.gpus_per_socket, True),
        tres_per_task=per_task, tres_bind=bind, min_nodes=nodes[0], max_nodes=nodes[1], num_tasks=tasks_given,
        ntasks_per_node=options.ntasks_per_node or 0, cpus_per_task=options.cpus_per_task or 0,
        cpus_per_tres=f"gres/gpu:{options.cpus_per_gpu}" if options.cpus_per_gpu else "",
        mem_per_tres=f"gres/gpu:{_mib(options.mem_per_gpu)}" if options.mem_per_gpu else "",
        ntasks_per_tres=options.ntasks_per_gpu or 0, time_limit_min=0, required_nodes=options.nodelist or "",
        excluded_nodes=options.exclude or "", reservation=options.reservation or "", array_inx=options.array or "",
        batch=not interactive, script_lines=tuple(lines), exclusive=options.exclusive is not None,
        memory_per_node_mib=_mib(options.mem) if options.mem else 0,
        gpus_per_node_option=options.gpus_per_node is not None,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="sbatch", add_help=False, allow_abbrev=False)
    text = (
        ("-p", "--partition"), ("-A", "--account"), ("-q", "--qos"), (None, "--comment"), ("-C", "--constraint"),
        (None, "--prefer"), (None, "--gres"), ("-G", "--gpus"), (None, "--gpus-per-node"), (None, "--gpus-per-task"),
        (None, "--gpus-per-socket"), (None, "--tres-per-task"), (None, "--mem-per-gpu"), ("-N", "--nodes"),
        ("-w", "--nodelist"), ("-x", "--exclude"), (None, "--reservation"), ("-a", "--array"), (None, "--mem"),
        ("-t", "--time"), *_PASSED_OVER,
    )  # fmt: skip
    for short, long in text:
        parser.add_argument(*([short] if short else []), long)
    for short, long in (("-n", "--ntasks"), ("-c", "--cpus-per-task"), (None, "--ntasks-per-node"),
                        (None, "--cpus-per-gpu"), (None, "--ntasks-per-gpu")):  # fmt: skip
        parser.add_argument(*([short] if short else []), long, type=int)
    parser.add_argument("--exclusive", nargs="?", const="")
    parser.add_argument("--test-only", action="store_true")
    return parser


def _check_names(rest: Sequence[str]) -> None:
    """Refuse what looks like a GPU option written wrong: passed over, it would look like a job without GPUs."""
    known = [name for action in _parser()._actions for name in action.option_strings if name.startswith("--")]
    for word in itertools.takewhile(lambda word: word.startswith("-"), rest):
        name = word.partition("=")[0]
        short = [option for option in known if option.startswith(name)] if len(name) > 4 else []
        near = short or difflib.get_close_matches(name, _GPU_OPTIONS, n=1, cutoff=0.8)
        if name not in _FLAGS and near:
            raise RequestError(f"{name} is not read here; did you mean {near[0]}?")


def _script_options(text: str) -> tuple[list[str], list[str]]:
    """Return the words of the #SBATCH lines and the #HETSCHED lines, both before the first command."""
    words: list[str] = []
    ours: list[str] = []
    for line in text.splitlines():
        found = _LINE.match(line)
        if found:
            ours.append(found[1].strip())
        elif line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return words, ours


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_SCRIPT_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise RequestError(f"the script {path} cannot be read: {error.strerror}") from error


def _tres(value: str | None, is_gpu: bool) -> str:
    """Return ``a100:2`` (of a --gpus option) or ``gpu:a100:2`` (of --gres) as slurmctld sees it."""
    if not value:
        return ""
    items = [item.strip() for item in value.split(",") if item.strip()]
    return ",".join(f"gres/gpu:{item}" if is_gpu else f"gres/{item.removeprefix('gres/')}" for item in items)


def _per_task(options: argparse.Namespace) -> tuple[str, str]:
    if options.gpus_per_task:
        name, _, count = options.gpus_per_task.rpartition(":")
        number = count if count.isdigit() else "1"
        kind = name if count.isdigit() else options.gpus_per_task
        tres = f"gres/gpu:{kind}={number}" if kind else f"gres/gpu={number}"
        return tres, f"gres/gpu:per_task:{number}"
    if options.tres_per_task:
        found = re.search(r"gres/gpu(?:[:=][^,]*?)?[:=](\d+)", options.tres_per_task)
        return options.tres_per_task, f"gres/gpu:per_task:{found[1]}" if found else ""
    return "", ""


def _range(value: str | None) -> tuple[int, int]:
    if not value:
        return 0, 0
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", value)
    if not found:
        raise RequestError(f"write a number of nodes such as 2 or 2-4 instead of -N {value}")
    return int(found[1]), int(found[2] or found[1])


def _mib(value: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", value.upper())
    if not found:
        raise RequestError(f"write memory such as 16G instead of {value!r}")
    number = int(found[1])
    return {"K": max(1, number // 1024), "": number, "M": number, "G": number << 10, "T": number << 20}[found[2]]
