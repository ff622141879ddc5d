"""Keys and values of the records in `__consumer_offsets`.                                 [P]

The bytes are a version, then the value in that version (`codec.encode_with_version`). A key's
version tells its kind: 0 and 1 are committed offsets, 2 is a group's state.

Source: OffsetCommit{Key,Value}.json, GroupMetadata{Key,Value}.json.
  OffsetCommitValue   v1 expire_timestamp, v2 drops it; v3 leader_epoch (KIP-320); v4 flexible
  GroupMetadataValue  v1 rebalance_timeout (KIP-62); v2 current_state_timestamp (KIP-211);
                      v3 group_instance_id (KIP-345); v4 flexible
"""

from __future__ import annotations

from typing import Annotated

from kafkalite.core.protocol.codec import schema, struct
from kafkalite.core.protocol.primitives import Bytes, Int32, Int64, Since, String, Until


@schema(versions=(0, 1))
class OffsetCommitKey:
    """The key of a committed offset."""

    group: String
    topic: String
    partition: Int32


@schema(versions=(0, 4), flexible_since=4)
class OffsetCommitValue:
    """A committed offset."""

    offset: Int64
    leader_epoch: Annotated[Int32, Since(3)] = -1
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, Since(1), Until(1)] = -1


@schema(versions=(2, 2))
class GroupMetadataKey:
    """The key of a group's state."""

    group: String


@struct
class MemberMetadata:
    """A member of the group's generation."""

    member_id: String
    group_instance_id: Annotated[String | None, Since(3)] = None
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Annotated[Int32, Since(1)] = -1
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


@schema(versions=(0, 4), flexible_since=4)
class GroupMetadataValue:
    """A group's state as its last completed rebalance left it."""

    protocol_type: String
    generation: Int32
    protocol: String | None
    leader: String | None
    current_state_timestamp: Annotated[Int64, Since(2)] = -1
    members: tuple[MemberMetadata, ...] = ()
