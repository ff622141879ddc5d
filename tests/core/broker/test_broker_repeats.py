"""What is named again and again is told once: no answer is longer than what there is to tell."""

from __future__ import annotations

import asyncio
from typing import Any

from kafkalite.core.protocol.configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkalite.core.protocol.groups import DescribeGroupsRequest
from kafkalite.core.protocol.transactions import (
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
)

Start = Any
TOPIC, BROKER = 2, 4


def test_settings(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            names = [(TOPIC, "t"), (TOPIC, "u"), (BROKER, "1"), (BROKER, "x"), (BROKER, "")]
            again = [*names, (BROKER, "01"), (BROKER, "001"), (BROKER, "+1")]
            resources = tuple(DescribeConfigsResource(*name, None) for name in again * 3)
            told = (await peer.ask(DescribeConfigsRequest(resources))).results
            assert [(each.resource_type, each.resource_name) for each in told] == [
                *names[:2],
                (BROKER, "+1"),
                *names[3:],
            ]

    asyncio.run(story())


def test_groups_transactions_and_producers(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", 2)
            await peer.produce("t", b"v", producer_id=1, producer_epoch=0, base_sequence=0)
            groups = (await peer.ask(DescribeGroupsRequest(("g", "h") * 3))).groups
            assert [group.group_id for group in groups] == ["g", "h"]
            told = await peer.ask(DescribeTransactionsRequest(("x", "y") * 3))
            assert [each.transactional_id for each in told.transaction_states] == ["x", "y"]
            topics = tuple(DescribeProducersTopic("t", (1, 0, 1)) for _ in range(3))
            (topic,) = (await peer.ask(DescribeProducersRequest(topics))).topics
            assert [(p.partition_index, len(p.active_producers)) for p in topic.partitions] == [
                (1, 0),
                (0, 1),
            ]

    asyncio.run(story())
