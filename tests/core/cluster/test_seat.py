"""The controller's seat and brokers' registrations, on the fake and on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest
from coordinations import SHARED, Backend, Clients, backend_of

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.coordination import Coordination, Create, Session
from kafkalite.core.cluster.image import BROKERS_PATH, ClusterRecord
from kafkalite.core.cluster.registering import (
    BROKER_EPOCHS_PATH,
    end_registration,
    free_node_id,
    register,
)
from kafkalite.core.cluster.seat import CONTROLLER_PATH, EPOCH_PATH, Seat, holder, take
from kafkalite.errors import ConfigError, CoordinationError, VersionMismatch
from kafkalite.testing.coordination import CoordinationServer
from kafkalite.testing.simulation import World


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param, request)


async def registered(
    client: Coordination, node_id: int, patience_s: float = 0, *, host: str = "broker"
) -> int:
    def record(epoch: int) -> ClusterRecord:
        return images.broker_record(node_id, {"PLAINTEXT": (host, 9092)}, epoch=epoch)

    written = await register(client, node_id, record, patience_s)
    return images.registration(written)[1].epoch


def test_one_broker_has_the_seat_and_each_term_its_own_number(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        one, two = await clients.open(), await clients.open()
        assert await holder(one) is None
        seats = await asyncio.gather(take(one, 1), take(two, 2))
        (first,) = filter(None, seats)
        assert first.epoch == 1
        assert await holder(two) == Seat(first.node_id, 1)
        assert await take(two, 2) is None
        winner, other = (one, two) if first.node_id == 1 else (two, one)
        await winner.transact([first.guard, Create("/written", b"")])
        await winner.close()
        second = None
        while second is None:
            second = await take(other, 9)
            await asyncio.sleep(0.05)
        assert (second.node_id, second.epoch) == (9, 2)
        await other.transact([second.guard, Create("/too", b"")])
        with pytest.raises(VersionMismatch):
            await other.transact([first.guard, Create("/never", b"")])

    shared.run(story)


def test_each_start_of_a_broker_has_a_number_and_an_earlier_one_is_waited_for(
    shared: Backend,
) -> None:
    async def story(clients: Clients) -> None:
        one, two, three = [await clients.open() for _ in range(3)]
        assert await registered(one, 1) == 1
        assert await registered(two, 2) == 2
        with pytest.raises(ConfigError, match="broker 1 is registered by another process, at"):
            await registered(three, 1, patience_s=0.4, host="another")
        waiting = asyncio.ensure_future(registered(three, 1, patience_s=20, host="another"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await one.close()
        assert await waiting == 3

    shared.run(story)


def test_a_start_at_the_same_addresses_replaces_what_an_earlier_one_left(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        earlier, later = await clients.open(), await clients.open()
        assert await registered(earlier, 1) == 1
        assert await registered(later, 1) == 2  # though the earlier session lives
        (known,) = await later.get_many([images.broker_path(1)])
        assert known is not None
        assert images.registration(ClusterRecord(images.broker_path(1), known.value))[1].epoch == 2
        await earlier.close()
        assert await later.get_many([images.broker_path(1)]) == [known]

    shared.run(story)


def test_the_seat_of_a_dead_holder_is_taken_once_and_deposes_one_that_lives(
    shared: Backend,
) -> None:
    async def story(clients: Clients) -> None:
        one, two, three = [await clients.open() for _ in range(3)]
        first = await take(one, 1)
        assert first is not None
        assert await take(two, 2, first._replace(epoch=first.epoch - 1)) is None, "another term"
        seats = await asyncio.gather(take(two, 2, first), take(three, 3, first))
        (second,) = filter(None, seats)
        assert second.epoch == first.epoch + 1
        assert await holder(one) == Seat(second.node_id, second.epoch)
        with pytest.raises(VersionMismatch):
            await one.transact([first.guard, Create("/never", b"")])
        await two.transact([second.guard, Create("/written", b"")])
        assert await take(one, 1, first) is None
        await one.close()
        assert await holder(two) == Seat(second.node_id, second.epoch), "not the holder of before"

    shared.run(story)


def test_a_term_ends_the_registration_of_one_start_of_a_broker(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        one, two = await clients.open(), await clients.open()
        seat = await take(one, 1)
        assert seat is not None
        assert await registered(two, 2) == 1
        assert not await end_registration(one, seat.guard, 2, epoch=7)
        assert not await end_registration(one, seat.guard, 3, epoch=1)
        stale = seat.guard._replace(version=seat.guard.version - 1)
        with pytest.raises(VersionMismatch):
            await end_registration(one, stale, 2, epoch=1)
        assert await end_registration(one, seat.guard, 2, epoch=1)
        assert not await end_registration(one, seat.guard, 2, epoch=1)
        assert await registered(two, 2) == 2

    shared.run(story)


def test_values_of_others_are_named(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        client = await clients.open()
        paths = [Create(EPOCH_PATH, b"x"), Create(BROKER_EPOCHS_PATH, b"")]
        await client.transact([*paths, Create(CONTROLLER_PATH, b"[]")])
        with pytest.raises(CoordinationError, match="/controller does not read"):
            await holder(client)
        with pytest.raises(CoordinationError, match="/controller_epoch is b'x', not a number"):
            await take(client, 1)
        with pytest.raises(CoordinationError, match="/broker_epochs is b'', not a number"):
            await registered(client, 1)

    shared.run(story)


@pytest.mark.parametrize("seed", range(12))
def test_lost_answers_make_neither_two_controllers_nor_two_starts_of_one_number(seed: int) -> None:
    with World() as world:
        server = CoordinationServer(world.host("zookeeper").loop, Random(seed))
        server.lost_answers = 0.4
        reigns: list[Seat] = []
        starts: list[int] = []

        async def broker(name: str, node_id: int) -> None:
            for _ in range(4):
                client = server.client(name, session_timeout_ms=2_000)
                starts.append(await registered(client, node_id, patience_s=60))
                for _ in range(200):
                    seat = await take(client, node_id)
                    if seat is not None:
                        held = await client.get(CONTROLLER_PATH)
                        assert json.loads(held.value) == {"broker": node_id, "epoch": seat.epoch}
                        assert (await client.get(EPOCH_PATH)).version == seat.version
                        reigns.append(seat)
                        break
                    await asyncio.sleep(0.1)
                await client.close()

        hosts = [world.host(f"broker-{n}") for n in (1, 2, 3)]
        works = [host.spawn(broker(f"broker-{n}", n)) for n, host in enumerate(hosts, start=1)]
        world.run(lambda: all(work.done() for work in works), 3_600)
        for work in works:
            work.result()
    epochs = [seat.epoch for seat in reigns]
    assert len(set(epochs)) == len(epochs) > 4
    assert len(set(starts)) == len(starts) == 12


@pytest.mark.parametrize("seed", range(3))
def test_a_registration_whose_answer_was_lost_does_not_stand_in_the_way_of_the_next(
    seed: int,
) -> None:
    """The coordination is away meanwhile. The session outlives that, and so does the registration,
    if it was written."""
    with World() as world:
        server = CoordinationServer(world.host("zookeeper").loop, Random(seed))
        host = world.host("broker")
        client = server.client("broker", host.loop, session_timeout_ms=2_000)
        world.run(lambda: client.session is Session.CONNECTED, 10)
        made = [Create(BROKERS_PATH, b""), Create(BROKER_EPOCHS_PATH, b"0")]
        world.result(host, client.transact(made))
        server.lost_answers = 1.0
        attempt = host.spawn(registered(client, 1, patience_s=60))
        world.pass_seconds(0.1)
        server.stop()
        world.run(attempt.done, 60)
        with pytest.raises(CoordinationError):
            attempt.result()
        server.lost_answers = 0.0
        server.start()
        assert world.result(host, registered(client, 1, patience_s=1)) in (1, 2)


def test_brokers_without_an_id_get_ids_of_their_own(shared: Backend) -> None:
    async def story(clients: Clients) -> None:
        one, two = await clients.open(), await clients.open()
        both = await asyncio.gather(free_node_id(one, 1000), free_node_id(two, 1000))
        assert sorted(both) == [1001, 1002]
        assert await free_node_id(one, 2000) == 2003

    shared.run(story)
