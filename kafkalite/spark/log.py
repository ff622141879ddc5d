"""What a load asks the log from a program without an event loop: partitions and offsets.    [IO]

Owns   an event loop for the duration of a call.
Fails  with BrokerUnavailable, and with TopologyError for a topic that does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import TopologyError

COMMITTED: Final = "read_committed"


def partitions_of(bootstrap_servers: str, topics: Sequence[str]) -> list[TopicPartition]:
    """Every partition of `topics`; a topic that does not exist is an error that names it."""

    async def ask() -> list[TopicPartition]:
        async with Admin(bootstrap_servers) as admin:
            counts = {t.name: t.partition_count for t in await admin.describe_topics()}
        for topic in topics:
            if topic not in counts:
                raise TopologyError(f"topic {topic!r} does not exist at {bootstrap_servers}")
        return [TopicPartition(topic, p) for topic in topics for p in range(counts[topic])]

    return asyncio.run(ask())


def offsets_of(
    bootstrap_servers: str, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """First and next offsets of `partitions`, as the log stands now: up to the first record of a
    transaction that is still open.
    """

    async def ask() -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        async with Consumer(bootstrap_servers, isolation_level=COMMITTED) as consumer:
            first = await consumer.beginning_offsets(list(partitions))
            return dict(first), dict(await consumer.end_offsets(list(partitions)))

    return asyncio.run(ask())
