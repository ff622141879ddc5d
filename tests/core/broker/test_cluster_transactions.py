"""Transactions over partitions that three brokers lead: whole or not at all, whoever dies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.transaction import COMMITTING
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.protocol.groups import FindCoordinatorRequest
from kafkalite.core.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    MarkerSender,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kafkalite.core.transactions.transaction import DECIDED, TransactionState
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, BrokerUnavailable, ErrorCode
from kafkalite.testing.simulation import Host

SETTINGS = {
    "offsets_topic_replication_factor": "3",
    "offsets_topic_num_partitions": "6",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_num_partitions": "6",
    "min_insync_replicas": "2",
}
TOPIC = "t"
PARTITIONS = 3


class Place(ThreeBrokers):
    """A topic of three partitions, each led by another broker, and one producer."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, **SETTINGS)
        self.create(NewTopic(TOPIC, PARTITIONS, 3))
        self.programs: Host = self.host("programs")
        self.producer = self.of_broker_one("producer")
        self.told: list[bytes] = []  # values whose transaction was committed

    def do(self, program: Coroutine[Any, Any, Any], seconds: float = 120) -> Any:
        return self.result(self.programs, program, seconds)

    def of_broker_one(self, kind: str) -> TransactionalProducer:
        """A producer whose coordinator is broker 1."""

        async def start() -> TransactionalProducer:
            for number in range(100):
                name = f"{kind}-{number}"
                client = self.client()
                async with client:
                    if await client.coordinator(name, 1) != 1:
                        continue
                producer = TransactionalProducer(self.client(), name)
                await producer.start()
                return producer
            raise AssertionError("no name is kept by broker 1")

        found: TransactionalProducer = self.do(start())
        return found

    def state(self, topic: str = TOPIC, index: int = 0) -> Any:
        return super().state(topic, index)

    def led_by(self, node_id: int) -> int:
        """A partition of the topic that a broker leads."""
        return next(n for n in range(PARTITIONS) if self.state(TOPIC, n).leader == node_id)

    # ---- transactions

    async def send(self, value: bytes) -> None:
        for partition in range(PARTITIONS):
            await self.producer.send(TOPIC, value, partition=partition)
        await self.producer.flush()

    async def commit(self, value: bytes) -> None:
        self.producer.begin()
        await self.send(value)
        await self.producer.commit()
        self.told.append(value)

    async def abort(self, value: bytes) -> None:
        self.producer.begin()
        await self.send(value)
        await self.producer.abort()

    def machine_state(self, node_id: int) -> TransactionState | None:
        """The producer's transaction, as a broker that coordinates has it."""
        for machine in self.broker(node_id).transactions.machines():
            entry = machine.entries.get(self.producer._transactional_id)
            if entry is not None:
                return entry.transaction.state  # type: ignore[no-any-return]
        return None

    def until_decided(self, value: bytes) -> asyncio.Task[None]:
        """Goes on until a commit is decided, and its markers are not all written."""
        self.do(self.commit(b"before"))
        committing = self.programs.spawn(self.commit(value))
        self.until(lambda: self.machine_state(1) in DECIDED)
        return committing

    def finish(self, task: asyncio.Task[Any], seconds: float = 120) -> None:
        self.run(task.done, seconds)
        task.result()

    def read(self) -> list[dict[int, list[bytes]]]:
        """What readers of committed records find in each partition."""

        async def go() -> dict[int, list[bytes]]:
            places = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
            found: dict[int, list[bytes]] = {n: [] for n in range(PARTITIONS)}
            async with Consumer(
                self.client(), isolation_level="read_committed", auto_offset_reset="earliest"
            ) as consumer:
                consumer.assign(places)
                ends = await consumer.end_offsets(places)
                while any((consumer.position(p) or 0) < end for p, end in ends.items()):
                    for where, columns in (await consumer.poll(100)).items():
                        found[where.partition] += [v or b"" for v in columns.values]
            return found

        return self.do(go())  # type: ignore[no-any-return]

    def check(self) -> None:
        """Each committed transaction is whole, no other is seen, and the producer goes on."""
        self.do(self.commit(b"after"))
        self.until(self.is_stable)
        found = self.read()
        for number in range(PARTITIONS):
            assert found[number] == self.told, (number, found)

    def is_stable(self) -> bool:
        """Whether readers of committed records see all that the leaders have."""
        leaders = {n: self.state(TOPIC, n).leader for n in range(PARTITIONS)}
        if not {*leaders.values()} <= {*self.running()}:
            return False
        logs = [self.held(leader, TOPIC, n).log for n, leader in leaders.items()]
        return all(log.last_stable_offset == log.log_end_offset for log in logs)


@pytest.fixture(params=range(2))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with Place(request.param) as made:
        yield made
        assert not made.defects


def test_transactions_over_three_leaders_are_read_whole_or_not_at_all(place: Place) -> None:
    for number in range(6):
        work = place.abort if number % 3 == 2 else place.commit
        place.do(work(b"%d" % number))
    place.check()
    assert place.told == [b"0", b"1", b"3", b"4", b"after"]


def test_a_decided_commit_is_finished_by_the_next_coordinator(place: Place) -> None:
    committing = place.until_decided(b"decided")
    place.kill(1)
    place.finish(committing)
    place.check()


def test_a_decided_commit_is_finished_though_a_leader_dies(place: Place) -> None:
    committing = place.until_decided(b"decided")
    place.kill(2)
    place.finish(committing)
    place.check()
    place.start_all()
    place.agree()
    place.check()


def test_a_coordinator_that_was_paused_does_no_harm_when_it_goes_on(place: Place) -> None:
    committing = place.until_decided(b"decided")
    place.pause(1)
    place.finish(committing)
    for number in range(3):
        place.do(place.commit(b"meanwhile-%d" % number))
    place.go_on(1)
    for number in range(3):
        place.do(place.commit(b"again-%d" % number))
    place.agree()
    place.check()
    assert len(place.told) == 9


def test_a_coordinator_that_is_cut_off_does_no_harm_when_it_comes_back(place: Place) -> None:
    committing = place.until_decided(b"decided")
    place.isolate(1, loses=True)
    place.server.cut("broker-1")
    place.finish(committing)
    for number in range(3):
        place.do(place.commit(b"meanwhile-%d" % number))
    place.heal()
    place.server.restore("broker-1")
    for number in range(3):
        place.do(place.commit(b"again-%d" % number))
    place.agree()
    place.check()
    assert len(place.told) == 9


def test_an_open_transaction_goes_on_with_the_next_coordinator(place: Place) -> None:
    place.do(place.commit(b"before"))
    place.producer.begin()
    place.do(place.send(b"open"))
    place.kill(1)

    async def go_on() -> None:
        await place.send(b"more")
        await place.producer.commit()

    place.do(go_on())
    place.told += [b"open", b"more"]
    place.check()


def test_a_transaction_whose_producer_is_gone_is_aborted_by_the_next_coordinator(
    place: Place,
) -> None:
    name = place.producer._transactional_id
    short = place.do(_started(TransactionalProducer(
        place.client(), name, transaction_timeout_ms=8_000
    )))  # fmt: skip
    place.producer = short
    place.producer.begin()
    place.do(place.send(b"never"))
    place.programs.kill()
    place.programs = place.host("other programs")
    place.kill(1)
    place.until(lambda: place.is_stable(), 60)
    assert place.read() == [{}, {}, {}] or place.read() == {n: [] for n in range(PARTITIONS)}


def test_a_zombie_is_fenced_by_the_next_coordinator_too(place: Place) -> None:
    place.do(place.commit(b"before"))
    zombie, name = place.producer, place.producer._transactional_id
    zombie.begin()
    place.do(place.send(b"zombie"))
    place.producer = place.do(_started(TransactionalProducer(place.client(), name)))
    place.do(place.commit(b"its successor"))
    place.kill(1)

    async def try_to_commit() -> None:
        await zombie.commit()

    with pytest.raises(ApiError) as raised:
        place.do(try_to_commit())
    assert raised.value.error_code is ErrorCode.PRODUCER_FENCED
    place.check()


async def _started(producer: TransactionalProducer) -> TransactionalProducer:
    await producer.start()
    return producer


def test_brokers_never_give_one_producer_id_twice(place: Place) -> None:
    """Each has blocks of its own, whoever is the controller, and however often they restart."""
    given: list[int] = []

    def take(*node_ids: int) -> None:
        for node_id in node_ids:
            for _ in range(3):
                answer = place.ask(node_id, InitProducerIdRequest(None, 1_000))
                assert answer.error_code is ErrorCode.NONE
                given.append(answer.producer_id)

    take(1, 2, 3)
    controller = place.controller()
    place.kill(controller)
    place.controller()
    take(*place.running())
    place.start_all()
    place.agree()
    take(1, 2, 3)
    assert len(set(given)) == len(given) == 24


def test_each_broker_lists_and_answers_for_what_it_coordinates(place: Place) -> None:
    name = place.producer._transactional_id
    place.do(place.commit(b"one"))
    for node_id in (1, 2, 3):
        answer = place.ask(node_id, ListTransactionsRequest((), ()))
        listed = [each.transactional_id for each in answer.transaction_states]
        assert listed == ([name] if node_id == 1 else [])
        found = place.ask(node_id, FindCoordinatorRequest(name, 1, (name,)))
        assert [each.node_id for each in found.coordinators] == [1]
    nobody = AddPartitionsToTxnRequest(name, 0, 0, (AddPartitionsToTxnTopic(TOPIC, (0,)),))
    for node_id in (2, 3):
        answers = [
            place.ask(node_id, EndTxnRequest(name, 0, 0, True)).error_code,
            place.ask(node_id, InitProducerIdRequest(name, 1_000)).error_code,
            place.ask(node_id, AddOffsetsToTxnRequest(name, 0, 0, "g")).error_code,
            place.ask(node_id, nobody)
            .results_by_topic_v3_and_below[0]
            .results_by_partition[0]
            .partition_error_code,
        ]
        assert answers == [ErrorCode.NOT_COORDINATOR] * 4


@pytest.mark.parametrize("kind", ["kill", "pause", "cut"])
def test_records_and_offsets_are_committed_together_exactly_once(place: Place, kind: str) -> None:
    """The group's coordinator is another broker than the transactions', and one of them dies."""
    group = place.do(_name_kept_by(place, 2))
    work = place.programs.spawn(_copy(place, group, 20))
    place.until(lambda: len(place.told) >= 5)
    victim = 1 if place.seed % 2 else 2
    if kind == "kill":
        place.kill(victim)
    elif kind == "pause":
        place.pause(victim)
    else:
        place.isolate(victim, loses=True)
        place.server.cut(f"broker-{victim}")
    place.until(lambda: len(place.told) >= 12, 120)
    if kind == "kill":
        place.start_all()
    elif kind == "pause":
        place.go_on(victim)
    else:
        place.heal()
        place.server.restore(f"broker-{victim}")
    place.finish(work)
    place.agree()
    place.until(place.is_stable)
    copied = sorted(value for values in place.read().values() for value in values)
    assert copied == sorted(b"%d" % number for number in range(20))


async def _name_kept_by(place: Place, node_id: int) -> str:
    async with place.client() as client:
        for number in range(100):
            if await client.coordinator(f"group-{number}") == node_id:
                return f"group-{number}"
    raise AssertionError(f"no group is kept by broker {node_id}")


async def _copy(place: Place, group: str, count: int) -> None:
    """Counts, from where the group has committed: a number a transaction, with its offset."""
    where = TopicPartition(TOPIC, 0)
    number = 0
    while number < count:
        async with Consumer(
            place.client(), group_id=group, isolation_level="read_committed"
        ) as consumer:
            found = (await consumer.committed([where])).get(where)
            number = 0 if found is None else found.offset
        if number == count:
            return
        try:
            async with place.producer.transaction():
                value = b"%d" % number
                await place.producer.send(TOPIC, value, partition=number % PARTITIONS)
                await place.producer.send_offsets({where: number + 1}, group)
        except ApiError:  # nobody says how it ended; the group's offsets will
            if place.producer._transaction.state is COMMITTING:
                await place.producer.commit()
            continue
        place.told.append(value)


def test_a_coordinator_that_may_have_a_successor_calls_no_transaction_committed(
    place: Place,
) -> None:
    """It knows the transaction before: its end, asked for again, is no answer about the next."""
    place.do(place.commit(b"before"))
    name, (producer_id, epoch) = (
        place.producer._transactional_id,
        place.producer._coordination._identity,
    )

    def code() -> ErrorCode:
        found: ErrorCode = place.ask(1, EndTxnRequest(name, producer_id, epoch, True)).error_code
        return found

    place.until(lambda: code() is ErrorCode.NONE)
    place.isolate(1, from_clients=False)
    place.pass_seconds(3)
    assert code() is ErrorCode.NOT_COORDINATOR
    place.heal()
    place.until(lambda: code() is ErrorCode.NONE)
    place.check()


def test_a_coordinator_that_may_have_a_successor_shuts_no_producer_out(place: Place) -> None:
    """The producer may have its epoch from the successor, and what it is told is the end of it."""
    place.do(place.commit(b"before"))
    name, (producer_id, epoch) = (
        place.producer._transactional_id,
        place.producer._coordination._identity,
    )
    topics = (AddPartitionsToTxnTopic(TOPIC, (0,)),)

    def codes() -> tuple[ErrorCode, ErrorCode]:
        added = place.ask(1, AddPartitionsToTxnRequest(name, producer_id, epoch + 5, topics))
        (topic,) = added.results_by_topic_v3_and_below
        begun = place.ask(1, InitProducerIdRequest(name, 1_000, producer_id, epoch + 5))
        return topic.results_by_partition[0].partition_error_code, begun.error_code

    fenced, moved = ErrorCode.PRODUCER_FENCED, ErrorCode.NOT_COORDINATOR
    place.until(lambda: codes() == (fenced, fenced))
    place.isolate(1, from_clients=False)
    place.pass_seconds(3)
    assert codes() == (moved, moved)
    place.heal()
    place.until(lambda: codes() == (fenced, fenced))
    place.check()


def test_a_request_for_markers_that_was_given_up_ends_no_later_transaction(place: Place) -> None:
    """It may lie about in the network while its successor is answered, and the producer goes on."""
    place.do(place.commit(b"before"))
    place.producer.begin()
    place.do(place.send(b"open"))
    producer_id, epoch = place.producer._coordination._identity
    coordinators = place.broker(1).transactions
    (coordinator,) = [each for each in coordinators._coordinators.values() if each.machine.entries]
    partition = place.led_by(2)
    known = place.state(TOPIC, partition)

    def late(number: int, leader_epoch: int = known.leader_epoch) -> Any:
        topic = WritableTxnMarkerTopic(TOPIC, (partition,), leader_epoch)
        marker = WritableTxnMarker(producer_id, epoch, False, (topic,), coordinator.leader_epoch)
        sender = MarkerSender(1, place.broker(1).broker_epoch, number)
        return place.ask(2, WriteTxnMarkersRequest((marker,), sender))

    with pytest.raises(BrokerUnavailable):
        late(0)
    answer = late(1 << 40, known.leader_epoch + 1)
    told = answer.markers[0].topics[0].partitions[0].error_code
    assert told is ErrorCode.UNKNOWN_LEADER_EPOCH
    log = place.held(2, TOPIC, partition).log
    assert log.producers.is_in_transaction(producer_id, epoch)
