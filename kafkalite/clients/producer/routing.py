"""Which partition a producer's records go to.                                              [P]

    a partition given ──> that one        a key ──> its murmur2 hash, as Java's producer has it
    neither           ──> the topic's sticky partition, another one once a batch's bytes are there

Owns   the sticky partition of each topic.
Never  looks a topic up: the caller passes the number of partitions.
Fails  with ValueError for a partition that the topic does not have.
Source KIP-480 and KIP-794 (keyless records); apache/kafka `BuiltInPartitioner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from kafkalite.clients.metadata import TopicInfo
from kafkalite.clients.producer.batching import chunks
from kafkalite.core.columns import has_nulls
from kafkalite.core.protocol.partitioner import (
    NO_PARTITION,
    murmur2,
    partition_column,
    split,
    to_positive,
)
from kafkalite.core.types import Columns, TopicPartition

WINDOW_BYTES_MAX: Final = 4 << 20


class Sticky:
    """The partition that keyless records of a topic go to until enough bytes are there."""

    __slots__ = ("_batch_bytes", "_bytes_left", "_random", "partition")

    def __init__(self, batch_bytes: int, source: Random) -> None:
        self.partition = NO_PARTITION
        self._batch_bytes = batch_bytes
        self._random = source
        self._bytes_left = 0

    def take(self, size_bytes: int, partition_count: int) -> int:
        """The partition for so many bytes."""
        if self._bytes_left <= 0 or self.partition >= partition_count:
            self.partition = self._random.randrange(partition_count)
            self._bytes_left = self._batch_bytes
        self._bytes_left -= size_bytes
        return self.partition


class Router:
    """The partitions of one producer's records."""

    def __init__(self, batch_bytes: int, source: Random) -> None:
        self._batch_bytes = batch_bytes
        self._random = source
        self._sticky: dict[str, Sticky] = {}

    def one(
        self, info: TopicInfo, key: bytes | None, partition: int | None, size_bytes: int
    ) -> TopicPartition:
        """The partition of a single record."""
        if partition is None:
            count = len(info.partitions)
            if key is None:
                partition = self._sticky_of(info.name).take(size_bytes, count)
            else:
                partition = to_positive(murmur2(key)) % count
        return checked(info, partition)

    def columns(
        self,
        info: TopicInfo,
        columns: Columns,
        partition: int | None,
        partitions: Sequence[int] | None,
    ) -> Iterator[tuple[TopicPartition, Columns, int]]:
        """Chunks of about a batch's size, each with its partition and estimated bytes."""
        batch_bytes, count = self._batch_bytes, len(info.partitions)
        if partition is not None:
            target = checked(info, partition)
            for chunk, size in chunks(columns, batch_bytes):
                yield target, chunk, size
            return
        if partitions is None and _has_no_keys(columns):
            for chunk, size in chunks(columns, batch_bytes):
                stuck_to = self._sticky_of(info.name).take(size, count)
                yield TopicPartition(info.name, stuck_to), chunk, size
            return
        # A window at a time, so that the records are still in the cache when they are encoded.
        start = 0
        for window, _ in chunks(columns, min(batch_bytes * count, WINDOW_BYTES_MAX)):
            stop = start + len(window)
            if partitions is None:
                of_each = self._by_key(info.name, window, count)
            else:
                of_each = partitions[start:stop]
            for number, piece in enumerate(split(window, of_each, count)):
                for chunk, size in chunks(piece, batch_bytes):
                    yield TopicPartition(info.name, number), chunk, size
            start = stop

    def _by_key(self, topic: str, columns: Columns, count: int) -> Sequence[int]:
        """Each record's partition; those without a key stick together."""
        partitions = partition_column(columns.keys, count)
        if not has_nulls(columns.keys):
            return partitions
        stuck_to = self._sticky_of(topic).take(self._batch_bytes, count)
        return [stuck_to if p == NO_PARTITION else p for p in partitions]

    def _sticky_of(self, topic: str) -> Sticky:
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = self._sticky[topic] = Sticky(self._batch_bytes, self._random)
        return sticky


def checked(info: TopicInfo, partition: int) -> TopicPartition:
    """The topic's partition; ValueError if it has no such."""
    if not 0 <= partition < len(info.partitions):
        raise ValueError(
            f"topic {info.name} has partitions 0 to {len(info.partitions) - 1}, not {partition}"
        )
    return TopicPartition(info.name, partition)


def _has_no_keys(columns: Columns) -> bool:
    keys = columns.keys
    return keys[0] is None and keys.count(None) == len(keys)
