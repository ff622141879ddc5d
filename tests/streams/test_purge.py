"""Repartition topics lose what is committed: not more, not too often, and at the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from kafkalite.clients import Admin, Producer
from kafkalite.clients.consumer.consumer import OffsetAndMetadata
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import ApiError, ErrorCode
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, string
from kafkalite.streams.local.purge import Purge
from kafkalite.streams.local.worker import Worker

OURS, OTHERS = TopicPartition("app-g-repartition", 0), TopicPartition("in", 0)
EVER = 10**9  # ms


class FakeAdmin:
    """Writes down what is deleted, or refuses."""

    def __init__(self) -> None:
        self.deleted: list[Mapping[TopicPartition, int]] = []
        self.refuses = False

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        if self.refuses:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "records")
        self.deleted.append(dict(before))
        return before


def commit(purge: Purge, offset: int) -> None:
    purge.committed({tp: OffsetAndMetadata(offset) for tp in (OURS, OTHERS)})


def test_only_repartition_topics_up_to_what_is_committed_at_the_end_of_a_run() -> None:
    async def scenario() -> None:
        admin = FakeAdmin()
        purge = Purge(admin, [OURS.topic], EVER)  # type: ignore[arg-type]
        for offset in (3, 7, 9):
            commit(purge, offset)
        assert admin.deleted == []
        await purge.close(finish=True)
        assert admin.deleted == [{OURS: 9}]
        await purge.close(finish=True)
        assert len(admin.deleted) == 1

    asyncio.run(scenario())


def test_one_request_an_interval_and_none_for_what_is_gone() -> None:
    async def scenario() -> None:
        admin = FakeAdmin()
        purge = Purge(admin, [OURS.topic], 0)  # type: ignore[arg-type]
        commit(purge, 3)
        commit(purge, 7)  # the first is under way
        await asyncio.sleep(0)
        assert admin.deleted == [{OURS: 7}]
        await asyncio.sleep(0)
        commit(purge, 7)
        await asyncio.sleep(0)
        assert len(admin.deleted) == 1

    asyncio.run(scenario())


def test_a_refusal_is_tried_again_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        admin = FakeAdmin()
        admin.refuses = True
        purge = Purge(admin, [OURS.topic], 0)  # type: ignore[arg-type]
        commit(purge, 3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "are not purged, and tried again" in caplog.text
        admin.refuses = False
        await purge.close(finish=True)
        assert admin.deleted == [{OURS: 3}]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_run_leaves_nothing_in_a_repartition_topic(tmp_path: Path) -> None:
    async def scenario(address: str) -> None:
        columns = Columns([b"k"] * 100, [b"w%d" % i for i in range(100)], [0] * 100)
        async with Producer(address) as producer:
            await producer.send_columns("in", columns)
        app = Streams("app", key=string(), value=string())
        app.stream("in").group_by(str.upper, name="g").count(name="n")
        await Worker(app.plan(), address, MemoryRegistry()).run(until_caught_up=True)
        async with Admin(address) as admin:
            (start,) = (await admin.beginning_offsets([OURS])).values()
            (end,) = (await admin.end_offsets([OURS])).values()
            assert (await admin.beginning_offsets([OTHERS]))[OTHERS] == 0
        assert start == end >= 100

    with EmbeddedBroker(tmp_path) as broker:
        asyncio.run(asyncio.wait_for(scenario(broker.bootstrap_servers), 60))
