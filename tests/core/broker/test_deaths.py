"""A broker's process dies: the others notice before its session ends, and mistakes do no harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from three_brokers import SESSION_TIMEOUT_MS, ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.broker.doubts import LISTED_SECONDS
from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.peers.channel import DOUBT_SECONDS
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic

SECONDS = SESSION_TIMEOUT_MS / 1000
AT_ONCE = SECONDS / 6


@pytest.fixture(params=range(3))
def place(request: pytest.FixtureRequest) -> Iterator[ThreeBrokers]:
    with ThreeBrokers(request.param) as made:
        made.create(NewTopic("t", 6, 3))
        made.pass_seconds(1)  # all have met all
        assert in_sync(made.agree()) == [{1, 2, 3}] * 6
        yield made
        assert not made.defects


def in_sync(image: ClusterImage) -> list[set[int]]:
    return [{*partition.in_sync_replicas} for partition in image.topics["t"].partitions]


def epochs(image: ClusterImage) -> dict[int, int]:
    return {node_id: broker.epoch for node_id, broker in image.brokers.items()}


def told(place: ThreeBrokers, node_id: int) -> tuple[set[int], set[int]]:
    """The leaders and the brokers that a client hears of."""
    answer = place.ask(node_id, MetadataRequest((MetadataRequestTopic(name="t"),)))
    leaders = {partition.leader_id for partition in answer.topics[0].partitions}
    return leaders, {broker.node_id for broker in answer.brokers}


def stop_listening(place: ThreeBrokers, node_id: int) -> None:
    """The broker lives, and its address refuses: what others take for the end of its process."""
    host, node = place.brokers[node_id].host, place.brokers[node_id].node
    assert host is not None
    assert node is not None

    async def go() -> None:
        node._server.stop_accepting()

    place.result(host, go())
    for other in {1, 2, 3} - {node_id}:
        place.world.network.reset(f"broker-{node_id}", f"broker-{other}")


def test_a_killed_broker_leads_nothing_and_holds_nobody_back(place: ThreeBrokers) -> None:
    victim = place.other(place.controller())
    place.kill(victim)
    image = place.agree(AT_ONCE)
    living = {1, 2, 3} - {victim}
    assert in_sync(image) == [living] * 6
    assert {partition.leader for partition in image.topics["t"].partitions} == living


def test_a_broker_that_others_name_refuses_nobody(place: ThreeBrokers) -> None:
    victim = place.other(place.controller())
    other = place.other(victim)
    place.kill(victim)
    place.agree(AT_ONCE)
    place.start(victim)
    place.run(lambda: victim in place.image(other).brokers, SECONDS)
    assert place.brokers[victim].node is None  # it has not heard yet that others know of it
    place.ask(victim, MetadataRequest())


def test_a_killed_controller_has_a_successor(place: ThreeBrokers) -> None:
    victim = place.controller()
    place.kill(victim)
    image = place.agree(AT_ONCE)
    assert in_sync(image) == [{1, 2, 3} - {victim}] * 6
    assert place.controller() != victim


def test_two_of_three_are_killed_the_controller_among_them(place: ThreeBrokers) -> None:
    place.kill(place.controller())
    place.kill(place.running()[0])
    (last,) = place.running()
    image = place.agree(2 * AT_ONCE)
    assert place.controller() == last
    assert in_sync(image) == [{last}] * 6


def test_a_killed_broker_need_not_wait_for_its_own_session(place: ThreeBrokers) -> None:
    for victim in (place.controller(), place.other(place.controller())):
        before = epochs(place.agree())
        place.kill(victim)
        place.agree(AT_ONCE)
        place.start(victim)
        place.run(lambda: place.brokers[victim].node is not None, AT_ONCE)  # noqa: B023
        assert epochs(place.agree(AT_ONCE))[victim] > max(before.values())


def test_broken_connections_mean_nothing_where_new_ones_are_accepted(place: ThreeBrokers) -> None:
    before, controller = epochs(place.agree()), place.controller()
    for one in (1, 2, 3):
        for other in range(one + 1, 4):
            place.world.network.reset(f"broker-{one}", f"broker-{other}")
    place.pass_seconds(2 * SECONDS)
    assert epochs(place.agree()) == before
    assert place.controller() == controller


def test_silence_is_no_death_before_the_session_ends(place: ThreeBrokers) -> None:
    victim = place.other(place.controller())
    place.isolate(victim)
    place.server.cut(f"broker-{victim}")
    witness = place.other(victim, place.controller())
    place.pass_seconds(SECONDS / 2)
    assert victim in place.image(witness).brokers
    place.run(lambda: victim not in place.image(witness).brokers, SECONDS)
    assert in_sync(place.image(witness)) == [{1, 2, 3} - {victim}] * 6


def test_a_living_broker_that_was_taken_for_dead_registers_again_once(place: ThreeBrokers) -> None:
    victim = place.other(place.controller())
    before = epochs(place.agree())
    stop_listening(place, victim)
    witness = place.controller()
    place.until(lambda: epochs(place.image(witness)).get(victim, 0) > before[victim], AT_ONCE)
    after = epochs(place.agree(AT_ONCE))
    place.pass_seconds(2 * SECONDS)
    assert epochs(place.agree()) == after, "it is not taken for dead over and over"


def test_a_living_controller_that_was_taken_for_dead_is_deposed(place: ThreeBrokers) -> None:
    first = place.controller()
    stop_listening(place, first)
    place.until(lambda: place.has_agreed() and place.controller() != first, AT_ONCE)
    place.pass_seconds(AT_ONCE)  # it registers again
    after = epochs(place.agree())
    place.pass_seconds(2 * SECONDS)
    assert epochs(place.agree()) == after
    assert place.controller() != first


def test_clients_hear_of_new_leaders_at_once_and_of_the_dead_broker_a_little_longer(
    place: ThreeBrokers,
) -> None:
    for victim in (place.other(place.controller()), place.controller()):
        witness = place.other(victim)
        place.kill(victim)
        place.pass_seconds(0.005)  # until the connections break
        leaders, brokers = told(place, witness)
        assert leaders == {1, 2, 3} - {victim}
        assert brokers == {1, 2, 3}
        known = place.ask(witness, MetadataRequest(())).brokers
        assert {broker.node_id for broker in known} == leaders, "asked for brokers alone"
        place.pass_seconds(LISTED_SECONDS)
        assert told(place, witness) == (leaders, leaders)
        place.start_all()
        place.agree()
        place.pass_seconds(AT_ONCE)
        assert told(place, witness)[1] == {1, 2, 3}


def test_a_question_that_comes_before_the_break_hears_of_the_new_leaders_too(
    place: ThreeBrokers,
) -> None:
    """The client's connection to the dead broker broke 2 ms before the asked broker's own."""
    victim = place.other(place.controller())
    witness = place.other(victim)
    slow_ns, fast_ns = 2_000_000, 50_000
    for sender, receiver, delay_ns in (
        (f"broker-{victim}", f"broker-{witness}", slow_ns),
        ("peer", f"broker-{witness}", fast_ns),
        (f"broker-{witness}", "peer", fast_ns),
    ):
        link = place.world.network.link(sender, receiver)
        link.least_ns, link.most_ns, link.spike_chance = delay_ns, delay_ns, 0.0
    place.kill(victim)
    leaders, _brokers = told(place, witness)
    assert leaders == {1, 2, 3} - {victim}


def test_an_answer_waits_no_longer_than_the_doubt(place: ThreeBrokers) -> None:
    victim = place.other(place.controller())
    witness = place.other(victim, place.controller())
    leaders = told(place, witness)[0]
    place.isolate(victim)  # what comes of it is unknown for as long as a session lasts
    place.server.cut(f"broker-{victim}")
    place.world.network.reset(f"broker-{victim}", f"broker-{witness}")
    before = place.seconds
    assert told(place, witness)[0] == leaders
    assert DOUBT_SECONDS / 2 < place.seconds - before < 2 * DOUBT_SECONDS
