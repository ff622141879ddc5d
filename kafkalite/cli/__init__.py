"""The commands: `kafkalite`, and `kafkalite-streams`, `kafkalite-spark` beside it.         [IO]

A command ends with 0 when it did what it was asked to, with 1 and one line on stderr when it could
not, with 2 when its flags make no sense, with 130 when it was interrupted, and with a traceback
when the fault is ours. Whoever closes the pipe that a command writes to has had enough: that is 0.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Final

from kafkalite.errors import KafkaliteError

if TYPE_CHECKING:
    import typer

SIGNALLED: Final = 128  # the exit code of who was ended by signal n is 128 + n, as a shell has it


def run_command(cli: typer.Typer) -> None:
    """Runs a command line program to its end, and exits with its code."""
    cli.pretty_exceptions_enable = False
    try:
        code = _run(cli)
    except KafkaliteError as error:
        print(f"kafkalite: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = SIGNALLED + signal.SIGINT
    sys.exit(code)


def _run(cli: typer.Typer) -> int:
    """The exit code. A closed pipe shows at the latest when what is buffered goes out."""
    try:
        try:
            cli()
        except SystemExit as end:
            sys.stdout.flush()
            return end.code if isinstance(end.code, int) else 0
        sys.stdout.flush()
    except BrokenPipeError:
        from kafkalite.cli.output import forget_stdout

        forget_stdout()  # the interpreter flushes once more
    return 0


def say_which_codec() -> None:
    """One line on stderr where the native record codec could not be built."""
    from kafkalite.core.protocol.records import NATIVE

    if not NATIVE:
        print("kafkalite: no native record codec here; pure Python serves, slower", file=sys.stderr)


def main() -> None:
    """The console script `kafkalite`."""
    from kafkalite.cli.app import build

    run_command(build(sys.argv[1] if len(sys.argv) > 1 else None))
