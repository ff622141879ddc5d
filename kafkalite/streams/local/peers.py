"""Who has which task, and where its worker answers queries.                               [IO]

The group's coordinator knows: each member's subscription has its address, its assignment its
partitions. What it said is believed for a second.

Owns   the last answer.
Fails  with the errors of the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.core.types import TopicPartition
from kafkalite.streams.local.assignor import TaskId, read_address

BELIEVED_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker: its tasks, and its address if it has one."""

    member_id: str
    host: str
    address: str | None
    tasks: frozenset[TaskId] = field(default_factory=frozenset)


class Peers:
    """The workers of one application."""

    def __init__(
        self,
        application_id: str,
        client: Client,
        task_of: Callable[[TopicPartition], TaskId | None],
    ) -> None:
        self._application_id = application_id
        self._client = client
        self._task_of = task_of
        self._known: list[Peer] = []
        self._looked_at = float("-inf")

    async def all(self) -> list[Peer]:
        """Every worker that has joined."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at > BELIEVED_SECONDS:
            async with Admin(self._client) as admin:
                (group,) = await admin.describe_groups([self._application_id])
            self._known = [
                Peer(
                    member.member_id,
                    member.client_host,
                    read_address(member.user_data),
                    frozenset(t for tp in member.partitions if (t := self._task_of(tp))),
                )
                for member in group.members
            ]
            self._looked_at = now
        return self._known
