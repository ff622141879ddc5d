"""Requests about transactions, to their coordinators and to partitions.                     [D]

    AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, Describe-, ListTransactions    the coordinator
    VerifyTransactions                                       the coordinator, for other brokers
    WriteTxnMarkers, DescribeProducers                                  the partitions held here

InitProducerId is in `producer_ids`, TxnOffsetCommit in `offset_commits`.

Source KIP-98, KIP-588 (PRODUCER_FENCED), KIP-664; apache/kafka `KafkaApis`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from kafkalite.core.cluster.internal_topics import OFFSETS_TOPIC
from kafkalite.core.handlers.parts import ENTRIES_PER_PART, Parts, joined
from kafkalite.core.handlers.producer_ids import fenced_for
from kafkalite.core.handlers.routes import handles
from kafkalite.core.handlers.slices import Answered, Answering, in_slices
from kafkalite.core.pending import Pending, after, when_all
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.peers import (
    TransactionToVerify,
    VerifiedTransaction,
    VerifyTransactionsRequest,
    VerifyTransactionsResponse,
)
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
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    TransactionState,
    TransactionTopic,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafkalite.core.transactions.admin import described, filter_of, listed, unknown_states
from kafkalite.core.transactions.coordinator import AddPartitions
from kafkalite.core.transactions.marker_queues import Errors, Marker
from kafkalite.core.transactions.partitions import NO_PARTITIONS, Partitions
from kafkalite.core.transactions.transaction import ProducerIdentity
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode, UnanswerableError

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

ENTRIES_LISTED_PER_SLICE: Final = 2_000
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
    """Adds all partitions or none: an unknown one keeps the others out."""
    if sum(len(topic.partitions) for topic in request.v3_and_below_topics) <= ENTRIES_PER_PART:
        return _add_partitions(broker, request, context)
    slices = _add_in_slices(broker, request, context)
    answer = in_slices(broker, ApiKey.ADD_PARTITIONS_TO_TXN, context, slices)
    return cast("AddPartitionsToTxnResponse | Pending[AddPartitionsToTxnResponse]", answer)


def _add_partitions(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse | Pending[AddPartitionsToTxnResponse]:
    known, unknown = _known(broker, request)
    if unknown:
        return _refused(request, unknown)
    carried = _carry_added(broker, request, known, context)
    return after(carried, lambda code: _added(request, _code(code, context)))


def _add_in_slices(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> Answering:
    """The same for a request with many partitions. Its one record is one slice."""
    path = "v3_and_below_topics.partitions"
    known = NO_PARTITIONS
    unknown: set[TopicPartition] = set()
    for part in Parts(path, path).split(request):
        found, missing = _known(broker, part)
        found.encoded()  # here, not in the slice that makes the record
        known = known.union(found)
        unknown |= missing
        yield
    answers: list[AddPartitionsToTxnResponse] = []
    code: Any = ErrorCode.NONE
    if not unknown:
        carried = _carry_added(broker, request, known, context)
        if isinstance(carried, Pending):
            pending: Pending[Any] = carried
            yield Answered(pending)
            carried = pending.response
        code = _code(carried, context)
    for part in Parts(path, path).split(request):
        yield
        answers.append(_refused(part, unknown) if unknown else _added(part, code))
    return joined(answers, ("results_by_topic_v3_and_below", "results_by_partition"))


def _known(
    broker: Broker, request: AddPartitionsToTxnRequest
) -> tuple[Partitions, set[TopicPartition]]:
    """The requested partitions: the existing ones, and the others."""
    wanted = [
        TopicPartition(topic.name, index)
        for topic in request.v3_and_below_topics
        for index in topic.partitions
    ]
    unknown = {where for where in wanted if broker.image.partition(*where) is None}
    return Partitions(where for where in wanted if where not in unknown), unknown


def _carry_added(
    broker: Broker,
    request: AddPartitionsToTxnRequest,
    partitions: Partitions,
    context: RequestContext,
) -> Any:
    transactional_id = request.v3_and_below_transactional_id
    added = AddPartitions(
        transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        partitions,
    )
    return _carry(broker, transactional_id, added, context)


def _refused(
    request: AddPartitionsToTxnRequest, unknown: Collection[TopicPartition]
) -> AddPartitionsToTxnResponse:
    """No partition is added, because some are unknown."""
    missing, untried = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    return _add_partitions_response(request, lambda where: missing if where in unknown else untried)


def _added(request: AddPartitionsToTxnRequest, code: ErrorCode) -> AddPartitionsToTxnResponse:
    return _add_partitions_response(request, lambda _: code)


def _add_partitions_response(
    request: AddPartitionsToTxnRequest, code_of: Callable[[TopicPartition], ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=tuple(
            AddPartitionsToTxnTopicResult(
                topic.name,
                tuple(
                    AddPartitionsToTxnPartitionResult(n, code_of(TopicPartition(topic.name, n)))
                    for n in topic.partitions
                ),
            )
            for topic in request.v3_and_below_topics
        )
    )


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
        Partitions((TopicPartition(OFFSETS_TOPIC, index),)),
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
) -> DescribeTransactionsResponse | Pending[DescribeTransactionsResponse]:
    """Returns the states of transactional ids, each id once."""
    slices = _describe_transactions(broker, request)
    answer = in_slices(broker, ApiKey.DESCRIBE_TRANSACTIONS, context, slices)
    return cast("DescribeTransactionsResponse | Pending[DescribeTransactionsResponse]", answer)


def _describe_transactions(broker: Broker, request: DescribeTransactionsRequest) -> Answering:
    def describe(transactional_id: str) -> tuple[TransactionState, Partitions]:
        transactions = broker.transactions
        try:
            if not transactional_id:
                raise ApiError(ErrorCode.INVALID_REQUEST, "no transactional id")
            coordinator = transactions.ready(transactions.index_of(transactional_id))
        except ApiError as error:
            return TransactionState(error.error_code, transactional_id), NO_PARTITIONS
        return described(coordinator.machine.entries, transactional_id)

    states: list[TransactionState] = []
    work = 0
    for transactional_id in dict.fromkeys(request.transactional_ids):
        state, partitions = describe(transactional_id)
        topics: list[TransactionTopic] = []
        for name, numbers in partitions.sorted_topics():
            topics.append(TransactionTopic(name, tuple(numbers)))
            work += 1 + len(numbers)
            if work >= ENTRIES_PER_PART:
                work = 0
                yield
        states.append(replace(state, topics=tuple(topics)))
        work += 1
        if work >= ENTRIES_PER_PART:
            work = 0
            yield
    return DescribeTransactionsResponse(transaction_states=tuple(states))


@handles(ApiKey.LIST_TRANSACTIONS, versions=(0, 1))
def list_transactions(
    broker: Broker, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse | Pending[ListTransactionsResponse]:
    """The transactional ids that this broker coordinates; an error while some are being loaded."""
    slices = _list_transactions(broker, request)
    answer = in_slices(broker, ApiKey.LIST_TRANSACTIONS, context, slices)
    return cast("ListTransactionsResponse | Pending[ListTransactionsResponse]", answer)


def _list_transactions(broker: Broker, request: ListTransactionsRequest) -> Answering:
    try:
        coordinators = broker.transactions.all_ready()
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.error_code)
    passes = filter_of(request, broker.wall_ms())
    found: list[ListedTransaction] = []
    work = 0
    for each in coordinators:
        for transactional_id, entry in tuple(each.machine.entries.items()):
            if passes(entry):
                found.append(listed(transactional_id, entry))
            work += 1
            if work >= ENTRIES_LISTED_PER_SLICE:
                work = 0
                yield
    return ListTransactionsResponse(
        unknown_state_filters=unknown_states(request), transaction_states=tuple(found)
    )


@handles(ApiKey.VERIFY_TRANSACTIONS, versions=(0, 0))
def verify_transactions(
    broker: Broker, request: VerifyTransactionsRequest, context: RequestContext
) -> VerifyTransactionsResponse:
    """Tells another broker whether batches that it has got may begin transactions there."""

    def verified(asked: TransactionToVerify) -> VerifiedTransaction:
        identity = ProducerIdentity(asked.producer_id, asked.producer_epoch)
        where = TopicPartition(asked.topic, asked.partition_index)
        return VerifiedTransaction(
            broker.transactions.verify(asked.transactional_id, identity, where)
        )

    return VerifyTransactionsResponse(tuple(map(verified, request.transactions)))


# ---- partitions --------------------------------------------------------------------------------


MARKERS: Final = Parts("markers.topics.partition_indexes", "markers.topics.partitions", size=100)


@handles(ApiKey.WRITE_TXN_MARKERS, (0, 1), MARKERS, at_once=100)
def write_txn_markers(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
    """Ends transactions for a coordinator, or for an operator who aborts a hanging one."""
    sender = request.sender
    if not broker.markers.admits(sender.broker_id, sender.broker_epoch, sender.number):
        words = f"broker {sender.broker_id} has given up its request {sender.number} of markers"
        raise UnanswerableError(words)
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
    partitions = Partitions(
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
        epochs = {
            TopicPartition(topic.name, index): topic.leader_epoch
            for topic in wanted.topics
            for index in topic.partition_indexes
        }
        broker.markers.write(marker, partitions, done, leader_epochs=epochs)
    return pending if pending.response is None else pending.response


@handles(ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0))
def describe_producers(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse | Pending[DescribeProducersResponse]:
    """Returns the recent producers of partitions and their open transactions, each partition
    once."""
    slices = _describe_producers(broker, request)
    answer = in_slices(broker, ApiKey.DESCRIBE_PRODUCERS, context, slices)
    return cast("DescribeProducersResponse | Pending[DescribeProducersResponse]", answer)


def _describe_producers(broker: Broker, request: DescribeProducersRequest) -> Answering:
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics: list[DescribeProducersTopicResult] = []
    work = 0
    for name, indexes in wanted.items():
        results: list[DescribeProducersPartitionResult] = []
        for index in indexes:
            work += 1
            if work >= ENTRIES_PER_PART:
                work = 0
                yield
            results.append((yield from _producers(broker, name, index)))
            work += len(results[-1].active_producers) % ENTRIES_PER_PART  # of its last slice
        topics.append(DescribeProducersTopicResult(name, tuple(results)))
    return DescribeProducersResponse(topics=tuple(topics))


def _producers(
    broker: Broker, topic: str, index: int
) -> Generator[None, None, DescribeProducersPartitionResult]:
    try:
        partition = broker.partition(topic, index)  # any replica knows them, as in Kafka
    except ApiError as error:
        return DescribeProducersPartitionResult(index, error.error_code, error.words or None)
    producers: list[ProducerState] = []
    for count, entry in enumerate(tuple(partition.log.producers.entries.values()), start=1):
        producers.append(
            ProducerState(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
        if not count % ENTRIES_PER_PART:
            yield
    return DescribeProducersPartitionResult(index, active_producers=tuple(producers))
