"""All requests about transactions but InitProducerId: to coordinators, groups, partitions.  [P]

    AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, Describe-, ListTransactions    the coordinator
    TxnOffsetCommit                                        the group's coordinator, once the
                                                           transaction's has confirmed its part
    WriteTxnMarkers, DescribeProducers                     the partitions held here

Source KIP-98, KIP-447, KIP-588 (PRODUCER_FENCED), KIP-664, KIP-890 (verification); apache/kafka
       `KafkaApis`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.handlers.producer_ids import fenced_for
from kafkalite.core.handlers.routes import handles
from kafkalite.core.internal_topics import OFFSETS_TOPIC
from kafkalite.core.pending import Pending, when_all
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    DescribeProducersPartitionResult,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResult,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    TransactionState,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafkalite.core.transaction_admin import described, listed, unknown_states
from kafkalite.core.transaction_coordinator import AddPartitions
from kafkalite.core.transaction_markers import Errors, Marker
from kafkalite.core.transactions import ProducerIdentity
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker import Broker

FENCED_V: Final = 2  # of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn
LOADING_V: Final = 2  # of TxnOffsetCommit
LOADING: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# ---- the transaction's coordinator -------------------------------------------------------------


def _carry(
    broker: Broker, transactional_id: str, request: Any, context: RequestContext
) -> Any | ApiError:
    """The coordinator's answer, or why it cannot be asked."""
    if not transactional_id:
        return ApiError(ErrorCode.INVALID_REQUEST, "a transactional id has a character or more")
    transactions = broker.transactions
    try:
        return transactions.handle(transactions.index_of(transactional_id), request, context)
    except ApiError as error:
        return error


def _code(answer: ErrorCode | ApiError, context: RequestContext) -> ErrorCode:
    code = answer.error_code if isinstance(answer, ApiError) else answer
    return fenced_for(code, context, since=FENCED_V)


@handles(ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 3))
def add_partitions_to_txn(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse | Pending[AddPartitionsToTxnResponse]:
    """All partitions or none: one that does not exist keeps the others out."""
    wanted = frozenset(
        TopicPartition(topic.name, index)
        for topic in request.v3_and_below_topics
        for index in topic.partitions
    )
    unknown = {where for where in wanted if broker.image.partition(*where) is None}

    def answer(codes: dict[TopicPartition, ErrorCode]) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=tuple(
                AddPartitionsToTxnTopicResult(
                    topic.name,
                    tuple(
                        AddPartitionsToTxnPartitionResult(n, codes[TopicPartition(topic.name, n)])
                        for n in topic.partitions
                    ),
                )
                for topic in request.v3_and_below_topics
            )
        )

    if unknown:
        codes = dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED)
        codes |= dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return answer(codes)
    transactional_id = request.v3_and_below_transactional_id
    added = AddPartitions(
        transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        wanted,
    )
    carried = _carry(broker, transactional_id, added, context)
    return when_all(
        [carried], lambda answers: answer(dict.fromkeys(wanted, _code(answers[0], context)))
    )


@handles(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 3))
def add_offsets_to_txn(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse | Pending[AddOffsetsToTxnResponse]:
    """Makes the partition that keeps the group's offsets a part of the transaction."""
    if broker.groups.exists:
        return _add_offsets(broker, request, context)
    # Java's producer asks this before anybody has asked for the group's coordinator.
    pending: Pending[AddOffsetsToTxnResponse] = Pending()

    def made(_: object) -> None:
        answer = _add_offsets(broker, request, context)
        if isinstance(answer, Pending):
            answer.when_done(pending.complete)
        else:
            pending.complete(answer)

    broker.create_topics((OFFSETS_TOPIC,)).when_done(made)
    return pending


def _add_offsets(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse | Pending[AddOffsetsToTxnResponse]:
    try:
        index = broker.groups.index_of(request.group_id)
    except ApiError:  # the topic could not be made
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    added = AddPartitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        frozenset({TopicPartition(OFFSETS_TOPIC, index)}),
    )
    carried = _carry(broker, request.transactional_id, added, context)
    return when_all(
        [carried],
        lambda answers: AddOffsetsToTxnResponse(error_code=_code(answers[0], context)),
    )


@handles(ApiKey.END_TXN, versions=(0, 3))
def end_txn(
    broker: Broker, request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse | Pending[EndTxnResponse]:
    """Answered when the end is decided; the markers follow."""

    def checked(answers: list[EndTxnResponse | ApiError]) -> EndTxnResponse:
        return EndTxnResponse(error_code=_code(answers[0].error_code, context))

    return when_all([_carry(broker, request.transactional_id, request, context)], checked)


@handles(ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0))
def describe_transactions(
    broker: Broker, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    """How transactional ids stand, each told once."""

    def describe(transactional_id: str) -> TransactionState:
        transactions = broker.transactions
        try:
            if not transactional_id:
                raise ApiError(ErrorCode.INVALID_REQUEST, "no transactional id")
            coordinator = transactions.ready(transactions.index_of(transactional_id))
        except ApiError as error:
            return TransactionState(error.error_code, transactional_id)
        return described(coordinator.machine.entries, transactional_id)

    return DescribeTransactionsResponse(
        transaction_states=tuple(map(describe, dict.fromkeys(request.transactional_ids)))
    )


@handles(ApiKey.LIST_TRANSACTIONS, versions=(0, 1))
def list_transactions(
    broker: Broker, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    """The transactional ids that this broker coordinates; an error while some are being loaded."""
    found: list[Any] = []
    transactions = broker.transactions
    for index in transactions.led_here():
        try:
            entries = transactions.ready(index).machine.entries
        except ApiError as error:
            return ListTransactionsResponse(error_code=error.error_code)
        found.extend(listed(entries, request, broker.now_ms()))
    return ListTransactionsResponse(
        unknown_state_filters=unknown_states(request), transaction_states=tuple(found)
    )


# ---- the group's coordinator -------------------------------------------------------------------


@handles(ApiKey.TXN_OFFSET_COMMIT, versions=(0, 3))
def txn_offset_commit(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
    """Answered when the offsets are durable; they count once the transaction is committed."""
    unknown = {
        TopicPartition(topic.name, p.partition_index)
        for topic in request.topics
        for p in topic.partitions
        if broker.image.partition(topic.name, p.partition_index) is None
    }
    topics = (
        replace(
            topic,
            partitions=tuple(
                p
                for p in topic.partitions
                if TopicPartition(topic.name, p.partition_index) not in unknown
            ),
        )
        for topic in request.topics
    )
    known = tuple(topic for topic in topics if topic.partitions)
    codes = dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def complete(answers: list[TxnOffsetCommitResponse]) -> TxnOffsetCommitResponse:
        for topic in answers[0].topics:
            for p in topic.partitions:
                codes[TopicPartition(topic.name, p.partition_index)] = p.error_code
        return _offsets_answer(request, codes, context)

    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    try:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "no group id")
        index = broker.groups.index_of(request.group_id)
        partition = broker.partition(OFFSETS_TOPIC, index)
        broker.transactions.check(request.transactional_id, identity, partition, LOADING)
        answer = broker.groups.handle(index, replace(request, topics=known), context)
    except ApiError as error:
        for topic in known:
            for p in topic.partitions:
                codes[TopicPartition(topic.name, p.partition_index)] = error.error_code
        return _offsets_answer(request, codes, context)
    return when_all([answer], complete)


def _offsets_answer(
    request: TxnOffsetCommitRequest,
    codes: dict[TopicPartition, ErrorCode],
    context: RequestContext,
) -> TxnOffsetCommitResponse:
    def code_of(topic: str, index: int) -> ErrorCode:
        code = codes[TopicPartition(topic, index)]
        is_old = context.api_version < LOADING_V  # and would not try again
        if is_old and code is LOADING:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return code

    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                topic.name,
                tuple(
                    TxnOffsetCommitResponsePartition(
                        p.partition_index, code_of(topic.name, p.partition_index)
                    )
                    for p in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


# ---- partitions --------------------------------------------------------------------------------


@handles(ApiKey.WRITE_TXN_MARKERS, versions=(0, 1))
def write_txn_markers(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
    """Ends transactions as a coordinator says, or an operator who aborts one that hangs."""
    answers = [_write_marker(broker, marker) for marker in request.markers]
    return when_all(answers, lambda results: WriteTxnMarkersResponse(markers=tuple(results)))


def _write_marker(
    broker: Broker, wanted: WritableTxnMarker
) -> WritableTxnMarkerResult | Pending[WritableTxnMarkerResult]:
    marker = Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.transaction_result,
        wanted.coordinator_epoch,
    )
    partitions = frozenset(
        TopicPartition(topic.name, index)
        for topic in wanted.topics
        for index in topic.partition_indexes
    )
    pending: Pending[WritableTxnMarkerResult] = Pending()

    def done(errors: Errors) -> None:
        topics = tuple(
            WritableTxnMarkerTopicResult(
                topic.name,
                tuple(
                    WritableTxnMarkerPartitionResult(n, errors[TopicPartition(topic.name, n)])
                    for n in topic.partition_indexes
                ),
            )
            for topic in wanted.topics
        )
        pending.complete(WritableTxnMarkerResult(wanted.producer_id, topics))

    if marker.producer_id < 0 or marker.producer_epoch < 0:
        done(dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST))
    else:
        broker.markers.write(marker, partitions, done)
    return pending if pending.response is None else pending.response


@handles(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0))
def describe_producers(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    """Who has written to partitions lately, and who has a transaction open in them; each partition
    is told once."""
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=tuple(
            DescribeProducersTopicResult(name, tuple(_producers(broker, name, indexes)))
            for name, indexes in wanted.items()
        )
    )


def _producers(
    broker: Broker, topic: str, indexes: Iterable[int]
) -> Iterable[DescribeProducersPartitionResult]:
    for index in indexes:
        try:
            partition = broker.partition(topic, index)
            partition.replication.check_leader()
        except ApiError as error:
            yield DescribeProducersPartitionResult(index, error.error_code, str(error))
            continue
        producers = tuple(
            ProducerState(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
            for entry in partition.log.producers.entries.values()
        )
        yield DescribeProducersPartitionResult(index, active_producers=producers)
