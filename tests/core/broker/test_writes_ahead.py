"""Writes of one connection are appended while those before them wait for the followers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.peers.connection import open_connection
from kafkalite.core.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.types import Columns
from kafkalite.testing.cluster import PORT

WRITES = 5


@pytest.mark.parametrize("seed", range(2))
def test_writes_wait_for_the_followers_together_and_are_answered_in_order(seed: int) -> None:
    with ThreeBrokers(seed) as place:
        place.create(NewTopic("t", 1, 3))
        leader = place.state("t").leader
        place.pass_seconds(1)  # the followers fetch
        place.isolate(leader, from_clients=False)
        answers: list[int] = []

        async def write() -> None:
            ports = place.world.client_ports(place.chance("writer"))
            connection = await open_connection(
                f"broker-{leader}", PORT, client_id="writer", request_timeout_ms=60_000,
                connect_timeout_ms=5_000, connect=ports.connect,
            )  # fmt: skip

            async def one(number: int) -> Any:
                batch = encode(Columns([b"k"], [b"%d" % number], [1_000]))
                data = TopicProduceData("t", (PartitionProduceData(0, batch),))
                answer = await connection.submit(ProduceRequest(None, -1, 60_000, (data,)))
                (found,) = answer.responses[0].partition_responses
                answers.append(found.base_offset)
                return found.error_code

            codes = await asyncio.gather(*(one(number) for number in range(WRITES)))
            assert codes == [0] * WRITES
            connection.close()

        writing = place.peer.spawn(write())
        log = place.held(leader, "t").log
        place.until(lambda: log.log_end_offset == WRITES)
        assert log.high_watermark == 0
        assert answers == []
        place.heal()
        place.until(writing.done)
        writing.result()
        assert answers == [*range(WRITES)]
