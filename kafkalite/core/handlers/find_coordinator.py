"""FindCoordinator: which broker keeps a group.                                             [P]

`__consumer_offsets` is made when it is first asked for, and the answer waits for it.

Source KIP-98, KIP-699 (several keys). Transactions are not built: a transactional id is refused
with an error that clients report at once instead of trying again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalite.core.handlers.routes import handles
from kafkalite.core.internal_topics import OFFSETS_TOPIC
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
    from kafkalite.core.broker import Broker

GROUP: Final = 0
TRANSACTION: Final = 1
SEVERAL_KEYS_V: Final = 4
NOBODY: Final = -1
NO_TRANSACTIONS: Final = "transactions are not supported by this broker"


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 4))
def find_coordinator(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse | Pending[FindCoordinatorResponse]:
    """The broker that leads the group's partition of `__consumer_offsets`."""
    if request.key_type != GROUP or broker.groups.exists:
        return _answer(broker, request, context.api_version)
    pending: Pending[FindCoordinatorResponse] = Pending()
    broker.create_topics((OFFSETS_TOPIC,)).when_done(
        lambda _: pending.complete(_answer(broker, request, context.api_version))
    )
    return pending


def _answer(
    broker: Broker, request: FindCoordinatorRequest, api_version: int
) -> FindCoordinatorResponse:
    if api_version >= SEVERAL_KEYS_V:
        keys = dict.fromkeys(request.coordinator_keys)
        return FindCoordinatorResponse(
            coordinators=tuple(_find(broker, key, request.key_type) for key in keys)
        )
    found = _find(broker, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(broker: Broker, key: str, key_type: int) -> Coordinator:
    if key_type == TRANSACTION:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return Coordinator(key, NOBODY, "", NOBODY, code, NO_TRANSACTIONS)
    if key_type != GROUP:
        message = f"key type {key_type} is unknown"
        return Coordinator(key, NOBODY, "", NOBODY, ErrorCode.INVALID_REQUEST, message)
    node = broker.groups.node_of(key)
    if node is None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return Coordinator(key, NOBODY, "", NOBODY, code, "__consumer_offsets has no leader yet")
    return Coordinator(key, node.node_id, node.host, node.port, error_message=None)
