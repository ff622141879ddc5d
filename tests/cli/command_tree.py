"""Every command of the three programs, by its words: `("kafkalite", "topics", "create")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from kafkalite.cli.reference import programs


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands below one, with the words that lead to each."""
    for name, below in command.commands.items():
        if hasattr(below, "commands"):
            yield from commands(below, *path, name)
        else:
            yield (*path, name), below


TREE = {
    (name, *path): command
    for name, cli in programs().items()
    for path, command in commands(typer.main.get_command(cli))
}
