"""Transactions as confluent-kafka, kafka-python and aiokafka run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from uuid import uuid4

import pytest
from drivers import CLIENTS, Client, Member, Options, Place, Record, Writer

pytestmark = pytest.mark.needs("InitProducerId", "AddPartitionsToTxn", "EndTxn")

MakeTopic = Callable[..., str]
MakeWriter = Callable[..., Writer]
ReadBack = Callable[..., list[Record]]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    chosen: Client = request.param
    return chosen


@pytest.fixture
def writer(client: Client, bootstrap: str) -> Iterator[MakeWriter]:
    """`writer(transactional_id=None)`: a new producer, closed after the test."""
    with ExitStack() as stack:

        def make(transactional_id: str | None = None) -> Writer:
            return stack.enter_context(closing(client.writer(bootstrap, transactional_id)))

        yield make


@pytest.fixture
def read_back(client: Client, bootstrap: str) -> ReadBack:
    """`read_back(topic, count, partitions=1)`: the first `count` committed records and no others.

    A record produced after all of them, outside of transactions, marks the end of each partition.
    """

    def read(topic: str, partitions: int = 1) -> list[Record]:
        places = [Place(topic, p) for p in range(partitions)]
        with closing(client.writer(bootstrap, None)) as plain:
            for place in places:
                plain.send(topic, b"the end", partition=place.partition)
            plain.flush()
        member = Member(
            lambda: client.reader(bootstrap, Options(read_committed=True)),
            lambda reader: reader.assign(places),
        )
        with closing(member):
            member.until(lambda: sum(r.value == b"the end" for r in member.records) == partitions)
        return [r for r in member.records if r.value != b"the end"]

    return read


@pytest.fixture
def transactional_id() -> str:
    return f"transactions-{uuid4().hex[:12]}"


def send(writer: Writer, topic: str, values: range, partition: int = 0) -> None:
    for i in values:
        writer.send(topic, b"%d" % i, partition=partition)
    writer.flush()


def values(records: list[Record]) -> list[int]:
    return [int(r.value or b"") for r in records]


def test_a_marker_follows_what_was_committed(
    make_topic: MakeTopic, writer: MakeWriter, read_back: ReadBack, transactional_id: str
) -> None:
    topic, transactional = make_topic(1), writer(transactional_id)
    for first in (0, 10, 20):
        transactional.begin()
        send(transactional, topic, range(first, first + 10))
        transactional.commit()
    records = read_back(topic)
    assert values(records) == [*range(30)]
    assert [r.offset for r in records] == [*range(10), *range(11, 21), *range(22, 32)]


def test_what_was_aborted_is_never_read_by_who_reads_committed(
    make_topic: MakeTopic, writer: MakeWriter, read_back: ReadBack, transactional_id: str
) -> None:
    topic, transactional = make_topic(1), writer(transactional_id)
    for first, is_kept in ((0, True), (10, False), (20, False), (30, True)):
        transactional.begin()
        send(transactional, topic, range(first, first + 10))
        transactional.commit() if is_kept else transactional.abort()
    assert values(read_back(topic)) == [*range(10), *range(30, 40)]


def test_an_open_transaction_holds_back_all_that_follows_it(
    client: Client,
    bootstrap: str,
    make_topic: MakeTopic,
    writer: MakeWriter,
    transactional_id: str,
) -> None:
    topic, transactional, plain = make_topic(1), writer(transactional_id), writer()
    transactional.begin()
    send(transactional, topic, range(3))
    send(plain, topic, range(3, 6))

    def member(*, read_committed: bool) -> Member:
        return Member(
            lambda: client.reader(bootstrap, Options(read_committed=read_committed)),
            lambda reader: reader.assign([Place(topic, 0)]),
        )

    with closing(member(read_committed=False)) as every, closing(member(read_committed=True)) as it:
        every.until(lambda: len(every.records) == 6)
        it.do(lambda _: None)
        it.do(lambda _: None)  # it polled in between
        assert it.records == []
        transactional.commit()
        it.until(lambda: len(it.records) == 6)
        assert values(it.records) == values(every.records) == [*range(6)]


def test_two_producers_at_once_in_several_partitions(
    make_topic: MakeTopic, writer: MakeWriter, read_back: ReadBack, transactional_id: str
) -> None:
    topic = make_topic(3)
    one, two = (writer(f"{transactional_id}-{i}") for i in range(2))
    for turn in range(4):
        for number, each in enumerate((one, two)):
            each.begin()
            for partition in range(3):
                first = turn * 20 + number * 10
                send(each, topic, range(first, first + 10), partition)
        one.commit() if turn % 2 else one.abort()
        two.abort() if turn % 2 else two.commit()
    kept = [*range(10, 20), *range(20, 30), *range(50, 60), *range(60, 70)]
    records = read_back(topic, 3)
    for partition in range(3):
        assert values([r for r in records if r.place.partition == partition]) == kept


def test_a_second_producer_with_the_id_fences_the_first(
    client: Client,
    make_topic: MakeTopic,
    writer: MakeWriter,
    read_back: ReadBack,
    transactional_id: str,
) -> None:
    topic, zombie = make_topic(1), writer(transactional_id)
    zombie.begin()
    send(zombie, topic, range(5))
    heir = writer(transactional_id)  # aborts what the first left open
    heir.begin()
    send(heir, topic, range(5, 10))
    with pytest.raises(client.fenced):
        zombie.commit()
    heir.commit()
    assert values(read_back(topic)) == [*range(5, 10)]


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    client: Client,
    bootstrap: str,
    make_topic: MakeTopic,
    group: str,
    writer: MakeWriter,
    transactional_id: str,
) -> None:
    topic = make_topic(1)
    place = Place(topic, 0)
    send(writer(), topic, range(10))
    member = Member(
        lambda: client.reader(bootstrap, Options(group)), lambda reader: reader.subscribe([topic])
    )
    with closing(member):
        member.until(lambda: len(member.records) == 10)
        metadata = member.do(lambda reader: reader.group_metadata())
        transactional = writer(transactional_id)
        found = []
        for offset, is_kept in ((4, True), (7, False), (9, True)):
            transactional.begin()
            transactional.send_offsets({place: offset}, metadata)
            transactional.commit() if is_kept else transactional.abort()
            found.append(member.do(lambda reader: reader.committed(place)))
        assert found == [4, 4, 9]


def test_each_input_leads_to_one_output_though_work_is_thrown_away(
    client: Client,
    bootstrap: str,
    make_topic: MakeTopic,
    topic: str,
    group: str,
    writer: MakeWriter,
    read_back: ReadBack,
    transactional_id: str,
) -> None:
    """Read, process, write: after an abort and a new process it goes on where it had committed."""
    make_topic(1)
    output = f"{topic}-out"
    send(writer(), topic, range(100))
    send(writer(), output, range(0))
    place = Place(topic, 0)
    attempts = [True, False, True, True, False, True]

    def next_batch(done: int, is_kept: bool) -> None:
        member = Member(
            lambda: client.reader(bootstrap, Options(group, read_committed=True)),
            lambda reader: reader.subscribe([topic]),
        )
        with closing(member), closing(client.writer(bootstrap, transactional_id)) as transactional:
            member.until(lambda: len(member.records) == 100 - done)
            batch = [r for r in member.records if r.offset < done + 25]
            assert [r.offset for r in batch] == [*range(done, done + 25)]
            metadata = member.do(lambda reader: reader.group_metadata())
            transactional.begin()
            for r in batch:
                transactional.send(output, r.value or b"", partition=0)
            transactional.send_offsets({place: batch[-1].offset + 1}, metadata)
            transactional.commit() if is_kept else transactional.abort()

    done = 0
    for is_kept in attempts:
        next_batch(done, is_kept)
        done += 25 if is_kept else 0
    assert done == 100
    assert values(read_back(output)) == [*range(100)]
