"""Groups of consumers: find, join, sync, heartbeat, leave; describe, list, delete.        [P]

Source: the JSON of each name below, Request and Response.
  FindCoordinator (10)  v1 transactional ids (KIP-98); v3 flexible; v4 several keys (KIP-699)
  JoinGroup (11)        v1 rebalance_timeout_ms (KIP-62); v4 MEMBER_ID_REQUIRED (KIP-394);
                        v5 group_instance_id (KIP-345); v6 flexible; v7 protocol_type (KIP-559);
                        v8 reason (KIP-800); v9 skip_assignment (KIP-814)
  SyncGroup (14)        v3 group_instance_id; v4 flexible; v5 protocol_type, protocol_name
  Heartbeat (12)        v3 group_instance_id; v4 flexible
  LeaveGroup (13)       v3 several members (KIP-345); v4 flexible; v5 reason (KIP-800)
  DescribeGroups (15)   v3 authorized operations (KIP-430); v4 group_instance_id; v5 flexible
  ListGroups (16)       v3 flexible; v4 states_filter (KIP-518); v5 types_filter (KIP-848)
  DeleteGroups (42)     v2 flexible
  OffsetDelete (47)     KIP-496; never flexible
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import Request, message, struct
from kafkalite.core.protocol.primitives import (
    Bool,
    Bytes,
    Int8,
    Int32,
    NullableSince,
    Since,
    String,
    Until,
)
from kafkalite.errors import ErrorCode


@message(api_key=10, versions=(0, 4), flexible_since=3)
class FindCoordinatorRequest(Request["FindCoordinatorResponse"]):
    """Asks for the coordinator of a group or a transactional id."""

    key: Annotated[String, Until(3)] = ""
    key_type: Annotated[Int8, Since(1)] = 0
    coordinator_keys: Annotated[tuple[String, ...], Since(4)] = ()


@struct
class Coordinator:
    """The coordinator of one key."""

    key: String
    node_id: Int32
    host: String
    port: Int32
    error_code: ErrorCode = ErrorCode.NONE
    error_message: String | None = None


@message(api_key=10, versions=(0, 4), flexible_since=3, response=True)
class FindCoordinatorResponse:
    """The coordinator of one key (to v3), or of several (from v4 on)."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Annotated[ErrorCode, Until(3)] = ErrorCode.NONE
    error_message: Annotated[String | None, Since(1), Until(3)] = None
    node_id: Annotated[Int32, Until(3)] = 0
    host: Annotated[String, Until(3)] = ""
    port: Annotated[Int32, Until(3)] = 0
    coordinators: Annotated[tuple[Coordinator, ...], Since(4)] = ()


@struct
class JoinGroupRequestProtocol:
    """An assignor that the member knows, and its metadata for it."""

    name: String
    metadata: Bytes


@message(api_key=11, versions=(0, 9), flexible_since=6)
class JoinGroupRequest(Request["JoinGroupResponse"]):
    """A member asks to take part in the next generation."""

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, Since(1)] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, Since(5)] = None
    protocol_type: String = ""
    protocols: tuple[JoinGroupRequestProtocol, ...] = ()
    reason: Annotated[String | None, Since(8)] = None


@struct
class JoinGroupResponseMember:
    """A member of the generation, sent to the leader only."""

    member_id: String
    group_instance_id: Annotated[String | None, Since(5)] = None
    metadata: Bytes = b""


@message(api_key=11, versions=(0, 9), flexible_since=6, response=True)
class JoinGroupResponse:
    """The generation that has begun; the leader also learns its members."""

    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    error_code: ErrorCode = ErrorCode.NONE
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, Since(7)] = None
    protocol_name: Annotated[String | None, NullableSince(7)] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, Since(9)] = False
    member_id: String = ""
    members: tuple[JoinGroupResponseMember, ...] = ()


@struct
class SyncGroupRequestAssignment:
    """The leader's assignment to one member."""

    member_id: String
    assignment: Bytes


@message(api_key=14, versions=(0, 5), flexible_since=4)
class SyncGroupRequest(Request["SyncGroupResponse"]):
    """A member asks for its assignment; the leader brings everyone's."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Since(3)] = None
    protocol_type: Annotated[String | None, Since(5)] = None
    protocol_name: Annotated[String | None, Since(5)] = None
    assignments: tuple[SyncGroupRequestAssignment, ...] = ()


@message(api_key=14, versions=(0, 5), flexible_since=4, response=True)
class SyncGroupResponse:
    """The member's assignment."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: Annotated[String | None, Since(5)] = None
    protocol_name: Annotated[String | None, Since(5)] = None
    assignment: Bytes = b""


@message(api_key=12, versions=(0, 4), flexible_since=4)
class HeartbeatRequest(Request["HeartbeatResponse"]):
    """A member tells its coordinator that it is alive."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Since(3)] = None


@message(api_key=12, versions=(0, 4), flexible_since=4, response=True)
class HeartbeatResponse:
    """Whether the member is still known, and whether it must join again."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: ErrorCode = ErrorCode.NONE


@struct
class MemberIdentity:
    """A member that leaves."""

    member_id: String
    group_instance_id: String | None = None
    reason: Annotated[String | None, Since(5)] = None


@message(api_key=13, versions=(0, 5), flexible_since=4)
class LeaveGroupRequest(Request["LeaveGroupResponse"]):
    """One member leaves (to v2), or several are removed (from v3 on)."""

    group_id: String
    member_id: Annotated[String, Until(2)] = ""
    members: Annotated[tuple[MemberIdentity, ...], Since(3)] = ()


@struct
class MemberResponse:
    """The result of one member's leaving."""

    member_id: String
    group_instance_id: String | None
    error_code: ErrorCode = ErrorCode.NONE


@message(api_key=13, versions=(0, 5), flexible_since=4, response=True)
class LeaveGroupResponse:
    """Whether the members have left."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: ErrorCode = ErrorCode.NONE
    members: Annotated[tuple[MemberResponse, ...], Since(3)] = ()


@message(api_key=15, versions=(0, 5), flexible_since=5)
class DescribeGroupsRequest(Request["DescribeGroupsResponse"]):
    """Asks what groups consist of."""

    groups: tuple[String, ...]
    include_authorized_operations: Annotated[Bool, Since(3)] = False


@struct
class DescribedGroupMember:
    """A member of a described group."""

    member_id: String
    group_instance_id: Annotated[String | None, Since(4)] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


@struct
class DescribedGroup:
    """A group's state and members."""

    error_code: ErrorCode = ErrorCode.NONE
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: Annotated[Int32, Since(3)] = -2_147_483_648


@message(api_key=15, versions=(0, 5), flexible_since=5, response=True)
class DescribeGroupsResponse:
    """The groups, each with its own error code."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    groups: tuple[DescribedGroup, ...] = ()


@message(api_key=16, versions=(0, 5), flexible_since=3)
class ListGroupsRequest(Request["ListGroupsResponse"]):
    """Asks for the groups that this broker coordinates; empty filters match all."""

    states_filter: Annotated[tuple[String, ...], Since(4)] = ()
    types_filter: Annotated[tuple[String, ...], Since(5)] = ()


@struct
class ListedGroup:
    """A group's name and kind."""

    group_id: String
    protocol_type: String
    group_state: Annotated[String, Since(4)] = ""
    group_type: Annotated[String, Since(5)] = ""


@message(api_key=16, versions=(0, 5), flexible_since=3, response=True)
class ListGroupsResponse:
    """The groups that this broker coordinates."""

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: ErrorCode = ErrorCode.NONE
    groups: tuple[ListedGroup, ...] = ()


@message(api_key=42, versions=(0, 2), flexible_since=2)
class DeleteGroupsRequest(Request["DeleteGroupsResponse"]):
    """Asks to forget groups that have no members."""

    groups_names: tuple[String, ...]


@struct
class DeletableGroupResult:
    """The result of one group."""

    group_id: String
    error_code: ErrorCode = ErrorCode.NONE


@message(api_key=42, versions=(0, 2), flexible_since=2, response=True)
class DeleteGroupsResponse:
    """The result of the groups."""

    throttle_time_ms: Int32 = 0
    results: tuple[DeletableGroupResult, ...] = ()


@struct
class OffsetDeleteRequestPartition:
    """A partition whose committed offset shall go."""

    partition_index: Int32


@struct
class OffsetDeleteRequestTopic:
    """The partitions of one topic."""

    name: String
    partitions: tuple[OffsetDeleteRequestPartition, ...]


@message(api_key=47, versions=(0, 0))
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    """Asks to forget a group's committed offsets (KIP-496)."""

    group_id: String
    topics: tuple[OffsetDeleteRequestTopic, ...]


@struct
class OffsetDeleteResponsePartition:
    """The result of one offset."""

    partition_index: Int32
    error_code: ErrorCode = ErrorCode.NONE


@struct
class OffsetDeleteResponseTopic:
    """The result of one topic's offsets."""

    name: String
    partitions: tuple[OffsetDeleteResponsePartition, ...]


@message(api_key=47, versions=(0, 0), response=True)
class OffsetDeleteResponse:
    """The result of the offsets."""

    error_code: ErrorCode = ErrorCode.NONE
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
