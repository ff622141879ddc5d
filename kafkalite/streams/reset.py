"""Reset: an application as if it had never run: offsets, internal topics, local state.     [IO]

`survey` says what there is to reset and changes nothing; `Reset.execute` does it. Topics that
the application writes for others stay as they are, so what it writes again stands behind what it
wrote before.

Owns   the order of a reset. The topology log is marked first and deleted last: an application
       does not start on what an interrupted reset left, and a second reset finishes it.
Fails  with TopologyError while the group has members; with ApiError for what a broker refuses.
Source Kafka Streams' StreamsResetter.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import OffsetAndMetadata
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode, TopologyError
from kafkalite.streams.local.compile import SubTopology, compile_topology
from kafkalite.streams.local.topics import source_partitions
from kafkalite.streams.local.topology_log import AT_REST, TopologyLog, internal_topics
from kafkalite.streams.plan import Plan
from kafkalite.streams.rewrites import topology_topic

Begin = Literal["earliest", "latest"]
DELETED_AT_ONCE: Final = 500  # topics in one request


@dataclass(frozen=True, slots=True)
class Reset:
    """The changes of a reset. `begin`: the start of the inputs, if not that of their sources."""

    plan: Plan
    committed: Mapping[TopicPartition, int]  # offsets to forget
    begin: Mapping[TopicPartition, int]  # offsets to commit instead
    topics: Sequence[str]
    state_dir: Path | None

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to reset."""
        return not (self.committed or self.begin or self.topics or self.state_dir)

    async def execute(self, client: Client) -> None:
        """Does it. The group must still be at rest."""
        application_id = self.plan.application_id
        async with Admin(client) as admin:
            await _refuse_members(admin, application_id)
            log = topology_topic(application_id)
            if log in self.topics:
                await TopologyLog(client, admin, self.plan, self._subs()).mark_reset()
            rest = [topic for topic in self.topics if topic != log]
            for first in range(0, len(rest), DELETED_AT_ONCE):
                await admin.delete_topics(rest[first : first + DELETED_AT_ONCE])
            await _forget(admin, application_id)
            if self.begin:
                offsets = {tp: OffsetAndMetadata(offset) for tp, offset in self.begin.items()}
                await admin.alter_group_offsets(application_id, offsets)
            if self.state_dir is not None:
                shutil.rmtree(self.state_dir)
            if log in self.topics:
                await admin.delete_topics([log])

    def _subs(self) -> tuple[SubTopology, ...]:
        return compile_topology(self.plan)


async def survey(
    client: Client, plan: Plan, *, to: Begin | None = None, state_dir: Path | None = None
) -> Reset:
    """The changes by a reset of `plan`'s application. TopologyError while it has members."""
    application_id = plan.application_id
    async with Admin(client) as admin:
        await _refuse_members(admin, application_id)
        existing = [topic.name for topic in await admin.describe_topics()]
        offsets = await admin.list_group_offsets(application_id)
        begin: Mapping[TopicPartition, int] = {}
        if to is not None:
            inputs = await source_partitions(admin, compile_topology(plan))
            find = admin.beginning_offsets if to == "earliest" else admin.end_offsets
            begin = await find(inputs) if inputs else {}
    own = None if state_dir is None else state_dir / application_id
    return Reset(
        plan,
        {tp: entry.offset for tp, entry in offsets.items()},
        begin,
        internal_topics(application_id, existing),
        own if own is not None and own.exists() else None,
    )


async def _refuse_members(admin: Admin, application_id: str) -> None:
    (group,) = await admin.describe_groups([application_id])
    if group.state not in AT_REST:
        hosts = ", ".join(sorted({member.client_host for member in group.members})) or "a rebalance"
        raise TopologyError(
            f"{application_id}: {len(group.members)} workers run ({hosts}): stop them before a "
            "reset. A worker that was killed leaves when its session times out"
        )


async def _forget(admin: Admin, application_id: str) -> None:
    try:
        await admin.delete_groups([application_id])
    except ApiError as error:
        if error.error_code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
