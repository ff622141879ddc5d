"""The controller's queue: its steps taken one at a time, each durable before it is in force. [IO]

    submit ──> queue ──> part ──> controller.handle ──> store.append ──> apply ──┐
                          └───────────────── the next part ───────────────────────┴──> reply

Owns   the requests that wait for the controller, a bounded number: later ones are refused with a
       retriable error.
Never  lets a step see an image in which the step before it is not yet in force.
Fails  by refusing the request in its own words: the store refused, or another broker controls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from kafkalite.core.cluster.controller import Controller, ControllerRequest
from kafkalite.core.cluster.image import ClusterRecord
from kafkalite.core.cluster.parts import joined, parts
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.core.pending import Pending
from kafkalite.core.types import RequestContext
from kafkalite.errors import ApiError, CoordinationError, ErrorCode, KafkaliteError

log: Final = logging.getLogger(__name__)

WAITING_MAX: Final = 1_000

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
        self._writing: asyncio.Future[None] | None = None  # the records of the last step

    def start(self) -> None:
        """Begins to take steps."""
        self._task = asyncio.create_task(self._steps(), name="controller")

    async def close(self) -> None:
        """Stops between two steps; a step whose records are being written is cut off once they are
        durable, and in force after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)

    def submit(self, request: ControllerRequest) -> Pending[Any]:
        """Hands a request to the controller; answered once its records are in force."""
        pending: Pending[Any] = Pending()
        try:
            self._waiting.put_nowait((request, pending))
        except asyncio.QueueFull:
            words = f"{WAITING_MAX} requests wait for the controller"
            refusal = ApiError(ErrorCode.REQUEST_TIMED_OUT, words)
            pending.complete(self._controller.refuse(request, refusal))
        return pending

    async def _steps(self) -> None:
        while True:
            request, pending = await self._waiting.get()
            try:
                await self._take(request, pending)
            except Exception:  # whoever heard the answer failed: the others still wait for theirs
                log.exception("an answer of the controller")

    async def _take(self, request: ControllerRequest, pending: Pending[Any]) -> None:
        """Takes a step for each part of the request, and says of those not taken why not."""
        responses: list[Any] = []
        refusal: ApiError | None = None
        for part in parts(request):
            if responses:
                await asyncio.sleep(0)  # others get their turn
            if refusal is None:
                try:
                    responses.append(await self._step(part))
                    continue
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
        if outcome.records:
            self._writing = asyncio.ensure_future(self._store.append(outcome.records))
            await asyncio.shield(self._writing)
            await self._apply(outcome.records)
        (reply,) = outcome.replies
        return reply.response

    def _refusal(self, request: ControllerRequest, code: ErrorCode, error: Exception) -> ApiError:
        log.error("%s was not carried out: %s", type(request).__name__, error)
        return ApiError(code, str(error))
