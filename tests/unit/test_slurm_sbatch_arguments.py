"""sbatch's arguments become the request that slurmctld's plugin would see."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyhetsched.errors import RequestError
from pyhetsched.slurm.sbatch_arguments import parse


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--gres=gpu:a100:2"], "tres_per_node", "gres/gpu:a100:2"),
        (["--gres", "gpu:1g.10gb:1,gpu:2g.20gb:1"], "tres_per_node", "gres/gpu:1g.10gb:1,gres/gpu:2g.20gb:1"),
        (["--gpus-per-node=1g.10gb:1"], "tres_per_node", "gres/gpu:1g.10gb:1"),
        (["-G", "1g.10gb:1"], "tres_per_job", "gres/gpu:1g.10gb:1"),
        (["-G2"], "tres_per_job", "gres/gpu:2"),
        (["--gpus-per-task=1g.10gb:1"], "tres_per_task", "gres/gpu:1g.10gb=1"),
        (["--gpus-per-task=2"], "tres_per_task", "gres/gpu=2"),
        (["--gpus-per-task=2"], "tres_bind", "gres/gpu:per_task:2"),
        (["--tres-per-task=gres/gpu:a100:1"], "tres_bind", "gres/gpu:per_task:1"),
        (["-C", "a100"], "features", "a100"),
        (["-n", "2"], "num_tasks", 2),
        (["-N", "2-4"], "max_nodes", 4),
        (["--mem=16G"], "memory_per_node_mib", 16384),
        (["--mem-per-gpu=1T"], "mem_per_tres", "gres/gpu:1048576"),
        (["-x", "a100-0"], "excluded_nodes", "a100-0"),
        (["--exclusive"], "exclusive", True),
        (["--comment=hetsched:min-vram=40G"], "comment", "hetsched:min-vram=40G"),
        (["-J", "gpu:9", "-o", "out", "--mail-type=END"], "tres_per_node", ""),
        (["--mem-per-cpu", "4G", "--hint", "nomultithread", "--gres=gpu:1"], "tres_per_node", "gres/gpu:1"),
        (["--hold", "--nice", "--requeue", "--no-such-flag", "--gres=gpu:1"], "tres_per_node", "gres/gpu:1"),
    ],
)
def test_an_option_reaches_its_field(words: list[str], field: str, value: object) -> None:
    assert getattr(parse(words), field) == value


def test_the_scripts_lines_count_and_the_command_line_wins(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --gres=gpu:1 # a remark\n#HETSCHED min-vram=40G\n"
        "#HETSCHED: min-cc=8.0\n#SBATCH -n 4\necho\n#SBATCH -n 9\n#HETSCHED opt-out\n"
    )
    request = parse(["-n", "2", str(script)])
    assert (request.tres_per_node, request.num_tasks) == ("gres/gpu:1", 2)
    assert request.script_lines == ("min-vram=40G", "min-cc=8.0")
    assert request.batch


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-N", "x"], "number of nodes such as 2"),
        (["-n", "two"], "sbatch would not take this"),
        (["--mem=lots"], "memory such as 16G"),
        (["--grse=gpu:1"], "did you mean --gres?"),
        (["--gpus-per-tasks=1"], "did you mean --gpus-per-task?"),
        (["--constr=a100"], "did you mean --constraint?"),
        (["no-such-script.sh"], "cannot be read: No such file"),
    ],
)
def test_what_sbatch_would_not_take_is_said(words: list[str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        parse(words)
