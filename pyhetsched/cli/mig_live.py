"""``hetsched mig export``, ``assert`` and ``apply``: the layouts of the running cluster, as text that round-trips."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

import click

from pyhetsched.cli.output import connect
from pyhetsched.errors import HetschedError, LayoutError
from pyhetsched.mig.inventory import GpuSlices, format_inventory, parse_inventory
from pyhetsched.mig.layout import Layout, Placement
from pyhetsched.mig.profiles import model_by_key
from pyhetsched.rpc.client import DaemonClient
from pyhetsched.rpc.gen import services_pb2 as pb

_POLL_S = 0.5
_address = click.option("--address", help="The daemon: unix:/path or host:port.", metavar="ADDRESS")
_nodes = click.option("-w", "--nodes", default="", metavar="HOSTLIST", help="Only these nodes, such as gpu[01-04].")


@dataclass(frozen=True, slots=True)
class Changes:
    """What leads from the layouts that are there to those wanted, and why some of it cannot be done."""

    modes: tuple[tuple[str, bool], ...]
    destroy: tuple[tuple[str, int, Placement], ...]
    impossible: tuple[str, ...]

    def lines(self) -> list[str]:
        """The steps, one line each."""
        modes = [f"mode    {node} {'on' if on else 'off'}  (all its GPUs, once it is idle)" for node, on in self.modes]
        gone = [f"destroy {node}:{index} {placement}" for node, index, placement in self.destroy]
        return [*gone, *modes, *(f"# not possible: {why}" for why in self.impossible)]


@click.command("export")
@_nodes
@_address
def export(nodes: str, address: str | None) -> None:
    """Print the layouts of all GPUs as text.

    One line a GPU: node:index, model, layout. '-' is a GPU in MIG mode without instances, 'off' one that is
    not in MIG mode; an instance that a job holds is followed by '=' and the job id (0: not shown to you).
    """
    with connect(address) as client:
        click.echo(format_inventory(live(client, nodes)), nl=False)


@click.command("assert")
@click.argument("file", type=click.File(encoding="utf-8"))
@_address
def assert_(file: TextIO, address: str | None) -> None:
    """Exit 0 if the GPUs named in FILE have the layouts written there, 1 and say which have not.

    FILE is as `hetsched mig export` writes it, or - for standard input; who holds an instance is not compared.
    """
    wanted = _read(file)
    with connect(address) as client:
        found = differences(live(client, ""), wanted)
    for line in found:
        click.echo(line)
    if found:
        raise SystemExit(1)


@click.command("apply")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--dry-run", is_flag=True, help="Only print the steps.")
@click.option("--wait", "wait_s", default=0.0, metavar="SECONDS", help="Wait so long for the layouts to be reached.")
@_address
def apply(file: TextIO, dry_run: bool, wait_s: float, address: str | None) -> None:
    """Bring the GPUs named in FILE to the layouts written there, as far as no job has to do with it.

    Whole nodes of the pool go into and out of MIG mode once they are idle, and instances that hetsched did not
    make are destroyed. Instances are not created: hetsched cuts them when a job starts. Nothing that a job holds
    is touched. Exits 1 if something cannot be done, or was not reached in the time given.
    """
    wanted = _read(file)
    with connect(address) as client:
        changes = changes_to(live(client, ""), wanted)
        for line in changes.lines():
            click.echo(line)
        refused = list(changes.impossible)
        if not dry_run and (changes.modes or changes.destroy):
            reply = client.call("Mig/Apply", _request(changes), pb.ApplyReply)
            refused += reply.refused
            for text in reply.refused:
                click.echo(f"# refused: {text}")
        if refused or (not dry_run and wait_s and not _reached(client, wanted, wait_s)):
            raise SystemExit(1)


def live(client: DaemonClient, nodes: str = "") -> tuple[GpuSlices, ...]:
    """Return the GPUs of the cluster as they are; those whose model is not known are left out."""
    reply = client.call("Mig/Map", pb.MapRequest(nodes=nodes), pb.MapReply)
    found = []
    for node in reply.nodes:
        for gpu in node.gpus:
            try:
                found.append(_gpu(node.name, gpu))
            except LayoutError as error:
                click.echo(f"# {node.name}:{gpu.index}: {error}", err=True)
    return tuple(found)


def _gpu(node: str, gpu: pb.Gpu) -> GpuSlices:
    model = model_by_key(gpu.model)
    if gpu.mig_mode not in ("on", "pending-off"):
        return GpuSlices(node, gpu.index, model, None)
    # What is reserved but not made yet has its place as well.
    placements = [Placement(model.profile(item.profile), item.start) for item in gpu.slices]
    holders = {item.start: item.job_id for item in gpu.slices if item.state != "foreign"}
    return GpuSlices(node, gpu.index, model, Layout.of(model, placements), holders)


def differences(there: Iterable[GpuSlices], wanted: Iterable[GpuSlices]) -> list[str]:
    """Return a line for each wanted GPU that is not as wanted, whoever holds its instances."""
    by_place = {(gpu.node, gpu.index): gpu for gpu in there}
    found = []
    for want in wanted:
        have = by_place.get((want.node, want.index))
        if have is None:
            found.append(f"{want.node}:{want.index} is not there")
        elif have.model != want.model:
            found.append(f"{want.node}:{want.index} is a {have.model.key}, not a {want.model.key}")
        elif have.layout != want.layout:
            found.append(f"{want.node}:{want.index} has {_text(have)}, not {_text(want)}")
    return found


def changes_to(there: Sequence[GpuSlices], wanted: Sequence[GpuSlices]) -> Changes:
    """Return what leads from ``there`` to ``wanted`` without touching what jobs hold."""
    by_place = {(gpu.node, gpu.index): gpu for gpu in there}
    destroy: list[tuple[str, int, Placement]] = []
    impossible: list[str] = []
    for want in wanted:
        have = by_place.get((want.node, want.index))
        if have is None or have.model != want.model:
            impossible += differences(there, [want])
            continue
        keep = set(want.layout or ())
        for placement in have.layout or ():
            if placement in keep:
                keep.discard(placement)
            elif placement.start in have.holders:
                name = f"{want.node}:{want.index} {placement}"
                impossible.append(f"{name} serves job {have.holders[placement.start]} and goes when that ends")
            else:
                destroy.append((want.node, want.index, placement))
        impossible += [f"{want.node}:{want.index} {p} is cut when a job asks for it, not before" for p in sorted(
            keep, key=lambda p: p.start)]  # fmt: skip
    modes, mixed = _modes(there, {(gpu.node, gpu.index): gpu.layout is not None for gpu in wanted})
    return Changes(modes, tuple(destroy), (*impossible, *mixed))


def _modes(
    there: Sequence[GpuSlices], wanted: dict[tuple[str, int], bool]
) -> tuple[tuple[tuple[str, bool], ...], list[str]]:
    """The nodes to switch, and why some cannot be: all GPUs of a node have one mode."""
    modes: list[tuple[str, bool]] = []
    mixed: list[str] = []
    for node in dict.fromkeys(name for name, _ in wanted):
        mine = [gpu for gpu in there if gpu.node == node]
        after = {wanted.get((node, gpu.index), gpu.layout is not None) for gpu in mine}
        if all((gpu.layout is not None) == wanted.get((node, gpu.index), gpu.layout is not None) for gpu in mine):
            continue
        if len(after) == 1:
            modes.append((node, after.pop()))
        else:
            mixed.append(f"{node}: all GPUs of a node go into or out of MIG mode together; name all {len(mine)}")
    return tuple(modes), mixed


def _request(changes: Changes) -> pb.ApplyRequest:
    return pb.ApplyRequest(
        modes=[pb.NodeMode(node=node, on=on) for node, on in changes.modes],
        destroy=[
            pb.Foreign(node=node, gpu_index=index, profile=placement.profile.name, start=placement.start)
            for node, index, placement in changes.destroy
        ],
    )


def _reached(client: DaemonClient, wanted: Sequence[GpuSlices], wait_s: float) -> bool:
    deadline_s = time.monotonic() + wait_s
    while left := differences(live(client, ""), wanted):
        if time.monotonic() > deadline_s:
            for line in left:
                click.echo(f"# not yet: {line}")
            return False
        time.sleep(_POLL_S)
    return True


def _read(file: TextIO) -> tuple[GpuSlices, ...]:
    try:
        return parse_inventory(file.read(), file.name)
    except HetschedError as error:
        raise click.UsageError(str(error)) from error


def _text(gpu: GpuSlices) -> str:
    if gpu.layout is None:
        return "MIG mode off"
    return str(gpu.layout) if gpu.layout.placements else "no instance"
