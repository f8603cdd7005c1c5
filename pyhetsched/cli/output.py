"""Tables as squeue and sinfo print them, colour on a terminal only, JSON that scripts can rely on."""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from pyhetsched.rpc.client import DaemonClient, default_address

F = TypeVar("F", bound=Callable[..., Any])
SCHEMA = 1


def connect(address: str | None) -> DaemonClient:
    """Return a client of the daemon at ``address`` (default: the one on this machine, or $HETSCHED_ADDRESS)."""
    return DaemonClient(address or default_address())


def daemon_options(function: F) -> F:
    """Add the options of every verb that asks the daemon."""
    function = click.option("--address", help="The daemon: unix:/path or host:port.", metavar="ADDRESS")(function)
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def table_options(function: F) -> F:
    """Add squeue's habits to a verb that prints a table."""
    function = click.option("-h", "--noheader", is_flag=True, help="Print no header.")(function)
    return click.option(
        "-o", "--format", "columns", metavar="FIELD[,FIELD...]", help="Columns to print; 'help' lists them."
    )(function)


#: For verbs with ``-h`` for noheader, as squeue has it.
LONG_HELP = {"help_option_names": ["--help"]}


def document(message: Message) -> dict[str, Any]:
    """Return ``message`` as JSON values, every field present, names as in the schema."""
    return _numbers(
        MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True), message
    )


def _numbers(value: dict[str, Any], message: Message) -> dict[str, Any]:
    """64-bit numbers as numbers: protobuf's JSON makes strings of them."""
    for field in message.DESCRIPTOR.fields:
        if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) and isinstance(value.get(field.name), str):
            value[field.name] = int(value[field.name])
    return value


def print_json(value: Mapping[str, Any]) -> None:
    """Print ``value`` with the version of its layout."""
    click.echo(json.dumps({"meta": {"schema": SCHEMA}, **value}, indent=2))


def print_table(rows: Sequence[Mapping[str, str]], fields: Sequence[str], default: Sequence[str], columns: str | None,
                noheader: bool) -> None:  # fmt: skip
    """Print ``rows`` with the columns asked for (``help`` lists them); `click.BadParameter` for an unknown one."""
    if columns == "help":
        click.echo("\n".join(fields))
        return
    chosen = [name.strip().lower() for name in columns.split(",")] if columns else list(default)
    unknown = [name for name in chosen if name not in fields]
    if unknown:
        raise click.BadParameter(f"unknown column {unknown[0]!r}; there are {', '.join(fields)}", param_hint="-o")
    rows = [{name: shown(row[name]) for name in chosen} for row in rows]
    widths = {name: max([len(name) * (not noheader), *(len(row[name]) for row in rows)], default=0) for name in chosen}
    if not noheader:
        click.echo(_line({name: name.upper() for name in chosen}, chosen, widths))
    for row in rows:
        click.echo(_line(row, chosen, widths))


def shown(text: str) -> str:
    """Return ``text`` with all that a terminal would act on written out: users choose names, an admin reads them.

    Control characters and the marks that turn the direction of writing become ``\\x1b`` and the like.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def when(time_s: float) -> str:
    """Return a time as Slurm prints it, ``-`` for none."""
    if not time_s:
        return "-"
    return datetime.datetime.fromtimestamp(time_s).strftime("%Y-%m-%dT%H:%M:%S")


def styled(text: str, colour: str) -> str:
    """Return ``text`` in ``colour`` where standard output is a terminal that wants it."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=colour)


def _line(row: Mapping[str, str], chosen: Sequence[str], widths: Mapping[str, int]) -> str:
    return "  ".join(row[name].ljust(widths[name]) for name in chosen).rstrip()
