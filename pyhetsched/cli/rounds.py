"""``hetsched rounds``: what rounds did, what a policy would do now, and switching them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pyhetsched.cli.output import (
    LONG_HELP,
    daemon_options,
    document,
    print_json,
    print_table,
    table_options,
    when,
)
from pyhetsched.rpc.client import DaemonClient, default_address
from pyhetsched.rpc.gen import services_pb2 as pb

# A policy may take its budget, and the round before it too.
_PATIENCE_S = 150.0
_FIELDS = ("time", "mode", "policy", "rung", "waiting", "running", "preferred", "moved", "refused", "solve", "total",
           "why")  # fmt: skip
_DEFAULT = ("time", "mode", "policy", "waiting", "running", "preferred", "moved", "solve", "total", "why")
_JOB_FIELDS = ("rank", "jobid", "user", "name", "gpus", "wanted", "prefer", "seconds", "why")
_JOB_DEFAULT = ("rank", "jobid", "user", "gpus", "wanted", "prefer", "seconds", "why")


def _options(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> dict[str, str]:
    pairs = [item.partition("=") for item in value]
    if any(not equals for _, equals, _ in pairs):
        raise click.BadParameter("write NAME=VALUE, such as rho_limit=3", ctx, param)
    return {name: text for name, _, text in pairs}


@click.command(context_settings=LONG_HELP)
@click.option("--would", is_flag=True, help="Tell what the policy would do now; nothing is changed.")
@click.option("--policy", "-P", default="", metavar="NAME", help="With --would: this policy; with --set: take it.")
@click.option("--option", "-O", "options", multiple=True, callback=_options, metavar="NAME=VALUE",
              help="With --would: an option of the policy.")  # fmt: skip
@click.option("--set", "mode", type=click.Choice(["off", "shadow", "enforce"]),
              help="Switch rounds, until hetschedd starts or reads its file again (operators).")  # fmt: skip
@click.option("-n", "--limit", default=20, show_default=True, type=click.IntRange(1, 10000), help="At most so many.")
@table_options
@daemon_options
def rounds(would: bool, policy: str, options: dict[str, str], mode: str | None, limit: int, columns: str | None,
           noheader: bool, as_json: bool, address: str | None) -> None:  # fmt: skip
    """Show the last rounds, newest last; or what a policy would do now (users see their own jobs).

    Off: no rounds. Shadow: decide and record, change nothing. Enforce: prefer types and put jobs in order.
    """
    if would and mode:
        raise click.UsageError("give one of --would and --set")
    if (options or policy) and not (would or mode):
        raise click.UsageError("--policy and --option go with --would, --policy also with --set")
    with DaemonClient(address or default_address(), _PATIENCE_S) as client:
        if would:
            request = pb.WouldRoundRequest(policy=policy, options=options, limit=limit)
            _show_jobs(client.call("Policy/WouldRound", request, pb.WouldRoundReply), columns, noheader, as_json)
            return
        if mode:
            words = pb.SetPolicyRequest(mode=mode, name=policy)
            reply = client.call("Policy/Set", words, pb.PolicyReply)
        else:
            reply = client.call("Policy/Get", pb.GetPolicyRequest(limit=limit), pb.PolicyReply)
    if as_json:
        print_json(document(reply))
        return
    click.echo(f"policy {reply.name}, mode {reply.mode}, a round every {reply.round_s:g} s")
    if reply.failing:
        click.echo(f"the last round was not made: {reply.failing}")
    if not mode and reply.rounds:
        print_table([_row(item) for item in reply.rounds], _FIELDS, _DEFAULT, columns, noheader)


def _show_jobs(reply: pb.WouldRoundReply, columns: str | None, noheader: bool, as_json: bool) -> None:
    if as_json:
        print_json(document(reply))
        return
    told = reply.round
    click.echo(f"{told.policy} ({told.rung}) in {told.solve_ms:.0f} ms: {told.pending} waiting, {told.running} running")
    for reason in (*told.reasons, *told.notes):
        click.echo(f"  {reason}")
    print_table([_job(item) for item in reply.jobs], _JOB_FIELDS, _JOB_DEFAULT, columns, noheader)


def _row(item: pb.Round) -> dict[str, str]:
    return {
        "time": when(item.time_s), "mode": item.mode, "policy": item.policy, "rung": item.rung,
        "waiting": str(item.pending), "running": str(item.running), "preferred": str(item.preferences),
        "moved": str(item.reordered), "refused": str(item.refused), "solve": f"{item.solve_ms:.0f}ms",
        "total": f"{item.total_ms:.0f}ms", "why": "; ".join((*item.reasons, *item.notes)) or "-",
    }  # fmt: skip


def _job(item: pb.RoundJob) -> dict[str, str]:
    chosen = next((c for c in item.candidates if c.chosen), None)
    return {
        "rank": str(item.rank), "jobid": str(item.job_id), "user": item.user, "name": item.name,
        "gpus": str(item.gpus or "-"), "wanted": item.wanted or "-", "prefer": item.prefer or "-",
        "seconds": f"{chosen.score:.0f}" if chosen else "-", "why": item.why or "-",
    }  # fmt: skip
