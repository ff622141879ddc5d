"""OffsetCommit (key 8), OffsetFetch (key 9): how far groups have read.                    [P]

Source: OffsetCommit{Request,Response}.json
  v1 generation and member; v2 retention_time_ms instead of a timestamp per partition;
  v5 no retention_time_ms (KIP-211); v6 committed_leader_epoch (KIP-320); v7 group_instance_id
  (KIP-345); v8 flexible; v9 as v8 (KIP-848).
Source: OffsetFetch{Request,Response}.json
  v2 null topics are all topics, error_code; v3 throttle_time_ms; v5 committed_leader_epoch;
  v6 flexible; v7 require_stable (KIP-447); v8 several groups (KIP-709); v9 member ids (KIP-848).
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import (
    Bool,
    Int32,
    Int64,
    NullableSince,
    Since,
    String,
    Until,
)
from kafkalite.errors import ErrorCode


@struct
class OffsetCommitRequestPartition:
    """The offset to read next, with a note of the client's own."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(6)] = -1
    commit_timestamp: Annotated[Int64, Until(1)] = -1
    committed_metadata: String | None = ""


@struct
class OffsetCommitRequestTopic:
    """The offsets of one topic's partitions."""

    name: String
    partitions: tuple[OffsetCommitRequestPartition, ...]


@message(api_key=8, versions=(1, 9), flexible_since=8)
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """Asks to remember how far a group has read."""

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, Since(7)] = None
    retention_time_ms: Annotated[Int64, Since(2), Until(4)] = -1
    topics: tuple[OffsetCommitRequestTopic, ...] = ()


@struct
class OffsetCommitResponsePartition:
    """Whether one offset was committed."""

    partition_index: Int32
    error_code: ErrorCode = ErrorCode.NONE


@struct
class OffsetCommitResponseTopic:
    """Which of a topic's offsets were committed."""

    name: String
    partitions: tuple[OffsetCommitResponsePartition, ...]


@message(api_key=8, versions=(1, 9), flexible_since=8, response=True)
class OffsetCommitResponse:
    """Which offsets were committed."""

    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: tuple[OffsetCommitResponseTopic, ...] = ()


@struct
class OffsetFetchRequestTopic:
    """The partitions of one topic, up to v7."""

    name: String
    partition_indexes: tuple[Int32, ...]


@struct
class OffsetFetchRequestTopics:
    """The partitions of one topic, from v8 on."""

    name: String
    partition_indexes: tuple[Int32, ...]


@struct
class OffsetFetchRequestGroup:
    """One group's topics; null means all that it has committed."""

    group_id: String
    member_id: Annotated[String | None, Since(9)] = None
    member_epoch: Annotated[Int32, Since(9)] = -1
    topics: tuple[OffsetFetchRequestTopics, ...] | None = ()


@message(api_key=9, versions=(1, 9), flexible_since=6)
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    """Asks for committed offsets: of one group (to v7), or of several (from v8 on)."""

    group_id: Annotated[String, Until(7)] = ""
    topics: Annotated[tuple[OffsetFetchRequestTopic, ...] | None, Until(7), NullableSince(2)] = ()
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], Since(8)] = ()
    require_stable: Annotated[Bool, Since(7)] = False


@struct
class OffsetFetchResponsePartition:
    """A committed offset, -1 if there is none; up to v7."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(5)] = -1
    metadata: String | None = ""
    error_code: ErrorCode = ErrorCode.NONE


@struct
class OffsetFetchResponseTopic:
    """The offsets of one topic's partitions, up to v7."""

    name: String
    partitions: tuple[OffsetFetchResponsePartition, ...]


@struct
class OffsetFetchResponsePartitions:
    """A committed offset, -1 if there is none; from v8 on."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    metadata: String | None = ""
    error_code: ErrorCode = ErrorCode.NONE


@struct
class OffsetFetchResponseTopics:
    """The offsets of one topic's partitions, from v8 on."""

    name: String
    partitions: tuple[OffsetFetchResponsePartitions, ...]


@struct
class OffsetFetchResponseGroup:
    """The offsets of one group."""

    group_id: String
    topics: tuple[OffsetFetchResponseTopics, ...]
    error_code: ErrorCode = ErrorCode.NONE


@message(api_key=9, versions=(1, 9), flexible_since=6, response=True)
class OffsetFetchResponse:
    """The committed offsets: of one group (to v7), or of several (from v8 on)."""

    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], Until(7)] = ()
    error_code: Annotated[ErrorCode, Since(2), Until(7)] = ErrorCode.NONE
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], Since(8)] = ()
