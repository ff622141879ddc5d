"""InitProducerId: an id for an idempotent producer.                                        [P]

Transactions are not built: a transactional id is refused with an error that clients report at
once instead of trying again.

Source KIP-98, KIP-360 (an id that the producer had before is simply replaced by a new one).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafkalite.core.types import RequestContext
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker import Broker

FIRST_EPOCH: Final = 0
NO_EPOCH: Final = -1


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 4))
def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
    """A new id in epoch 0."""
    if request.transactional_id is not None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.transactional_id == "":
            code = ErrorCode.INVALID_REQUEST
        return InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)
    pending: Pending[InitProducerIdResponse] = Pending()

    def taken(producer_id: int | ApiError) -> None:
        if isinstance(producer_id, ApiError):
            response = InitProducerIdResponse(
                error_code=producer_id.error_code, producer_epoch=NO_EPOCH
            )
        else:
            response = InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)
        pending.complete(response)

    broker.producer_ids.take().when_done(taken)
    return pending
