"""Groups as confluent-kafka, kafka-python and aiokafka live in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from drivers import CLIENTS, SECONDS_MAX, Client, Member, Options, Place, Reader, Writer

MakeTopic = Callable[..., str]
MakeMember = Callable[..., Member]
GHOST_KILLS = 3
EVERY_CLIENT = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
COOPERATIVE = pytest.mark.parametrize(
    "client", [c for c in CLIENTS if c.has_cooperative], ids=lambda client: client.name
)


@pytest.fixture
def member(client: Client, bootstrap: str, group: str) -> Iterator[MakeMember]:
    """`member(set_up, **options)`: a new member of the group, closed after the test."""
    with ExitStack() as stack:

        def make(set_up: Callable[[Reader], None], **options: object) -> Member:
            told = Options(group, **options)  # type: ignore[arg-type]
            return stack.enter_context(
                closing(Member(lambda: client.reader(bootstrap, told), set_up))
            )

        yield make


@pytest.fixture
def writer(client: Client, bootstrap: str) -> Iterator[Writer]:
    with closing(client.writer(bootstrap, None)) as made:
        yield made


def send(writer: Writer, topic: str, count: int, partitions: int) -> None:
    """So many records to each partition."""
    for i in range(count * partitions):
        writer.send(topic, b"%d" % i, partition=i % partitions)
    writer.flush()


def assigned(member: Member) -> list[set[Place]]:
    return [places for what, places in member.events if what == "assigned"]


def revoked(member: Member) -> set[Place]:
    return {place for what, places in member.events if what == "revoked" for place in places}


@EVERY_CLIENT
def test_a_static_member_returns_without_a_rebalance(
    make_topic: MakeTopic, member: MakeMember, writer: Writer
) -> None:
    topic = make_topic(4)

    def subscribe(reader: Reader) -> None:
        reader.subscribe([topic])

    stays = member(subscribe, instance_id="stays")
    goes = member(subscribe, instance_id="goes")
    stays.until(lambda: len(stays.assigned) == 2 and len(goes.assigned) == 2)
    owned, rebalances = goes.assigned, len(assigned(stays))
    goes.close()
    send(writer, topic, 5, 4)
    returned = member(subscribe, instance_id="goes")
    returned.until(lambda: len(returned.records) == 10)
    stays.until(lambda: len(stays.records) == 10)
    assert returned.assigned == owned
    assert stays.assigned.isdisjoint(owned)
    assert len(assigned(stays)) == rebalances


@COOPERATIVE
def test_a_cooperative_member_keeps_what_does_not_move(
    make_topic: MakeTopic, member: MakeMember, writer: Writer
) -> None:
    topic = make_topic(4)

    def subscribe(reader: Reader) -> None:
        reader.subscribe([topic])

    first = member(subscribe, is_cooperative=True)
    first.until(lambda: len(first.assigned) == 4)
    second = member(subscribe, is_cooperative=True)
    second.until(lambda: len(second.assigned) == 2)
    first.until(lambda: len(first.assigned) == 2)
    assert revoked(first) == second.assigned
    assert first.assigned.isdisjoint(second.assigned)
    send(writer, topic, 5, 4)
    first.until(lambda: len(first.records) == 10)
    second.until(lambda: len(second.records) == 10)


@EVERY_CLIENT
def test_partitions_are_paused_and_resumed(
    make_topic: MakeTopic, member: MakeMember, writer: Writer
) -> None:
    topic = make_topic(2)
    quiet, loud = Place(topic, 0), Place(topic, 1)
    reads = member(lambda reader: reader.subscribe([topic]))
    reads.until(lambda: len(reads.assigned) == 2)
    reads.do(lambda reader: reader.pause([quiet]))
    send(writer, topic, 10, 2)
    reads.until(lambda: len(reads.records) == 10)
    assert {r.place for r in reads.records} == {loud}
    reads.do(lambda reader: reader.resume([quiet]))
    reads.until(lambda: len(reads.records) == 20)
    assert [r.offset for r in reads.records if r.place == quiet] == [*range(10)]


@EVERY_CLIENT
def test_a_pattern_finds_topics_that_come_later(
    topic: str, member: MakeMember, writer: Writer
) -> None:
    send(writer, f"{topic}-one", 3, 1)
    send(writer, f"not-{topic}", 3, 1)
    reads = member(lambda reader: reader.subscribe_matching(f"{topic}-.*"))
    reads.until(lambda: len(reads.records) == 3)
    send(writer, f"{topic}-two", 3, 1)
    found = {f"{topic}-one", f"{topic}-two"}
    reads.until(lambda: {place.topic for place in reads.assigned} == found)
    reads.until(lambda: {r.place.topic for r in reads.records} == found)


@EVERY_CLIENT
def test_the_group_goes_on_after_the_last_commit_when_a_member_dies(
    client: Client,
    bootstrap: str,
    make_topic: MakeTopic,
    group: str,
    member: MakeMember,
    writer: Writer,
) -> None:
    """What the dead member had not committed comes again, and only that."""
    topic = make_topic(1)
    place = Place(topic, 0)
    send(writer, topic, 10, 1)
    with closing(
        Member(lambda: client.reader(bootstrap, Options(group)), lambda r: r.subscribe([topic]))
    ) as first:
        first.until(lambda: len(first.records) == 10)
        first.do(lambda reader: reader.commit({place: 6}))
        assert first.do(lambda reader: reader.committed(place)) == 6
    second = member(lambda reader: reader.subscribe([topic]))
    second.until(lambda: len(second.records) == 4)
    assert [r.offset for r in second.records] == [6, 7, 8, 9]


@EVERY_CLIENT
def test_a_member_that_left_before_kill_9_is_not_waited_for(
    client: Client, serve: Callable[..., Any], tmp_path: Path, topic: str, group: str
) -> None:
    """It would be, for its session: longer than anybody here waits."""
    server = serve(tmp_path)
    address = server.address
    options = Options(group, session_ms=200_000)

    def join() -> Member:
        reader = partial(client.reader, address, options)
        return Member(reader, lambda reader: reader.subscribe([topic]))

    def wait_for_shares() -> None:
        everything = {Place(topic, n) for n in range(4)}
        stays.until(lambda: goes.assigned and everything - stays.assigned == goes.assigned)

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 4)])[topic].result(SECONDS_MAX)
    with closing(join()) as stays:
        for _ in range(GHOST_KILLS):
            with closing(join()) as goes:
                wait_for_shares()
            server.kill()
            server = serve(tmp_path, address)
        with closing(join()) as goes:
            wait_for_shares()
    assert "Traceback" not in server.stderr
