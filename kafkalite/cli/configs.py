"""`kafkalite configs`: the settings of topics and brokers, shown and changed.              [IO]

    orders            the topic orders
    topic 5           the topic 5, which by itself could be broker 5
    broker 5          broker 5
    broker default    the settings that every broker falls back to

Fails  with one line and exit code 1: an unknown topic or broker, a setting that the broker refuses.
       With exit code 2: a setting that the topic or broker does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafkalite.cli import completing
from kafkalite.cli.options import (
    BOOTSTRAP,
    AsJson,
    Bootstrap,
    DryRun,
    examples,
    parse_pairs,
    program,
)
from kafkalite.cli.output import ask, emit, print_json, print_table, warn
from kafkalite.core.nearest import did_you_mean

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin, ConfigEntry, ConfigResource

cli = program("Show and change the settings of topics and brokers.")

TOPIC: Final = "topic"
BROKER: Final = "broker"
DEFAULT: Final = "default"  # the name under which all brokers share settings

WhatArgument = Annotated[
    str,
    typer.Argument(
        help="A topic's name; or 'topic' or 'broker', and the name after it.",
        autocompletion=completing.with_settings,
    ),
]
NameArgument = Annotated[
    str | None,
    typer.Argument(
        help="After 'topic' its name; after 'broker' its id, or 'default' for all brokers.",
        show_default=False,
    ),
]


@cli.command(
    epilog=examples(
        "kafkalite configs describe orders",
        "kafkalite configs describe broker 1 --changed",
        "kafkalite configs describe orders --key retention.ms --synonyms --documentation",
    )
)
def describe(
    what: WhatArgument,
    name: NameArgument = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    key: Annotated[
        list[str] | None, typer.Option(help="Only this setting; may be repeated.")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that differ from their defaults.")
    ] = False,
    synonyms: Annotated[
        bool, typer.Option("--synonyms", help="Also every place that the value could come from.")
    ] = False,
    documentation: Annotated[
        bool, typer.Option("--documentation", help="Also a description of each setting.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show settings, their values, and where each value was set."""
    resource = parse_resource(what, name)

    async def work(admin: Admin) -> dict[str, ConfigEntry]:
        found = await admin.describe_configs(
            [resource], key, synonyms=synonyms, documentation=documentation
        )
        return found[resource]

    found = ask(bootstrap_servers, work, topics=_topics(resource))
    for wanted in key or ():
        if wanted not in found:
            raise typer.BadParameter(
                f"{resource} has no setting '{wanted}'{did_you_mean(wanted, _known(resource))}",
                param_hint="--key",
            )
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
        "kafkalite configs alter orders --set retention.ms=86400000",
        "kafkalite configs alter orders --append cleanup.policy=compact",
        "kafkalite configs alter broker default --unset log.retention.ms",
    )
)
def alter(
    what: WhatArgument,
    name: NameArgument = None,
    bootstrap_servers: Bootstrap = BOOTSTRAP,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE; may be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", help="KEY; its default is in force again."),
    ] = None,
    append: Annotated[
        list[str] | None, typer.Option("--append", help="KEY=ENTRY; adds the entry to the list.")
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option("--subtract", help="KEY=ENTRY; removes the entry from the list."),
    ] = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Change settings; other settings keep their values."""
    resource = parse_resource(what, name)
    changes: dict[str, str | None] = {**parse_pairs(set_, "--set"), **dict.fromkeys(unset or ())}
    added, removed = parse_pairs(append, "--append"), parse_pairs(subtract, "--subtract")
    if not (changes or added or removed):
        raise typer.BadParameter("nothing to change: give --set, --unset, --append or --subtract")

    async def work(admin: Admin) -> None:
        await admin.alter_configs(
            resource, changes, append=added, subtract=removed, validate_only=dry_run
        )

    topics = _topics(resource)
    settings = [*changes, *added, *removed] if topics else ()
    ask(bootstrap_servers, work, topics=topics, topic_settings=settings)
    _warn_of_unknown(resource, [*(n for n, v in changes.items() if v is not None), *added])
    if json:
        kind = resource.resource_type.name.lower()
        print_json({"type": kind, "name": resource.name or DEFAULT, "altered": not dry_run})
    else:
        emit(f"{resource}: {'would be altered' if dry_run else 'altered'}")


def parse_resource(what: str, name: str | None) -> ConfigResource:
    """The owner of the settings: `orders`, `topic orders`, `broker 1`, `broker default`.

    A word by itself is a topic, unless it could as well be a broker.
    """
    from kafkalite.clients.admin.client import EVERY_BROKER, ConfigResource, ResourceType

    if name is None:
        if what in (TOPIC, BROKER):
            raise typer.BadParameter(f"a name is missing: {what} NAME, or topic {what}")
        if what == DEFAULT or _is_number(what):
            raise typer.BadParameter(
                f"'{what}' may be a topic or a broker: say 'topic {what}' or 'broker {what}'"
            )
        return ConfigResource(ResourceType.TOPIC, what)
    if what == TOPIC:
        return ConfigResource(ResourceType.TOPIC, name)
    if what != BROKER:
        raise typer.BadParameter(
            f"'{what}' is neither 'topic' nor 'broker'; one topic is described or altered at a time"
        )
    if name == DEFAULT:
        return ConfigResource(ResourceType.BROKER, EVERY_BROKER)
    if not _is_number(name):
        raise typer.BadParameter(
            f"'{name}' is not a broker id: give a number or '{DEFAULT}', or say 'topic {name}'"
        )
    return ConfigResource(ResourceType.BROKER, name)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _topics(resource: ConfigResource) -> list[str]:
    """The topic's name, for errors about topics that do not exist."""
    return [resource.name] if resource.resource_type.name == "TOPIC" else []


def _known(resource: ConfigResource) -> Collection[str]:
    """The names of the settings that we know."""
    from kafkalite.core.config.keys import BROKER_KEYS, TOPIC_KEYS

    return TOPIC_KEYS if resource.resource_type.name == "TOPIC" else BROKER_KEYS


def _warn_of_unknown(resource: ConfigResource, named: Iterable[str]) -> None:
    """Brokers keep settings of brokers that they do not know, for plugins: perhaps a typo."""
    known = _known(resource)
    for name in named:
        if name not in known:
            warn(
                f"{resource}: '{name}' is not a setting of Kafka's; the broker keeps it without "
                f"effect{did_you_mean(name, known)}"
            )


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
