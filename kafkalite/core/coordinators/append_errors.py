"""The error that a coordinator's client gets when the log refused the records of its request. [P]

The log's errors speak of replicas and sizes, which mean nothing to such a client. It gets an error
that makes it retry, look for another coordinator, or send less.

Owns   nothing.
Source apache/kafka `GroupMetadataManager.appendGroupMetadataErrorToResponseError`,
       `CoordinatorOperationExceptionHelper`, `TransactionStateManager.appendTransactionToLog`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any, Final

from kafkalite.core.protocol.groups import (
    DeleteGroupsResponse,
    JoinGroupResponse,
    OffsetDeleteResponse,
    SyncGroupResponse,
)
from kafkalite.core.protocol.offsets import OffsetCommitResponse
from kafkalite.core.protocol.transactions import (
    EndTxnResponse,
    InitProducerIdResponse,
    TxnOffsetCommitResponse,
)
from kafkalite.core.types import NO_EPOCH
from kafkalite.errors import ErrorCode

TRY_AGAIN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
ELSEWHERE: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
TOO_LARGE: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    }
)


def _client_code(error: ErrorCode, too_large: ErrorCode) -> ErrorCode:
    if error in TRY_AGAIN:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in ELSEWHERE:
        return ErrorCode.NOT_COORDINATOR
    return too_large if error in TOO_LARGE else error


@singledispatch
def with_append_error(response: object, error: ErrorCode) -> Any:
    """The response with `error`, the failure of its records; unchanged if it has no such field."""
    return response


@with_append_error.register
def _(response: JoinGroupResponse, error: ErrorCode) -> JoinGroupResponse:
    code = response.error_code or _client_code(error, ErrorCode.UNKNOWN_SERVER_ERROR)
    return JoinGroupResponse(error_code=code, protocol_name=response.protocol_name)


@with_append_error.register
def _(response: SyncGroupResponse, error: ErrorCode) -> SyncGroupResponse:
    code = response.error_code or _client_code(error, ErrorCode.UNKNOWN_SERVER_ERROR)
    return SyncGroupResponse(error_code=code)


@with_append_error.register(OffsetCommitResponse)
@with_append_error.register(TxnOffsetCommitResponse)
def _(response: Any, error: ErrorCode) -> Any:
    code = _client_code(error, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    return replace(
        response,
        topics=tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(p, error_code=p.error_code or code) for p in topic.partitions
                ),
            )
            for topic in response.topics
        ),
    )


@with_append_error.register
def _(response: DeleteGroupsResponse, error: ErrorCode) -> DeleteGroupsResponse:
    code = _client_code(error, ErrorCode.UNKNOWN_SERVER_ERROR)
    results = tuple(replace(r, error_code=r.error_code or code) for r in response.results)
    return replace(response, results=results)


@with_append_error.register
def _(response: OffsetDeleteResponse, error: ErrorCode) -> OffsetDeleteResponse:
    code = response.error_code or _client_code(error, ErrorCode.UNKNOWN_SERVER_ERROR)
    return OffsetDeleteResponse(error_code=code)


@with_append_error.register
def _(response: InitProducerIdResponse, error: ErrorCode) -> InitProducerIdResponse:
    code = response.error_code or _client_code(error, ErrorCode.UNKNOWN_SERVER_ERROR)
    return InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)


@with_append_error.register
def _(response: EndTxnResponse, error: ErrorCode) -> EndTxnResponse:
    code = response.error_code or _client_code(error, ErrorCode.UNKNOWN_SERVER_ERROR)
    return EndTxnResponse(error_code=code)


@with_append_error.register
def _(response: ErrorCode, error: ErrorCode) -> ErrorCode:
    return response or _client_code(error, ErrorCode.UNKNOWN_SERVER_ERROR)
