"""Committed offsets: how far each group has read, and until when that is remembered.       [P]

    commit ──> in flight ──> committed                    a record, replayed
    commit in a transaction ──> in flight ──> pending     a record of a producer, replayed
                                pending ──> committed     the transaction's marker says commit
                                pending ──> (gone)        the marker says abort

Of two offsets for one partition the one later in the log counts, also where a transaction ends
after a plain commit that followed it. A tombstone forgets what came before it, pending or not.

Owns   offsets by group and partition. `replay` and `complete_transaction` alone write them; what is
       in flight is only counted, so that `require_stable` can tell.
Never  asks who commits: the coordinator has checked that with the group.
Fails  with an error code per partition.
Source KIP-211 (expiry), KIP-447 (require_stable), KIP-98 (transactions); apache/kafka
       `OffsetMetadataManager`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kafkalite.core.coordinators.machine import Record
from kafkalite.core.groups.records import (
    CommittedOffset,
    offset_record,
    offset_tombstone,
)
from kafkalite.core.types import NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition
from kafkalite.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class OffsetsConfig:
    """The limits of offsets, by the names of Kafka's settings.

    `offset_metadata_max_bytes` counts characters, as Apache Kafka does.
    """

    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1_000
    offsets_retention_check_interval_ms: int = 600_000


class _Placed(NamedTuple):
    """An offset, and its record's place in the order of replay."""

    offset: CommittedOffset
    place: int


_Partitions = dict[TopicPartition, _Placed]


class Offsets:
    """The offsets of all groups of one coordinator."""

    def __init__(self, config: OffsetsConfig) -> None:
        self._config = config
        self._committed: dict[str, _Partitions] = {}
        self._pending: dict[int, dict[str, _Partitions]] = {}  # producer id -> group id
        self._producers: dict[str, set[int]] = {}  # group id -> producers with pending offsets
        self._in_flight: dict[str, Counter[TopicPartition]] = {}
        self._place = 0

    # -- what is known

    def has_any(self, group_id: str) -> bool:
        """Whether a group has offsets, or will."""
        return (
            group_id in self._committed
            or group_id in self._producers
            or group_id in self._in_flight
        )

    def committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """All of a group's offsets, by partition in the order of their names."""
        partitions = self._committed.get(group_id, {})
        return {partition: partitions[partition].offset for partition in sorted(partitions)}

    def fetch(self, group_id: str, partition: TopicPartition) -> CommittedOffset | None:
        """The group's committed offset in this partition, if there is one."""
        placed = self._committed.get(group_id, {}).get(partition)
        return None if placed is None else placed.offset

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether another offset is on its way, in a transaction or to the log."""
        counts = self._in_flight.get(group_id)
        if counts is not None and counts[partition]:
            return True
        return any(
            partition in self._pending[producer_id][group_id]
            for producer_id in self._producers.get(group_id, ())
        )

    def _mentioned(self, group_id: str) -> set[TopicPartition]:
        """Partitions of which the log may hold an offset of this group."""
        partitions = {*self._committed.get(group_id, ()), *self._in_flight.get(group_id, ())}
        for producer_id in self._producers.get(group_id, ()):
            partitions.update(self._pending[producer_id][group_id])
        return partitions

    def has_only(self, group_id: str, partitions: set[TopicPartition]) -> bool:
        """Whether the log holds no offset of this group in any other partition."""
        return self._mentioned(group_id) <= partitions

    def committing(self) -> list[str]:
        """Groups that have committed offsets."""
        return list(self._committed)

    def committed_offsets(self, group_id: str) -> tuple[list[TopicPartition], list[int]]:
        """A group's partitions, in no order, and their offsets as numbers."""
        placed = self._committed.get(group_id, {})
        return list(placed), [each.offset.offset for each in placed.values()]

    def committed_count(self, group_id: str) -> int:
        """How many partitions a group has committed offsets for."""
        return len(self._committed.get(group_id, ()))

    def group_ids(self) -> Iterator[str]:
        """Groups that have offsets, or will."""
        yield from {*self._committed, *self._producers, *self._in_flight}

    # -- what to write

    def commit(
        self, group_id: str, partition: TopicPartition, offset: CommittedOffset
    ) -> Record | ErrorCode:
        """The record of a commit, or why it is refused."""
        note = offset.metadata
        if len(note) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        self._in_flight.setdefault(group_id, Counter())[partition] += 1
        return offset_record(group_id, partition, offset)

    def forget(
        self, group_id: str, wanted: Callable[[TopicPartition], bool] | None = None
    ) -> list[Record]:
        """Tombstones for a group's offsets, or for the given ones."""
        partitions = sorted(p for p in self._mentioned(group_id) if wanted is None or wanted(p))
        in_flight = self._in_flight.setdefault(group_id, Counter()) if partitions else Counter()
        in_flight.update(partitions)
        return [offset_tombstone(group_id, partition) for partition in partitions]

    def expired(
        self,
        group_id: str,
        now_ms: int,
        *,
        retained_since_ms: int | None,
        is_read: Callable[[str], bool],
    ) -> tuple[set[TopicPartition], int | None]:
        """The offsets expired by `now_ms`, and the time of the next expiry.

        Retention runs since `retained_since_ms`, or since each commit if that is None. Offsets of
        topics that the group reads stay, and those that a transaction is about to replace.
        """
        gone: set[TopicPartition] = set()
        next_ms: int | None = None
        for partition, (offset, _) in self._committed.get(group_id, {}).items():
            if is_read(partition.topic) or self.is_unstable(group_id, partition):
                continue
            since_ms = (
                offset.commit_timestamp_ms if retained_since_ms is None else retained_since_ms
            )
            expires_ms = offset.expire_timestamp_ms
            if expires_ms == NO_TIMESTAMP:
                expires_ms = since_ms + self._config.offsets_retention_ms
            if expires_ms <= now_ms:
                gone.add(partition)
            else:
                next_ms = expires_ms if next_ms is None else min(next_ms, expires_ms)
        return gone, next_ms

    # -- what the log says

    def replay(
        self,
        group_id: str,
        partition: TopicPartition,
        offset: CommittedOffset | None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Applies a record: an offset, an offset of a transaction, or a tombstone."""
        self._place += 1
        self._landed(group_id, partition)
        if offset is None:
            self._remove(group_id, partition)
        elif producer_id == NO_PRODUCER_ID:
            self._committed.setdefault(group_id, {})[partition] = _Placed(offset, self._place)
        else:
            groups = self._pending.setdefault(producer_id, {})
            groups.setdefault(group_id, {})[partition] = _Placed(offset, self._place)
            self._producers.setdefault(group_id, set()).add(producer_id)

    def not_written(self, group_id: str, partition: TopicPartition) -> None:
        """A record did not get into the log."""
        self._landed(group_id, partition)

    def complete_transaction(self, producer_id: int, *, commit: bool) -> tuple[str, ...]:
        """Notes a transaction's marker; returns the ids of the groups whose offsets it decided."""
        groups = self._pending.pop(producer_id, {})
        for group_id, partitions in groups.items():
            self._drop_producer(group_id, producer_id)
            if commit:
                committed = self._committed.setdefault(group_id, {})
                for partition, placed in partitions.items():
                    if partition not in committed or committed[partition].place < placed.place:
                        committed[partition] = placed
        return tuple(groups)

    def _landed(self, group_id: str, partition: TopicPartition) -> None:
        """One record less is in flight; a record of the past never was."""
        counts = self._in_flight.get(group_id)
        if counts and partition in counts:
            counts[partition] -= 1
            if not counts[partition]:
                del counts[partition]
            if not counts:
                del self._in_flight[group_id]

    def _remove(self, group_id: str, partition: TopicPartition) -> None:
        _discard(self._committed, group_id, partition)
        for producer_id in list(self._producers.get(group_id, ())):
            groups = self._pending[producer_id]
            _discard(groups, group_id, partition)
            if group_id not in groups:
                self._drop_producer(group_id, producer_id)
            if not groups:
                del self._pending[producer_id]

    def _drop_producer(self, group_id: str, producer_id: int) -> None:
        self._producers[group_id].discard(producer_id)
        if not self._producers[group_id]:
            del self._producers[group_id]


def _discard(groups: dict[str, _Partitions], group_id: str, partition: TopicPartition) -> None:
    """Takes a partition out, and its group with the last one."""
    partitions = groups.get(group_id)
    if partitions is not None:
        partitions.pop(partition, None)
        if not partitions:
            del groups[group_id]
