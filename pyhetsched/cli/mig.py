"""``hetsched mig``: shard weights and layouts of the shipped models, and plans; the verbs that ask a running cluster
are in :mod:`pyhetsched.cli.mig_live`."""

from __future__ import annotations

import json
from typing import TextIO

import click

from pyhetsched.cli import mig_live
from pyhetsched.cli.output import connect
from pyhetsched.errors import HetschedError, RpcError
from pyhetsched.mig import inventory, planner, profiles
from pyhetsched.mig import layout as layouts_of
from pyhetsched.mig.profiles import GpuModel


def _model(ctx: click.Context, param: click.Parameter, value: str) -> GpuModel:
    """The model with key ``value``, or a usage error naming the keys there are."""
    try:
        model = profiles.model_by_key(value)
        profiles.geometry_of(model)
    except HetschedError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return model


@click.group("mig")
def mig() -> None:
    """Look at MIG geometry and plan layouts."""


for _verb in (mig_live.export, mig_live.assert_, mig_live.apply):
    mig.add_command(_verb)


@mig.command()
@click.argument("model", callback=_model)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def weights(model: GpuModel, as_json: bool) -> None:
    """Print the shards that a GPU of MODEL must offer, and what each slice costs.

    MODEL is a key of the profile catalogue, such as A100-80GB.
    """
    shards, by_name = profiles.shards_per_gpu(model), profiles.weights_by_name(model)
    if as_json:
        click.echo(json.dumps({"model": model.key, "shards_per_gpu": shards, "weights": by_name}))
        return
    click.echo(f"{model.key}: {shards} shards per GPU")
    for name, cost in by_name.items():
        click.echo(f"  {name:<16} {cost:>3}")


@mig.command()
@click.argument("model", callback=_model)
@click.option("--profile", "names", multiple=True, help="Only layouts of this profile; may be repeated.")
@click.option("--all-profiles", is_flag=True, help="Also the profiles with more memory per compute slice.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def layouts(model: GpuModel, names: tuple[str, ...], all_profiles: bool, as_json: bool) -> None:
    """Print the legal layouts of MODEL, and those to which nothing can be added.

    Without options, layouts are made of one profile per number of compute slices (1g, 2g, 3g...); the empty
    GPU counts as a layout.
    """
    chosen: list[str] | None = list(names) or [p.name for p in model.plain_profiles]
    if all_profiles:
        chosen = None
    try:
        legal = layouts_of.legal_layouts(model, chosen)
        maximal = layouts_of.maximal_layouts(model, chosen)
    except HetschedError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        used = chosen or [model.profiles[i].name for i in profiles.space_of_model(model).kinds]
        record = {
            "model": model.key,
            "profiles": used,
            "legal_count": len(legal),
            "maximal_count": len(maximal),
            "legal": [str(layout) for layout in legal],
            "maximal": [str(layout) for layout in maximal],
        }
        click.echo(json.dumps(record))
        return
    click.echo(f"{model.key}: {len(legal)} legal layouts, {len(maximal)} of them maximal:")
    for layout in maximal:
        click.echo(f"  {layout}")


@mig.command()
@click.argument("file", metavar="[INVENTORY]", type=click.File(encoding="utf-8"), required=False)
@click.option("--want", default="", metavar="PROFILE=COUNT,...", help="Slices to make room for.")
@click.option("--keep-idle/--use-idle", default=True, help="Keep instances that no job holds, or use their room.")
@click.option("--compact", is_flag=True, help="Say which nodes to let run dry instead.")
@click.option("--seconds", default=1.0, show_default=True, help="Time for the integer program; 0: heuristic only.")
@click.option("--dry-run", is_flag=True, help="Only print the steps, which is all that plan ever does.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    file: TextIO | None, want: str, keep_idle: bool, compact: bool, seconds: float, dry_run: bool, as_json: bool
) -> None:
    """Print the steps that lead from the layouts in INVENTORY to room for what is wanted.

    INVENTORY is a file as `hetsched mig export` writes it, or - for standard input; without it the cluster as it
    is now. Running jobs are never
    moved. Exits 1 if some wanted slices find no place.
    """
    try:
        gpus = inventory.parse_inventory(file.read(), file.name) if file else _live()
        demand = inventory.parse_demand(want)
        if compact:
            made = planner.compact(gpus, seconds)
        elif keep_idle:
            made = planner.deploy(gpus, demand, seconds)
        else:
            made = planner.reconfigure(gpus, demand, seconds)
    except RpcError:
        raise
    except HetschedError as error:
        raise click.UsageError(str(error)) from error
    _print_plan(made, as_json)
    if made.unplaced:
        raise SystemExit(1)


def _live() -> tuple[inventory.GpuSlices, ...]:
    with connect(None) as client:
        return mig_live.live(client)


def _print_plan(made: planner.Plan, as_json: bool) -> None:
    if as_json:
        record = {
            "steps": [_step_record(step) for step in made.steps],
            "after": [str(gpu) for gpu in made.gpus],
            "gpus_used": made.gpus_used,
            "unplaced": dict(made.unplaced),
        }
        click.echo(json.dumps(record))
        return
    for step in made.steps:
        click.echo(str(step))
    for name, number in made.unplaced.items():
        click.echo(f"no place for {number} x {name}")
    click.echo(f"# {made.gpus_used} GPUs used after this")


def _step_record(step: planner.Step) -> dict[str, object]:
    record: dict[str, object] = {"step": type(step).__name__.lower(), "node": step.node}
    if isinstance(step, planner.Drain):
        record["reason"] = step.reason
    elif isinstance(step, planner.Destroy | planner.Create):
        record |= {"gpu": step.gpu_index, "profile": step.placement.profile.name, "start": step.placement.start}
    return record
