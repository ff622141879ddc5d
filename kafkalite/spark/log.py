"""Reads the log for Spark's workers: synchronously, one offset range at a time.         [IO]

Owns   an event loop for the duration of a call or iteration.
Fails  with BrokerUnavailable, and with StorageError if records of a range were deleted.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from kafkalite.clients.admin.client import Admin
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.columnar.ranges import OffsetRange
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, StorageError, TopologyError

POLL_MS: Final = 1_000
IDLE_POLLS_MAX: Final = 30
FETCH_BYTES: Final = 8 * 1024 * 1024
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


def read_range(
    bootstrap_servers: str, wanted: OffsetRange, *, fail_on_data_loss: bool
) -> Iterator[Columns]:
    """The committed records of `wanted`, batch by batch, each batch as columns of bytes."""
    consumer = Consumer(
        bootstrap_servers,
        isolation_level=COMMITTED,
        auto_offset_reset="none" if fail_on_data_loss else "earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
        as_forms=True,
    )
    tp, idle = wanted.topic_partition, 0
    with asyncio.Runner() as runner:
        runner.run(consumer.start())
        try:
            consumer.assign([tp])
            consumer.seek(tp, wanted.start)
            while (position := consumer.position(tp) or 0) < wanted.end:
                try:
                    batches = runner.run(consumer.poll(timeout_ms=POLL_MS))
                except ApiError as error:
                    if error.error_code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
                    raise StorageError(
                        f"{wanted}: the records from offset {position} are gone; with "
                        "failOnDataLoss=false they are a gap"
                    ) from error
                idle = 0 if consumer.position(tp) != position else idle + 1
                if idle >= IDLE_POLLS_MAX:
                    raise StorageError(
                        f"{wanted}: the log has no records from offset {position} on"
                    )
                for columns in batches.values():
                    yield _before(columns, wanted.end)
        finally:
            runner.run(consumer.close())


def _before(columns: Columns, end: int) -> Columns:
    offsets = columns.offsets
    assert offsets is not None, "what is read from a log has offsets"
    if not len(columns) or offsets[-1] < end:
        return columns
    return columns.slice(0, bisect_left(offsets, end))
