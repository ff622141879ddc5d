"""ListOffsets, OffsetForLeaderEpoch: offsets by time, and by leader epoch.                 [D]

    -1  latest: the high watermark, under read_committed the last stable offset
    -2  earliest: the log start offset          -4  earliest on local disk: the same
    -3  the record with the greatest timestamp  -5  the last in remote storage, where there is none
    >=0 the first record with that timestamp or a later one; -1 if there is none

v0 knows no times of records: it tells, newest first, where the segments begin whose files were last
written by the time that is asked for; the end of the log counts as one that is written now.

Source KIP-79, KIP-207, KIP-320, KIP-734, KIP-405, KIP-1005.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from kafkalite.core.handlers.routes import handles
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResult,
    OffsetForLeaderTopicResult,
)
from kafkalite.core.replicas.partition import READ_COMMITTED, READ_UNCOMMITTED, Partition
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, RequestContext
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
FIRST_VERSION: Final = {  # that knows them
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
}
NEVER: Final = 2**15 - 1


@handles(ApiKey.LIST_OFFSETS, versions=(0, 9))
def list_offsets(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """One offset for each partition, or why not."""
    committed = request.isolation_level == READ_COMMITTED
    isolation_level = READ_COMMITTED if committed else READ_UNCOMMITTED
    times_named = Counter((t.name, p.partition_index) for t in request.topics for p in t.partitions)

    def answer(topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        index = wanted.partition_index
        if context.api_version == 0:
            return _list_segments(broker, topic, wanted)
        if times_named[topic, index] > 1:
            return ListOffsetsPartitionResponse(index, ErrorCode.INVALID_REQUEST)
        known_since = FIRST_VERSION.get(wanted.timestamp, NEVER)
        if wanted.timestamp < 0 and context.api_version < known_since:
            return ListOffsetsPartitionResponse(index, ErrorCode.UNSUPPORTED_VERSION)
        return _list(broker, topic, wanted, isolation_level)

    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(t.name, tuple(answer(t.name, p) for p in t.partitions))
            for t in request.topics
        )
    )


def _list(
    broker: Broker, topic: str, wanted: ListOffsetsPartition, isolation_level: int
) -> ListOffsetsPartitionResponse:
    index = wanted.partition_index
    try:
        partition = broker.partition(topic, index)
        partition.replication.check_leader(wanted.current_leader_epoch)
        timestamp, offset, epoch = _find(partition, wanted.timestamp, isolation_level)
    except ApiError as error:
        broker.note_storage_error(error)
        return ListOffsetsPartitionResponse(index, error.error_code)
    return ListOffsetsPartitionResponse(
        index, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _find(partition: Partition, timestamp: int, isolation_level: int) -> tuple[int, int, int]:
    """Timestamp, offset and its leader epoch; -1 for what does not apply or match."""
    log = partition.log
    end = partition.end(isolation_level)
    if timestamp == LATEST:
        return NO_TIMESTAMP, end, partition.replication.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        is_empty = start == log.log_end_offset
        epoch = partition.replication.leader_epoch if is_empty else log.epochs.epoch_of(start)
        return NO_TIMESTAMP, start, epoch
    if timestamp == LATEST_TIERED:
        return NO_TIMESTAMP, NO_OFFSET, NO_EPOCH
    if timestamp == MAX_TIMESTAMP:
        found = log.max_timestamp_offset()
    else:
        found = log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= end:
        return NO_TIMESTAMP, NO_OFFSET, NO_EPOCH
    return found


def _list_segments(
    broker: Broker, topic: str, wanted: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    """The answer of v0: `max_num_offsets` at most, in descending order."""
    index = wanted.partition_index
    if wanted.timestamp < EARLIEST:
        return ListOffsetsPartitionResponse(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        partition = broker.partition(topic, index)
        partition.replication.check_leader(NO_EPOCH)
        written = partition.log.segments_written(broker.now_ms())
    except ApiError as error:
        broker.note_storage_error(error)
        return ListOffsetsPartitionResponse(index, error.error_code)
    offsets = _written_by(written, wanted.timestamp)[: max(wanted.max_num_offsets, 0)]
    end = partition.end(READ_UNCOMMITTED)
    readable = tuple(offset for offset in offsets if offset <= end)
    if len(readable) < len(offsets):
        readable = (end, *readable)
    return ListOffsetsPartitionResponse(index, old_style_offsets=readable)


def _written_by(written: list[tuple[int, int]], timestamp: int) -> list[int]:
    """The offsets of those that were written by then; the first is the newest of all."""
    if timestamp == EARLIEST:
        return [written[-1][0]]
    first = 0
    if timestamp != LATEST:
        first = next((i for i, (_, at) in enumerate(written) if at <= timestamp), len(written))
    return [offset for offset, _ in written[first:]]


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4))
def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Where each leader epoch ends, so that a reader can tell whether its log was cut."""
    return OffsetForLeaderEpochResponse(
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic.topic, tuple(_end_of(broker, topic.topic, each) for each in topic.partitions)
            )
            for topic in request.topics
        )
    )


def _end_of(
    broker: Broker, topic: str, wanted: OffsetForLeaderPartition
) -> OffsetForLeaderPartitionResult:
    try:
        partition = broker.partition(topic, wanted.partition)
        partition.replication.check_leader(wanted.current_leader_epoch)
    except ApiError as error:
        return OffsetForLeaderPartitionResult(error.error_code, wanted.partition)
    epoch, end_offset = partition.log.end_offset_for_epoch(
        wanted.leader_epoch, partition.replication.leader_epoch
    )
    return OffsetForLeaderPartitionResult(ErrorCode.NONE, wanted.partition, epoch, end_offset)
