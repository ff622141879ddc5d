"""Topics, who leads their partitions and who holds them: the controller's answers, carried. [P]

No reassignment is ever under way: what can be done is done at once.

Source KIP-4, KIP-195, KIP-455, KIP-460, KIP-464, KIP-516, KIP-525.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafkalite.core.protocol.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kafkalite.core.types import RequestContext

if TYPE_CHECKING:
    from kafkalite.core.broker import Broker


@handles(ApiKey.CREATE_TOPICS, versions=(0, 7))
def create_topics(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> Pending[Any]:
    """Answered once the topics are durable and their logs are open."""
    return broker.control(request)


@handles(ApiKey.DELETE_TOPICS, versions=(0, 6))
def delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> Pending[Any]:
    """Answered once the topics are durably gone; their files follow."""
    return broker.control(request)


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3))
def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> Pending[Any]:
    """Answered once the partitions are durable and their logs are open."""
    return broker.control(request)


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2))
def elect_leaders(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> Pending[Any]:
    """Answered once the new leaders are durable."""
    return broker.control(request)


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=(0, 0))
def alter_partition_reassignments(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> Pending[Any]:
    """Answered once the replicas are durable."""
    return broker.control(request)


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0))
def list_partition_reassignments(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """None."""
    return ListPartitionReassignmentsResponse()
