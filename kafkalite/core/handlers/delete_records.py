"""DeleteRecords: gives up the records below an offset, for good.                           [P]

The new log start offset is durable before the answer; requests that come together share a write.
Retention removes whole segments below it at its next run.

Source KIP-107; apache/kafka `ReplicaManager.deleteRecords`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from kafkalite.core.cluster.internal_topics import INTERNAL_TOPICS
from kafkalite.core.handlers.routes import handles
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


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2))
def delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
    """Where each log starts now. Of a partition named twice the last offset counts."""
    wanted = {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in request.topics
        for partition in topic.partitions
    }
    starts: dict[TopicPartition, int] = {}
    codes: dict[TopicPartition, ErrorCode] = {}
    for where, offset in wanted.items():
        try:
            starts[where] = _delete_one(broker, where, offset)
        except ApiError as error:
            codes[where] = error.error_code
    if not starts:
        return _response(wanted, starts, codes)
    pending: Pending[DeleteRecordsResponse] = Pending()

    def written(error: StorageError | None) -> None:
        if error is not None:
            broker.note(str(error))
            codes.update(dict.fromkeys(starts, ErrorCode.KAFKA_STORAGE_ERROR))
        pending.complete(_response(wanted, starts, codes))

    broker.log_starts.ask(written)
    return pending


def _response(
    wanted: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, int],
    codes: Mapping[TopicPartition, ErrorCode],
) -> DeleteRecordsResponse:
    results: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for where in wanted:
        code = codes.get(where, ErrorCode.NONE)
        start = NO_LOW_WATERMARK if code else starts[where]
        result = DeleteRecordsPartitionResult(where.partition, start, code)
        results.setdefault(where.topic, []).append(result)
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(name, tuple(partitions))
            for name, partitions in results.items()
        )
    )


def _delete_one(broker: Broker, where: TopicPartition, offset: int) -> int:
    """Where the log starts then."""
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
    return log.log_start_offset
