"""ListOffsets, OffsetForLeaderEpoch: offsets by time, and by leader epoch.                 [D]

    -1  latest: the high watermark, under read_committed the last stable offset
    -2  earliest: the log start offset          -4  earliest on local disk: the same
    -3  the record with the greatest timestamp  -5  the last in remote storage, where there is none
    >=0 the first record with that timestamp or a later one; -1 if there is none

A search by time may have to walk through the headers of a whole log: no index knows of the times
of records alone, without those of transaction markers. So a long one, like a request about very
many partitions, goes on in slices; each begins with the log as it is then. Bytes outside the page
cache are read in a thread.

Right after an election a leader may not know yet that all its records are committed. Until it does,
`latest` and times beyond the high watermark are refused, as the end must not move back (KIP-207).
They are refused as well while the replicas do not confirm that this broker leads: if it was paused,
or is cut off, its successor's log may end later, and who reads up to an old end misses records.

v0 knows no times of records: it tells, newest first, where the segments begin whose files were last
written by the time that is asked for; the end of the log counts as one that is written now.

Source KIP-79, KIP-207, KIP-320, KIP-734, KIP-405, KIP-1005.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from kafkalite.core.handlers.parts import Parts
from kafkalite.core.handlers.routes import ENTRIES_AT_ONCE, handles
from kafkalite.core.handlers.slices import Answered, Answering, in_slices
from kafkalite.core.log.uncached import ColdRead, cached_only
from kafkalite.core.log.values import GoOn
from kafkalite.core.pending import Pending
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
from kafkalite.core.replicas.partition import (
    READ_AS_REPLICA,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Partition,
)
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, RequestContext
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

T = TypeVar("T")
Found = tuple[int, int, int]  # timestamp, offset, leader epoch
NOTHING: Final[Found] = (NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)

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
OFFSET_NOT_AVAILABLE_V: Final = 5
CONSUMER: Final = -1  # in the place of a broker
ANY_REPLICA: Final = -2  # the same, of a tool that compares replicas

COLD_READS_MAX: Final = 1_000  # of a step, beyond which the loop itself waits for the disk
BATCHES_PER_STEP: Final = 512  # of a search by time
WORK_PER_SLICE: Final = 512
ENTRIES_COUNTED_PER_SLICE: Final = 10_000  # not looked up
WORK_OF_SEARCH: Final = 64  # where a partition whose offset is known is 1


@handles(ApiKey.LIST_OFFSETS, versions=(0, 9))
def list_offsets(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse | Pending[ListOffsetsResponse]:
    """Returns one offset for each partition, or an error."""
    answers: list[ListOffsetsPartitionResponse] = []
    slices = _slices(broker, request, context.api_version, answers)
    try:
        waits_for = next(slices)
    except StopIteration:
        return ListOffsetsResponse(topics=tuple(_topics(request, answers)))
    work = _in_turns(broker, request, slices, answers, waits_for)
    is_large = sum(len(topic.partitions) for topic in request.topics) > ENTRIES_AT_ONCE
    answer = in_slices(broker, ApiKey.LIST_OFFSETS, context, work, is_large=is_large)
    return cast("ListOffsetsResponse | Pending[ListOffsetsResponse]", answer)


def _in_turns(
    broker: Broker,
    request: ListOffsetsRequest,
    slices: Generator[Any, None, None],
    answers: list[ListOffsetsPartitionResponse],
    waits_for: Any,
) -> Answering:
    """The response, once the other slices have filled `answers`. The first one `waits_for`
    something, or for None."""
    searched: Pending[bool] = Pending()
    try:
        yield waits_for
        broker.run_slices(slices, "ListOffsets", lambda: searched.complete(True))
        yield Answered(searched)
    finally:
        slices.close()
    topics: list[ListOffsetsTopicResponse] = []
    work = 0
    for topic in _topics(request, answers):
        topics.append(topic)
        work += len(topic.partitions)
        if work >= ENTRIES_COUNTED_PER_SLICE:
            work = 0
            yield
    return ListOffsetsResponse(topics=tuple(topics))


def _topics(
    request: ListOffsetsRequest, answers: Iterable[ListOffsetsPartitionResponse]
) -> Iterator[ListOffsetsTopicResponse]:
    """The answers in the order of the request. If a slice failed, which the broker logs, some are
    missing at the end."""
    each = chain(answers, repeat(None))

    def answer(wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        failed = ErrorCode.UNKNOWN_SERVER_ERROR
        return next(each) or ListOffsetsPartitionResponse(wanted.partition_index, failed)

    for topic in request.topics:
        yield ListOffsetsTopicResponse(topic.name, tuple(map(answer, topic.partitions)))


def _slices(
    broker: Broker,
    request: ListOffsetsRequest,
    api_version: int,
    answers: list[ListOffsetsPartitionResponse],
) -> Generator[Any, None, None]:
    """Adds the answers for all partitions to `answers`."""
    reader = _Reader.of(request, api_version)
    times_named: Counter[tuple[str, int]] = Counter()
    work = 0
    for topic in request.topics:
        times_named.update((topic.name, each.partition_index) for each in topic.partitions)
        work += len(topic.partitions)
        if work >= ENTRIES_COUNTED_PER_SLICE:
            work = 0
            yield
    work = 0
    for topic in request.topics:
        for wanted in topic.partitions:
            if work >= WORK_PER_SLICE:
                work = 0
                yield
            work += WORK_OF_SEARCH if _is_search(wanted, api_version) else 1
            if api_version == 0:
                answers.append(_list_segments(broker, topic.name, wanted))
                continue
            code = _refusal(wanted, api_version, times_named[topic.name, wanted.partition_index])
            if code:
                answers.append(ListOffsetsPartitionResponse(wanted.partition_index, code))
            else:
                answers.append((yield from _list(broker, topic.name, wanted, reader)))


def _is_search(wanted: ListOffsetsPartition, api_version: int) -> bool:
    """Whether files are asked."""
    return api_version == 0 or wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP


def _refusal(wanted: ListOffsetsPartition, api_version: int, times_named: int) -> ErrorCode:
    if times_named > 1:
        return ErrorCode.INVALID_REQUEST
    if wanted.timestamp < 0 and api_version < FIRST_VERSION.get(wanted.timestamp, NEVER):
        return ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.NONE


class _Reader(NamedTuple):
    """Who asks: a client, a broker, or a tool that asks any replica."""

    isolation_level: int
    may_ask_followers: bool
    not_available: ErrorCode  # while the end is not known, in the version of the request

    @classmethod
    def of(cls, request: ListOffsetsRequest, api_version: int) -> _Reader:
        replica_id = request.replica_id
        isolation_level = READ_AS_REPLICA
        if replica_id == CONSUMER:
            committed = request.isolation_level == READ_COMMITTED
            isolation_level = READ_COMMITTED if committed else READ_UNCOMMITTED
        knows = api_version >= OFFSET_NOT_AVAILABLE_V
        code = ErrorCode.OFFSET_NOT_AVAILABLE if knows else ErrorCode.LEADER_NOT_AVAILABLE
        return cls(isolation_level, replica_id == ANY_REPLICA, code)

    def check_end(self, partition: Partition, now_ms: int) -> None:
        """Refuses a client what lies beyond a high watermark that is not known yet, or may be that
        of an earlier time."""
        if self.isolation_level == READ_AS_REPLICA:
            return
        where, high_watermark = partition.topic_partition, partition.log.high_watermark
        if partition.replication.is_end_unknown:
            words = f"{where}: the high watermark, {high_watermark}, is not that of this epoch yet"
            raise ApiError(self.not_available, words)
        is_exact = self.isolation_level == READ_COMMITTED
        if not partition.is_confirmed(now_ms, by_all=is_exact):
            words = f"{where}: replicas do not confirm that the log ends at {high_watermark}"
            raise ApiError(self.not_available, words)


def _list(
    broker: Broker, topic: str, wanted: ListOffsetsPartition, reader: _Reader
) -> Generator[Any, None, ListOffsetsPartitionResponse]:
    index = wanted.partition_index
    try:
        timestamp, offset, epoch = yield from _find(broker, topic, wanted, reader)
    except ApiError as error:
        broker.note_storage_error(error)
        return ListOffsetsPartitionResponse(index, error.error_code)
    return ListOffsetsPartitionResponse(
        index, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


def _find(
    broker: Broker, topic: str, wanted: ListOffsetsPartition, reader: _Reader
) -> Generator[Any, None, Found]:
    """Timestamp, offset and its leader epoch; -1 for what does not apply or match. ApiError."""
    partition, timestamp = _held(broker, topic, wanted, reader), wanted.timestamp
    log, isolation_level = partition.log, reader.isolation_level
    if timestamp == LATEST:
        reader.check_end(partition, broker.monotonic_ms())
        return NO_TIMESTAMP, partition.end(isolation_level), partition.replication.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        is_empty = start == log.log_end_offset
        epoch = partition.replication.leader_epoch if is_empty else log.epochs.epoch_of(start)
        return NO_TIMESTAMP, start, epoch
    if timestamp == LATEST_TIERED:
        return NOTHING
    if timestamp == MAX_TIMESTAMP:
        timestamp = yield from _cached(broker, log.max_timestamp)
        if timestamp < 0:
            return NOTHING
    first_offset = log.log_start_offset
    while True:
        search = partition.log.offset_for_timestamp
        step = partial(search, timestamp, first_offset, BATCHES_PER_STEP)
        found = yield from _cached(broker, step)
        if not isinstance(found, GoOn):
            break
        yield
        before, partition = partition, _held(broker, topic, wanted, reader)
        first_offset = found.offset if partition is before else 0  # the topic was made anew
    if found is None or found.offset >= partition.end(isolation_level):
        reader.check_end(partition, broker.monotonic_ms())
        return NOTHING
    return found


def _cached(broker: Broker, look: Callable[[], T]) -> Generator[Any, None, T]:
    """The result of `look` in files. A thread reads uncached parts before a second look."""
    for _ in range(COLD_READS_MAX):
        try:
            with cached_only():
                return look()
        except ColdRead as cold:
            reading = broker.in_thread(cold.warm)
        yield reading
    return look()


def _held(broker: Broker, topic: str, wanted: ListOffsetsPartition, reader: _Reader) -> Partition:
    """The partition, if it is led here or the reader asks any replica. ApiError."""
    partition = broker.partition(topic, wanted.partition_index)
    if reader.may_ask_followers:
        partition.replication.check_epoch(wanted.current_leader_epoch)
    else:
        partition.replication.check_leader(wanted.current_leader_epoch)
    return partition


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
        written = partition.log.segments_written(broker.wall_ms())
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
    """The offsets of the segments that were written by then; the first is the newest of all."""
    if timestamp == EARLIEST:
        return [written[-1][0]]
    first = 0
    if timestamp != LATEST:
        first = next((i for i, (_, at) in enumerate(written) if at <= timestamp), len(written))
    return [offset for offset, _ in written[first:]]


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), Parts("topics.partitions", "topics.partitions"))
def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Returns the end of each leader epoch, so that a reader can detect a truncated log."""
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
