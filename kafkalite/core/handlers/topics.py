"""CreateTopics, DeleteTopics, CreatePartitions: the controller's answers, carried.         [P]

Source KIP-4, KIP-195, KIP-464, KIP-525, KIP-516.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
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
