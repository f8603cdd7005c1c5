"""``hetsched decisions``: a table of what was decided."""

from __future__ import annotations

import re
import time

import click

from pyhetsched.cli.output import (
    LONG_HELP,
    connect,
    daemon_options,
    document,
    print_json,
    print_table,
    table_options,
    when,
)
from pyhetsched.rpc.client import DaemonClient
from pyhetsched.rpc.gen import services_pb2 as pb

_FIELDS = ("id", "time", "kind", "jobid", "user", "account", "partition", "mode", "outcome", "asked", "became", "node",
           "message")  # fmt: skip
_DEFAULT = ("time", "jobid", "user", "kind", "outcome", "asked", "became", "message")
_KINDS = ("submit", "modify", "allocate", "give-back", "prepare", "release", "reconcile", "mode", "pool", "round")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _age(ctx: click.Context, param: click.Parameter, value: str | None) -> float:
    if not value:
        return 0.0
    found = re.fullmatch(r"(\d+)([smhd])", value)
    if not found:
        raise click.BadParameter(f"write an age such as 30m, 12h or 7d instead of {value!r}", ctx, param)
    return time.time() - int(found[1]) * _UNITS[found[2]]


@click.command(context_settings=LONG_HELP)
@click.option("-j", "--jobs", metavar="ID[,ID...]", help="Only these jobs, as squeue shows them; with their submit.")
@click.option("-u", "--user", default="", metavar="NAME", help="Only this user's.")
@click.option("-k", "--kind", metavar="KIND", type=click.Choice(_KINDS),
              help=f"Only this kind: {', '.join(_KINDS)}.")
@click.option("-S", "--since", "since_s", callback=_age, metavar="AGE", help="Only the last 30m, 12h, 7d...")
@click.option("-n", "--limit", default=100, show_default=True, type=click.IntRange(1, 10000), help="At most so many.")
@click.option("-w", "--watch", is_flag=True, help="Go on, printing decisions as they are made.")
@table_options
@daemon_options
def decisions(jobs: str | None, user: str, kind: str | None, since_s: float, limit: int, watch: bool,
              columns: str | None, noheader: bool, as_json: bool, address: str | None) -> None:  # fmt: skip
    """List decisions, newest last. Users see their own, operators all."""
    request = pb.ListDecisionsRequest(user=user, kind=kind or "", since_s=since_s, limit=limit)
    with connect(address) as client:
        if jobs and not watch:
            reply = pb.ListDecisionsReply(decisions=_of_jobs(client, jobs.split(","), request))
            _show(reply, columns, noheader, as_json)
            return
        request.job_ids.extend(_ids(jobs))
        if watch:
            for item in client.stream("Placement/WatchDecisions", request, pb.Decision):
                print_table([_row(item)], _FIELDS, _DEFAULT, columns, True)
            return
        reply = client.call("Placement/ListDecisions", request, pb.ListDecisionsReply)
    _show(reply, columns, noheader, as_json)


def _show(reply: pb.ListDecisionsReply, columns: str | None, noheader: bool, as_json: bool) -> None:
    if as_json:
        print_json(document(reply))
    else:
        print_table([_row(item) for item in reply.decisions], _FIELDS, _DEFAULT, columns, noheader)


def _of_jobs(client: DaemonClient, jobs: list[str], wanted: pb.ListDecisionsRequest) -> list[pb.Decision]:
    """Return what was decided about ``jobs``: a submit is decided before the job has a number, so each is explained."""
    found: dict[str, pb.Decision] = {}
    names = [name.strip() for name in jobs if name.strip()]
    for name in names:
        reply = client.call("Placement/Explain", pb.ExplainRequest(job_id=name), pb.ExplainReply)
        names.extend(other for other in reply.others if other not in names)
        for item in reply.decisions:
            item.job_id = item.job_id or reply.job.job_id
            if item.time_s >= wanted.since_s and wanted.user in ("", item.user) and wanted.kind in ("", item.kind):
                found.setdefault(item.id, item)
    return sorted(found.values(), key=lambda item: item.time_s)[-wanted.limit :]


def _ids(jobs: str | None) -> list[int]:
    words = [word.strip() for word in (jobs or "").split(",") if word.strip()]
    if not all(word.isdigit() for word in words):
        raise click.BadParameter("with --watch, write job numbers such as 12,13", param_hint="-j")
    return [int(word) for word in words]


def _row(item: pb.Decision) -> dict[str, str]:
    return {
        "id": item.id, "time": when(item.time_s), "kind": item.kind, "jobid": str(item.job_id or "-"),
        "user": item.user, "account": item.account or "-", "partition": item.partition or "-", "mode": item.mode,
        "outcome": item.outcome, "asked": item.asked or "-", "became": _became(item), "node": item.node or "-",
        "message": _message(item) or "-",
    }  # fmt: skip


def _became(item: pb.Decision) -> str:
    return item.became if item.became and item.became != item.outcome else "-"


def _message(item: pb.Decision) -> str:
    """Return what the message says beyond the other columns."""
    said = item.message.removeprefix("hetsched: ")
    return said.removeprefix(f"{item.asked} -> {item.became}").removeprefix("; ")
