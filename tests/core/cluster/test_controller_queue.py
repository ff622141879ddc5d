"""The controller's queue: one step after the other, whatever becomes of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from kafkalite.core.cluster.controller import Controller
from kafkalite.core.cluster.coordination import Operation, Set
from kafkalite.core.cluster.image import PRODUCER_IDS_PATH, ClusterRecord, broker_record
from kafkalite.core.cluster.local import LocalCoordination
from kafkalite.core.cluster.parts import TOPICS_PER_PART
from kafkalite.core.cluster.queue import WAITING_MAX, ControllerQueue
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.peers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext
from kafkalite.errors import (
    CoordinationError,
    CoordinationUnavailable,
    ErrorCode,
    OutcomeUnknown,
)
from kafkalite.testing.storage import MemoryStorage


class Store(ClusterStore):
    """Refuses as often as it is told to."""

    refusals = 0

    async def append(self, records: Sequence[ClusterRecord], *, ephemeral: bool = False) -> None:
        if self.refusals:
            self.refusals -= 1
            raise CoordinationError("somebody else controls")
        await super().append(records, ephemeral=ephemeral)


def block(first: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=1_000)


def queue(refusals: int = 0, coordination: LocalCoordination | None = None) -> ControllerQueue:
    controller = Controller(BrokerConfig.parse(), Random(1), lambda _: ())
    controller.replay([broker_record(1, {DEFAULT_LISTENER: ("h", 9092)})])
    store = Store(coordination or LocalCoordination(MemoryStorage()))
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
        first, second = (steps.submit(AllocateProducerIdsRequest(1)) for _ in range(2))

        def faulty(_: object) -> None:
            raise RuntimeError("a fault of ours")

        first.when_done(faulty)
        answers: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        second.when_done(answers.set_result)
        assert type(await asyncio.wait_for(answers, 60)) is AllocateProducerIdsResponse
        await steps.close()

    asyncio.run(story())
    assert "RuntimeError: a fault of ours" in caplog.text


def test_one_request_too_many_is_told_to_try_again() -> None:
    async def story() -> None:
        steps = queue()
        waiting = [steps.submit(AllocateProducerIdsRequest(1)) for _ in range(WAITING_MAX + 1)]
        late = waiting.pop().response
        assert isinstance(late, AllocateProducerIdsResponse)
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
            refuse = staticmethod(controller.refuse)

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


async def answer_of(pending: Any) -> Any:
    answers: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending.when_done(answers.set_result)
    async with asyncio.timeout(60):
        return await answers


class Slow(LocalCoordination):
    """Each transaction waits until it may go on, and may lose its answer or its connection."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage())
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.loses = self.is_away = False

    async def get_many(self, paths: Sequence[str]) -> Any:
        if self.is_away:
            raise CoordinationUnavailable("no connection")
        return await super().get_many(paths)

    async def transact(self, operations: Sequence[Operation]) -> None:
        self.begun.set()
        await self.may_go_on.wait()
        await super().transact(operations)
        if self.loses:
            self.loses, self.is_away = False, True
            raise OutcomeUnknown("the answer was lost")


def test_closing_waits_for_the_write_that_has_begun_and_refuses_the_rest() -> None:
    async def story() -> None:
        coordination = Slow()
        steps = queue(coordination=coordination)
        steps.start()
        first, second = (steps.submit(AllocateProducerIdsRequest(1)) for _ in range(2))
        await coordination.begun.wait()
        closing = asyncio.create_task(steps.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        coordination.may_go_on.set()
        await closing
        assert first.response == block(0)
        assert steps._controller.image.next_producer_id_block == 1_000, "it is in force"
        for refused in (second, steps.submit(AllocateProducerIdsRequest(1))):
            assert refused.response is not None
            assert refused.response.error_code is ErrorCode.NOT_CONTROLLER
        assert (await coordination.get(PRODUCER_IDS_PATH)).version == 0

    asyncio.run(story())


def test_no_step_is_taken_before_a_lost_answer_is_known() -> None:
    async def story() -> None:
        coordination = Slow()
        coordination.may_go_on.set()
        coordination.loses = True
        steps = queue(coordination=coordination)
        steps.start()
        unknown = await answer_of(steps.submit(AllocateProducerIdsRequest(1)))
        assert unknown.error_code is ErrorCode.REQUEST_TIMED_OUT
        waiting = steps.submit(AllocateProducerIdsRequest(1))
        await asyncio.sleep(0.01)
        assert waiting.response is None
        coordination.is_away = False
        assert await answer_of(waiting) == block(1_000), "the first block is used"
        await steps.close()

    asyncio.run(story())


def test_what_others_wrote_is_put_in_force_before_the_next_step() -> None:
    async def story() -> None:
        coordination = LocalCoordination(MemoryStorage())
        steps = queue(coordination=coordination)
        steps.start()
        assert await answer_of(steps.submit(AllocateProducerIdsRequest(1))) == block(0)
        await coordination.transact([Set(PRODUCER_IDS_PATH, b'{"next_block_start":7000}')])
        refused = await answer_of(steps.submit(AllocateProducerIdsRequest(1)))
        assert refused.error_code is ErrorCode.NOT_CONTROLLER
        assert await answer_of(steps.submit(AllocateProducerIdsRequest(1))) == block(7_000)
        await steps.close()

    asyncio.run(story())
