"""``hetsched explain``: what was asked, what it became, where it ran, on which slices, and why."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pyhetsched.cli.output import connect, daemon_options, document, print_json, shown, styled, when
from pyhetsched.rpc.gen import services_pb2 as pb

_MOST_OTHERS = 8
_COLOURS = {"refused": "red", "failed": "red", "given-back": "yellow", "rewritten": "green", "reserved": "green"}


@click.command()
@click.argument("job_id")
@click.option("-v", "--verbose", is_flag=True, help="Also the candidates that were rejected.")
@daemon_options
def explain(job_id: str, verbose: bool, as_json: bool, address: str | None) -> None:
    """Tell what was decided about JOB_ID, and why.

    JOB_ID is written as squeue shows it: 12, 12_3 for an element of an array, 12+1 for a part of a
    heterogeneous job; for 12 alone, one element or part is told and the others are named. A decision's id
    is taken too. Users see their own jobs, operators all.
    """
    with connect(address) as client:
        reply = client.call("Placement/Explain", pb.ExplainRequest(job_id=job_id), pb.ExplainReply)
    if as_json:
        print_json(document(reply))
        return
    for line in lines(reply, verbose):
        click.echo(line)


def lines(reply: pb.ExplainReply, verbose: bool = False) -> Iterator[str]:
    """Yield the explanation line by line."""
    job = reply.job
    if job.job_id:
        where = f" on {job.nodes}" if job.nodes else ""
        reason = f" ({job.reason})" if job.state == "PENDING" and job.reason not in ("", "None") else ""
        yield shown(f"Job {job.id_text or job.job_id} {job.name!r} of {job.user}: {job.state}{reason}{where}")
    if reply.others:
        more = f" and {len(reply.others) - _MOST_OTHERS} more" if len(reply.others) > _MOST_OTHERS else ""
        yield f"  of the same submit: {', '.join(reply.others[:_MOST_OTHERS])}{more}"
    if not reply.decisions:
        yield "  No decision is recorded: it was submitted while hetsched was off or away."
    for decision in reply.decisions:
        yield from _decision(decision, verbose)
    if reply.reservations:
        yield "  slices"
    for item in reply.reservations:
        uuid = f"  {item.mig_uuid}" if item.mig_uuid else ""
        place = f"{item.node} GPU {item.gpu_index} at {item.start}"
        yield shown(f"    {item.profile:<12} {place:<20} {item.state}{uuid}{f'  ({item.note})' if item.note else ''}")


def _decision(decision: pb.Decision, verbose: bool) -> Iterator[str]:
    outcome = styled(decision.outcome, _COLOURS.get(decision.outcome, "white"))
    shadow = f" [{decision.mode}]" if decision.mode != "enforce" else ""
    where = f" on {decision.node}" if decision.node else ""
    yield f"  {when(decision.time_s)}  {decision.kind:<9} {outcome}{shadow}{where}"
    if decision.asked:
        yield shown(f"    asked   {decision.asked}")
    if decision.became:
        yield shown(f"    became  {decision.became}")
    if decision.message:
        yield shown(f"    said    {decision.message}")
    chosen = [c for c in decision.candidates if c.chosen]
    others = [c for c in decision.candidates if not c.chosen and (verbose or c.admissible)]
    for candidate in chosen:
        yield shown(f"    chosen  {candidate.name}{f': {candidate.reason}' if candidate.reason else ''}")
    for candidate in others:
        word = "also" if candidate.admissible else "not"
        yield shown(f"    {word:<7} {candidate.name}{f': {candidate.reason}' if candidate.reason else ''}")
