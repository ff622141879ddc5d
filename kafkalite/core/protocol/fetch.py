"""Fetch (key 1): read record batches, as a consumer or as a follower.                     [P]

Source: FetchRequest.json, FetchResponse.json.
  v4 isolation_level, aborted_transactions (KIP-98); v5 log_start_offset (KIP-107); v7 fetch
  sessions (KIP-227); v9 current_leader_epoch (KIP-320); v10 zstd (KIP-110); v11 rack_id and
  preferred_read_replica (KIP-392); v12 flexible, last_fetched_epoch and diverging_epoch (KIP-595);
  v13 topic ids for names (KIP-516); v14 as v13; v15 replica_state for replica_id (KIP-903);
  v16 node_endpoints (KIP-951); v17 replica_directory_id, which KRaft's voters tell (KIP-853).
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import (
    ZERO_UUID,
    Int8,
    Int32,
    Int64,
    Records,
    Since,
    String,
    Tag,
    Until,
    Uuid,
)
from kafkalite.core.protocol.produce import LeaderIdAndEpoch, NodeEndpoint
from kafkalite.errors import ErrorCode


@struct
class ReplicaState:
    """Which follower fetches, and in which life of its broker (KIP-903)."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


@struct
class FetchPartition:
    """From where to fetch one partition."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Since(9)] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, Since(12)] = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, Tag(0, since=17)] = ZERO_UUID


@struct
class FetchTopic:
    """The partitions of one topic: by name up to v12, by id from v13 on."""

    topic: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = ZERO_UUID
    partitions: tuple[FetchPartition, ...] = ()


@struct
class ForgottenTopic:
    """Partitions that leave the fetch session."""

    topic: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = ZERO_UUID
    partitions: tuple[Int32, ...] = ()


@message(api_key=1, versions=(4, 17), flexible_since=12)
class FetchRequest(Request["FetchResponse"]):
    """Asks for records; from consumers and, with a replica id, from followers."""

    cluster_id: Annotated[String | None, Tag(0, since=12)] = None
    replica_id: Annotated[Int32, Until(14)] = -1
    replica_state: Annotated[ReplicaState, Tag(1, since=15)] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Since(7)] = 0
    session_epoch: Annotated[Int32, Since(7)] = -1
    topics: tuple[FetchTopic, ...] = ()
    forgotten_topics_data: Annotated[tuple[ForgottenTopic, ...], Since(7)] = ()
    rack_id: Annotated[String, Since(11)] = ""


@struct
class EpochEndOffset:
    """The offset at which the leader's log and the fetcher's diverge (KIP-595)."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


@struct
class SnapshotId:
    """Names a snapshot; only metadata partitions of KRaft have one."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


@struct
class AbortedTransaction:
    """A producer whose records from first_offset to its abort marker are void."""

    producer_id: Int64
    first_offset: Int64


@struct
class PartitionData:
    """One partition's data for the fetcher."""

    partition_index: Int32
    error_code: ErrorCode = ErrorCode.NONE
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset, Tag(0, since=12)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, Tag(1, since=12)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, Tag(2, since=12)] = SnapshotId()
    aborted_transactions: tuple[AbortedTransaction, ...] | None = ()
    preferred_read_replica: Annotated[Int32, Since(11)] = -1
    records: Records | None = None


@struct
class FetchableTopicResponse:
    """One topic's data for the fetcher."""

    topic: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = ZERO_UUID
    partitions: tuple[PartitionData, ...] = ()


@message(api_key=1, versions=(4, 17), flexible_since=12, response=True)
class FetchResponse:
    """Record batches, whole but for the last one of a partition, which may be cut off."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[ErrorCode, Since(7)] = ErrorCode.NONE
    session_id: Annotated[Int32, Since(7)] = 0
    responses: tuple[FetchableTopicResponse, ...] = ()
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Tag(0, since=16)] = ()
