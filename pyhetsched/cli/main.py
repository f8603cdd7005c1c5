"""The ``hetsched`` command: one file a verb, loaded only when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

import click

from pyhetsched import __version__
from pyhetsched.errors import DataError, HetschedError, RequestError, UnreachableError

# Where each verb lives. Loading them all at every call would make `hetsched gpus` wait for scipy.
_VERBS: Mapping[str, tuple[str, str, str]] = {
    "explain": ("explain", "explain", "Tell what was decided about a job, and why."),
    "decisions": ("decisions", "decisions", "List decisions, newest last."),
    "gpus": ("gpus", "gpus", "Show every GPU, its slices and who holds them."),
    "would-run": ("would_run", "would_run", "Tell what would be done with a request; nothing is submitted."),
    "status": ("status", "status", "Tell how the daemon is."),
    "mode": ("mode", "mode", "Show, set or unset the mode: off, shadow, enforce."),
    "rounds": ("rounds", "rounds", "Show what rounds did, or what a policy would do now."),
    "mig": ("mig", "mig", "MIG layouts, weights and plans."),
    "simulate": ("simulate", "simulate", "Run a policy on a list of jobs."),
    "bench-policy": ("bench_policy", "bench_policy", "Time one policy."),
}

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3


class _Verbs(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the help text."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one verb."""
        if cmd_name not in _VERBS:
            return None
        module, name, _ = _VERBS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"pyhetsched.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _VERBS.items()])


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "HETSCHED"},
    epilog="Exit status: 0 done, 1 not possible or not found, 2 wrong usage, 3 the daemon cannot be reached. "
    "HETSCHED_ADDRESS names another daemon than the one on this machine (unix:/path or host:port).",
)
@click.version_option(__version__, "-V", "--version", prog_name="hetsched")
def cli() -> None:
    """Ask hetsched what it decided about jobs and GPUs, and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    try:
        code = cli.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except click.Abort:
        return 130
    except UnreachableError as error:
        from pyhetsched.rpc.client import DEFAULT_ADDRESS

        here = f"at {DEFAULT_ADDRESS}: No such file" in str(error)
        hint = "; where it runs on another machine, set HETSCHED_ADDRESS=HOST:PORT" if here else ""
        return _fail(UnreachableError(f"{error}{hint}"), EXIT_UNREACHABLE)
    except (RequestError, DataError) as error:
        return _fail(error, EXIT_USAGE if isinstance(error, DataError) else EXIT_FAILED)
    except HetschedError as error:
        return _fail(error, EXIT_FAILED)
    except BrokenPipeError:
        sys.stderr.close()
        return 141


def _fail(error: HetschedError, code: int) -> int:
    click.echo(f"hetsched: {error}", err=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
