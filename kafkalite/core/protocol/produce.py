"""Produce (key 0): append record batches to partitions.                                   [P]

Source: ProduceRequest.json, ProduceResponse.json.
  v0 to v2 carry message sets, and are defined because brokers must advertise them (KAFKA-18659);
  v1 throttle_time_ms; v2 log_append_time_ms; v3 transactional_id and record batches (KIP-98);
  v5 log_start_offset; v7 zstd (KIP-110); v8 record_errors and error_message (KIP-467); v9 flexible;
  v10 current_leader and node_endpoints (KIP-951); v11 as v10 (KIP-890).
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import Int16, Int32, Int64, Records, Since, String, Tag
from kafkalite.errors import ErrorCode


@struct
class PartitionProduceData:
    """The record batch for one partition."""

    index: Int32
    records: Records | None


@struct
class TopicProduceData:
    """The record batches for one topic."""

    name: String
    partition_data: tuple[PartitionProduceData, ...]


@message(api_key=0, versions=(0, 11), flexible_since=9)
class ProduceRequest(Request["ProduceResponse"]):
    """Asks to append record batches."""

    transactional_id: Annotated[String | None, Since(3)] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: tuple[TopicProduceData, ...] = ()


@struct
class BatchIndexAndErrorMessage:
    """Which record of a batch was refused, and why (KIP-467)."""

    batch_index: Int32
    batch_index_error_message: String | None = None


@struct
class LeaderIdAndEpoch:
    """The partition's current leader; -1 if it is unknown (KIP-951)."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@struct
class PartitionProduceResponse:
    """The offset of one partition's appended batch, or the reason for its refusal."""

    index: Int32
    error_code: ErrorCode = ErrorCode.NONE
    base_offset: Int64 = 0
    log_append_time_ms: Annotated[Int64, Since(2)] = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    record_errors: Annotated[tuple[BatchIndexAndErrorMessage, ...], Since(8)] = ()
    error_message: Annotated[String | None, Since(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, Tag(0, since=10)] = LeaderIdAndEpoch()


@struct
class TopicProduceResponse:
    """The result of one topic's batches."""

    name: String
    partition_responses: tuple[PartitionProduceResponse, ...]


@struct
class NodeEndpoint:
    """The address of a leader that the response names (KIP-951)."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None


@message(api_key=0, versions=(0, 11), flexible_since=9, response=True)
class ProduceResponse:
    """The result of each batch."""

    responses: tuple[TopicProduceResponse, ...]
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Tag(0, since=10)] = ()
