"""Reads a whole topic, for the tests of workers."""

from __future__ import annotations

from typing import Literal

from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import Columns, TopicPartition, concat


async def read_topic(
    address: str,
    topic: str,
    partitions: int,
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_committed",
) -> Columns:
    """The records of all partitions up to the ends that the partitions have at the call."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    batches: list[Columns] = []
    async with Consumer(address, isolation_level=isolation_level) as consumer:
        ends = await consumer.end_offsets(places)
        consumer.assign(places)
        consumer.seek_to_beginning(places)
        while any((consumer.position(place) or 0) < end for place, end in ends.items()):
            batches += (await consumer.poll(timeout_ms=500)).values()
    return concat(batches)
