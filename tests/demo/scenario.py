"""The demo's requests: who writes what, and how it has to end."""

from __future__ import annotations

from dataclasses import dataclass

A100 = ("a100-0", "a100-1")
H100_MIG = ("h100-0",)
SLICES_80GB = (*A100, *H100_MIG)

LISTS_GPUS = ("nvidia-smi -L",)
PER_TASK = ("srun -l nvidia-smi -L",)
#: Jobs of the map run until the map has been shown.
UNTIL_RELEASED = ("nvidia-smi -L", "until [ -e release-$SLURM_JOB_NAME ]; do sleep 0.2; done")
EACH_UNTIL_RELEASED = ("nvidia-smi -L", "until [ -e release-$SLURM_ARRAY_TASK_ID ]; do sleep 0.2; done")


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a request has to end: refused with a sentence that holds ``names``, or served as the rest says.

    ``slices`` are the profiles that every element of the job sees, ``gpus`` the number of whole GPUs without MIG.
    """

    slices: tuple[str, ...] = ()
    gpus: int = 0
    nodes: tuple[str, ...] = ()
    refused: bool = False
    names: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One command of one user; ``script`` is the batch script's body, empty for srun."""

    user: str
    command: tuple[str, ...]
    wanted: Wanted
    script: tuple[str, ...] = LISTS_GPUS
    elements: int = 1


@dataclass(frozen=True, slots=True)
class Act:
    """Requests that are shown together under a heading."""

    heading: str
    text: str
    requests: tuple[Request, ...]


def served(*slices: str, on: tuple[str, ...] = SLICES_80GB) -> Wanted:
    """The job runs with these slices."""
    return Wanted(slices=slices, nodes=on)


def whole(gpus: int, *nodes: str) -> Wanted:
    """The job runs with so many whole GPUs."""
    return Wanted(gpus=gpus, nodes=nodes)


def refusal(names: str) -> Wanted:
    """The request is refused, and the sentence names a request that works."""
    return Wanted(refused=True, names=names)


BY_NAME = Act(
    "Slices by name",
    "Any spelling that a site with fixed slices uses. Nobody has cut a GPU: the slice is made when the job starts.",
    (
        Request("alice", ("sbatch", "--gres=gpu:1g.10gb:1"), served("1g.10gb")),
        Request("alice", ("sbatch", "--gres=gpu:a100_2g.20gb:1"), served("2g.20gb", on=A100)),
        Request("bob", ("sbatch", "--gres=gpu:nvidia_h100_80gb_hbm3_3g.40gb:1"), served("3g.40gb", on=H100_MIG)),
        Request("bob", ("sbatch", "-G", "1g.10gb:1"), served("1g.10gb")),
        Request("bob", ("sbatch", "-n2", "--gpus-per-task=1g.10gb:1"), served("1g.10gb", "1g.10gb"), PER_TASK),
        Request("alice", ("srun", "--gres=gpu:1g.6gb:1", *LISTS_GPUS[0].split()), served("1g.6gb", on=("a30-0",)), ()),
    ),
)

BY_NEED = Act(
    "GPUs by need",
    "The job says what it needs and gets the smallest thing that has it.",
    (
        Request("alice", ("sbatch", "--gres=gpu:20gb:1"), served("1g.20gb")),
        Request("bob", ("sbatch",), served("3g.40gb"), ("#HETSCHED min-vram=40G", *LISTS_GPUS)),
        Request("bob", ("sbatch", "--gres=gpu:1"), served("1g.10gb", on=H100_MIG),
                ("#HETSCHED min-vram=10G min-cc=9.0", *LISTS_GPUS)),
    ),
)  # fmt: skip

WHOLE = Act(
    "Whole GPUs",
    "One GPU on a card in MIG mode is the slice that spans it. Two never come from such cards.",
    (
        Request("alice", ("sbatch", "--gres=gpu:a100:1"), served("7g.80gb", on=A100)),
        Request("bob", ("sbatch", "--gres=gpu:h100:2"), whole(2, "h100-1")),
        Request("bob", ("sbatch", "--gres=gpu:v100:2"), whole(2, "v100-0", "v100-1")),
    ),
)

REFUSED = Act(
    "What cannot be had",
    "Refused at once, with a request that works.",
    (
        Request("alice", ("sbatch", "--gres=gpu:a100:2"), refusal("--gres=gpu:h100:2")),
        Request("alice", ("sbatch", "--gres=gpu:a10O:1"), refusal("--gres=gpu:a100:1")),
        Request("bob", ("sbatch", "--gres=gpu:3g.40gb:9"), refusal("--gres=gpu:3g.40gb:8")),
        Request("bob", ("sbatch", "-C", "v100", "--gres=gpu:1g.10gb:1"), refusal("--gres=gpu:1 -C v100")),
        Request("alice", ("sbatch", "--gres=gpu:200gb:1"), refusal("--gres=gpu:80gb:1")),
    ),
)

TOGETHER = Act(
    "A busy cluster",
    "An array fills one GPU with seven slices, a mix fills another exactly, whole GPUs stand beside them.",
    (
        Request("alice", ("sbatch", "-J", "array", "--array=0-6", "-w", "a100-0", "--gres=gpu:1g.10gb:1"),
                served("1g.10gb", on=("a100-0",)), EACH_UNTIL_RELEASED, elements=7),
        Request("bob", ("sbatch", "-J", "mix", "-w", "a100-1", "--gres=gpu:1g.10gb:1"),
                served("1g.10gb", on=("a100-1",)), UNTIL_RELEASED),
        Request("bob", ("sbatch", "-J", "mix", "-w", "a100-1", "--gres=gpu:4g.40gb:1"),
                served("4g.40gb", on=("a100-1",)), UNTIL_RELEASED),
        Request("alice", ("sbatch", "-J", "mix", "-w", "a100-1", "--gres=gpu:2g.20gb:1"),
                served("2g.20gb", on=("a100-1",)), UNTIL_RELEASED),
        Request("alice", ("sbatch", "-J", "mix", "-w", "h100-0", "--gres=gpu:1"),
                served("7g.80gb", on=("h100-0",)), UNTIL_RELEASED),
        Request("bob", ("sbatch", "-J", "mix", "--gres=gpu:h100:2"), whole(2, "h100-1"), UNTIL_RELEASED),
    ),
)  # fmt: skip

#: Submitted when two slices of the array are left where they leave no room for it on the first GPU of a100-0.
HOLE = Request("bob", ("sbatch", "--gres=gpu:a100_3g.40gb:1"), served("3g.40gb", on=A100))
