"""Produce: append batches, answer when as many replicas have them as `acks` asks.          [D]

    acks  0   no answer; an error closes the connection, so that the client learns of it
          1   answered once the leader has the batch
         -1   answered once every in-sync replica has it, or after the request's timeout

Batches are checked and appended one after the other, in slices. A batch whose records are more than
BYTES_AT_ONCE, decompressed, is checked in a thread; the batches behind it wait, and so do the next
requests of its connection. All batches of a request may decompress to DECOMPRESSED_RATIO_MAX times
max.message.bytes, and no less than 128 MiB: what is beyond is MESSAGE_TOO_LARGE, upon which Java
clients split the batch. A partition that is named twice is refused (INVALID_REQUEST); Apache Kafka
appends the last batch that names it and answers nothing of the others.

Where flush.messages asks for a flush, acks 1 waits for it too. A wait is for records of one leader
epoch: when it ends, the answer is NOT_LEADER_OR_FOLLOWER, whatever is at their offsets later. Too
few replicas in sync are NOT_ENOUGH_REPLICAS before an append, and NOT_ENOUGH_REPLICAS_AFTER_APPEND
where they became too few before it was committed. A batch that misses one which was refused for now
is refused likewise (broker/refused_batches.py).

Versions below 3 are advertised, because librdkafka before 2.11.1 takes their absence for a broker
without compression (KAFKA-18659), and refused: their message sets are no record batches.

Source KIP-98, KIP-467 (error messages), KIP-896; apache/kafka `ReplicaManager.appendRecords`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from kafkalite.core.broker.purgatory import DelayedProduce
from kafkalite.core.cluster.internal_topics import INTERNAL_TOPICS
from kafkalite.core.handlers.routes import ENTRIES_AT_ONCE, handles
from kafkalite.core.handlers.slices import Answered, Answering, in_slices
from kafkalite.core.log.validation import Validated, validated
from kafkalite.core.log.values import Appended, MemoryRecords
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.compiler import LARGE_RECORDS_BYTES
from kafkalite.core.protocol.compression import DECOMPRESSED_BYTES_MAX, Compression
from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.protocol.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafkalite.core.protocol.records import Allowance, is_one_batch
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.replicas.replication import ACKS_ALL, ACKS_NONE
from kafkalite.core.transactions.verification import Verification
from kafkalite.core.types import NO_OFFSET, NO_TIMESTAMP, RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, RecordsRefused, RecordsTooLarge, UnanswerableError

if TYPE_CHECKING:
    from asyncio import Future

    from kafkalite.core.broker.broker import Broker

RECORD_BATCH_V: Final = 3
ATTRIBUTES_POSITION: Final = 22  # of the low byte, in a batch
CODEC: Final = 0x07
TRANSACTIONAL: Final = 0x10
FRESH_BYTES_MAX: Final = LARGE_RECORDS_BYTES  # of a batch that readers are given from memory
ZSTD_V: Final = 7
ADMIN_CLIENT_ID: Final = "__admin_client"  # Kafka lets it write to internal topics

# Errors caused by a batch's content. The response then names the log start offset.
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

WORK_PER_SLICE: Final = 1 << 20  # in bytes: some 2 ms
WORK_OF_BATCH: Final = 1 << 13  # whatever its size
SLICE_MS: Final = 4  # after which a slice ends, however little was done
BYTES_AT_ONCE: Final = 1 << 20  # of a batch, decompressed; larger ones are checked in a thread
DECOMPRESSED_RATIO_MAX: Final = 128  # max.message.bytes that a request's batches decompress to
RECORD_ERRORS_MAX: Final = 100  # refused records that one answer names


class Awaited(NamedTuple):
    """What acknowledges a partition's batch."""

    partition: Partition
    high_watermark: int
    leader_epoch: int  # of the append


Wanted = dict[TopicPartition, Awaited]


@handles(ApiKey.PRODUCE, versions=(0, 11))
def produce(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Pending[ProduceResponse] | None:
    """Appends the batch of each partition separately: a refusal does not affect the others."""
    topics = request.topic_data
    production = _Production(broker, request, context)
    if len(topics) == 1 and len(topics[0].partition_data) == 1:
        topic, data = topics[0].name, topics[0].partition_data[0]
        answer = _append(production, topic, data, _refusal(request, topic, context))
        if answer is not None:  # as nearly always: no slices are needed
            return _response(production, (TopicProduceResponse(topic, (answer,)),))
        slices = _one_aside(production, topic, data)
    else:
        production.repeated = _repeated(request)
        slices = _slices(production)
    is_large = len(topics) > ENTRIES_AT_ONCE
    answered = in_slices(
        broker, ApiKey.PRODUCE, context, slices, keeps_peer=True, is_large=is_large
    )
    return cast("ProduceResponse | Pending[ProduceResponse] | None", answered)


class _Production:
    """A request on its way into the logs, and its costs so far."""

    __slots__ = (
        "asked",
        "broker",
        "context",
        "decompressed_bytes",
        "record_errors",
        "repeated",
        "request",
        "slice_began_ms",
        "wanted",
        "work",
    )

    def __init__(self, broker: Broker, request: ProduceRequest, context: RequestContext) -> None:
        self.broker = broker
        self.request = request
        self.context = context
        self.wanted: Wanted = {}  # what must still be replicated
        self.asked: dict[TopicPartition, Verification] = {}  # of coordinators elsewhere
        self.repeated: Collection[tuple[str, int]] = ()  # partitions that are named more than once
        self.work = 0  # of this slice, in bytes that are checked and written
        self.slice_began_ms: int | None = None  # None before its second batch
        self.decompressed_bytes = 0  # of all batches
        self.record_errors = RECORD_ERRORS_MAX  # that the answer has still room for

    def is_slice_over(self) -> bool:
        """Whether the next batch begins another slice. The time counts, too: the system may take
        milliseconds to make a file or to find room for a batch."""
        now_ms = self.broker.monotonic_ms()
        if self.slice_began_ms is None:
            self.slice_began_ms = now_ms
        if self.work < WORK_PER_SLICE and now_ms - self.slice_began_ms < SLICE_MS:
            return False
        self.work, self.slice_began_ms = 0, None
        return True


def _repeated(request: ProduceRequest) -> Collection[tuple[str, int]]:
    """The partitions that the request names more than once."""
    topics = request.topic_data
    named = Counter((topic.name, data.index) for topic in topics for data in topic.partition_data)
    return {where for where, times in named.items() if times > 1}


def _slices(production: _Production) -> Answering:
    """Appends the batches one after the other, so that each partition keeps their order."""
    responses = []
    for topic in production.request.topic_data:
        refusal = _refusal(production.request, topic.name, production.context)
        answers = []
        for data in topic.partition_data:
            if production.work and production.is_slice_over():
                yield
            production.work += WORK_OF_BATCH
            answer = _append(production, topic.name, data, refusal)
            if answer is None:
                answer = yield from _append_aside(production, topic.name, data)
            answers.append(answer)
        responses.append(TopicProduceResponse(topic.name, tuple(answers)))
    return _response(production, tuple(responses))


def _one_aside(production: _Production, topic: str, data: PartitionProduceData) -> Answering:
    """The same of a request with one batch, which `_append` has found to be too large."""
    answer = yield from _append_aside(production, topic, data)
    return _response(production, (TopicProduceResponse(topic, (answer,)),))


def _response(
    production: _Production, responses: tuple[TopicProduceResponse, ...]
) -> ProduceResponse | Pending[ProduceResponse] | None:
    """The response to the producer, once the batches are replicated or at once."""
    request, response = production.request, ProduceResponse(responses)
    if request.acks == ACKS_NONE:
        _raise_first_error(response)
        return None
    if not production.wanted:
        return response
    return _when_replicated(production.broker, request, response, production.wanted)


def _refusal(request: ProduceRequest, topic: str, context: RequestContext) -> ApiError | None:
    """Why nothing of this request may be appended to `topic`."""
    if context.api_version < RECORD_BATCH_V:
        version = f"Produce v{context.api_version} carries message sets"
        return ApiError(ErrorCode.UNSUPPORTED_VERSION, version)
    if topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
        return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is the broker's own")
    return None


def _append(
    production: _Production, topic: str, data: PartitionProduceData, refusal: ApiError | None
) -> PartitionProduceResponse | None:
    """One partition's batch, checked and appended at once. None, and nothing is done: checking it
    takes too long for that, or has begun with a question to another broker."""
    broker, acks = production.broker, production.request.acks
    if refusal is not None:
        return _refused(data.index, refusal)
    partition = records = None
    try:
        partition = broker.partition(topic, data.index)
        records = _checked(production, partition, data.records)
        if records is None or len(records) > BYTES_AT_ONCE:
            return None
        now_ms = broker.wall_ms()
        production.work += len(records)
        if len(records) > ATTRIBUTES_POSITION and records[ATTRIBUTES_POSITION] & CODEC:
            checked = _decompressed(production, partition, records, now_ms)
        else:
            checked = partition.validated(records, acks, now_ms)
        check_earlier(broker, partition, checked)
        appended = partition.append_validated(checked, now_ms)
    except RecordsTooLarge:
        return None
    except ApiError as error:
        return _not_appended(production, topic, data, error, partition, records)
    return _appended(production, partition, data, checked, appended)


def _append_aside(
    production: _Production, topic: str, data: PartitionProduceData
) -> Generator[Any, None, PartitionProduceResponse]:
    """The same of a batch that another broker is asked about, or of a large one, which a thread
    checks. It may have passed some checks."""
    broker, acks = production.broker, production.request.acks
    asked = production.asked.get(TopicPartition(topic, data.index))
    if asked is not None:
        yield Answered(asked.answer)
        answer = _append(production, topic, data, None)
        if answer is not None:
            return answer
    partition = records = None
    try:
        partition = broker.partition(topic, data.index)
        records = _checked(production, partition, data.records)
        assert records is not None, f"{partition.topic_partition}: nobody was asked"
        checked = yield from _validated_aside(production, partition, records)
        partition = broker.partition(topic, data.index)  # which may have changed meanwhile
        _checked(production, partition, records)
        check_earlier(broker, partition, checked)
        appended = partition.append(checked, acks, broker.wall_ms())
    except ApiError as error:
        return _not_appended(production, topic, data, error, partition, records)
    return _appended(production, partition, data, checked, appended)


def _not_appended(
    production: _Production,
    topic: str,
    data: PartitionProduceData,
    error: ApiError,
    partition: Partition | None,
    records: Buffer | None,
) -> PartitionProduceResponse:
    """The response for a refused batch."""
    broker, start = production.broker, NO_OFFSET
    broker.note_storage_error(error)
    if isinstance(data.records, bytes | bytearray | memoryview):
        where = TopicPartition(topic, data.index)
        producers, led_from = None, NO_OFFSET
        if partition is not None:
            producers, led_from = partition.log.producers, partition.replication.led_from
        error = broker.refused_batches.answer(
            where, data.records, error, producers, broker.monotonic_ms(), led_from
        )
    if partition is not None and records is not None and error.error_code in OF_THE_BATCH:
        start = partition.log.log_start_offset if is_one_batch(records) else NO_OFFSET
    answer = _refused(data.index, error, start, production.record_errors)
    production.record_errors -= len(answer.record_errors)
    return answer


def check_earlier(broker: Broker, partition: Partition, checked: Validated) -> None:
    """ApiError where an earlier batch of its producer was refused and has to come first."""
    header, producers = checked.header, partition.log.producers
    if broker.refused_batches.must_check(header, producers):
        where, since_ms = partition.topic_partition, partition.replication.led_since_ms
        broker.refused_batches.check(where, header, producers, broker.monotonic_ms(), since_ms)


def aside(
    broker: Broker, request: ProduceRequest, context: RequestContext
) -> Pending[ProduceResponse]:
    """Appends the one batch of a request that takes too long to check at once."""
    ((topic,), production) = request.topic_data, _Production(broker, request, context)
    slices = _one_aside(production, topic.name, topic.partition_data[0])
    answered = in_slices(broker, ApiKey.PRODUCE, context, slices, keeps_peer=True, is_large=False)
    return cast("Pending[ProduceResponse]", answered)


def not_appended(
    broker: Broker, partition: Partition, records: Buffer, error: ApiError
) -> ProduceResponse:
    """The response for a single batch that is refused."""
    topic, index = partition.topic_partition
    production = _Production(broker, ProduceRequest(), RequestContext(RECORD_BATCH_V))
    data = PartitionProduceData(index, records)
    answer = _not_appended(production, topic, data, error, partition, records)
    return ProduceResponse((TopicProduceResponse(topic, (answer,)),))


def unacknowledged(partition: Partition, error: ApiError) -> ProduceResponse:
    """The response for a single batch that is in the log, but not called safe."""
    topic, index = partition.topic_partition
    return ProduceResponse((TopicProduceResponse(topic, (_refused(index, error),)),))


def _appended(
    production: _Production,
    partition: Partition,
    data: PartitionProduceData,
    checked: Validated,
    appended: Appended,
) -> PartitionProduceResponse:
    """Wakes readers after an append. Returns the producer's answer."""
    broker, last_offset = production.broker, appended.last_offset
    if not appended.duplicate:
        fresh, size = None, len(cast(Buffer, data.records))
        has_readers = partition.watchers or partition.followers
        if has_readers and len(checked.records) < FRESH_BYTES_MAX:
            fresh = MemoryRecords(checked.records, appended.base_offset, last_offset + 1)
        broker.appended(partition, size, fresh)
        record_count = last_offset - appended.base_offset + 1
        broker.metrics.appended(partition.topic_partition.topic, record_count, size)
    log = partition.log
    if log.high_watermark <= last_offset and (
        production.request.acks == ACKS_ALL or log.flush_is_due
    ):
        production.wanted[partition.topic_partition] = Awaited(
            partition, last_offset + 1, partition.replication.leader_epoch
        )
    return PartitionProduceResponse(
        data.index,
        ErrorCode.NONE,
        appended.base_offset,
        appended.log_append_time_ms,
        appended.log_start_offset,
    )


def _checked(production: _Production, partition: Partition, records: object) -> Buffer | None:
    """The batch, if its partition may be given it now. ApiError. None: another broker has just been
    asked, whose answer is to be waited for."""
    where, context = partition.topic_partition, production.context
    if where in production.repeated:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{where} is in the request more than once")
    if not isinstance(records, bytes | bytearray | memoryview):
        raise ApiError(ErrorCode.INVALID_RECORD, f"{where}: no record batch")
    attributes = records[ATTRIBUTES_POSITION] if len(records) > ATTRIBUTES_POSITION else 0
    if attributes & CODEC == Compression.ZSTD and context.api_version < ZSTD_V:
        words = f"{where}: zstd in Produce v{context.api_version}, it came with v{ZSTD_V}"
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, words)
    if attributes & TRANSACTIONAL:
        transactional_id = production.request.transactional_id
        if transactional_id is None:
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            raise ApiError(code, f"{where}: a transactional batch without a transactional id")
        transactions = production.broker.transactions
        if (asked := production.asked.get(where)) is not None:
            asked.check(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif asked := transactions.ask_about_batch(transactional_id, partition, records):
            production.asked[where] = asked
            return None
        else:
            transactions.check_batch(transactional_id, partition, records)
    return records


def _decompressed(
    production: _Production, partition: Partition, records: Buffer, now_ms: int
) -> Validated:
    """A compressed batch as it will be stored. ApiError; RecordsTooLarge where checking it takes
    too long for one slice, as only decompressing it shows."""
    allowed = min(BYTES_AT_ONCE, _bytes_left(production, partition))
    allowance = Allowance(allowed)
    try:
        checked = partition.validated(records, production.request.acks, now_ms, allowance)
    finally:
        production.work += allowed - allowance.bytes_left
    production.decompressed_bytes += allowed - allowance.bytes_left
    return checked


def _validated_aside(
    production: _Production, partition: Partition, records: Buffer
) -> Generator[Any, None, Validated]:
    """The same in a thread, within what the request may still decompress to."""
    allowed = _bytes_left(production, partition)
    allowance = Allowance(allowed)
    where, config, now_ms = (
        partition.topic_partition,
        partition.log.config,
        production.broker.wall_ms(),
    )
    checking: Future[Validated] = production.broker.compute(
        lambda: validated(records, config, where, now_ms, True, allowance=allowance, scratch=None)
    )
    try:
        yield checking
        return checking.result()
    except RecordsTooLarge as error:
        if allowed >= DECOMPRESSED_BYTES_MAX:
            raise
        words = f"{error.words}; a request may decompress to {_bytes_max(partition)}"
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, words) from error
    finally:
        production.decompressed_bytes += allowed - allowance.bytes_left


def _bytes_max(partition: Partition) -> int:
    """The limit for a request's decompressed batches, the last of which is for `partition`."""
    of_topic = DECOMPRESSED_RATIO_MAX * partition.log.config.max_message_bytes
    return max(DECOMPRESSED_BYTES_MAX, of_topic)


def _bytes_left(production: _Production, partition: Partition) -> int:
    return max(0, _bytes_max(partition) - production.decompressed_bytes)


def _refused(
    index: int,
    error: ApiError,
    log_start_offset: int = NO_OFFSET,
    record_errors_max: int = 0,
) -> PartitionProduceResponse:
    errors = error.records[:record_errors_max] if isinstance(error, RecordsRefused) else ()
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
    """Waits for the followers, or the disk; at the deadline, missing partitions time out."""
    pending: Pending[ProduceResponse] = Pending(is_only_waiting=True)
    refused: dict[TopicPartition, ApiError] = {}
    is_all = request.acks == ACKS_ALL  # what waits must not hold the request's records

    def acknowledges(where: TopicPartition) -> bool:
        awaited = wanted[where]
        error = None
        if is_all:
            error = awaited.partition.why_unsafe(awaited.leader_epoch)
        if error is not None:
            refused[where] = error
        return error is None

    missing = {where: awaited.high_watermark for where, awaited in wanted.items()}
    operation = DelayedProduce(lambda: finish(), missing, acknowledges)

    def finish() -> None:
        for where in operation.lost:
            refused.setdefault(where, why_lost(broker, wanted[where]))
        for where in operation.offsets_wanted:
            refused[where] = too_late(wanted[where])
        pending.complete(_instead(response, refused))

    for where, awaited in wanted.items():  # some may have come while others were appended
        if awaited.leader_epoch != awaited.partition.replication.leader_epoch:
            operation.lose(where)
        else:
            operation.advance(where, awaited.partition.log.high_watermark, 0)
    deadline_ms = broker.monotonic_ms() + max(0, request.timeout_ms)
    left = tuple(missing)
    if not left or not broker.waiting.park(operation, left, deadline_ms):
        finish()
        return pending
    pending.when_abandoned(lambda: broker.waiting.forget(operation))
    return pending


def too_late(awaited: Awaited) -> ApiError:
    """A batch whose replicas took too long may still be replicated."""
    where, offset = awaited.partition.topic_partition, awaited.high_watermark
    words = f"{where}: not replicated to offset {offset} in time"
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, words)


def why_lost(broker: Broker, awaited: Awaited) -> ApiError:
    """A batch is not said to be stored where the log failed before it was acknowledged, or another
    broker leads by now, or this one in another epoch."""
    where = awaited.partition.topic_partition
    try:
        partition = broker.partition(*where)
        partition.replication.check_led_in(awaited.leader_epoch)
    except ApiError as error:
        return error
    failure = partition.log.failure
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if failure is None else ErrorCode.KAFKA_STORAGE_ERROR
    return ApiError(code, failure or f"{where}: is another one by now")


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
