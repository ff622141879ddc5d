"""Single requests about thousands of things: no turn of the loop is long for them."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from kafkalite.core.protocol.groups import FindCoordinatorRequest
from kafkalite.core.protocol.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from kafkalite.errors import ErrorCode
from kafkalite.testing.turns import Turns

MANY: Final = 10_000  # partitions of one topic
TURN_YARDSTICKS: Final = 6  # some 20 ms of the processor

Start = Callable[..., Any]
Ask = Callable[..., Awaitable[Any]]


@pytest.fixture
def measured(
    start: Start, run_measured: Callable[..., None], yardstick_s: Callable[[], float]
) -> Callable[..., None]:
    """`measured(story)` runs `story(running, peer, ask)`. `ask` sends a request as `Peer.ask` does,
    and no turn is long until its answer has come; what the client does counts for nothing."""

    def run(story: Callable[..., Awaitable[None]], **settings: str) -> None:
        async def main(turns: Turns) -> None:
            async with start(**settings) as running:
                peer = await running.connect()

                async def ask(request: Any, version: int) -> Any:
                    frame = b"".join(map(bytes, peer.frames.send(request, version)[1]))
                    gc.collect()
                    gc.disable()
                    try:
                        with turns.watch() as watch:
                            peer.writer.write(frame)
                            data = [await peer.reader.readexactly(4)]
                            data.append(await peer.reader.readexactly(int.from_bytes(data[0])))
                    finally:
                        gc.enable()
                    assert watch.longest_s < TURN_YARDSTICKS * yardstick_s()
                    peer.frames.receive_data(b"".join(data))
                    return peer.frames.next_event().message

                await story(running, peer, ask)

        run_measured(main, time.thread_time)

    return run


@pytest.mark.slow
def test_a_transaction_of_very_many_partitions(measured: Callable[..., None]) -> None:
    """Its end held the loop for 30 ms with 20,000 partitions."""

    async def story(running: Any, peer: Any, ask: Ask) -> None:
        for name in ("t", "u"):
            await peer.create(name, MANY)
        await peer.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=("x",)))
        made = await peer.ask(InitProducerIdRequest("x", 60_000), 4)
        identity = made.producer_id, made.producer_epoch
        for name in ("t", "u"):
            topic = AddPartitionsToTxnTopic(name, tuple(range(MANY)))
            answer = await ask(AddPartitionsToTxnRequest("x", *identity, (topic,)), 3)
            (results,) = answer.results_by_topic_v3_and_below
            codes = {each.partition_error_code for each in results.results_by_partition}
            assert codes == {ErrorCode.NONE}
        (state,) = (await ask(DescribeTransactionsRequest(("x",)), 0)).transaction_states
        assert [len(topic.partitions) for topic in state.topics] == [MANY, MANY]
        ended = await ask(EndTxnRequest("x", *identity, True), 3)
        assert ended.error_code is ErrorCode.NONE

    measured(story)
