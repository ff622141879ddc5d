"""Requests about transactions, to their coordinators and to partitions.                     [D]

    AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, Describe-, ListTransactions    the coordinator
    WriteTxnMarkers, DescribeProducers                                  the partitions held here

InitProducerId is in `producer_ids`, TxnOffsetCommit in `offset_commits`.

Source KIP-98, KIP-588 (PRODUCER_FENCED), KIP-664; apache/kafka `KafkaApis`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.cluster.internal_topics import OFFSETS_TOPIC
from kafkalite.core.handlers.producer_ids import fenced_for
from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import Pending, after, when_all
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
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafkalite.core.transactions.admin import described, listed, unknown_states
from kafkalite.core.transactions.coordinator import AddPartitions
from kafkalite.core.transactions.markers import Errors, Marker
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

FENCED_V: Final = 2  # of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn


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
    return after(carried, lambda code: answer(dict.fromkeys(wanted, _code(code, context))))


@handles(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 3))
def add_offsets_to_txn(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse | Pending[AddOffsetsToTxnResponse]:
    """Makes the partition that keeps the group's offsets a part of the transaction."""
    if broker.groups.exists:
        return _add_offsets(broker, request, context)
    # Java's producer asks this before anybody has asked for the group's coordinator.
    made = broker.create_topics((OFFSETS_TOPIC,))
    return after(made, lambda _: _add_offsets(broker, request, context))


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
    return after(carried, lambda code: AddOffsetsToTxnResponse(error_code=_code(code, context)))


@handles(ApiKey.END_TXN, versions=(0, 3))
def end_txn(
    broker: Broker, request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse | Pending[EndTxnResponse]:
    """Answered when the end is decided; the markers follow."""
    carried = _carry(broker, request.transactional_id, request, context)
    return after(
        carried, lambda answer: EndTxnResponse(error_code=_code(answer.error_code, context))
    )


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
    try:
        coordinators = broker.transactions.all_ready()
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.error_code)
    now_ms = broker.wall_ms()
    found = [e for each in coordinators for e in listed(each.machine.entries, request, now_ms)]
    return ListTransactionsResponse(
        unknown_state_filters=unknown_states(request), transaction_states=tuple(found)
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
            yield DescribeProducersPartitionResult(index, error.error_code, error.words or None)
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
