"""Transactions over partitions that three brokers lead: whole or not at all, whoever dies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.transactions.transaction import DECIDED, TransactionState
from kafkalite.core.types import TopicPartition
from kafkalite.testing.simulation import Host

SETTINGS = {
    "offsets_topic_replication_factor": "3",
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
