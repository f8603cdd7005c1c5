"""``hetsched would-run``: what would be done with a request; nothing is submitted."""

from __future__ import annotations

import click

from pyhetsched.cli.explain import lines
from pyhetsched.cli.output import connect, daemon_options, document, print_json
from pyhetsched.rpc.convert import submit_request_message
from pyhetsched.rpc.gen import hook_pb2
from pyhetsched.rpc.gen import services_pb2 as pb
from pyhetsched.slurm.sbatch_arguments import parse


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--interactive", is_flag=True, help="As srun or salloc would ask, not sbatch.")
@click.option("-v", "--verbose", is_flag=True, help="Also the candidates that were rejected.")
@daemon_options
@click.argument("sbatch_args", nargs=-1, type=click.UNPROCESSED)
def would_run(
    sbatch_args: tuple[str, ...], interactive: bool, verbose: bool, as_json: bool, address: str | None
) -> int:
    """Tell what would be done with a request; nothing is submitted.

    \b
    hetsched would-run -- --gres=gpu:1g.10gb:1 -n 2
    hetsched would-run -- job.sh        (reads its #SBATCH and #HETSCHED lines)

    Exit status 1 if it would be refused.
    """
    request = parse(sbatch_args, interactive=interactive)
    with connect(address) as client:
        reply = client.call("Submit/WouldRun", submit_request_message(request), pb.WouldRunReply)
    if as_json:
        print_json(document(reply))
    else:
        for line in lines(pb.ExplainReply(decisions=[reply.decision]), verbose):
            click.echo(line)
        for change in reply.reply.changes:
            click.echo(f"    sets    {hook_pb2.Field.Name(change.field)}={change.value}")
    return 1 if reply.reply.verdict == hook_pb2.REFUSED else 0


