"""Producer ids and transactions: begin, join, commit or abort, describe.                  [P]

Source: the JSON of each name below, Request and Response; all of KIP-98 if nothing else is said.
  InitProducerId (22)        v2 flexible; v3 producer_id and epoch (KIP-360); v4 PRODUCER_FENCED
  AddPartitionsToTxn (24)    v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 on is between brokers
  AddOffsetsToTxn (25)       v2 PRODUCER_FENCED; v3 flexible
  EndTxn (26)                v2 PRODUCER_FENCED; v3 flexible
  WriteTxnMarkers (27)       v1 flexible; tags of ours among brokers of one release
  TxnOffsetCommit (28)       v2 leader epochs (KIP-320); v3 flexible, the member (KIP-447)
  DescribeProducers (61)     KIP-664
  DescribeTransactions (65)  KIP-664
  ListTransactions (66)      KIP-664; v1 duration_filter (KIP-994)
"""

from __future__ import annotations

from typing import Annotated, Final

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import Bool, Int16, Int32, Int64, Since, String, Tag
from kafkalite.errors import ErrorCode

PRIVATE_TAG: Final = 20_000  # Kafka's tags count up from 0; who does not know one skips it


@message(api_key=22, versions=(0, 4), flexible_since=2)
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """Asks for a producer id; with a transactional id, fences its former holders."""

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1


@message(api_key=22, versions=(0, 4), flexible_since=2, response=True)
class InitProducerIdResponse:
    """The producer id and its epoch."""

    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = ErrorCode.NONE
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0


@struct
class AddPartitionsToTxnTopic:
    """The partitions of one topic."""

    name: String
    partitions: tuple[Int32, ...]


@message(api_key=24, versions=(0, 3), flexible_since=3)
class AddPartitionsToTxnRequest(Request["AddPartitionsToTxnResponse"]):
    """Announces the partitions that the transaction will write to."""

    v3_and_below_transactional_id: String
    v3_and_below_producer_id: Int64
    v3_and_below_producer_epoch: Int16
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...]


@struct
class AddPartitionsToTxnPartitionResult:
    """Whether one partition is part of the transaction."""

    partition_index: Int32
    partition_error_code: ErrorCode = ErrorCode.NONE


@struct
class AddPartitionsToTxnTopicResult:
    """Which of a topic's partitions are part of the transaction."""

    name: String
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]


@message(api_key=24, versions=(0, 3), flexible_since=3, response=True)
class AddPartitionsToTxnResponse:
    """Which partitions are part of the transaction."""

    throttle_time_ms: Int32 = 0
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = ()


@message(api_key=25, versions=(0, 3), flexible_since=3)
class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"]):
    """Announces that the transaction will commit offsets of a group."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


@message(api_key=25, versions=(0, 3), flexible_since=3, response=True)
class AddOffsetsToTxnResponse:
    """Whether the group's offsets are part of the transaction."""

    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = ErrorCode.NONE


@message(api_key=26, versions=(0, 3), flexible_since=3)
class EndTxnRequest(Request["EndTxnResponse"]):
    """Asks to commit (true) or abort (false) the transaction."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


@message(api_key=26, versions=(0, 3), flexible_since=3, response=True)
class EndTxnResponse:
    """Whether the transaction's end is decided."""

    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = ErrorCode.NONE


@struct
class WritableTxnMarkerTopic:
    """The partitions of one topic; ours: those that are led in one epoch, -1 where nobody says."""

    name: String
    partition_indexes: tuple[Int32, ...]
    leader_epoch: Annotated[Int32, Tag(PRIVATE_TAG, since=1)] = -1


@struct
class WritableTxnMarker:
    """The end of one transaction: a commit (true) or an abort (false)."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: Int32


@struct
class MarkerSender:
    """Which broker sends markers, in which of its lives; it numbers its requests."""

    broker_id: Int32 = -1
    broker_epoch: Int64 = -1
    number: Int64 = -1


@message(api_key=27, versions=(0, 1), flexible_since=1)
class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"]):
    """Coordinator to leaders: write markers at the ends of transactions. Ours: the sender, lest a
    request that was given up ends a later transaction."""

    markers: tuple[WritableTxnMarker, ...]
    sender: Annotated[MarkerSender, Tag(PRIVATE_TAG, since=1)] = MarkerSender()


@struct
class WritableTxnMarkerPartitionResult:
    """Whether one partition has its marker."""

    partition_index: Int32
    error_code: ErrorCode = ErrorCode.NONE


@struct
class WritableTxnMarkerTopicResult:
    """Which of a topic's partitions have their markers."""

    name: String
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


@struct
class WritableTxnMarkerResult:
    """Which partitions have the markers of one producer."""

    producer_id: Int64
    topics: tuple[WritableTxnMarkerTopicResult, ...]


@message(api_key=27, versions=(0, 1), flexible_since=1, response=True)
class WriteTxnMarkersResponse:
    """Which partitions have their markers."""

    markers: tuple[WritableTxnMarkerResult, ...]


@struct
class TxnOffsetCommitRequestPartition:
    """The offset to read next, with a note of the client's own."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(2)] = -1
    committed_metadata: String | None = ""


@struct
class TxnOffsetCommitRequestTopic:
    """The offsets of one topic's partitions."""

    name: String
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@message(api_key=28, versions=(0, 3), flexible_since=3)
class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"]):
    """Commits a group's offsets as part of a transaction."""

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[String, Since(3)] = ""
    group_instance_id: Annotated[String | None, Since(3)] = None
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = ()


@struct
class TxnOffsetCommitResponsePartition:
    """Whether one offset is part of the transaction."""

    partition_index: Int32
    error_code: ErrorCode = ErrorCode.NONE


@struct
class TxnOffsetCommitResponseTopic:
    """Which of a topic's offsets are part of the transaction."""

    name: String
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@message(api_key=28, versions=(0, 3), flexible_since=3, response=True)
class TxnOffsetCommitResponse:
    """Which offsets are part of the transaction."""

    throttle_time_ms: Int32 = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = ()


@struct
class DescribeProducersTopic:
    """The partitions of one topic."""

    name: String
    partition_indexes: tuple[Int32, ...]


@message(api_key=61, versions=(0, 0), flexible_since=0)
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Asks which producers have written to partitions lately (KIP-664)."""

    topics: tuple[DescribeProducersTopic, ...]


@struct
class ProducerState:
    """A producer as a partition's leader knows it; -1 where there is nothing to tell."""

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


@struct
class DescribeProducersPartitionResult:
    """The producers of one partition."""

    partition_index: Int32
    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None
    active_producers: tuple[ProducerState, ...] = ()


@struct
class DescribeProducersTopicResult:
    """The producers of one topic's partitions."""

    name: String
    partitions: tuple[DescribeProducersPartitionResult, ...]


@message(api_key=61, versions=(0, 0), flexible_since=0, response=True)
class DescribeProducersResponse:
    """The producers."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DescribeProducersTopicResult, ...] = ()


@message(api_key=65, versions=(0, 0), flexible_since=0)
class DescribeTransactionsRequest(Request["DescribeTransactionsResponse"]):
    """Asks how transactions stand (KIP-664)."""

    transactional_ids: tuple[String, ...]


@struct
class TransactionTopic:
    """The partitions of one topic that a transaction has written to."""

    topic: String
    partitions: tuple[Int32, ...]


@struct
class TransactionState:
    """How one transaction stands."""

    error_code: ErrorCode = ErrorCode.NONE
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: tuple[TransactionTopic, ...] = ()


@message(api_key=65, versions=(0, 0), flexible_since=0, response=True)
class DescribeTransactionsResponse:
    """How the transactions stand."""

    throttle_time_ms: Int32 = 0
    transaction_states: tuple[TransactionState, ...] = ()


@message(api_key=66, versions=(0, 1), flexible_since=0)
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """Asks for this coordinator's transactions; empty filters match all."""

    state_filters: tuple[String, ...]
    producer_id_filters: tuple[Int64, ...]
    duration_filter: Annotated[Int64, Since(1)] = -1


@struct
class ListedTransaction:
    """A transactional id, its producer and its state."""

    transactional_id: String
    producer_id: Int64
    transaction_state: String


@message(api_key=66, versions=(0, 1), flexible_since=0, response=True)
class ListTransactionsResponse:
    """The transactions; unknown_state_filters are filters that name no state."""

    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = ErrorCode.NONE
    unknown_state_filters: tuple[String, ...] = ()
    transaction_states: tuple[ListedTransaction, ...] = ()
