"""The tree of commands below `kafkalite`.                                                  [IO]

Owns   the list of commands, and their order in the help.
Never  imports the modules of other commands: starting a broker does not load what only `consume`
       needs. Help, completion and the reference build the whole tree.
"""

from __future__ import annotations

import os
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Final

import typer
from typer.core import TyperGroup

from kafkalite.cli.options import examples, program

GROUPS: Final = {  # groups of commands, each a Typer called `cli` in its module
    "server": "kafkalite.cli.server",
    "cluster": "kafkalite.cli.cluster",
    "topics": "kafkalite.cli.topics",
    "groups": "kafkalite.cli.groups",
    "configs": "kafkalite.cli.configs",
    "transactions": "kafkalite.cli.transactions",
    "log": "kafkalite.cli.logs",
    "perf": "kafkalite.cli.perf",
    "registry": "kafkalite.cli.registry",
}
COMMANDS: Final = {  # commands of their own, each a function of that name in its module
    "produce": "kafkalite.cli.produce",
    "consume": "kafkalite.cli.consume",
}
COMPLETION: Final = "completion"
ORDER: Final = ("server", "cluster", "topics", *COMMANDS, *GROUPS, COMPLETION)
COMPLETE_VAR: Final = "_KAFKALITE_COMPLETE"
HELP: Final = "A log broker that speaks the Apache Kafka protocol, and commands for any of them."


class Shell(StrEnum):
    """The shells that can complete our commands."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


class _InOrder(TyperGroup):
    """Lists commands in the order of ORDER, not of the alphabet."""

    def list_commands(self, ctx: typer.Context | None) -> list[str]:  # type: ignore[override]
        return sorted(self.commands, key=ORDER.index)


def build(wanted: str | None = None) -> typer.Typer:
    """The tree, or of it only what the first argument `wanted` names."""
    known = {*GROUPS, *COMMANDS, COMPLETION}
    chosen = {wanted} if wanted in known else known
    cli = program(
        HELP,
        cls=_InOrder,
        epilog=examples(
            "kafkalite server start --data-dir ./data --listen 127.0.0.1:9092",
            "kafkalite topics create orders --partitions 6",
            "seq 10 | kafkalite produce orders",
            "kafkalite consume orders --until-end",
        ),
    )
    cli.callback()(_root)
    for name, module in GROUPS.items():
        if name in chosen:
            cli.add_typer(import_module(module).cli, name=name)
    for name, module in COMMANDS.items():
        if name in chosen:
            import_module(module).register(cli)
    if COMPLETION in chosen:
        cli.command(COMPLETION)(completion)
    return cli


def _show_version(wanted: bool) -> None:
    if wanted:
        from kafkalite.core.peers.connection import SOFTWARE_VERSION

        typer.echo(f"kafkalite {SOFTWARE_VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell to write the script for.")],
) -> None:
    """Print the script that completes commands, flags and topics.

    Put `source <(kafkalite completion bash)` into ~/.bashrc (zsh: into ~/.zshrc, after
    `compinit`), or `kafkalite completion fish | source` into ~/.config/fish/config.fish.
    """
    os.environ[COMPLETE_VAR] = f"source_{shell.value}"
    build()(prog_name="kafkalite", args=[])
