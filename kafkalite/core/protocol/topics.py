"""Topics: create, delete, grow, and delete records below an offset.                       [P]

Source: the JSON of each name below, Request and Response.
  CreateTopics (19)      v1 validate_only; v4 -1 asks for defaults (KIP-464); v5 flexible, the
                         response tells the topic's settings (KIP-525); v7 topic_id (KIP-516)
  DeleteTopics (20)      v4 flexible; v5 error_message (KIP-599); v6 by topic id (KIP-516)
  CreatePartitions (37)  v2 flexible; v3 THROTTLING_QUOTA_EXCEEDED (KIP-599)
  DeleteRecords (21)     KIP-107; v2 flexible
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import (
    ZERO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableSince,
    Since,
    String,
    Tag,
    Until,
    Uuid,
)
from kafkalite.errors import ErrorCode


@struct
class CreatableReplicaAssignment:
    """The brokers that shall hold one partition, the preferred leader first."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


@struct
class CreatableTopicConfig:
    """One setting of the new topic."""

    name: String
    value: String | None


@struct
class CreatableTopic:
    """A topic to create; -1 means the broker's default number (from v4 on)."""

    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


@message(api_key=19, versions=(0, 7), flexible_since=5)
class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    """Asks to create topics."""

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 60_000
    validate_only: Annotated[Bool, Since(1)] = False


@struct
class CreatableTopicConfigs:
    """One setting that the new topic has."""

    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool = False


@struct
class CreatableTopicResult:
    """The topic that was made, or why it was not."""

    name: String
    topic_id: Annotated[Uuid, Since(7)] = ZERO_UUID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: Annotated[String | None, Since(1)] = None
    topic_config_error_code: Annotated[ErrorCode, Tag(0, since=5)] = ErrorCode.NONE
    num_partitions: Annotated[Int32, Since(5)] = -1
    replication_factor: Annotated[Int16, Since(5)] = -1
    configs: Annotated[tuple[CreatableTopicConfigs, ...] | None, Since(5)] = ()


@message(api_key=19, versions=(0, 7), flexible_since=5, response=True)
class CreateTopicsResponse:
    """The result of the topics."""

    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    topics: tuple[CreatableTopicResult, ...] = ()


@struct
class DeleteTopicState:
    """A topic to delete, by name or by id."""

    name: String | None = None
    topic_id: Uuid = ZERO_UUID


@message(api_key=20, versions=(0, 6), flexible_since=4)
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    """Asks to delete topics: by topic_names up to v5, by topics from v6 on."""

    topics: Annotated[tuple[DeleteTopicState, ...], Since(6)] = ()
    topic_names: Annotated[tuple[String, ...], Until(5)] = ()
    timeout_ms: Int32 = 0


@struct
class DeletableTopicResult:
    """The result of one topic."""

    name: Annotated[String | None, NullableSince(6)] = ""
    topic_id: Annotated[Uuid, Since(6)] = ZERO_UUID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: Annotated[String | None, Since(5)] = None


@message(api_key=20, versions=(0, 6), flexible_since=4, response=True)
class DeleteTopicsResponse:
    """The result of the topics."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    responses: tuple[DeletableTopicResult, ...] = ()


@struct
class CreatePartitionsAssignment:
    """The brokers that shall hold one new partition."""

    broker_ids: tuple[Int32, ...]


@struct
class CreatePartitionsTopic:
    """How many partitions a topic shall have in all."""

    name: String
    count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None


@message(api_key=37, versions=(0, 3), flexible_since=2)
class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    """Asks to add partitions to topics."""

    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32
    validate_only: Bool


@struct
class CreatePartitionsTopicResult:
    """The result of one topic."""

    name: String
    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None


@message(api_key=37, versions=(0, 3), flexible_since=2, response=True)
class CreatePartitionsResponse:
    """The result of the topics."""

    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...] = ()


@struct
class DeleteRecordsPartition:
    """The new start of a partition's log; -1 means its high watermark."""

    partition_index: Int32
    offset: Int64


@struct
class DeleteRecordsTopic:
    """The partitions of one topic."""

    name: String
    partitions: tuple[DeleteRecordsPartition, ...]


@message(api_key=21, versions=(0, 2), flexible_since=2)
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    """Asks to delete the records below an offset (KIP-107)."""

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32


@struct
class DeleteRecordsPartitionResult:
    """The partition's log start offset."""

    partition_index: Int32
    low_watermark: Int64
    error_code: ErrorCode = ErrorCode.NONE


@struct
class DeleteRecordsTopicResult:
    """The result of one topic's partitions."""

    name: String
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@message(api_key=21, versions=(0, 2), flexible_since=2, response=True)
class DeleteRecordsResponse:
    """The result of the records."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...] = ()
