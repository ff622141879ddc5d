"""Metadata (key 3): brokers, topics, and who leads which partition.                       [P]

Source: MetadataRequest.json, MetadataResponse.json.
  v1 racks, the controller, internal topics; null topics are all topics; v2 cluster_id;
  v3 throttle_time_ms; v4 allow_auto_topic_creation; v5 offline_replicas; v6 throttled after the
  answer; v7 leader_epoch (KIP-320); v8 authorized operations (KIP-430); v9 flexible; v10 topic ids
  (KIP-516); v11 no cluster operations (KIP-700); v12 topics by id.

Authorized operations are a bit field, or the least Int32 where nobody asked for them.
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import (
    ZERO_UUID,
    Bool,
    Int32,
    NullableSince,
    Since,
    String,
    Until,
    Uuid,
)
from kafkalite.errors import ErrorCode


@struct
class MetadataRequestTopic:
    """A topic to describe, by name, or by id and a null name."""

    topic_id: Annotated[Uuid, Since(10)] = ZERO_UUID
    name: Annotated[String | None, NullableSince(10)] = ""


@message(api_key=3, versions=(0, 12), flexible_since=9)
class MetadataRequest(Request["MetadataResponse"]):
    """Asks for brokers and topics: null topics mean all, except in v0, where () does."""

    topics: Annotated[tuple[MetadataRequestTopic, ...] | None, NullableSince(1)] = ()
    allow_auto_topic_creation: Annotated[Bool, Since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, Since(8), Until(10)] = False
    include_topic_authorized_operations: Annotated[Bool, Since(8)] = False


@struct
class MetadataResponseBroker:
    """A broker's address."""

    node_id: Int32
    host: String
    port: Int32
    rack: Annotated[String | None, Since(1)] = None


@struct
class MetadataResponsePartition:
    """A partition's leader and replicas."""

    error_code: ErrorCode = ErrorCode.NONE
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, Since(7)] = -1
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    offline_replicas: Annotated[tuple[Int32, ...], Since(5)] = ()


@struct
class MetadataResponseTopic:
    """A topic's partitions, or why there are none."""

    error_code: ErrorCode = ErrorCode.NONE
    name: Annotated[String | None, NullableSince(12)] = ""
    topic_id: Annotated[Uuid, Since(10)] = ZERO_UUID
    is_internal: Annotated[Bool, Since(1)] = False
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: Annotated[Int32, Since(8)] = -2_147_483_648


@message(api_key=3, versions=(0, 12), flexible_since=9, response=True)
class MetadataResponse:
    """The cluster as the broker sees it."""

    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    brokers: tuple[MetadataResponseBroker, ...] = ()
    cluster_id: Annotated[String | None, Since(2)] = None
    controller_id: Annotated[Int32, Since(1)] = -1
    topics: tuple[MetadataResponseTopic, ...] = ()
    cluster_authorized_operations: Annotated[Int32, Since(8), Until(10)] = -2_147_483_648
