"""Names that a shell completes by asking a broker: topics and groups.                      [IO]

Never  waits long or shows an error: if no broker answers at once, nothing is completed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import typer

from kafkalite.errors import KafkaliteError

if TYPE_CHECKING:
    from kafkalite.clients.admin.client import Admin

PATIENCE_MS: Final = 500
SERVERS_VARIABLE: Final = "KAFKALITE_BOOTSTRAP_SERVERS"
SERVERS: Final = "127.0.0.1:9092"


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics that begin with the text."""
    return _beginning_with(ctx, incomplete, lambda admin: admin.list_topics())


def with_settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completions of the first argument of `configs`: `topic`, `broker`, or a topic's name."""
    words = [word for word in ("topic", "broker") if word.startswith(incomplete)]
    return [*words, *topics(ctx, incomplete)]


def key_kinds(incomplete: str) -> list[str]:
    """How `consume` can read keys, with some sizes of windows."""
    from kafkalite.cli.values import Kind

    windows = ["windowed", *(f"windowed:{size}" for size in ("1m", "5m", "1h", "1d"))]
    return [name for name in [*Kind, *windows] if name.startswith(incomplete)]


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """The groups that begin with the text."""

    async def names(admin: Admin) -> list[str]:
        return [group.group_id for group in await admin.list_groups()]

    return _beginning_with(ctx, incomplete, names)


def _beginning_with(
    ctx: typer.Context, incomplete: str, ask: Callable[[Admin], Awaitable[list[str]]]
) -> list[str]:
    from kafkalite.clients.admin.client import Admin
    from kafkalite.clients.cluster import Client

    given = ctx.params.get("bootstrap_servers")
    servers = given or os.environ.get(SERVERS_VARIABLE, SERVERS)

    async def names() -> list[str]:
        async with Client(
            servers, unavailable_after_ms=PATIENCE_MS, request_timeout_ms=PATIENCE_MS
        ) as client:
            return await ask(Admin(client))

    try:
        return [name for name in asyncio.run(names()) if name.startswith(incomplete)]
    except KafkaliteError:
        return []
