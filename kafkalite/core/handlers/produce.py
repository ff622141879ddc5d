"""Produce: append batches, answer when as many replicas have them as was asked.            [D]

    acks  0   no answer; an error closes the connection, so that the client learns of it
          1   answered once the leader has the batch
         -1   answered once every in-sync replica has it, or after the request's timeout

Where flush.messages asks for a flush, acks 1 waits for it too.

Versions below 3 are advertised, because librdkafka before 2.11.1 takes their absence for a broker
without compression (KAFKA-18659), and refused: their message sets are no record batches.

Source KIP-98, KIP-467 (error messages), KIP-896; apache/kafka `ReplicaManager.appendRecords`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kafkalite.core.broker.purgatory import DelayedProduce
from kafkalite.core.cluster.internal_topics import INTERNAL_TOPICS
from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.protocol.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafkalite.core.protocol.records import is_one_batch
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.replicas.replication import ACKS_ALL, ACKS_NONE
from kafkalite.core.types import NO_OFFSET, NO_TIMESTAMP, RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, RecordsRefused, UnanswerableError

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

RECORD_BATCH_V: Final = 3
ATTRIBUTES_POSITION: Final = 22  # of the low byte, in a batch
CODEC: Final = 0x07
TRANSACTIONAL: Final = 0x10
ZSTD_V: Final = 7
ADMIN_CLIENT_ID: Final = "__admin_client"  # whom Kafka lets write internal topics

# What the log refuses for what a batch says, not for its size or form: it tells where it begins.
OF_THE_BATCH: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)

Wanted = dict[TopicPartition, int]  # the high watermark that acknowledges a partition's batch


@handles(ApiKey.PRODUCE, versions=(0, 11))
def produce(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Pending[ProduceResponse] | None:
    """Appends each partition's batch by itself: one refused does not keep back the others."""
    wanted: Wanted = {}
    responses = []
    for topic in request.topic_data:
        refusal = _refusal(request, topic.name, context)
        if refusal is None:
            answers = [
                _append(broker, request, context, topic.name, data, wanted)
                for data in topic.partition_data
            ]
        else:
            answers = [_refused(data.index, refusal) for data in topic.partition_data]
        responses.append(TopicProduceResponse(topic.name, tuple(answers)))
    response = ProduceResponse(tuple(responses))
    if request.acks == ACKS_NONE:
        _raise_first_error(response)
        return None
    if not wanted:
        return response
    return _when_replicated(broker, request, response, wanted)


def _refusal(request: ProduceRequest, topic: str, context: RequestContext) -> ApiError | None:
    """Why nothing of this request may be appended to `topic`."""
    if context.api_version < RECORD_BATCH_V:
        version = f"Produce v{context.api_version} carries message sets"
        return ApiError(ErrorCode.UNSUPPORTED_VERSION, version)
    if topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
        return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is the broker's own")
    return None


def _append(
    broker: Broker,
    request: ProduceRequest,
    context: RequestContext,
    topic: str,
    data: PartitionProduceData,
    wanted: Wanted,
) -> PartitionProduceResponse:
    """One partition's batch. `wanted` notes what must still be replicated."""
    acks = request.acks
    records: Buffer | None = None
    try:
        partition = broker.partition(topic, data.index)
        records = _checked(broker, request.transactional_id, context, partition, data.records)
        appended = partition.append(records, acks, broker.wall_ms())
    except ApiError as error:
        broker.note_storage_error(error)
        if records is not None and error.error_code in OF_THE_BATCH and is_one_batch(records):
            return _refused(data.index, error, partition.log.log_start_offset)
        return _refused(data.index, error)
    if not appended.duplicate:
        broker.appended(partition, len(records))
        metrics = broker.metrics
        metrics.batches_in += 1
        metrics.bytes_in += len(records)
        metrics.records_in += appended.last_offset - appended.base_offset + 1
    must_wait = acks == ACKS_ALL or partition.log.flush_is_due
    if must_wait and partition.log.high_watermark <= appended.last_offset:
        wanted[partition.topic_partition] = appended.last_offset + 1
    return PartitionProduceResponse(
        data.index,
        ErrorCode.NONE,
        appended.base_offset,
        appended.log_append_time_ms,
        appended.log_start_offset,
    )


def _checked(
    broker: Broker,
    transactional_id: str | None,
    context: RequestContext,
    partition: Partition,
    records: object,
) -> Buffer:
    where = partition.topic_partition
    if not isinstance(records, bytes | bytearray | memoryview):
        raise ApiError(ErrorCode.INVALID_RECORD, f"{where}: no record batch")
    attributes = records[ATTRIBUTES_POSITION] if len(records) > ATTRIBUTES_POSITION else 0
    if attributes & CODEC == Compression.ZSTD and context.api_version < ZSTD_V:
        words = f"{where}: zstd in Produce v{context.api_version}, it came with v{ZSTD_V}"
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, words)
    if attributes & TRANSACTIONAL:
        if transactional_id is None:
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            raise ApiError(code, f"{where}: a transactional batch without a transactional id")
        broker.transactions.check_batch(transactional_id, partition, records)
    return records


def _refused(
    index: int, error: ApiError, log_start_offset: int = NO_OFFSET
) -> PartitionProduceResponse:
    errors = error.records if isinstance(error, RecordsRefused) else ()
    return PartitionProduceResponse(
        index,
        error.error_code,
        NO_OFFSET,
        NO_TIMESTAMP,
        log_start_offset,
        record_errors=tuple(BatchIndexAndErrorMessage(i, words) for i, words in errors),
        error_message=error.words or None,
    )


def _raise_first_error(response: ProduceResponse) -> None:
    """With acks=0 there is no other way to tell the producer that its metadata is stale."""
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code is not ErrorCode.NONE:
                where = TopicPartition(topic.name, partition.index)
                why = ApiError(partition.error_code, partition.error_message or "")
                raise UnanswerableError(f"acks=0 to {where} failed: {why}")


def _when_replicated(
    broker: Broker, request: ProduceRequest, response: ProduceResponse, wanted: Wanted
) -> Pending[ProduceResponse] | ProduceResponse:
    """Waits for the followers, or the disk; at the deadline, what is still missing timed out."""
    pending: Pending[ProduceResponse] = Pending()
    asked = dict(wanted)

    def finish() -> None:
        answer = _timed_out(response, wanted) if wanted else response
        pending.complete(_refuse_failed(broker, answer, asked))

    operation = DelayedProduce(finish, wanted)
    deadline_ms = broker.monotonic_ms() + max(0, request.timeout_ms)
    if not broker.waiting.park(operation, tuple(wanted), deadline_ms):
        return _timed_out(response, wanted)
    pending.when_abandoned(lambda: broker.waiting.forget(operation))
    return pending


def _timed_out(response: ProduceResponse, missing: Wanted) -> ProduceResponse:
    return _instead(
        response,
        {
            where: ApiError(
                ErrorCode.REQUEST_TIMED_OUT, f"{where}: not replicated to offset {offset} in time"
            )
            for where, offset in missing.items()
        },
    )


def _refuse_failed(broker: Broker, response: ProduceResponse, asked: Wanted) -> ProduceResponse:
    """A batch is not said to be stored where the log failed before it was acknowledged, or another
    broker leads by now."""
    refused = {}
    for where, offset in asked.items():
        try:
            partition = broker.partition(*where)
            if partition.log.high_watermark >= offset:
                continue
            partition.replication.check_leader()
        except ApiError as error:
            refused[where] = error
        else:
            if (failure := partition.log.failure) is not None:
                refused[where] = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, failure)
    return _instead(response, refused)


def _instead(
    response: ProduceResponse, refused: Mapping[TopicPartition, ApiError]
) -> ProduceResponse:
    """The response, with errors for some of its partitions."""

    def checked(topic: str, answer: PartitionProduceResponse) -> PartitionProduceResponse:
        error = refused.get(TopicPartition(topic, answer.index))
        return answer if error is None else _refused(answer.index, error)

    return ProduceResponse(
        tuple(
            TopicProduceResponse(
                topic.name, tuple(checked(topic.name, each) for each in topic.partition_responses)
            )
            for topic in response.responses
        )
    )
