"""How commands print: one JSON document, or tables for people.                            [IO]

A table is drawn by rich on a terminal. In a pipe it is aligned with spaces and nothing is cut, so
that grep and awk work on it.

Owns   the forms of stdout. Progress, notes and errors go to stderr (`say`, `warn`).
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from kafkalite.errors import ConfigError

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin

T = TypeVar("T")

CLIENT_ID: Final = "kafkalite-cli"
UNITS: Final = ("B", "KB", "MB", "GB", "TB")


def ask(
    bootstrap_servers: str,
    work: Callable[[Admin], Awaitable[T]],
    *,
    topics: Collection[str] = (),
    groups: Collection[str] = (),
    topic_settings: Collection[str] = (),
) -> T:
    """Runs `work` with an admin client of these servers.

    The names are those that the user gave; the error for an unknown one names it.
    """
    import asyncio

    from kafkalite.cli.refusals import explaining
    from kafkalite.clients.admin.client import Admin

    async def with_admin() -> T:
        async with (
            Admin(bootstrap_servers, client_id=CLIENT_ID) as admin,
            explaining(
                admin,
                bootstrap_servers,
                topics=topics,
                groups=groups,
                topic_settings=topic_settings,
            ),
        ):
            return await work(admin)

    return asyncio.run(with_admin())


def counted(number: int, what: str) -> str:
    """`1 record`, `1,000 records`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def say(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """A line on stderr about something that the user may not have meant, signed like errors."""
    say(f"kafkalite: {text}")


def emit(text: str) -> None:
    """A line, or several, on stdout. A closed pipe ends the command with exit code 0."""
    try:
        print(text)
    except BrokenPipeError:  # typer would turn it into exit code 1
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise typer.Exit(0) from None


def confirm(question: str, *, yes: bool) -> None:
    """Returns if the user agrees; ConfigError if stdin is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Not a terminal, so nobody can confirm: pass --yes.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def to_json(value: Any, *, indent: bool = False) -> bytes:
    """JSON text. Bytes become base64, dates ISO 8601, other types that JSON lacks their str."""
    import orjson

    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
    if indent:
        options |= orjson.OPT_INDENT_2
    return orjson.dumps(value, _plain, options)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def print_json(value: Any) -> None:
    """One JSON document."""
    emit(to_json(value, indent=True).decode())


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table, numbers aligned to the right; the headers alone if there are no rows."""
    body = list(rows)
    numeric = [
        bool(body) and all(isinstance(row[i], int) for row in body) for i in range(len(headers))
    ]
    texts = [[_text(value) for value in row] for row in body]
    if sys.stdout.isatty():
        _draw(headers, texts, numeric)
        return
    shown = [header.upper() for header in headers]
    widths = [max(map(len, column)) for column in zip(shown, *texts, strict=True)]
    lines = []
    for row in [shown, *texts]:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    emit("\n".join(lines))


def _draw(headers: Sequence[str], rows: list[list[str]], numeric: list[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header, right in zip(headers, numeric, strict=True):
        table.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return " ".join(str(value).splitlines())  # a row has one line


def show_bytes(count: int) -> str:
    """`1.2 MB`; powers of 1,000."""
    amount = float(count)
    for unit in UNITS:
        if amount < 1000 or unit == UNITS[-1]:
            break
        amount /= 1000
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def show_time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; `-` for a negative timestamp."""
    if timestamp_ms < 0:
        return "-"
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # a client may write any number
        return f"{timestamp_ms} ms"
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
