"""Which replica a consumer reads: the leader, or a follower in the consumer's rack.         [P]

    leader in the rack                         the leader
    followers in it, in sync, with the offset  the longest log; then the latest to catch up
    nobody                                     the leader

A follower that is out of sync may fall ever further behind, and its consumers with it.

Owns   the rule; `RACK_AWARE` is the class of Apache Kafka by whose name the setting asks for it.
Source KIP-392; apache/kafka `RackAwareReplicaSelector`, `ReplicaManager.findPreferredReadReplica`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafkalite.core.replicas.leader import Leader

RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def preferred_read_replica(
    leader: Leader, rack: str, racks: Mapping[int, str | None], fetch_offset: int
) -> int | None:
    """The follower that a consumer in `rack` should read from `fetch_offset` on; None: the leader.
    `racks` are those of the brokers that the consumer reaches."""
    if not rack or racks.get(leader.node_id) == rack:
        return None
    near = [
        (state.log_end_offset, state.caught_up_ms, node)
        for node, state in leader.followers.items()
        if racks.get(node) == rack
        and node in leader.in_sync_replicas
        and state.log_start_offset <= fetch_offset <= state.log_end_offset
    ]
    return max(near)[2] if near else None
