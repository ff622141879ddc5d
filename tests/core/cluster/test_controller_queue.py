"""The controller's queue: one step after the other, whatever becomes of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from kafkalite.core.cluster.controller import AllocateProducerIds, Controller, ProducerIdBlock
from kafkalite.core.cluster.image import ClusterRecord, broker_record
from kafkalite.core.cluster.local import LocalCoordination
from kafkalite.core.cluster.parts import TOPICS_PER_PART
from kafkalite.core.cluster.queue import WAITING_MAX, ControllerQueue
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext
from kafkalite.errors import ApiError, CoordinationError, ErrorCode
from kafkalite.testing.storage import MemoryStorage


class Store(ClusterStore):
    """Refuses as often as it is told to."""

    refusals = 0

    async def append(self, records: Sequence[ClusterRecord], *, ephemeral: bool = False) -> None:
        if self.refusals:
            self.refusals -= 1
            raise CoordinationError("somebody else controls")
        await super().append(records, ephemeral=ephemeral)


def queue(refusals: int = 0) -> ControllerQueue:
    controller = Controller(BrokerConfig.parse(), Random(1), lambda _: ())
    store = Store(LocalCoordination(MemoryStorage()))
    store.refusals = refusals

    async def apply(records: Sequence[ClusterRecord]) -> None:
        controller.replay(records)

    return ControllerQueue(controller, store, apply)


@pytest.mark.parametrize("refusals", [0, 1])
def test_whoever_fails_at_hearing_its_answer_does_not_keep_others_from_theirs(
    refusals: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        steps = queue(refusals)
        steps.start()
        first, second = (steps.submit(AllocateProducerIds()) for _ in range(2))

        def faulty(_: object) -> None:
            raise RuntimeError("a fault of ours")

        first.when_done(faulty)
        answers: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        second.when_done(answers.set_result)
        assert type(await asyncio.wait_for(answers, 60)) is ProducerIdBlock
        await steps.close()

    asyncio.run(story())
    assert "RuntimeError: a fault of ours" in caplog.text


def test_one_request_too_many_is_told_to_try_again() -> None:
    async def story() -> None:
        steps = queue()
        waiting = [steps.submit(AllocateProducerIds()) for _ in range(WAITING_MAX + 1)]
        late = waiting.pop().response
        assert isinstance(late, ApiError)
        assert late.error_code is ErrorCode.REQUEST_TIMED_OUT
        assert {each.response for each in waiting} == {None}

    asyncio.run(story())


@pytest.mark.parametrize("refusals", [0, 1])
def test_a_large_request_is_taken_in_steps_between_which_others_get_their_turn(
    refusals: int,
) -> None:
    async def story() -> None:
        steps = queue(refusals)
        controller = steps._controller
        names = [f"t{number}" for number in range(2 * TOPICS_PER_PART + 1)]
        topics = tuple(CreatableTopic(name, 1, 1, (), ()) for name in names)
        controller.replay((broker_record(0, {DEFAULT_LISTENER: ("h", 1)}),))
        counts: list[int] = []

        class Counting:
            refuse = controller.refuse

            def handle(self, request: Any, context: RequestContext) -> Any:
                counts.append(len(request.topics))
                return controller.handle(request, context)

        steps._controller = Counting()
        await steps._store.load()  # which makes the roots
        steps.start()
        pending = steps.submit(CreateTopicsRequest(topics))
        answers: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        pending.when_done(answers.set_result)
        results = (await asyncio.wait_for(answers, 60)).topics
        assert [result.name for result in results] == names
        code = ErrorCode.NOT_CONTROLLER if refusals else ErrorCode.NONE
        assert {result.error_code for result in results} == {code}
        tried = [TOPICS_PER_PART] if refusals else [TOPICS_PER_PART, TOPICS_PER_PART, 1]
        assert counts == tried, "after a failure nothing more is tried"
        await steps.close()

    asyncio.run(story())
