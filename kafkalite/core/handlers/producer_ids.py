"""InitProducerId: an id for an idempotent producer, or for a transactional one.            [P]

Without a transactional id it is a new one in epoch 0. With one the transaction coordinator answers.

Source KIP-98, KIP-360 (an id that the producer had before is simply replaced by a new one),
       KIP-588 (PRODUCER_FENCED); apache/kafka `RPCProducerIdManager` (why there is no id).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import Pending, after
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafkalite.core.types import NO_EPOCH, NO_PRODUCER_ID, RequestContext
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker.broker import Broker

FIRST_EPOCH: Final = 0
FENCED_V: Final = 4
# Why the controller gave no block means nothing to clients, some of which would give up.
NO_ID_NOW: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 4))
def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
    """Returns a new id in epoch 0, or the transactional id's producer id in its next epoch."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_EPOCH)
    if request.transactional_id is not None:
        return _transactional(broker, request.transactional_id, request, context)
    return after(broker.producer_ids.take(), _response)


def _response(producer_id: int | ApiError) -> InitProducerIdResponse:
    if isinstance(producer_id, ApiError):
        return InitProducerIdResponse(error_code=NO_ID_NOW, producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=FIRST_EPOCH)


def _transactional(
    broker: Broker,
    transactional_id: str,
    request: InitProducerIdRequest,
    context: RequestContext,
) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
    def checked(answer: InitProducerIdResponse) -> InitProducerIdResponse:
        code = fenced_for(answer.error_code, context, since=FENCED_V)
        return replace(answer, error_code=code)

    transactions = broker.transactions
    try:
        if transactional_id == "":
            raise ApiError(ErrorCode.INVALID_REQUEST, "a transactional id has a character or more")
        index = transactions.index_of(transactional_id)
        return after(transactions.handle(index, request, context), checked)
    except ApiError as error:
        return InitProducerIdResponse(error_code=error.error_code, producer_epoch=NO_EPOCH)


def fenced_for(code: ErrorCode, context: RequestContext, *, since: int) -> ErrorCode:
    """Clients of versions before `since` know PRODUCER_FENCED as INVALID_PRODUCER_EPOCH."""
    is_unknown = code is ErrorCode.PRODUCER_FENCED and context.api_version < since
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code
