"""Requests about topics, leaders and replicas, carried to the controller and back.         [P]

Source KIP-4, KIP-195, KIP-455, KIP-460, KIP-464, KIP-516, KIP-525.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.broker.steering import peer_of
from kafkalite.core.cluster.reassignments import list_reassignments
from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.cluster import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafkalite.core.protocol.peers import FollowMetadataRequest, FollowMetadataResponse
from kafkalite.core.types import RequestContext

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker
    from kafkalite.core.cluster.controller import ControllerRequest


CARRIED: Final[tuple[tuple[ApiKey, tuple[int, int], str], ...]] = (
    (ApiKey.CREATE_TOPICS, (0, 7), "Answered once the topics are durable and their logs are open."),
    (
        ApiKey.DELETE_TOPICS,
        (0, 6),
        "Answered once the topics are durably gone; their files follow.",
    ),
    (
        ApiKey.CREATE_PARTITIONS,
        (0, 3),
        "Answered once the partitions are durable and their logs are open.",
    ),
    (ApiKey.ELECT_LEADERS, (0, 2), "Answered once the new leaders are durable."),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 0), "Answered once the replicas are durable."),
    (ApiKey.ALTER_PARTITION, (2, 3), "A leader's in-sync sets; answered once they are durable."),
    (ApiKey.CONTROLLED_SHUTDOWN, (0, 3), "Answered once others lead, where others can."),
    (ApiKey.ALLOCATE_PRODUCER_IDS, (0, 0), "Answered once the ids belong to one broker."),
    (ApiKey.REPORT_REPLICAS, (0, 0), "Answered once others lead what a broker cannot write."),
)


def _carry(key: ApiKey, versions: tuple[int, int], says: str) -> None:
    def carry(broker: Broker, request: ControllerRequest, context: RequestContext) -> Pending[Any]:
        return broker.control(request, from_peer=peer_of(context.client_id))

    carry.__doc__ = says
    handles(key, versions)(carry)


for _carried in CARRIED:
    _carry(*_carried)


@handles(ApiKey.FOLLOW_METADATA, versions=(0, 0))
def follow_metadata(
    broker: Broker, request: FollowMetadataRequest, context: RequestContext
) -> FollowMetadataResponse | Pending[FollowMetadataResponse]:
    """The cluster's records for another broker, once there are some."""
    return broker.steering.follow(request)


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0))
def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """The partitions that are being moved, of those named or of all."""
    return list_reassignments(request, broker.image)
