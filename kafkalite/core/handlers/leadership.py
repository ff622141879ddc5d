"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments.                  [P]

The controller decides. No reassignment is ever under way: what can be done is done at once.

Source KIP-455, KIP-460.
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
from kafkalite.core.types import RequestContext

if TYPE_CHECKING:
    from kafkalite.core.broker import Broker


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
