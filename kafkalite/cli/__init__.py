"""`kafkalite server`, `registry`, `topics`; beside it `kafkalite-streams` and `-spark`.       [IO]

A command fails with one line on stderr and exit code 1 when kafkalite says why, with exit code 2
when its flags make no sense, and with a traceback when the fault is ours.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kafkalite.errors import KafkaliteError

if TYPE_CHECKING:
    import typer

INTERRUPTED = 130  # 128 + SIGINT, as a shell has it


def run_command(cli: typer.Typer) -> None:
    """Runs a command line program to its end, and exits with its code."""
    cli.pretty_exceptions_enable = False
    try:
        cli()
    except KafkaliteError as error:
        print(f"kafkalite: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def say_which_codec() -> None:
    """One line on stderr where the native record codec could not be built."""
    from kafkalite.core.protocol.records import NATIVE

    if not NATIVE:
        print("kafkalite: no native record codec here; pure Python serves, slower", file=sys.stderr)


def main() -> None:
    """The console script `kafkalite`."""
    import typer

    from kafkalite.cli import registry, server, topics

    cli = typer.Typer(help="A log broker that speaks the Apache Kafka protocol.",
                      no_args_is_help=True, add_completion=False)  # fmt: skip
    cli.add_typer(server.cli, name="server")
    cli.add_typer(registry.cli, name="registry")
    cli.add_typer(topics.cli, name="topics")
    run_command(cli)
