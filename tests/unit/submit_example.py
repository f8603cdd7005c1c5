"""The example cluster of the submit tests, and sbatch options as the request that Slurm's clients make of them."""

from __future__ import annotations

import argparse
import shlex

from pyhetsched.model import (
    ClusterView,
    GpuGroup,
    JobField,
    NodeView,
    PartitionView,
    SubmitOutcome,
    SubmitRequest,
    Verdict,
)

SPELLED = {
    JobField.TRES_PER_NODE: "--gres",
    JobField.TRES_PER_JOB: "-G",
    JobField.TRES_PER_SOCKET: "--gpus-per-socket",
    JobField.TRES_PER_TASK: "--tres-per-task",
    JobField.FEATURES: "-C",
    JobField.EXCLUDED_NODES: "-x",
    JobField.MIN_CPUS: "--mincpus",
    JobField.MEMORY_PER_NODE_MIB: "--mem",
}


def node(
    name: str,
    gres_type: str,
    model: str | None,
    count: int = 4,
    shards: int = 0,
    *,
    usable: bool = True,
    extra: str = "",
) -> NodeView:
    """A node of one GPU type; in MIG mode if it has shards."""
    mark = "mig" if shards else "whole"
    features = frozenset({gres_type, mark, *([extra] if extra else [])})
    group = GpuGroup(gres_type, model, count, shards > 0, shards)
    return NodeView(name, features, (group,), frozenset({"gpu"}), usable=usable, cpus=64, memory_mib=256_000)


NODES = (
    node("a100-0", "a100", "A100-80GB", shards=31, extra="rack1"),
    node("a100-1", "a100", "A100-80GB", shards=31),
    node("h100-0", "h100", "H100-80GB-SXM", shards=31, extra="rack1"),
    node("h100-1", "h100", "H100-80GB-SXM"),
    node("a30-0", "a30", "A30-24GB", 2, shards=4),
    node("v100-0", "v100", "V100-32GB", extra="rack1"),
    node("v100-1", "v100", "V100-32GB"),
)
PARTITIONS = (
    PartitionView("gpu", frozenset(each.name for each in NODES), is_default=True),
    PartitionView("old", frozenset({"v100-0", "v100-1"})),
)
CLUSTER = ClusterView(NODES, PARTITIONS)


def request(text: str) -> SubmitRequest:
    """The request of a command line such as ``sbatch -n2 --gpus-per-task=1g.10gb:1 # HETSCHED min-vram=40G``.

    Without a program's name sbatch is meant. What follows ``#HETSCHED`` is a line of the script.
    """
    command, *lines = text.split("#HETSCHED")
    words = shlex.split(command)
    batch = not (words and words[0] in ("srun", "salloc"))
    options = _parser().parse_args([word for word in words if word not in ("srun", "salloc", "sbatch")])
    task = options.tres_per_task or (f"gres/gpu:{options.gpus_per_task}" if options.gpus_per_task else "")
    low, _, high = (options.nodes or "0").partition("-")
    return SubmitRequest(
        tres_per_node=_gres(options.gres or (options.gpus_per_node and f"gpu:{options.gpus_per_node}")),
        tres_per_job=_gres(options.gpus and f"gpu:{options.gpus}"),
        tres_per_socket=_gres(options.gpus_per_socket and f"gpu:{options.gpus_per_socket}"),
        tres_per_task=_equals(task),
        tres_bind="gres/gpu:per_task:1" if task else "",
        cpus_per_tres=_gres(options.cpus_per_gpu and f"gpu:{options.cpus_per_gpu}"),
        mem_per_tres=_gres(options.mem_per_gpu and f"gpu:{options.mem_per_gpu}"),
        ntasks_per_tres=options.ntasks_per_gpu,
        features=options.constraint,
        partition=options.partition,
        comment=options.comment,
        num_tasks=options.ntasks,
        ntasks_per_node=options.ntasks_per_node,
        min_nodes=int(low),
        max_nodes=int(high or low),
        required_nodes=options.nodelist,
        excluded_nodes=options.exclude,
        exclusive=options.exclusive,
        batch=batch,
        script_lines=tuple(line.strip() for line in lines),
    )


def given(outcome: SubmitOutcome) -> str:
    """What the job gets, in the words of sbatch: ``unchanged``, ``refused`` or the options that were rewritten."""
    if outcome.verdict is not Verdict.REWRITTEN:
        return outcome.verdict.value
    words = []
    for field, option in SPELLED.items():
        if value := outcome.changes.get(field):
            value = value.replace("gres/", "") if option in ("--gres", "-G") else value
            words.append(f"{option} {value}" if option in ("-G", "-C", "-x") else f"{option}={value}")
    if JobField.MAX_NODES in outcome.changes:
        words.append(f"-N {outcome.changes[JobField.MAX_NODES]}")
    return " ".join(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    texts = (
        "--gres --gpus,-G --gpus-per-node --gpus-per-task --gpus-per-socket --tres-per-task "
        "--cpus-per-gpu --mem-per-gpu --constraint,-C --partition,-p --comment --nodes,-N --nodelist,-w --exclude,-x"
    )
    for names in texts.split():
        parser.add_argument(*names.split(","), default="")
    for names in (["--ntasks", "-n"], ["--ntasks-per-node"], ["--ntasks-per-gpu"]):
        parser.add_argument(*names, type=int, default=0)
    parser.add_argument("--exclusive", action="store_true")
    return parser


def _gres(text: str) -> str:
    return ",".join(f"gres/{part}" for part in text.split(",")) if text else ""


def _equals(text: str) -> str:
    """Slurm's clients write ``=`` before the count of ``--gpus-per-task``."""
    head, colon, count = text.rpartition(":")
    return f"{head}={count}" if colon and count.isdigit() else text
