"""Clients of a cluster one of whose brokers takes requests and answers none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from three_brokers import SESSION_TIMEOUT_MS, ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import BrokerUnavailable


@pytest.fixture
def place() -> Iterator[ThreeBrokers]:
    with ThreeBrokers(1) as made:
        yield made
        assert not made.defects


def test_a_client_asks_another_broker_after_a_second_of_silence(place: ThreeBrokers) -> None:
    host, client = place.host("client"), place.client()

    async def ask_all() -> None:
        for node_id in (1, 2, 3):
            await client.connect(node_id)

    place.result(host, client.start())
    place.result(host, ask_all())
    for node_id in (1, 2, 3):
        place.pause(node_id)
        for _ in range(20):
            began = place.seconds
            place.result(host, client.refresh(()))
            assert place.seconds - began < 1.5
        began = place.seconds
        place.result(host, client.refresh(()))
        assert place.seconds - began < 0.5  # the silent one is asked last by now
        place.go_on(node_id)
        place.agree()
    place.result(host, client.close())


def test_without_an_answer_from_anybody_the_client_gives_up(place: ThreeBrokers) -> None:
    host, client = place.host("client"), place.client(request_timeout_ms=4_000)

    async def is_refused(client: Client) -> bool:
        try:
            await client.refresh(())
        except BrokerUnavailable:
            return True
        return False

    place.result(host, client.start())
    for node_id in (1, 2, 3):
        place.pause(node_id)
    began = place.seconds
    assert place.result(host, is_refused(client))
    assert place.seconds - began < 20
    for node_id in (1, 2, 3):
        place.go_on(node_id)
    place.result(host, client.refresh(()))
    place.result(host, client.close())


@pytest.mark.parametrize("kind", ["pause", "cut"])
def test_clients_of_a_silent_leader_go_to_its_successor(place: ThreeBrokers, kind: str) -> None:
    """Long before their requests' time is up, half a minute by default."""
    place.create(NewTopic("t", 3, 3))
    host, seen = place.host("client"), list[bytes]()
    leader = place.state("t").leader

    async def send(producer: Producer, value: bytes) -> None:
        await (await producer.send("t", value, partition=0))

    async def read() -> None:
        async with Consumer(place.client(), auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            while len(seen) < 3:
                for columns in (await consumer.poll(100)).values():
                    seen.extend(value or b"" for value in columns.values)

    producer = Producer(place.client())
    place.result(host, producer.start())
    place.result(host, send(producer, b"1"))
    reading = host.spawn(read())
    place.until(lambda: seen == [b"1"])
    began = place.seconds
    if kind == "pause":
        place.pause(leader)
    else:
        place.isolate(leader, loses=True)
        place.server.cut(f"broker-{leader}")
    place.result(host, send(producer, b"2"))
    place.until(lambda: seen == [b"1", b"2"])
    assert place.seconds - began < SESSION_TIMEOUT_MS / 1000 + 6
    if kind == "pause":
        place.go_on(leader)
    else:
        place.heal()
        place.server.restore(f"broker-{leader}")
    place.result(host, send(producer, b"3"))
    place.run(reading.done, 60)
    assert seen == [b"1", b"2", b"3"]
    place.result(host, producer.close())


def test_a_leader_that_is_merely_slow_is_waited_for(place: ThreeBrokers) -> None:
    place.create(NewTopic("t", 1, 3))
    host, leader = place.host("client"), place.state("t").leader
    producer = Producer(place.client())
    place.result(host, producer.start())
    connections = place.result(host, _send_and_look(producer, b"1", leader))
    place.pause(leader)
    sending = host.spawn(_send_and_look(producer, b"2", leader))
    place.pass_seconds(4)
    place.go_on(leader)
    place.run(sending.done, 60)
    assert sending.result() == connections
    place.result(host, producer.close())


async def _send_and_look(producer: Producer, value: bytes, leader: int) -> object:
    """Sends a record; the connection that is open afterwards."""
    await (await producer.send("t", value, partition=0))
    return producer._client.open_connection(leader, producer._lane)


def test_a_dead_leader_is_not_waited_for_once_another_leads(place: ThreeBrokers) -> None:
    """Its connections are refused, which is tried for five seconds: it might be starting."""
    place.create(NewTopic("t", 3, 3))
    host, seen = place.host("client"), list[bytes]()
    leader = place.state("t").leader
    producer = Producer(place.client())

    async def send(value: bytes) -> None:
        await (await producer.send("t", value, partition=0))

    async def read() -> None:
        async with Consumer(place.client(), auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            while len(seen) < 2:
                for columns in (await consumer.poll(100)).values():
                    seen.extend(value or b"" for value in columns.values)

    place.result(host, producer.start())
    place.result(host, send(b"1"))
    reading = host.spawn(read())
    place.until(lambda: seen == [b"1"])
    place.kill(leader)
    killed = place.seconds
    sending = host.spawn(send(b"2"))
    place.until(lambda: place.state("t").leader not in (leader, -1))
    elected = place.seconds
    place.run(lambda: sending.done() and reading.done(), 60)
    assert place.seconds - elected < 2, (killed, elected, place.seconds)
    place.result(host, producer.close())


def test_brokers_that_all_refuse_are_given_up_in_the_time_for_that(place: ThreeBrokers) -> None:
    host, client = place.host("client"), place.client()
    for node_id in (1, 2, 3):
        place.kill(node_id)
    began = place.seconds
    with pytest.raises(BrokerUnavailable, match="tried for 5 s"):
        place.result(host, client.start())
    assert place.seconds - began < 10
    place.result(host, client.close())
