"""ListOffsets (key 2), OffsetForLeaderEpoch (key 23): offsets by time and by leader epoch.  [P]

Source: ListOffsets{Request,Response}.json
  v0 the offsets where segments begin, by the times of their files; v1 one offset per partition, by
  the times of records; v2 isolation_level (KIP-98); v3 throttled after the answer;
  v4 leader epochs (KIP-320); v5 as v4; v6 flexible; v7 timestamp -3 (KIP-734); v8 timestamp -4
  (KIP-405, tiered storage); v9 timestamp -5 (KIP-1005).
Source: OffsetForLeaderEpoch{Request,Response}.json
  v2 current_leader_epoch, throttle_time_ms (KIP-320); v3 replica_id; v4 flexible.
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import Int8, Int32, Int64, Since, String, Until
from kafkalite.errors import ErrorCode


@struct
class ListOffsetsPartition:
    """The timestamp to look for, or -1 latest, -2 earliest, -3 greatest timestamp."""

    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Since(4)] = -1
    timestamp: Int64 = 0
    max_num_offsets: Annotated[Int32, Until(0)] = 1


@struct
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: String
    partitions: tuple[ListOffsetsPartition, ...]


@message(api_key=2, versions=(0, 9), flexible_since=6)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """Asks for the first offset at or after a timestamp."""

    replica_id: Int32
    isolation_level: Annotated[Int8, Since(2)] = 0
    topics: tuple[ListOffsetsTopic, ...] = ()


@struct
class ListOffsetsPartitionResponse:
    """The offset found and its timestamp; -1 and -1 if there is none. In v0 the newest offsets."""

    partition_index: Int32
    error_code: ErrorCode = ErrorCode.NONE
    old_style_offsets: Annotated[tuple[Int64, ...], Until(0)] = ()
    timestamp: Annotated[Int64, Since(1)] = -1
    offset: Annotated[Int64, Since(1)] = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


@struct
class ListOffsetsTopicResponse:
    """The offsets of one topic's partitions."""

    name: String
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@message(api_key=2, versions=(0, 9), flexible_since=6, response=True)
class ListOffsetsResponse:
    """The offsets found."""

    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    topics: tuple[ListOffsetsTopicResponse, ...] = ()


@struct
class OffsetForLeaderPartition:
    """The leader epoch whose end is asked for."""

    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


@struct
class OffsetForLeaderTopic:
    """The partitions of one topic."""

    topic: String
    partitions: tuple[OffsetForLeaderPartition, ...]


@message(api_key=23, versions=(2, 4), flexible_since=4)
class OffsetForLeaderEpochRequest(Request["OffsetForLeaderEpochResponse"]):
    """Asks where leader epochs end, to find where logs part."""

    replica_id: Annotated[Int32, Since(3)] = -2
    topics: tuple[OffsetForLeaderTopic, ...] = ()


@struct
class OffsetForLeaderPartitionResult:
    """The greatest epoch not above the requested one, and its end offset."""

    error_code: ErrorCode = ErrorCode.NONE
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@struct
class OffsetForLeaderTopicResult:
    """The epochs' ends of one topic's partitions."""

    topic: String
    partitions: tuple[OffsetForLeaderPartitionResult, ...]


@message(api_key=23, versions=(2, 4), flexible_since=4, response=True)
class OffsetForLeaderEpochResponse:
    """The ends of the leader epochs."""

    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetForLeaderTopicResult, ...] = ()
