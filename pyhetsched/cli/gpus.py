"""``hetsched gpus``: a map of every GPU, its slices, and who holds them."""

from __future__ import annotations

from typing import Any

import click

from pyhetsched.cli.output import (
    LONG_HELP,
    connect,
    daemon_options,
    document,
    print_json,
    print_table,
    table_options,
)
from pyhetsched.errors import RequestError
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.slurm.hosts import fold

_FIELDS = (
    "nodelist", "nodes", "gpu", "type", "model", "mig", "state", "shards", "map", "holders", "util", "pool", "uuid"
)  # fmt: skip
_DEFAULT = ("nodelist", "gpu", "type", "mig", "state", "shards", "map", "holders")


@click.command(context_settings=LONG_HELP)
@click.option("-w", "--nodes", default="", metavar="HOSTLIST", help="Only these nodes, such as gpu[01-04].")
@click.option("-a", "--all", "unfolded", is_flag=True, help="One line a GPU, also where several are alike.")
@table_options
@daemon_options
def gpus(nodes: str, unfolded: bool, columns: str | None, noheader: bool, as_json: bool, address: str | None) -> None:
    """Show every GPU, its slices and who holds them.

    SHARDS are those in use of those there are. MAP shows the memory slices of a GPU in MIG mode in order: a
    letter for each job's slices, '.' for free, '#' for an instance that hetsched did not make. HOLDERS tells
    what the letters mean: slice, user and job; slices of one kind and user are folded, with their jobs in the
    order of the letters. GPUs that are alike and free, or whole GPUs of one job on a node, are folded into
    one line. Only operators see whose jobs the slices of other users are. MIG shows 'on>off' where a node of
    the pool is to change its mode. UTIL (with -o) is as of the node's last report; NVML does not tell it for
    GPUs in MIG mode, and unknown is not idle.
    """
    with connect(address) as client:
        reply = client.call("Mig/Map", pb.MapRequest(nodes=nodes), pb.MapReply)
    if nodes and not reply.nodes:
        raise RequestError(f"no node with GPUs matches {nodes}")
    if as_json:
        print_json(_with_unknown(document(reply)))
    else:
        print_table(rows(reply, unfolded), _FIELDS, _DEFAULT, columns, noheader)


def rows(reply: pb.MapReply, unfolded: bool = False) -> list[dict[str, str]]:
    """Return one row for each GPU, those that are alike on several nodes folded into one."""
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for node in reply.nodes:
        for gpu in node.gpus:
            row = _row(node, gpu)
            where = (node.name, str(gpu.index)) if unfolded or gpu.slices else (node.name,) if gpu.holder else ()
            key = (*where, *(text for name, text in row.items() if name not in ("uuid", "util")))
            groups.setdefault(key, []).append((node.name, str(gpu.index)))
    table: list[dict[str, str]] = []
    by_gpu = {(node.name, str(gpu.index)): (node, gpu) for node in reply.nodes for gpu in node.gpus}
    for members in groups.values():
        node, gpu = by_gpu[members[0]]
        indexes = sorted({index for _, index in members}, key=int)
        names = sorted({name for name, _ in members})
        folded = {"nodelist": fold(names), "nodes": str(len(names)), "gpu": fold_numbers(indexes)}
        used = {_utilization(by_gpu[member][1]) for member in members}
        table.append({**folded, **_row(node, gpu), "util": used.pop() if len(used) == 1 else "various"})
    return table


def fold_numbers(numbers: list[str]) -> str:
    """Return numbers as Slurm writes indexes: ``0-3,5``."""
    text = fold(f"g{number}" for number in numbers)
    return text[1:].strip("[]")


def _row(node: pb.NodeGpus, gpu: pb.Gpu) -> dict[str, str]:
    letters, holders = _letters(gpu)
    return {
        "type": gpu.gres_type, "model": gpu.model or "?", "mig": _mode(node, gpu), "state": node.state.lower(),
        "shards": f"{gpu.shards_used}/{gpu.shards}" if gpu.shards else "-", "map": letters,
        "holders": holders, "uuid": gpu.uuid or "-", "pool": "yes" if node.pool else "no",
        "util": _utilization(gpu),
    }  # fmt: skip


def _mode(node: pb.NodeGpus, gpu: pb.Gpu) -> str:
    """The mode as it is, and the one that is ordered."""
    return f"{gpu.mig_mode}>{node.wanted_mode}" if node.wanted_mode else gpu.mig_mode


def _utilization(gpu: pb.Gpu) -> str:
    return f"{gpu.utilization_pct}%" if gpu.HasField("utilization_pct") else "unknown"


def _with_unknown(reply: dict[str, Any]) -> dict[str, Any]:
    """What is not known is null, never left out: a missing utilisation is no zero."""
    for node in reply["nodes"]:
        for gpu in node["gpus"]:
            gpu.setdefault("utilization_pct", None)
    return reply


def _letters(gpu: pb.Gpu) -> tuple[str, str]:
    """Draw the memory slices of a GPU, and say who holds what."""
    if not gpu.shards and not gpu.slices:
        return "-", gpu.holder or "-"
    cells = ["."] * max([_memory_slices(gpu), *(s.start + s.size for s in gpu.slices)])
    letters: dict[int, str] = {}
    told: dict[str, tuple[list[str], list[str]]] = {}
    for number, item in enumerate(sorted(gpu.slices, key=lambda s: s.start)):
        # Whose a slice is stays hidden from other users (job 0), so each of those has a letter of its own.
        key = item.job_id or -1 - number
        foreign = item.state == "foreign"
        letter = "#" if foreign else letters.setdefault(key, chr(ord("a") + len(letters) % 26))
        cells[item.start : item.start + item.size] = letter * item.size
        who = item.user if item.job_id else ("foreign" if foreign else "in use")
        state = "" if item.state in ("running", "foreign") else f" {item.state}"
        held, jobs = told.setdefault(f"{item.profile} {who}{state}", ([], []))
        held.append(letter)
        job = item.id_text or str(item.job_id)
        jobs.extend([job] if item.job_id and job not in jobs else [])
    text = (f"{_span(held)}={who}{' ' if jobs else ''}{','.join(jobs)}" for who, (held, jobs) in told.items())
    return "".join(cells), ", ".join(text) or gpu.holder or "-"


def _span(letters: list[str]) -> str:
    """Return letters as text: ``a-c`` for three in a row."""
    found = sorted(set(letters))
    if len(found) > 2 and ord(found[-1]) - ord(found[0]) == len(found) - 1:
        return f"{found[0]}-{found[-1]}"
    return "".join(found)


def _memory_slices(gpu: pb.Gpu) -> int:
    from pyhetsched.mig.profiles import catalogue

    model = catalogue().get(gpu.model)
    return model.total_memory_slices if model else 0
