"""The controller's queue: its steps taken one at a time, each durable before it is in force. [IO]

    submit ──> queue ──> part ──> controller.handle ──> store.append ──> apply ──┐
                          └───────────────── the next part ───────────────────────┴──> reply

A step of many records is several transactions, each in force before the next one is written. After
a write whose outcome is unknown no step is taken until the store has found it out.

Owns   the requests that wait for the controller, a bounded number: later ones are refused with a
       retriable error.
Never  lets a step see an image in which the step before it is not yet in force. Never leaves a
       write that has begun: closing waits until it is in force and answered.
Fails  by refusing the request in its own words: the store refused, or another broker controls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from kafkalite.core.cluster.controller import Controller, ControllerRequest
from kafkalite.core.cluster.image import ClusterRecord, is_registration
from kafkalite.core.cluster.parts import joined, parts
from kafkalite.core.cluster.store import ClusterStore, StaleState, batches
from kafkalite.core.pending import Pending
from kafkalite.core.types import RequestContext
from kafkalite.errors import (
    ApiError,
    CoordinationError,
    CoordinationUnavailable,
    ErrorCode,
    KafkaliteError,
    OutcomeUnknown,
)

log: Final = logging.getLogger(__name__)

WAITING_MAX: Final = 1_000
SETTLE_SECONDS: Final = 0.5  # between two attempts to find out whether a write happened

Apply = Callable[[Sequence[ClusterRecord]], Awaitable[None]]


class ControllerQueue:
    """The requests that wait for `controller`. `apply` puts durable records in force."""

    def __init__(self, controller: Controller, store: ClusterStore, apply: Apply) -> None:
        self._controller = controller
        self._store = store
        self._apply = apply
        self._waiting: asyncio.Queue[tuple[ControllerRequest, Pending[Any]]]
        self._waiting = asyncio.Queue(WAITING_MAX)
        self._task: asyncio.Task[None] | None = None
        self._taking: asyncio.Task[None] | None = None  # the request whose steps are being taken
        self._is_closing = False

    def start(self) -> None:
        """Begins to take steps."""
        self._task = asyncio.create_task(self._steps(), name="controller")

    async def close(self) -> None:
        """Stops after the step that has begun; the requests that still wait are refused."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._taking is not None:
            await asyncio.gather(self._taking, return_exceptions=True)
        while not self._waiting.empty():
            request, pending = self._waiting.get_nowait()
            pending.complete(self._controller.refuse(request, _stopping()))

    def submit(self, request: ControllerRequest) -> Pending[Any]:
        """Hands a request to the controller; answered once its records are in force."""
        pending: Pending[Any] = Pending()
        if self._is_closing:
            pending.complete(self._controller.refuse(request, _stopping()))
            return pending
        try:
            self._waiting.put_nowait((request, pending))
        except asyncio.QueueFull:
            words = f"{WAITING_MAX} requests wait for the controller"
            refusal = ApiError(ErrorCode.REQUEST_TIMED_OUT, words)
            pending.complete(self._controller.refuse(request, refusal))
        return pending

    async def _steps(self) -> None:
        while True:
            await self._settle()
            request, pending = await self._waiting.get()
            self._taking = asyncio.create_task(self._take(request, pending))
            try:
                await asyncio.shield(self._taking)
            except Exception:  # the receiver of the answer failed: others still wait for theirs
                log.exception("an answer of the controller")

    async def _settle(self) -> None:
        """Waits until no write is left whose outcome is unknown, and puts in force what is
        written."""
        while self._store.is_unsettled:
            try:
                if records := await self._store.settle():
                    await self._apply(records)
            except StaleState as stale:
                await self._apply(stale.records)
            except CoordinationError as error:
                log.warning("a write whose answer was lost: %s", error)
                await asyncio.sleep(SETTLE_SECONDS)
            except Exception:
                log.exception("a write whose answer was lost could not be put in force")

    async def _take(self, request: ControllerRequest, pending: Pending[Any]) -> None:
        """Takes a step for each part of the request, and says of those not taken why not."""
        responses: list[Any] = []
        refusal: ApiError | None = None
        for part in parts(request):
            if responses:
                await asyncio.sleep(0)  # others get their turn
            if self._is_closing and refusal is None:
                refusal = _stopping()
            if refusal is None:
                try:
                    responses.append(await self._step(part))
                    continue
                except (CoordinationUnavailable, OutcomeUnknown) as error:
                    refusal = self._refusal(request, ErrorCode.REQUEST_TIMED_OUT, error)
                except CoordinationError as error:
                    refusal = self._refusal(request, ErrorCode.NOT_CONTROLLER, error)
                except KafkaliteError as error:
                    refusal = self._refusal(request, ErrorCode.KAFKA_STORAGE_ERROR, error)
                except Exception as error:
                    log.exception("a step of the controller failed")
                    refusal = self._refusal(request, ErrorCode.UNKNOWN_SERVER_ERROR, error)
            responses.append(self._controller.refuse(part, refusal))
        pending.complete(joined(responses))

    async def _step(self, request: ControllerRequest) -> Any:
        outcome = self._controller.handle(request, RequestContext(0))
        for batch in batches(outcome.records):
            try:
                await self._store.append([r for r in batch if not is_registration(r.path)])
            except StaleState as stale:
                await self._apply(stale.records)
                raise
            await self._apply(batch)
        (reply,) = outcome.replies
        return reply.response

    def _refusal(self, request: ControllerRequest, code: ErrorCode, error: Exception) -> ApiError:
        log.error("%s was not carried out: %s", type(request).__name__, error)
        return ApiError(code, str(error))


def _stopping() -> ApiError:
    return ApiError(ErrorCode.NOT_CONTROLLER, "the broker is stopping")
