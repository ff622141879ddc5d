"""How much a worker that is behind takes and sends at a time, counted against a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.peers.connection import BrokerConnection
from kafkalite.core.types import Columns
from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import MemoryRegistry
from kafkalite.streams import Streams, bytes_
from kafkalite.streams.local.rounds import Rounds
from kafkalite.streams.local.settings import FETCH_BYTES
from kafkalite.streams.local.worker import Worker, WorkerConfig

pytestmark = pytest.mark.slow

RECORDS = 300_000
CONFIG = WorkerConfig(processing_guarantee="at_least_once", commit_interval_ms=60_000)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


async def fill(address: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topics([NewTopic("in", 1), NewTopic("out", 4)])
    keys = [b"%d" % (i % 1_000) for i in range(RECORDS)]
    values = [b"%048d" % i for i in range(RECORDS)]
    async with Producer(address) as producer:
        await producer.send_columns("in", Columns(keys, values, range(RECORDS)))
        await producer.flush()


def test_a_worker_that_is_behind_takes_whole_fetches_and_commits_in_the_end(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: Counter[str] = Counter()
    polled: list[int] = []
    send, receive = BrokerConnection._send, Rounds.receive

    def counted(self: BrokerConnection, request: Any, *rest: Any) -> Any:
        requests[type(request).__name__] += 1
        return send(self, request, *rest)

    def noted(self: Rounds, partition: Any, columns: Columns) -> None:
        polled.append(len(columns))
        receive(self, partition, columns)

    asyncio.run(fill(address))
    monkeypatch.setattr(BrokerConnection, "_send", counted)
    monkeypatch.setattr(Rounds, "receive", noted)
    app = Streams("behind")
    app.stream("in", value=bytes_()).map(lambda v: v).to("out", value=bytes_())
    worker = Worker(app.plan(), address, MemoryRegistry(), CONFIG)
    asyncio.run(worker.run(until_caught_up=True))

    bytes_in = RECORDS * 60
    assert sum(polled) == worker.progress.records == RECORDS
    assert max(polled) >= FETCH_BYTES * 0.9 / 65
    assert len(polled) <= 2 + bytes_in // FETCH_BYTES
    assert requests["FetchRequest"] <= 8 + bytes_in // FETCH_BYTES
    assert requests["OffsetCommitRequest"] <= 2  # none while it knows of more to read
    assert requests["ListOffsetsRequest"] <= 8
