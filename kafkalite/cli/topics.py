"""`kafkalite topics`: list and create topics on any broker that speaks the protocol.        [IO]"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from kafkalite.errors import ApiError, ConfigError, ErrorCode

cli = typer.Typer(help="List and create topics.", no_args_is_help=True)

Bootstrap = Annotated[str, typer.Option(help="HOST:PORT[,…] of a broker.")]


@cli.command("list")
def list_(bootstrap_servers: Bootstrap = "127.0.0.1:9092") -> None:
    """Print every topic with its number of partitions."""
    from kafkalite.core.admin import Admin

    async def ask() -> list[tuple[str, int]]:
        async with Admin(bootstrap_servers) as admin:
            return [(t.name, t.partition_count) for t in await admin.describe_topics()]

    for name, partitions in sorted(asyncio.run(ask())):
        typer.echo(f"{name}\t{partitions} partitions")


@cli.command()
def create(
    topics: Annotated[list[str], typer.Argument(help="The names.")],
    bootstrap_servers: Bootstrap = "127.0.0.1:9092",
    partitions: Annotated[int, typer.Option(min=1)] = 1,
    config: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, for example cleanup.policy=compact.")
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that exists is left as it is.")
    ] = False,
) -> None:
    """Create topics, all with the same settings."""
    from kafkalite.core.admin import Admin, NewTopic

    configs = {}
    for entry in config or []:
        name, equals, value = entry.partition("=")
        if not equals:
            raise ConfigError(f"--config {entry}: give KEY=VALUE")
        configs[name] = value

    async def make() -> None:
        async with Admin(bootstrap_servers) as admin:
            for topic in topics:
                try:
                    await admin.create_topics([NewTopic(topic, partitions, configs=configs)])
                    typer.echo(f"{topic}: created with {partitions} partitions")
                except ApiError as error:
                    exists = error.error_code is ErrorCode.TOPIC_ALREADY_EXISTS
                    if not (if_not_exists and exists):
                        raise
                    typer.echo(f"{topic}: exists")

    asyncio.run(make())
