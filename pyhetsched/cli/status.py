"""``hetsched status``: how the daemon is."""

from __future__ import annotations

import click

from pyhetsched.cli.output import connect, daemon_options, document, print_json, styled, when
from pyhetsched.rpc.gen import services_pb2 as pb


@click.command()
@daemon_options
def status(as_json: bool, address: str | None) -> None:
    """Tell how the daemon is. Exit status 0 even with warnings; 3 if it cannot be reached."""
    with connect(address) as client:
        reply = client.call("Control/Status", pb.StatusRequest(), pb.StatusReply)
    if as_json:
        print_json(document(reply))
        return
    slurm = f"Slurm {reply.slurm_version}" if reply.slurm_version else "Slurm"
    seen = f"answers, seen {reply.snapshot_age_s:.0f} s ago"
    answers = seen if reply.slurm_reachable else styled("does not answer", "red")
    click.echo(f"hetschedd {reply.version}, mode {reply.mode}, since {when(reply.started_s)}")
    click.echo(f"{slurm} {answers}: {reply.nodes} nodes, {reply.gpus} GPUs")
    click.echo(f"slices {reply.slices} running, {reply.reservations_open} reserved or running")
    click.echo(
        f"submits {reply.submits}: {reply.rewritten} rewritten, {reply.refused} refused; "
        f"{reply.given_back} jobs given back, {reply.records_lost} records lost"
    )
    for scope in reply.scopes:
        click.echo(f"mode of {scope.kind} {scope.name}: {scope.mode}")
    for warning in reply.warnings:
        click.echo(styled(f"warning: {warning}", "yellow"))
