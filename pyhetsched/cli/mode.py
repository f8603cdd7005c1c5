"""``hetsched mode``: show or set how far hetsched may go."""

from __future__ import annotations

import click

from pyhetsched.cli.output import connect, daemon_options, document, print_json
from pyhetsched.rpc.gen import services_pb2 as pb


@click.command()
@click.argument("mode", required=False, type=click.Choice(["off", "shadow", "enforce", "unset"]))
@click.option("--partition", "-p", metavar="NAME", help="Only for this partition.")
@click.option("--account", "-A", metavar="NAME", help="Only for this account.")
@click.option("--user", "-u", metavar="NAME", help="Only for this user.")
@daemon_options
def mode(mode: str | None, partition: str | None, account: str | None, user: str | None, as_json: bool,
         address: str | None) -> None:  # fmt: skip
    """Show the modes, or set one (operators only).

    off: requests pass untouched. shadow: decide and record, change nothing. enforce: rewrite and cut.
    unset: take back what was set here, so that the configuration file holds again.
    The narrowest scope that says something wins: user, then account, then partition, then the cluster. What is
    set here outlives restarts and wins over the configuration file. An account counts where a request names it.
    """
    given = [(kind, name) for kind, name in (("partition", partition), ("account", account), ("user", user)) if name]
    if len(given) > 1:
        raise click.UsageError("give one of --partition, --account and --user")
    with connect(address) as client:
        if mode:
            request = pb.SetModeRequest(mode=mode)
            if given:
                request.scope.kind, request.scope.name = given[0]
            reply = client.call("Control/SetMode", request, pb.StatusReply)
        else:
            reply = client.call("Control/Status", pb.StatusRequest(), pb.StatusReply)
    if as_json:
        whole = document(reply)
        print_json({"mode": whole["mode"], "scopes": whole["scopes"]})
        return
    click.echo(f"cluster: {reply.mode}")
    for scope in reply.scopes:
        click.echo(f"{scope.kind} {scope.name}: {scope.mode}")
