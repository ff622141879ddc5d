"""FindCoordinator: which broker keeps a group, or a transactional id.                      [D]

The coordinators' topic is made when it is first asked for, and the answer waits for it.

Source KIP-98, KIP-699 (several keys).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from kafkalite.core.coordinators.runtime import Coordinators
from kafkalite.core.handlers.routes import handles
from kafkalite.core.handlers.slices import ENTRIES_PER_SLICE, Answered, Answering, in_slices
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafkalite.core.types import RequestContext
from kafkalite.errors import ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

GROUP: Final = 0
TRANSACTION: Final = 1
SEVERAL_KEYS_V: Final = 4
NOBODY: Final = -1


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 4))
def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse | Pending[FindCoordinatorResponse]:
    """The broker that leads the partition in which the group or the transactional id is kept."""
    slices = _slices(broker, request, context)
    answer = in_slices(broker, ApiKey.FIND_COORDINATOR, context, slices)
    return cast("FindCoordinatorResponse | Pending[FindCoordinatorResponse]", answer)


def _coordinators(broker: Broker, key_type: int) -> Coordinators[Any] | None:
    if key_type == GROUP:
        return broker.groups
    return broker.transactions if key_type == TRANSACTION else None


def _slices(broker: Broker, request: FindCoordinatorRequest, context: RequestContext) -> Answering:
    coordinators = _coordinators(broker, request.key_type)
    if coordinators is not None and not coordinators.exists:
        yield Answered(broker.create_topics((coordinators.topic,)))
    if context.api_version >= SEVERAL_KEYS_V:
        found_all: list[Coordinator] = []
        for count, key in enumerate(dict.fromkeys(request.coordinator_keys), start=1):
            if not count % ENTRIES_PER_SLICE:
                yield
            found_all.append(_find(broker, key, request.key_type, context.listener))
        return FindCoordinatorResponse(coordinators=tuple(found_all))
    found = _find(broker, request.key, request.key_type, context.listener)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(broker: Broker, key: str, key_type: int, listener: str) -> Coordinator:
    coordinators = _coordinators(broker, key_type)
    if coordinators is None:
        message = f"key type {key_type} is unknown"
        return Coordinator(key, NOBODY, "", NOBODY, ErrorCode.INVALID_REQUEST, message)
    leader = coordinators.broker_of(key)
    node = None if leader is None else broker.image.node(leader, listener)
    if node is None:
        lacks = "has no leader" if leader is None else f"is not reached by the listener {listener}"
        code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{coordinators.topic} {lacks}"
        return Coordinator(key, NOBODY, "", NOBODY, code, message)
    return Coordinator(key, node.node_id, node.host, node.port, error_message=None)
