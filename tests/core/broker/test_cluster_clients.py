"""Clients of a cluster one of whose brokers takes requests and answers none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.cluster import Client
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
