"""`kafkalite configs`: the settings of topics and brokers, shown and changed.              [IO]

Fails  with one line and exit code 1: an unknown topic or broker, a setting that the broker refuses.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalite.cli.options import (
    BOOTSTRAP,
    AsJson,
    Bootstrap,
    DryRun,
    examples,
    parse_pairs,
    program,
)
from kafkalite.cli.output import ask, emit, print_json, print_table

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin, ConfigEntry, ConfigResource

cli = program("Show and change the settings of topics and brokers.")

DEFAULT: Final = "default"  # the name of what all brokers share


class What(StrEnum):
    """What has settings."""

    topic = "topic"
    broker = "broker"


WhatArgument = Annotated[What, typer.Argument(help="What has the settings.")]
NameArgument = Annotated[
    str, typer.Argument(help="A topic's name, a broker's id, or 'default' for all brokers.")
]


@cli.command(
    epilog=examples(
        "kafkalite configs describe topic orders",
        "kafkalite configs describe broker 1 --changed",
        "kafkalite configs describe topic orders --key retention.ms --synonyms --documentation",
    )
)
def describe(
    what: WhatArgument,
    name: NameArgument,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    key: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only those that are not at their defaults.")
    ] = False,
    synonyms: Annotated[
        bool, typer.Option("--synonyms", help="Also the places that a value may come from.")
    ] = False,
    documentation: Annotated[
        bool, typer.Option("--documentation", help="Also what each setting is for.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show settings with their values and where these come from."""
    resource = _resource(what, name)

    async def work(admin: Admin) -> dict[str, ConfigEntry]:
        found = await admin.describe_configs(
            [resource], key, synonyms=synonyms, documentation=documentation
        )
        return found[resource]

    found = ask(bootstrap_servers, work)
    missing = [wanted for wanted in key or () if wanted not in found]
    if missing:
        raise typer.BadParameter(f"{resource} has no setting {missing[0]!r}", param_hint="--key")
    entries = [e for e in sorted(found.values(), key=lambda e: e.name) if not changed or _own(e)]
    if json:
        print_json([_document(entry) for entry in entries])
        return
    if synonyms or documentation:
        for entry in entries:
            _print_long(entry)
        return
    rows = [[e.name, "(hidden)" if e.is_sensitive else e.value, e.source.name] for e in entries]
    print_table(["setting", "value", "source"], rows)


@cli.command(
    epilog=examples(
        "kafkalite configs alter topic orders --set retention.ms=86400000",
        "kafkalite configs alter topic orders --append cleanup.policy=compact",
        "kafkalite configs alter broker default --unset log.retention.ms",
    )
)
def alter(
    what: WhatArgument,
    name: NameArgument,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE; may be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", help="KEY, back to what it falls back to.")
    ] = None,
    append: Annotated[
        list[str] | None, typer.Option("--append", help="KEY=ENTRY, added to a list.")
    ] = None,
    subtract: Annotated[
        list[str] | None, typer.Option("--subtract", help="KEY=ENTRY, taken out of a list.")
    ] = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Change settings; those that are not named stay as they are."""
    resource = _resource(what, name)
    changes: dict[str, str | None] = {**parse_pairs(set_, "--set"), **dict.fromkeys(unset or ())}
    added, removed = parse_pairs(append, "--append"), parse_pairs(subtract, "--subtract")
    if not (changes or added or removed):
        raise typer.BadParameter("nothing to change: give --set, --unset, --append or --subtract")

    async def work(admin: Admin) -> None:
        await admin.alter_configs(
            resource, changes, append=added, subtract=removed, validate_only=dry_run
        )

    ask(bootstrap_servers, work)
    if json:
        print_json({"type": what.value, "name": name, "altered": not dry_run})
    else:
        emit(f"{resource}: {'could be altered' if dry_run else 'altered'}")


def _resource(what: What, name: str) -> ConfigResource:
    from kafkalite.clients.admin.client import EVERY_BROKER, ConfigResource, ResourceType

    if what is What.topic:
        return ConfigResource(ResourceType.TOPIC, name)
    if name == DEFAULT:
        return ConfigResource(ResourceType.BROKER, EVERY_BROKER)
    if not (name.isascii() and name.isdigit()):
        raise typer.BadParameter(f"'{name}' is no broker id; give a number or '{DEFAULT}'")
    return ConfigResource(ResourceType.BROKER, name)


def _own(entry: ConfigEntry) -> bool:
    from kafkalite.clients.admin.client import ConfigSource

    return entry.source is not ConfigSource.DEFAULT


def _document(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "type": entry.config_type.name,
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
        "synonyms": [
            {"name": s.name, "value": s.value, "source": s.source.name} for s in entry.synonyms
        ],
        "documentation": entry.documentation,
    }


def _print_long(entry: ConfigEntry) -> None:
    value = "(hidden)" if entry.is_sensitive else entry.value
    read_only = ", read only" if entry.is_read_only else ""
    emit(f"{entry.name}={'' if value is None else value}")
    emit(f"    {entry.config_type.name.lower()}, from {entry.source.name}{read_only}")
    for synonym in entry.synonyms:
        emit(f"    {synonym.source.name}: {synonym.name}={synonym.value}")
    if entry.documentation:
        emit(f"    {entry.documentation}")
