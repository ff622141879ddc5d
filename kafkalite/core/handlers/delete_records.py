"""DeleteRecords: gives up the records below an offset, for good.                           [P]

The new log start offset is durable before the answer; requests that come together share a write.
Followers take the log start over with their next fetches. The answer waits until every live replica
has, up to the request's timeout. Retention removes whole segments below it at its next run.

Source KIP-107; apache/kafka `ReplicaManager.deleteRecords`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

from kafkalite.core.broker.purgatory import DelayedDeletion
from kafkalite.core.cluster.internal_topics import INTERNAL_TOPICS
from kafkalite.core.handlers.parts import Parts
from kafkalite.core.handlers.routes import ENTRIES_AT_ONCE, handles
from kafkalite.core.handlers.slices import ENTRIES_PER_SLICE, Answered, Answering, in_slices
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.topics import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, StorageError

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

TO_HIGH_WATERMARK: Final = -1
NO_LOW_WATERMARK: Final = -1
ENTRIES_TOLD_PER_SLICE: Final = 2_000  # each takes some 1 us


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2))
def delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
    """Returns the new start of each log. If a partition is named twice, its last offset counts."""
    slices = _slices(broker, request)
    is_large = sum(len(topic.partitions) for topic in request.topics) > ENTRIES_AT_ONCE
    answer = in_slices(broker, ApiKey.DELETE_RECORDS, context, slices, is_large=is_large)
    return cast("DeleteRecordsResponse | Pending[DeleteRecordsResponse]", answer)


def _slices(broker: Broker, request: DeleteRecordsRequest) -> Answering:
    wanted: dict[TopicPartition, int] = {}
    for part in Parts("topics.partitions", "topics.partitions", ENTRIES_TOLD_PER_SLICE).split(
        request
    ):
        if wanted:
            yield
        for topic in part.topics:
            for each in topic.partitions:
                wanted[TopicPartition(topic.name, each.partition_index)] = each.offset
    starts: dict[TopicPartition, int] = {}
    codes: dict[TopicPartition, ErrorCode] = {}
    awaited: dict[TopicPartition, int] = {}
    for count, (where, offset) in enumerate(wanted.items(), start=1):
        try:
            deleted_to, starts[where] = _delete_one(broker, where, offset)
            if starts[where] < deleted_to:
                awaited[where] = deleted_to
        except ApiError as error:
            codes[where] = error.error_code
        if not count % ENTRIES_PER_SLICE:
            yield
    failure: ErrorCode = ErrorCode.NONE
    if starts:
        written: Pending[StorageError | ErrorCode] = Pending()
        broker.log_starts.ask(lambda error: written.complete(error or ErrorCode.NONE))
        yield Answered(written)
        if isinstance(written.response, StorageError):
            broker.note(str(written.response))
            failure = ErrorCode.KAFKA_STORAGE_ERROR
    if awaited and not failure:
        yield from _followed(broker, awaited, request.timeout_ms, starts, codes)
    return (yield from _response(wanted, starts, codes, failure))


def _followed(
    broker: Broker,
    awaited: dict[TopicPartition, int],
    timeout_ms: int,
    starts: dict[TopicPartition, int],
    codes: dict[TopicPartition, ErrorCode],
) -> Answering:
    """Waits until the live replicas have followed, and notes how far they are."""

    def low_watermark(where: TopicPartition) -> int:
        return broker.low_watermark(broker.partition(*where))

    followed: Pending[bool] = Pending()
    waiting: DelayedDeletion[TopicPartition] = DelayedDeletion(
        lambda: followed.complete(True), dict(awaited), low_watermark
    )
    deadline_ms = broker.monotonic_ms() + max(0, timeout_ms)
    broker.deletions.add(waiting)
    try:
        if broker.waiting.park(waiting, tuple(awaited), deadline_ms):
            yield Answered(followed)
    finally:
        broker.waiting.forget(waiting)
        broker.deletions.discard(waiting)
    for where, offset in awaited.items():
        if where in waiting.lost:
            codes[where] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif where in waiting.offsets_wanted:
            codes[where] = ErrorCode.REQUEST_TIMED_OUT
        else:
            starts[where] = offset


def _response(
    wanted: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, int],
    codes: Mapping[TopicPartition, ErrorCode],
    failure: ErrorCode,
) -> Generator[None, None, DeleteRecordsResponse]:
    """The answer; `failure` is that of the write, which all of `starts` share."""
    results: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for count, where in enumerate(wanted, start=1):
        if not count % ENTRIES_TOLD_PER_SLICE:
            yield
        code = codes.get(where, failure)
        start = NO_LOW_WATERMARK if code else starts[where]
        result = DeleteRecordsPartitionResult(where.partition, start, code)
        results.setdefault(where.topic, []).append(result)
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(name, tuple(partitions))
            for name, partitions in results.items()
        )
    )


def _delete_one(broker: Broker, where: TopicPartition, offset: int) -> tuple[int, int]:
    """The offset below which records go, and that below which every live replica's are gone."""
    if where.topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{where}: its topic is internal")
    partition = broker.partition(*where)
    partition.replication.check_leader()
    log = partition.log
    if log.failure is not None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, log.failure)
    if log.config.is_compacted and not log.config.is_deleted:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"{where}: cleanup.policy is compact alone")
    if offset == TO_HIGH_WATERMARK:
        offset = log.high_watermark
    if offset < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{where}: offset {offset}")
    log.increment_log_start_offset(offset)
    return offset, broker.low_watermark(partition)
