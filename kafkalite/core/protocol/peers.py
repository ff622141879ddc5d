"""What brokers of a cluster ask of their controller, and of each other.                     [P]

Source: the JSON of each name below, Request and Response.
  ControlledShutdown (7)    v2 the broker epoch (KIP-380); v3 flexible. v0 travels under a header
                            without a client id, which the connection does not read.
  AlterPartition (56)       KIP-497; v2 topics by id (KIP-841); v3 broker epochs (KIP-903)
  AllocateProducerIds (67)  KIP-730
  FollowMetadata (20000)    ours: the changes of the cluster's state since those that a broker has.
  VerifyTransactions (20001)  ours: whether a batch may begin a transaction; Kafka's brokers ask
                            so by AddPartitionsToTxn since v4.
                            Keys from 20,000 on are private: no broker lists them in ApiVersions,
                            and only brokers of one release are sure to understand each other.
  ReportReplicas (20002)    ours: replicas whose logs failed, or are well again.
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Since,
    String,
    Tag,
    Until,
    Uuid,
)
from kafkalite.errors import ErrorCode


@message(api_key=7, versions=(0, 3), flexible_since=3)
class ControlledShutdownRequest(Request["ControlledShutdownResponse"]):
    """A broker is about to stop, and asks that others lead its partitions."""

    broker_id: Int32
    broker_epoch: Annotated[Int64, Since(2)] = -1


@struct
class RemainingPartition:
    """A partition that the broker still leads."""

    topic_name: String
    partition_index: Int32


@message(api_key=7, versions=(0, 3), flexible_since=3, response=True)
class ControlledShutdownResponse:
    """The partitions that the broker still leads."""

    error_code: ErrorCode = ErrorCode.NONE
    remaining_partitions: tuple[RemainingPartition, ...] = ()


@struct
class BrokerState:
    """A member of an in-sync set. Its broker epoch is not checked if it is -1."""

    broker_id: Int32
    broker_epoch: Int64 = -1


@struct
class AlterPartitionPartition:
    """The in-sync set that a leader asks for, and the epochs that it knows."""

    partition_index: Int32
    leader_epoch: Int32
    new_isr: Annotated[tuple[Int32, ...], Until(2)] = ()
    new_isr_with_epochs: Annotated[tuple[BrokerState, ...], Since(3)] = ()
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


@struct
class AlterPartitionTopic:
    """The partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[AlterPartitionPartition, ...]


@message(api_key=56, versions=(2, 3), flexible_since=0)
class AlterPartitionRequest(Request["AlterPartitionResponse"]):
    """A leader asks the controller to change in-sync sets."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: tuple[AlterPartitionTopic, ...] = ()


@struct
class AlteredPartition:
    """A partition as it is now, or why it was not changed."""

    partition_index: Int32
    error_code: ErrorCode = ErrorCode.NONE
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: tuple[Int32, ...] = ()
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


@struct
class AlteredTopic:
    """The partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[AlteredPartition, ...]


@message(api_key=56, versions=(2, 3), flexible_since=0, response=True)
class AlterPartitionResponse:
    """The partitions as they are now."""

    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = ErrorCode.NONE
    topics: tuple[AlteredTopic, ...] = ()


@message(api_key=67, versions=(0, 0), flexible_since=0)
class AllocateProducerIdsRequest(Request["AllocateProducerIdsResponse"]):
    """A broker asks for ids to give to its idempotent producers."""

    broker_id: Int32
    broker_epoch: Int64 = -1


@message(api_key=67, versions=(0, 0), flexible_since=0, response=True)
class AllocateProducerIdsResponse:
    """The ids [start, start + length), for one broker."""

    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = ErrorCode.NONE
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0


@message(api_key=20_000, versions=(0, 0), flexible_since=0)
class FollowMetadataRequest(Request["FollowMetadataResponse"]):
    """A broker asks for the records after `offset` of the feed of `controller_epoch`.

    The controller waits up to `max_wait_ms` for a record. An epoch or offset that it does not know
    gets a snapshot.
    """

    broker_id: Int32
    broker_epoch: Int64
    controller_epoch: Int64 = -1
    offset: Int64 = -1
    max_wait_ms: Int32 = 0
    max_bytes: Int32 = 1_048_576


@struct
class MetadataRecord:
    """One fact of the cluster: the value at a path of the coordination tree, null if it is gone."""

    path: String
    value: Bytes | None


@message(api_key=20_000, versions=(0, 0), flexible_since=0, response=True)
class FollowMetadataResponse:
    """The records [base_offset, base_offset + their number), or those of a whole image, which is as
    it was at `base_offset`."""

    error_code: ErrorCode = ErrorCode.NONE
    controller_id: Int32 = -1
    controller_epoch: Int64 = -1
    is_snapshot: Bool = False
    base_offset: Int64 = 0
    records: tuple[MetadataRecord, ...] = ()


@struct
class TransactionToVerify:
    """A producer that is about to write to a partition in its transaction."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    topic: String
    partition_index: Int32


@message(api_key=20_001, versions=(0, 0), flexible_since=0)
class VerifyTransactionsRequest(Request["VerifyTransactionsResponse"]):
    """A leader asks a coordinator whether partitions are part of ongoing transactions."""

    transactions: tuple[TransactionToVerify, ...]


@struct
class VerifiedTransaction:
    """Whether one of them may go on."""

    error_code: ErrorCode = ErrorCode.NONE


@message(api_key=20_001, versions=(0, 0), flexible_since=0, response=True)
class VerifyTransactionsResponse:
    """The coordinator's answers, in the order of the request."""

    transactions: tuple[VerifiedTransaction, ...]


@struct
class ReportedReplicas:
    """The replicas of one topic on the broker that reports."""

    topic_id: Uuid
    failed: tuple[Int32, ...] = ()
    recovered: tuple[Int32, ...] = ()
    lost: Annotated[tuple[Int32, ...], Tag(0, since=0)] = ()  # of the failed: they may lack records


@message(api_key=20_002, versions=(0, 0), flexible_since=0)
class ReportReplicasRequest(Request["ReportReplicasResponse"]):
    """A broker reports partitions whose logs it can no longer write, or can again."""

    broker_id: Int32
    broker_epoch: Int64
    topics: tuple[ReportedReplicas, ...] = ()


@message(api_key=20_002, versions=(0, 0), flexible_since=0, response=True)
class ReportReplicasResponse:
    """The partitions' states have changed, or why they have not."""

    error_code: ErrorCode = ErrorCode.NONE
