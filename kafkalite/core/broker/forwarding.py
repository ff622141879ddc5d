"""Clients' requests for the controller, carried to the broker that holds the seat.         [IO]

    control ──> the term here, or ask its broker ──NOT_CONTROLLER, refused──> again, after a pause
                                  └──> the answer, or an error once it is unknown or too late

A change of settings travels as the request of a client that names the same resources.

Owns   which requests clients send, and their form between brokers.
Never  repeats a request whose outcome is unknown: the client hears REQUEST_TIMED_OUT.
Fails  in the answer: NOT_CONTROLLER if no broker took the seat in time.
Source apache/kafka `ForwardingManager`, `EnvelopeRequest`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kafkalite.core.broker.metrics import errors_in
from kafkalite.core.cluster.config_changes import ChangeConfigs, Result
from kafkalite.core.cluster.controller import Controller, ControllerRequest
from kafkalite.core.peers.channel import refused
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
)
from kafkalite.core.protocol.codec import Request
from kafkalite.core.protocol.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kafkalite.core.protocol.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode, KafkaliteError

RETRY_SECONDS: Final = 0.1
OF_CLIENTS: Final = (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    CreatePartitionsRequest,
    ChangeConfigs,
    ElectLeadersRequest,
    AlterPartitionReassignmentsRequest,
)

# Asks the controller once, for so many ms; None where no broker is known to be it.
Ask = Callable[[int], Awaitable[Any]]


def is_of_clients(request: ControllerRequest) -> bool:
    """Whether clients send such requests: their next question is to find the change in force."""
    return isinstance(request, OF_CLIENTS)


async def forwarded(request: ControllerRequest, ask: Ask, timeout_ms: int) -> Any:
    """The controller's answer, or a refusal in its form."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_ms / 1_000
    answer: Any = None
    while (left_ms := round((until - loop.time()) * 1_000)) > 0:
        try:
            answer = await ask(left_ms)
        except KafkaliteError as error:
            if not (isinstance(error, BrokerUnavailable) and refused(error)):
                refusal = ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error))
                return Controller.refuse(request, refusal)
            answer = None
        if answer is not None and not _is_from_elsewhere(answer):
            return answer
        await asyncio.sleep(RETRY_SECONDS)
    if answer is not None:
        return answer
    words = f"no broker was the controller in {timeout_ms / 1_000:g} s"
    return Controller.refuse(request, ApiError(ErrorCode.NOT_CONTROLLER, words))


def _is_from_elsewhere(answer: Any) -> bool:
    """Whether the broker that answers was not the controller, so that nothing was done."""
    if isinstance(answer, list):
        return any(each and each.error_code is ErrorCode.NOT_CONTROLLER for each in answer)
    return ErrorCode.NOT_CONTROLLER in errors_in(answer)


def wire_form(request: ControllerRequest) -> Request[Any]:
    """The request as another broker reads it."""
    if not isinstance(request, ChangeConfigs):
        assert isinstance(request, Request), request
        return request
    validate_only = request.validate_only
    if request.changes and request.changes[0].replaces:
        replaced = tuple(
            AlterConfigsResource(
                each.resource_type,
                each.resource_name,
                tuple(AlterableConfig(name, value) for name, _, value in each.operations),
            )
            for each in request.changes
        )
        return AlterConfigsRequest(replaced, validate_only)
    changed = tuple(
        IncrementalAlterConfigsResource(
            each.resource_type,
            each.resource_name,
            tuple(IncrementalAlterableConfig(*operation) for operation in each.operations),
        )
        for each in request.changes
    )
    return IncrementalAlterConfigsRequest(changed, validate_only)


def result_of(request: ControllerRequest, answer: Any) -> Any:
    """Another broker's answer as the controller in this process gives it."""
    if not isinstance(request, ChangeConfigs):
        return answer
    results: list[Result] = []
    for each in answer.responses:
        failed = each.error_code is not ErrorCode.NONE
        results.append(ApiError(each.error_code, each.error_message or "") if failed else None)
    return results
