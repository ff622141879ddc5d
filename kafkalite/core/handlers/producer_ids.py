"""InitProducerId: an id for an idempotent producer, or for a transactional one.            [P]

Without a transactional id it is a new one in epoch 0. With one the transaction coordinator answers.

Source KIP-98, KIP-360 (an id that the producer had before is simply replaced by a new one),
       KIP-588 (PRODUCER_FENCED).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalite.core.handlers.routes import handles
from kafkalite.core.pending import Pending, when_all
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafkalite.core.types import NO_EPOCH, NO_PRODUCER_ID, RequestContext
from kafkalite.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kafkalite.core.broker import Broker

FIRST_EPOCH: Final = 0
FENCED_V: Final = 4


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 4))
def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
    """A new id in epoch 0, or that of the transactional id in its next one."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_EPOCH)
    if request.transactional_id is not None:
        return _transactional(broker, request.transactional_id, request, context)
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


def _transactional(
    broker: Broker,
    transactional_id: str,
    request: InitProducerIdRequest,
    context: RequestContext,
) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
    def checked(answers: list[InitProducerIdResponse]) -> InitProducerIdResponse:
        code = fenced_for(answers[0].error_code, context, since=FENCED_V)
        return replace(answers[0], error_code=code)

    transactions = broker.transactions
    try:
        if transactional_id == "":
            raise ApiError(ErrorCode.INVALID_REQUEST, "a transactional id has a character or more")
        index = transactions.index_of(transactional_id)
        return when_all([transactions.handle(index, request, context)], checked)
    except ApiError as error:
        return InitProducerIdResponse(error_code=error.error_code, producer_epoch=NO_EPOCH)


def fenced_for(code: ErrorCode, context: RequestContext, *, since: int) -> ErrorCode:
    """Clients of versions before `since` know PRODUCER_FENCED as INVALID_PRODUCER_EPOCH."""
    is_unknown = code is ErrorCode.PRODUCER_FENCED and context.api_version < since
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code
