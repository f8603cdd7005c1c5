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
from pyhetsched.rpc.gen import services_pb2 as pb

_FIELDS = ("id", "time", "kind", "jobid", "user", "account", "partition", "mode", "outcome", "asked", "became", "node",
           "message")  # fmt: skip
_DEFAULT = ("time", "jobid", "user", "kind", "outcome", "asked", "became", "message")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _age(ctx: click.Context, param: click.Parameter, value: str | None) -> float:
    if not value:
        return 0.0
    found = re.fullmatch(r"(\d+)([smhd])", value)
    if not found:
        raise click.BadParameter(f"write an age such as 30m, 12h or 7d instead of {value!r}", ctx, param)
    return time.time() - int(found[1]) * _UNITS[found[2]]


@click.command(context_settings=LONG_HELP)
@click.option("-j", "--jobs", metavar="ID[,ID...]", help="Only these jobs.")
@click.option("-u", "--user", default="", metavar="NAME", help="Only this user's.")
@click.option("-k", "--kind", default="", metavar="KIND",
              help="Only this kind: submit, modify, allocate, give-back, prepare, release, reconcile, mode.")
@click.option("-S", "--since", "since_s", callback=_age, metavar="AGE", help="Only the last 30m, 12h, 7d...")
@click.option("-n", "--limit", default=100, show_default=True, type=click.IntRange(1, 10000), help="At most so many.")
@click.option("-w", "--watch", is_flag=True, help="Go on, printing decisions as they are made.")
@table_options
@daemon_options
def decisions(jobs: str | None, user: str, kind: str, since_s: float, limit: int, watch: bool, columns: str | None,
              noheader: bool, as_json: bool, address: str | None) -> None:  # fmt: skip
    """List decisions, newest last. Users see their own, operators all."""
    request = pb.ListDecisionsRequest(job_ids=_ids(jobs), user=user, kind=kind, since_s=since_s, limit=limit)
    with connect(address) as client:
        if watch:
            for item in client.stream("Placement/WatchDecisions", request, pb.Decision):
                print_table([_row(item)], _FIELDS, _DEFAULT, columns, True)
            return
        reply = client.call("Placement/ListDecisions", request, pb.ListDecisionsReply)
    if as_json:
        print_json(document(reply))
    else:
        print_table([_row(item) for item in reply.decisions], _FIELDS, _DEFAULT, columns, noheader)


def _ids(jobs: str | None) -> list[int]:
    words = [word.strip() for word in (jobs or "").split(",") if word.strip()]
    if not all(word.isdigit() for word in words):
        raise click.BadParameter("write job numbers such as 12,13", param_hint="-j")
    return [int(word) for word in words]


def _row(item: pb.Decision) -> dict[str, str]:
    return {
        "id": item.id, "time": when(item.time_s), "kind": item.kind, "jobid": str(item.job_id or "-"),
        "user": item.user, "account": item.account or "-", "partition": item.partition or "-", "mode": item.mode,
        "outcome": item.outcome, "asked": item.asked or "-", "became": item.became or "-", "node": item.node or "-",
        "message": item.message or "-",
    }  # fmt: skip
