"""The commands: `kafkalite`, and `kafkalite-streams`, `kafkalite-spark` beside it.         [IO]

Exit codes: 0 done; 1 failed, with one line on stderr; 2 wrong flags; 130 interrupted. A closed
stdout (`| head`) ends a command with 0. A traceback means a fault of kafkalite.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kafkalite.errors import KafkaliteError

if TYPE_CHECKING:
    import typer

CHOICE: Final = re.compile(r"'([^']*)' is not one of ('.*)")  # as typer words it
SIGNALLED: Final = 128  # signal n ends a command with exit code 128 + n, as in a shell


def run_command(cli: typer.Typer) -> None:
    """Runs a command line program to its end, and exits with its code."""
    cli.pretty_exceptions_enable = False
    _sign_warnings()
    _open_closed_streams()
    code = 0
    try:
        code = _run(cli)
    except BrokenPipeError:
        _forget_stdout()
    except OSError as error:  # the system's, such as a full disk: there is no fault to trace
        print(f"kafkalite: {error.filename or 'stdout'}: {error.strerror}", file=sys.stderr)
        _forget_stdout()
        code = 1
    except KafkaliteError as error:
        from kafkalite.cli.refusals import in_words

        print(f"kafkalite: {in_words(error)}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = SIGNALLED + signal.SIGINT
    sys.exit(code)


def _run(cli: typer.Typer) -> int:
    """The exit code. Flushes stdout, so that its errors show here at the latest."""
    code = 0
    try:
        ended = cli(standalone_mode=False)
        code = ended if isinstance(ended, int) else 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except _usage_error() as error:
        _say_how(error)
        code = error.exit_code
    sys.stdout.flush()
    return code


def _usage_error() -> Any:
    """Typer's errors for wrong flags: its own exception or click's."""
    import typer

    return typer.BadParameter.__base__


def _say_how(error: Any) -> None:
    """One line with the error and where to read more; the whole help if there is no command."""
    text = error.format_message().replace("Value error, ", "")
    if "\n" in text:
        print(text, file=sys.stderr)
        return
    text = text.rstrip(".") + _meant(text)
    where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
    print(f"kafkalite: {text}{where}", file=sys.stderr)


def _meant(text: str) -> str:
    """The word that was probably meant, if one of several was expected."""
    from kafkalite.core.nearest import did_you_mean

    found = CHOICE.search(text)
    return "" if found is None else did_you_mean(found[1], re.findall(r"'([^']*)'", found[2]))


def _sign_warnings() -> None:
    """Marks warnings of our clients, such as that of a lost broker, as ours."""
    assert logging.lastResort is not None
    logging.lastResort.setFormatter(logging.Formatter("kafkalite: %(message)s"))


def _open_closed_streams() -> None:
    """Replaces closed standard streams, so that no file of ours gets their descriptors."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


def _forget_stdout() -> None:
    """Discards what stdout still has buffered: the interpreter flushes it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _say(message: str) -> None:
    print(f"kafkalite: {message}", file=sys.stderr)


def say_which_codec(*, cleaner: bool = False, say: Callable[[str], object] = _say) -> None:
    """One line, on stderr unless `say` takes it, where the native record codec could not be built,
    or does not fit these sources; with `cleaner` the same of the log cleaner."""
    from kafkalite.core.protocol import record_codec

    natives = {"record codec": record_codec.NATIVE}
    if cleaner:
        from kafkalite.compaction import loops

        natives["log cleaner"] = loops.NATIVE
    missing = " and ".join(name for name, is_there in natives.items() if not is_there)
    if missing:
        say(f"no native {missing} here: pure Python does its work, slower")


def main() -> None:
    """The console script `kafkalite`."""
    try:
        from kafkalite.cli.app import build

        cli = build(sys.argv[1] if len(sys.argv) > 1 else None)
    except KeyboardInterrupt:  # so soon
        sys.exit(SIGNALLED + signal.SIGINT)
    run_command(cli)
