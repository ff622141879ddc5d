"""The cluster: its brokers, elections, reassignments, and how full its disks are.         [P]

`peers` has the requests that brokers send each other.

Source: the JSON of each name below, Request and Response.
  DescribeCluster (60)              KIP-700; v1 endpoint_type (KIP-919)
  DescribeTopicPartitions (75)      KIP-966
  ElectLeaders (43)                 v1 election_type (KIP-460); v2 flexible
  AlterPartitionReassignments (45)  KIP-455
  ListPartitionReassignments (46)   KIP-455
  DescribeLogDirs (35)              KIP-113; v2 flexible; v3 a top-level error; v4 sizes (KIP-827)
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import (
    ZERO_UUID,
    Bool,
    Int8,
    Int32,
    Int64,
    Since,
    String,
    Uuid,
)
from kafkalite.errors import ErrorCode


@message(api_key=60, versions=(0, 1), flexible_since=0)
class DescribeClusterRequest(Request["DescribeClusterResponse"]):
    """Asks for the cluster's brokers, without topics (KIP-700)."""

    include_cluster_authorized_operations: Bool
    endpoint_type: Annotated[Int8, Since(1)] = 1


@struct
class DescribeClusterBroker:
    """A broker's address."""

    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = None


@message(api_key=60, versions=(0, 1), flexible_since=0, response=True)
class DescribeClusterResponse:
    """The brokers and the controller."""

    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None
    endpoint_type: Annotated[Int8, Since(1)] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    cluster_authorized_operations: Int32 = -2_147_483_648


@struct
class DescribeTopicPartitionsTopic:
    """A topic to describe."""

    name: String


@struct
class Cursor:
    """The first partition of the next page."""

    topic_name: String
    partition_index: Int32


@message(api_key=75, versions=(0, 0), flexible_since=0)
class DescribeTopicPartitionsRequest(Request["DescribeTopicPartitionsResponse"]):
    """Asks for topics, a page of partitions at a time (KIP-966)."""

    topics: tuple[DescribeTopicPartitionsTopic, ...]
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


@struct
class DescribeTopicPartitionsResponsePartition:
    """A partition's leader and replicas. Java's clients do not survive a null among these."""

    error_code: ErrorCode = ErrorCode.NONE
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    eligible_leader_replicas: tuple[Int32, ...] | None = ()
    last_known_elr: tuple[Int32, ...] | None = ()
    offline_replicas: tuple[Int32, ...] = ()


@struct
class DescribeTopicPartitionsResponseTopic:
    """A topic's partitions, or why there are none."""

    error_code: ErrorCode = ErrorCode.NONE
    name: String | None = ""
    topic_id: Uuid = ZERO_UUID
    is_internal: Bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: Int32 = -2_147_483_648


@message(api_key=75, versions=(0, 0), flexible_since=0, response=True)
class DescribeTopicPartitionsResponse:
    """A page of partitions; next_cursor is null on the last one."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = ()
    next_cursor: Cursor | None = None


@struct
class ElectLeadersTopic:
    """The partitions of one topic."""

    topic: String
    partitions: tuple[Int32, ...]


@message(api_key=43, versions=(0, 2), flexible_since=2)
class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    """Asks for elections: election_type 0 preferred, 1 unclean (KIP-460)."""

    election_type: Annotated[Int8, Since(1)] = 0
    topic_partitions: tuple[ElectLeadersTopic, ...] | None = ()
    timeout_ms: Int32 = 60_000


@struct
class ElectLeadersPartitionResult:
    """The result of one election."""

    partition_id: Int32
    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None


@struct
class ReplicaElectionResult:
    """The result of one topic's elections."""

    topic: String
    partition_result: tuple[ElectLeadersPartitionResult, ...]


@message(api_key=43, versions=(0, 2), flexible_since=2, response=True)
class ElectLeadersResponse:
    """The result of the elections."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[ErrorCode, Since(1)] = ErrorCode.NONE
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()


@struct
class ReassignablePartition:
    """The brokers that shall hold a partition; null cancels a reassignment."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None = None


@struct
class ReassignableTopic:
    """The partitions of one topic."""

    name: String
    partitions: tuple[ReassignablePartition, ...]


@message(api_key=45, versions=(0, 0), flexible_since=0)
class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    """Asks to move partitions to other brokers (KIP-455)."""

    timeout_ms: Int32 = 60_000
    topics: tuple[ReassignableTopic, ...] = ()


@struct
class ReassignablePartitionResponse:
    """The result of one partition."""

    partition_index: Int32
    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None


@struct
class ReassignableTopicResponse:
    """The result of one topic's partitions."""

    name: String
    partitions: tuple[ReassignablePartitionResponse, ...]


@message(api_key=45, versions=(0, 0), flexible_since=0, response=True)
class AlterPartitionReassignmentsResponse:
    """The result of the reassignments."""

    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None
    responses: tuple[ReassignableTopicResponse, ...] = ()


@struct
class ListPartitionReassignmentsTopics:
    """The partitions of one topic."""

    name: String
    partition_indexes: tuple[Int32, ...]


@message(api_key=46, versions=(0, 0), flexible_since=0)
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    """Asks which partitions are being moved; null topics mean all."""

    timeout_ms: Int32 = 60_000
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None


@struct
class OngoingPartitionReassignment:
    """A partition's replicas: all, the added, the removed ones."""

    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


@struct
class OngoingTopicReassignment:
    """The partitions of one topic that are being moved."""

    name: String
    partitions: tuple[OngoingPartitionReassignment, ...]


@message(api_key=46, versions=(0, 0), flexible_since=0, response=True)
class ListPartitionReassignmentsResponse:
    """The partitions that are being moved."""

    throttle_time_ms: Int32 = 0
    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None
    topics: tuple[OngoingTopicReassignment, ...] = ()


@struct
class DescribableLogDirTopic:
    """The partitions of one topic."""

    topic: String
    partitions: tuple[Int32, ...]


@message(api_key=35, versions=(0, 4), flexible_since=2)
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    """Asks how full the broker's log directories are; null topics mean all."""

    topics: tuple[DescribableLogDirTopic, ...] | None


@struct
class DescribeLogDirsPartition:
    """How much of the directory a partition takes (bytes)."""

    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool


@struct
class DescribeLogDirsTopic:
    """How much of the directory a topic's partitions take."""

    name: String
    partitions: tuple[DescribeLogDirsPartition, ...]


@struct
class DescribeLogDirsResult:
    """A log directory: its content and the size of its disk (bytes, -1 unknown)."""

    error_code: ErrorCode = ErrorCode.NONE
    log_dir: String = ""
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: Annotated[Int64, Since(4)] = -1
    usable_bytes: Annotated[Int64, Since(4)] = -1


@message(api_key=35, versions=(0, 4), flexible_since=2, response=True)
class DescribeLogDirsResponse:
    """The broker's log directories."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[ErrorCode, Since(3)] = ErrorCode.NONE
    results: tuple[DescribeLogDirsResult, ...] = ()
