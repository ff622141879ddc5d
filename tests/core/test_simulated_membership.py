"""Brokers of one cluster in a simulated world: they join, elect a controller, follow it, leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kafkalite.belonging import Belonging
from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.broker.broker import Broker
from kafkalite.core.broker.membership import ALTER_MS
from kafkalite.core.broker.term import answered
from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.protocol.peers import AllocateProducerIdsRequest, AlterPartitionRequest
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.core.types import Columns
from kafkalite.errors import ConfigError, CoordinationUnavailable, ErrorCode
from kafkalite.testing.cluster import SESSION_TIMEOUT_MS
from kafkalite.testing.cluster import ReplicatedCluster as Place

SECONDS = SESSION_TIMEOUT_MS / 1000


@pytest.fixture(params=range(3))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with Place(request.param) as made:
        made.start_all()
        yield made
        assert not made.defects


def make_topics(place: Place, *topics: NewTopic) -> None:
    async def go() -> None:
        async with Admin(client=place.client()) as admin:
            await admin.create_topics(topics)

    host = place.host("admin")
    place.result(host, go())
    host.kill()


def test_brokers_elect_one_controller_and_have_its_image(place: Place) -> None:
    image = place.agree()
    assert place.controller() in {1, 2, 3}
    assert len({broker.epoch for broker in image.brokers.values()}) == 3
    make_topics(place, NewTopic("t", 6))
    image = place.agree()
    assert {partition.leader for partition in image.topics["t"].partitions} == {1, 2, 3}


def test_a_killed_controller_is_followed_by_another(place: Place) -> None:
    make_topics(place, NewTopic("before", 3))
    first = place.controller()
    place.kill(first)
    image = place.agree(within_seconds=2 * SECONDS)
    second = place.controller()
    assert second != first
    leaders = [partition.leader for partition in image.topics["before"].partitions]
    assert leaders.count(-1) == 1  # nobody else has it
    make_topics(place, NewTopic("after", 4))
    image = place.agree()
    assert first not in {partition.leader for partition in image.topics["after"].partitions}
    place.start_all()
    image = place.agree(within_seconds=2 * SECONDS)
    assert -1 not in {partition.leader for partition in image.topics["before"].partitions}


def test_a_broker_that_stops_says_goodbye(place: Place) -> None:
    for node_id in (1, 2, 3):
        place.stop(node_id)
        assert place.agree(within_seconds=SECONDS / 2)
        place.start_all()
        place.agree()


def test_an_expired_session_is_followed_by_a_new_epoch(place: Place) -> None:
    make_topics(place, NewTopic("t", 3))
    for node_id in (place.controller(), *place.running()):
        before = place.agree().brokers[node_id].epoch
        place.server.expire(f"broker-{node_id}")
        place.run(lambda: place.epoch(node_id) > before, 60)  # noqa: B023
        leaders = {partition.leader for partition in place.agree().topics["t"].partitions}
        assert leaders == {1, 2, 3}


def test_a_start_after_an_unclean_stop_is_one_until_a_controller_has_settled_it(
    place: Place,
) -> None:
    """Another registration of the same start is no clean one: its log may lack its tail."""
    place.agree()
    first = place.controller()
    other, third = (node_id for node_id in (1, 2, 3) if node_id != first)
    for node_id in (other, third):
        place.kill(node_id)
    place.run(lambda: {*place.truth().brokers} == {first}, 60)
    place.pause(first)  # its session lasts: nobody controls for a while

    def registered() -> int:
        known = place.truth().brokers.get(other)
        return -1 if known is None else known.epoch

    place.start(other)
    place.run(lambda: registered() >= 0, SECONDS)
    before = registered()
    place.server.expire(f"broker-{other}")
    place.run(lambda: registered() > before, SECONDS)
    assert not place.truth().brokers[other].stopped_cleanly
    place.go_on(first)
    place.wait_for(other)
    place.agree()
    settled = registered()
    place.server.expire(f"broker-{other}")
    place.run(lambda: registered() > settled, 60)
    assert place.truth().brokers[other].stopped_cleanly
    place.start_all()
    place.agree()


def test_a_start_after_an_unclean_stop_is_one_after_a_start_that_failed(place: Place) -> None:
    """Nobody has heard yet that its log may lack its tail, or is empty on a new disk."""
    place.agree()
    place.crash(2)
    place.run(lambda: 2 not in place.truth().brokers, 60)
    place.server.stop()
    place.start(2)
    with pytest.raises(CoordinationUnavailable):
        place.wait_for(2)
    place.kill(2)
    place.server.start()
    place.start_all()
    assert not place.truth().brokers[2].stopped_cleanly
    place.agree()
    place.stop(2)
    place.start_all()
    assert place.truth().brokers[2].stopped_cleanly


def test_a_broker_leads_nothing_before_its_start_is_settled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that has not heard of the start says who led before it. The logs may lack their
    tails since: what is appended to them in that leader epoch has offsets of other records."""
    make_topics(place, NewTopic("t", 3))
    before = place.agree().topics["t"].partitions
    first = place.controller()
    other = next(node_id for node_id in (1, 2, 3) if node_id != first)
    led: list[int] = []
    put_in_force = Broker.put_in_force

    async def noted(broker: Broker, image: ClusterImage) -> None:
        if broker.node_id == other:
            found = image.topics["t"].partitions
            led.extend(each.leader_epoch for each in found if each.leader == other)
        await put_in_force(broker, image)

    monkeypatch.setattr(Broker, "put_in_force", noted)
    place.crash(other)
    place.server.cut(f"broker-{first}")
    place.start(other)
    place.pass_seconds(SECONDS / 2)
    place.server.restore(f"broker-{first}")
    place.wait_for(other)
    place.agree()
    (epoch,) = (each.leader_epoch for each in before if each.leader == other)
    assert led
    assert min(led) > epoch


def test_an_old_view_of_the_cluster_removes_no_log(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of ZooKeeper may lag: what it tells at a start lacks topics that are new."""
    place.agree()
    before = place.truth()
    make_topics(place, NewTopic("t", 1, 3))
    columns, host = Columns([b"k"], [b"v"], [1]), place.host("client")

    async def send() -> None:
        async with Producer(client=place.client()) as producer:
            await producer.send_columns("t", columns, 0)
            await producer.flush()

    place.result(host, send())
    place.stop(2)

    async def read(belonging: Belonging) -> None:
        belonging.image = before

    monkeypatch.setattr(Belonging, "_read", read)
    place.start(2)
    place.wait_for(2)
    place.agree()
    found = [name for name in place.brokers[2].storage.directories("") if name.startswith("t-")]
    assert found == ["t-0"], "it was not deleted and made anew"


def test_a_start_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a session, under which its next try would be taken for another process."""
    with Place(4) as place:
        place.start(1)
        place.wait_for(1)
        monkeypatch.setitem(place._settings, "node.id", "1")
        place.start(3)
        with pytest.raises(ConfigError, match="broker 1 is registered by another process"):
            place.wait_for(3)
        assert {*place.server.sessions()} == {"broker-1"}
        host = place.brokers[3].host
        assert host is not None
        place.pass_seconds(1)
        assert not asyncio.all_tasks(host.loop)
        assert not place.defects


def test_a_question_to_the_controller_is_answered_whatever_goes_wrong(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaders ask nothing else before: they would change no in-sync set any more."""
    place.agree()
    asker = next(node_id for node_id in (1, 2, 3) if node_id != place.controller())
    node = place.brokers[asker].node
    assert node is not None

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(node.broker.steering.peers, "channel", broken)  # type: ignore[attr-defined]
    for request, within_seconds in (
        (AllocateProducerIdsRequest(asker, place.epoch(asker)), 1),
        (CreateTopicsRequest((CreatableTopic("t", 1, 1, (), ()),)), 1),
    ):
        host = place.brokers[asker].host
        assert host is not None

        async def ask(asked: Any = request) -> Any:
            return await answered(node.broker.control(asked))

        answer = place.result(host, ask(), within_seconds)
        codes = [each.error_code for each in getattr(answer, "topics", [answer])]
        assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR]
    monkeypatch.undo()


def test_a_leader_asks_again_where_the_answer_of_the_controller_is_lost(place: Place) -> None:
    """The connection on which it was to come is dead, and nobody hears of that."""
    place.agree()
    controller = place.controller()
    asker = next(node_id for node_id in (1, 2, 3) if node_id != controller)
    host, node = place.brokers[asker].host, place.brokers[asker].node
    assert host is not None
    assert node is not None

    async def ask() -> ErrorCode:
        request = AlterPartitionRequest(asker, place.epoch(asker))
        answer = await answered(node.broker.control(request))
        code: ErrorCode = answer.error_code
        return code

    assert place.result(host, ask(), within_seconds=1) is ErrorCode.NONE
    names = place.brokers[controller].name, place.brokers[asker].name
    place.world.network.cut(*names, loses=True)
    place.world.network.heal([names])
    lost = place.result(host, ask(), within_seconds=ALTER_MS / 1000 + 1)
    assert lost is ErrorCode.REQUEST_TIMED_OUT
    assert place.result(host, ask(), within_seconds=1) is ErrorCode.NONE
    place.agree()


def test_without_coordination_records_go_on_and_decisions_wait(place: Place) -> None:
    make_topics(place, NewTopic("t", 3))
    place.agree()
    host, columns = place.host("client"), Columns([b"k"], [b"v"], [1])

    async def send(producer: Producer) -> None:
        for partition in range(3):
            await producer.send_columns("t", columns, partition)
        await producer.flush()

    async def begin() -> Producer:
        producer = Producer(client=place.client())
        await producer.start()
        await send(producer)
        return producer

    producer = place.result(host, begin())
    place.server.stop()
    place.pass_seconds(3 * SECONDS)
    place.result(host, send(producer))
    place.server.start()
    make_topics(place, NewTopic("later", 3))
    assert "later" in place.agree().topics


def test_lost_answers_delay_and_do_no_more() -> None:
    with Place(9) as place:
        place.server.lost_answers = 0.3
        place.start_all()
        for number in range(5):
            make_topics(place, NewTopic(f"t{number}", 3))
        place.kill(place.controller())
        image = place.agree(within_seconds=10 * SECONDS)
        assert len(image.topics) == 5
        place.start_all()
        place.agree(within_seconds=10 * SECONDS)
        assert not place.defects


def test_replicas_follow_their_leaders(place: Place) -> None:
    make_topics(place, NewTopic("t", 6, 3))
    host, columns = place.host("client"), Columns([b"k"], [b"v"], [1])

    async def send() -> None:
        async with Producer(client=place.client()) as producer:
            for partition in range(6):
                await producer.send_columns("t", columns, partition)
            await producer.flush()

    place.result(host, send())
    for partition in place.agree().topics["t"].partitions:
        assert {*partition.in_sync_replicas} == {1, 2, 3}
