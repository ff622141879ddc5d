"""Our own consumer in a cluster: leaders change, logs are cut, followers are read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.replicas.selection import RACK_AWARE
from kafkalite.core.types import TopicPartition
from kafkalite.errors import LogTruncation

TP = TopicPartition("t", 0)


class Reader:
    """A consumer of partition 0, and what it has read so far."""

    def __init__(self, place: ThreeBrokers, **options: Any) -> None:
        self.place = place
        self.read: list[bytes] = []
        self.consumer = self._call(self._begin, options)

    async def _begin(self, options: Any) -> Consumer:
        client = self.place.client(metadata_max_age_ms=60_000)
        consumer = Consumer(client, auto_offset_reset="earliest", **options)
        await client.start()
        await consumer.start()
        consumer.assign([TP])
        return consumer

    def _call(self, act: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        async def go() -> Any:
            return await act(*args)

        return self.place.result(self.place.peer, go())

    def read_until(self, count: int) -> list[bytes]:
        async def go() -> None:
            async with asyncio.timeout(30):
                while len(self.read) < count:
                    for columns in (await self.consumer.poll(500)).values():
                        self.read += columns.values

        self._call(go)
        return self.read

    def close(self) -> None:
        self._call(self.consumer.close)


@pytest.fixture
def place() -> Iterator[ThreeBrokers]:
    racks = {1: "a", 2: "b", 3: "c"}
    with ThreeBrokers(racks=racks, replica_selector_class=RACK_AWARE) as made:
        made.create(NewTopic("t", replica_assignment=((1, 2, 3),)))
        made.produce("t", b"v0", b"v1")
        yield made


def fetched(place: ThreeBrokers) -> dict[int, int]:
    """How many bytes each broker gave to consumers."""
    found = {}
    for node_id in place.running():
        metrics = place.broker(node_id).metrics
        found[node_id] = sum(counts.bytes_out for counts in metrics.topics.values())
    return found


def test_a_consumer_reads_the_follower_in_its_rack_and_comes_back(place: ThreeBrokers) -> None:
    reader = Reader(place, client_rack="b")
    assert reader.read_until(2) == [b"v0", b"v1"]
    given = fetched(place)
    assert given[2] > 0
    assert given[1] == given[3] == 0
    place.kill(2)
    place.produce("t", b"v2")
    assert reader.read_until(3)[2:] == [b"v2"]
    assert fetched(place)[1] > 0, "the leader gives what the dead follower does not"
    place.start_all()
    place.until(lambda: 2 in place.state("t").in_sync_replicas, 120)
    before = fetched(place)
    place.produce("t", b"v3")
    assert reader.read_until(4)[3:] == [b"v3"]
    place.pass_seconds(61)  # the preference, if there is one, is over
    place.produce("t", b"v4")
    assert reader.read_until(5)[4:] == [b"v4"]
    assert fetched(place)[2] > before[2]
    reader.close()


def test_a_consumer_goes_on_under_another_leader(place: ThreeBrokers) -> None:
    reader = Reader(place)
    reader.read_until(2)
    for number, victim in enumerate((1, 2), start=2):
        place.kill(victim)
        place.produce("t", b"v%d" % number)
        assert reader.read_until(number + 1)[-1] == b"v%d" % number
        place.start_all()
        place.until(lambda: len(place.state("t").in_sync_replicas) == 3, 120)
    assert reader.read == [b"v0", b"v1", b"v2", b"v3"]
    reader.close()


def lose_the_end(place: ThreeBrokers) -> None:
    """Broker 1 alone takes a record that dies with it: broker 2 leads without it."""
    place.kill(2)
    place.kill(3)
    place.until(lambda: place.state("t").in_sync_replicas == (1,))
    place.produce("t", b"lost")


def replace_the_end(place: ThreeBrokers) -> None:
    place.kill(1)
    place.start(2)
    place.start(3)
    place.wait_for(2, 3)
    place.until(lambda: place.state("t").leader in (2, 3))
    place.produce("t", b"other", b"more")


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_records_that_were_read_and_are_gone_are_noticed(policy: Any) -> None:
    with ThreeBrokers(unclean_leader_election_enable="true") as place:
        place.create(NewTopic("t", replica_assignment=((1, 2, 3),)))
        place.produce("t", b"v0", b"v1")
        reader = Reader(place)
        if policy == "none":
            object.__setattr__(reader.consumer._settings, "auto_offset_reset", None)
        reader.read_until(2)
        lose_the_end(place)
        assert reader.read_until(3)[2:] == [b"lost"]
        replace_the_end(place)
        if policy == "none":
            with pytest.raises(LogTruncation, match="from 2 on"):
                reader.read_until(4)
        else:
            assert reader.read_until(5)[3:] == [b"other", b"more"], "offset 2 is read again"
        reader.close()
