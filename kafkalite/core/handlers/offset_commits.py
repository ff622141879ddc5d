"""OffsetCommit and TxnOffsetCommit: carried to the group's coordinator.                     [P]

The coordinator commits for the partitions that exist. For the others nothing is committed, and the
answer has UNKNOWN_TOPIC_OR_PARTITION.

Source KIP-98, KIP-447 (TxnOffsetCommit), KIP-890 (verification); apache/kafka `KafkaApis`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.handlers.group_errors import refuse
from kafkalite.core.handlers.parts import Parts
from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import after
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.offsets import OffsetCommitRequest
from kafkalite.core.protocol.transactions import TxnOffsetCommitRequest
from kafkalite.core.transactions.transaction import ProducerIdentity
from kafkalite.core.transactions.verification import Verification
from kafkalite.core.types import RequestContext, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

OFFSETS_AT_ONCE: Final = 100  # each takes some 50 us, as a record
OFFSETS_PER_PART: Final = 50  # of a request with more
OFFSETS: Final = Parts("topics.partitions", "topics.partitions", OFFSETS_PER_PART)
LOADING_V: Final = 2  # of TxnOffsetCommit
LOADING: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@handles(ApiKey.OFFSET_COMMIT, (1, 9), OFFSETS, at_once=OFFSETS_AT_ONCE)
def offset_commit(broker: Broker, request: OffsetCommitRequest, context: RequestContext) -> Any:
    """Answered when the offsets are durable. Partitions that do not exist are not committed."""
    known = known_partitions(request, broker.image)
    try:
        index = broker.groups.index_of(request.group_id)
        answer = broker.groups.handle(index, known, context)
    except ApiError as error:
        answer = refuse(known, error.error_code)
    if known is request:
        return answer
    return after(answer, partial(_completed, request))


@handles(ApiKey.TXN_OFFSET_COMMIT, (0, 3), OFFSETS, at_once=OFFSETS_AT_ONCE)
def txn_offset_commit(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> Any:
    """Answered when the offsets are durable; they count once the transaction is committed."""
    known = known_partitions(request, broker.image)
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    transactional_id, transactions = request.transactional_id, broker.transactions

    def commit(asked: Verification | None) -> Any:
        try:
            if asked is not None:
                asked.check(LOADING)
            else:
                transactions.check(transactional_id, identity, partition, LOADING)
            return broker.groups.handle(index, known, context)
        except ApiError as error:
            return _refused_in_transaction(known, error.error_code, context)

    try:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "no group id")
        index = broker.groups.index_of(request.group_id)
        partition = broker.groups.ready(index).partition
        asked = transactions.ask(transactional_id, identity, partition)
    except ApiError as error:
        answer = _refused_in_transaction(known, error.error_code, context)
    else:
        answer = commit(None) if asked is None else after(asked.answer, lambda _: commit(asked))
    return after(answer, partial(_completed, request))


def _refused_in_transaction(
    request: TxnOffsetCommitRequest, code: ErrorCode, context: RequestContext
) -> Any:
    is_old = context.api_version < LOADING_V  # and would not try again
    if is_old and code is LOADING:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return refuse(request, code)


def known_partitions(request: Any, image: ClusterImage) -> Any:
    """The request without the partitions that do not exist; itself, if all of them do."""
    if all(
        image.partition(topic.name, p.partition_index) is not None
        for topic in request.topics
        for p in topic.partitions
    ):
        return request
    topics = (
        replace(
            topic,
            partitions=tuple(
                p
                for p in topic.partitions
                if image.partition(topic.name, p.partition_index) is not None
            ),
        )
        for topic in request.topics
    )
    return replace(request, topics=tuple(topic for topic in topics if topic.partitions))


def _completed(request: Any, response: Any) -> Any:
    """The coordinator's answer, completed by the partitions that it was not asked about."""
    codes = {
        TopicPartition(topic.name, p.partition_index): p.error_code
        for topic in response.topics
        for p in topic.partitions
    }
    whole = refuse(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    topics = (
        replace(
            topic,
            partitions=tuple(
                replace(
                    p,
                    error_code=codes.get(
                        TopicPartition(topic.name, p.partition_index), p.error_code
                    ),
                )
                for p in topic.partitions
            ),
        )
        for topic in whole.topics
    )
    return replace(whole, topics=tuple(topics))
