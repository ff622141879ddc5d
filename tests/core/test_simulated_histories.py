"""Random histories of a broker, its disk and its clients, in one thread and a virtual time.

Producers, transactions and a copying group work while the broker is killed, paused, loses power
between any two changes of its disk or finds that disk full, and clients are killed and paused.
Afterwards:

    what was acknowledged is at its offset, and each record once, in its producer's order
    a transaction is whole, or readers of committed records see nothing of it
    the copies are the committed records, each once
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import KafkaliteError
from kafkalite.node import start_node
from kafkalite.testing.simulation import Host, World
from kafkalite.testing.storage import MemoryStorage, PowerLoss

pytestmark = pytest.mark.slow

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "log.flush.interval.messages": "1",  # what is acknowledged is on the disk
    "log.segment.bytes": "20000",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}
PARTITIONS = 3
SESSION_MS = 2_000
TRANSACTION_MS = 5_000
NEVER_MS = 10**6  # a client waits for its broker, however long that is paused or away
PATIENCE_SECONDS = 900
FAULTS_A_RUN = 6
CHANGES_MAX = 400  # of the disk, until it loses power
FAILED_ONCE: list[int] = []
FIRST, LAST = map(int, os.environ.get("KAFKALITE_SEEDS", "100:106").split(":"))


class History:
    """One broker and its clients, what they did, and what became of it."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.storage, self.port, self.has_power = MemoryStorage(), 0, True
        self.numbers = count()
        self.is_stopping = False
        self.acknowledged: dict[tuple[int, int], bytes] = {}  # by partition and offset
        self.transactions: dict[bytes, str] = {}  # by the beginning of its values: how it ended
        self.hosts: dict[Host, tuple[Callable[[str], Coroutine[Any, Any, None]], str]] = {}
        self.start_broker()
        world.result(world.host("admin"), self.make_topics(), PATIENCE_SECONDS)

    # The broker

    def start_broker(self) -> None:
        """Starts it on the disk, again where the power fails meanwhile."""
        self.broker, self.has_power = self.world.host("broker"), True
        self.broker.loop.set_exception_handler(self.note)
        ports = self.world.ports(self.random, self.storage)
        listen = f"broker:{self.port}"
        starting = self.broker.spawn(start_node(Path("/disk"), listen, SETTINGS, ports=ports))
        self.world.run(starting.done, PATIENCE_SECONDS)
        self.port = starting.result().address.port

    def note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), PowerLoss):
            self.has_power = False
        else:
            loop.default_exception_handler(context)

    async def make_topics(self) -> None:
        async with self.client() as client, Admin(client) as admin:
            made = [NewTopic("log", PARTITIONS), NewTopic("copies", PARTITIONS)]
            await admin.create_missing_topics(made)

    # Programs

    def client(self) -> Client:
        ports = self.world.client_ports(self.random)
        return Client(f"broker:{self.port}", ports=ports, unavailable_after_ms=NEVER_MS)

    def start(self, program: Callable[[str], Coroutine[Any, Any, None]], name: str) -> None:
        host = self.world.host(name)
        self.hosts[host] = program, name
        host.spawn(program(name))

    def fresh(self, kind: str) -> str:
        return f"{kind}{next(self.numbers)}"

    async def produce(self, name: str) -> None:
        """Sends records, and notes where they are once that is acknowledged."""
        numbers = count()
        async with (
            self.client() as client,
            Producer(client, delivery_timeout_ms=NEVER_MS) as producer,
        ):
            while not self.is_stopping:
                sent = []
                for _ in range(self.random.randint(1, 20)):
                    partition = self.random.randrange(PARTITIONS)
                    value = b"%s:%d" % (name.encode(), next(numbers))
                    sent.append((value, await producer.send("log", value, partition=partition)))
                for value, future in sent:
                    stored = await future
                    self.acknowledged[stored.partition, stored.offset] = value
                await asyncio.sleep(self.random.random() * 0.5)

    async def transact(self, name: str) -> None:
        """Transactions of some records each, some of which it aborts."""
        while not self.is_stopping:
            try:
                async with (
                    self.client() as client,
                    TransactionalProducer(
                        client, name, transaction_timeout_ms=TRANSACTION_MS
                    ) as producer,
                ):
                    while not self.is_stopping:
                        await self.transaction(producer)
            except KafkaliteError:
                await asyncio.sleep(0.1)  # fenced, or nobody knows how it ended: begin anew

    async def transaction(self, producer: TransactionalProducer) -> None:
        named = self.fresh("t").encode()
        size = self.random.randint(1, 10)
        self.transactions[named] = "unknown"
        producer.begin()
        for number in range(size):
            partition = self.random.randrange(PARTITIONS)
            value = b"%s:%d:%d" % (named, number, size)
            await producer.send("log", value, partition=partition)
            if self.random.random() < 0.1:
                await asyncio.sleep(self.random.random())
        if self.random.random() < 0.3:
            await producer.abort()
            self.transactions[named] = "aborted"
        else:
            await producer.commit()
            self.transactions[named] = "committed"

    async def copy(self, name: str) -> None:
        """Copies records with their places, exactly once."""
        while not self.is_stopping:
            try:
                await self.copy_until(name, lambda _: self.is_stopping)
            except KafkaliteError:
                await asyncio.sleep(0.1)

    async def copy_until(self, name: str, is_enough: Callable[[Consumer], bool]) -> None:
        async with (
            self.client() as client,
            TransactionalProducer(client, name, transaction_timeout_ms=TRANSACTION_MS) as producer,
            Consumer(
                client,
                group_id="copiers",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=SESSION_MS // 4,
            ) as consumer,
        ):
            consumer.subscribe(["log"])
            while not is_enough(consumer):
                polled = await consumer.poll(200)
                if not polled:
                    continue
                async with producer.transaction():
                    for where, columns in polled.items():
                        assert columns.offsets is not None
                        for offset, value in zip(columns.offsets, columns.values, strict=True):
                            copied = b"%d:%d:%s" % (where.partition, offset, value)
                            await producer.send("copies", copied, partition=where.partition)
                    ends = {where: each.offsets[-1] + 1 for where, each in polled.items()}  # type: ignore[index]
                    await producer.send_offsets(ends, consumer.group_metadata())

    # Faults

    def lose_power(self) -> None:
        """In the midst of some change of the disk, which keeps what it promised."""
        self.storage.crash_after(self.random.randint(1, CHANGES_MAX), share=self.random.random())
        self.world.run(lambda: not self.has_power, PATIENCE_SECONDS)
        self.broker.kill()
        self.storage = self.storage.after_crash(self.random)
        self.world.pass_seconds(self.random.random())
        self.start_broker()

    def kill_broker(self) -> None:
        self.broker.kill()
        self.storage = self.storage.after_kill()
        self.world.pass_seconds(2 * self.random.random())
        self.start_broker()

    def pause_broker(self) -> None:
        self.broker.pause()
        self.world.pass_seconds(3 * SESSION_MS / 1000 * self.random.random())
        self.broker.go_on()

    def fill_disk(self) -> None:
        self.storage.fail("append", times=self.random.randint(1, 20))
        self.world.pass_seconds(1)

    def kill_client(self) -> None:
        """Another takes its place; a transactional one under its name."""
        host = self.random.choice(list(self.hosts))
        program, name = self.hosts.pop(host)
        host.kill()
        self.start(program, self.fresh("p") if program == self.produce else name)

    def pause_client(self) -> None:
        """Beyond its session and transaction, or for less."""
        host = self.random.choice(list(self.hosts))
        host.pause()
        self.world.pass_seconds(2 * TRANSACTION_MS / 1000 * self.random.random())
        host.go_on()

    FAULTS = (
        lose_power, lose_power, kill_broker, pause_broker, fill_disk, kill_client, pause_client,
    )  # fmt: skip

    # The run and its end

    def live(self) -> None:
        self.start(self.produce, self.fresh("p"))
        self.start(self.produce, self.fresh("p"))
        self.start(self.transact, "one")
        self.start(self.transact, "two")
        self.start(self.copy, "copier-a")
        self.start(self.copy, "copier-b")
        for _ in range(FAULTS_A_RUN):
            self.world.pass_seconds(self.random.choice([0.01, 0.3, 3]) * self.random.random())
            self.random.choice(self.FAULTS)(self)
        self.world.pass_seconds(1)
        self.is_stopping = True
        programs = [task for host in self.hosts for task in host.tasks]
        self.world.run(lambda: all(task.done() for task in programs), PATIENCE_SECONDS)
        for task in programs:
            task.result()
        self.world.pass_seconds(2 * TRANSACTION_MS / 1000)  # what was left open is aborted

    def check(self) -> None:
        reader = self.world.host("reader")
        log = self.world.result(reader, self.read("log"), PATIENCE_SECONDS)
        for (partition, offset), value in self.acknowledged.items():
            assert log[partition].get(offset) == value, f"log-{partition} offset {offset}"
        self.check_order(log)
        self.check_transactions(log)
        self.world.result(reader, self.copy_the_rest(), PATIENCE_SECONDS)
        copies = self.world.result(reader, self.read("copies"), PATIENCE_SECONDS)
        expected = [b"%d:%d:%s" % (p, at, v) for p in log for at, v in log[p].items()]
        assert sorted(v for each in copies.values() for v in each.values()) == sorted(expected)

    def check_order(self, log: dict[int, dict[int, bytes]]) -> None:
        for partition, values in log.items():
            seen: dict[bytes, int] = {}
            for value in values.values():
                name, number = value.split(b":")[:2]
                if name.startswith(b"p"):
                    assert int(number) > seen.get(name, -1), f"log-{partition}: {value!r}"
                    seen[name] = int(number)

    def check_transactions(self, log: dict[int, dict[int, bytes]]) -> None:
        there: dict[bytes, list[bytes]] = defaultdict(list)
        for values in log.values():
            for value in values.values():
                if value.startswith(b"t"):
                    there[value.split(b":")[0]].append(value)
        for name, end in self.transactions.items():
            whole = {b"%s:%d:%s" % (name, n, v.split(b":")[2]) for v in there[name][:1]
                     for n in range(int(v.split(b":")[2]))}  # fmt: skip
            assert sorted(there[name]) == sorted(whole), f"{name!r} ({end})"
            assert end == "unknown" or bool(whole) == (end == "committed"), f"{name!r} ({end})"

    async def read(self, topic: str) -> dict[int, dict[int, bytes]]:
        """The committed values of a topic, by partition and offset."""
        async with (
            self.client() as client,
            Consumer(
                client, auto_offset_reset="earliest", isolation_level="read_committed"
            ) as consumer,
        ):
            partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            found: dict[int, dict[int, bytes]] = {number: {} for number in range(PARTITIONS)}
            while any((consumer.position(each) or 0) < end for each, end in ends.items()):
                for where, columns in (await consumer.poll(200)).items():
                    rows = zip(columns.offsets or (), columns.values, strict=True)
                    found[where.partition].update(rows)  # type: ignore[arg-type]
            return found

    async def copy_the_rest(self) -> None:
        async with self.client() as client, Consumer(client) as other:
            partitions = [TopicPartition("log", number) for number in range(PARTITIONS)]
            ends = await other.end_offsets(partitions)

        def is_there(consumer: Consumer) -> bool:
            return set(consumer.assignment) >= ends.keys() and all(
                (consumer.position(each) or 0) >= end for each, end in ends.items()
            )

        await self.copy_until("copier-a", is_there)


@pytest.mark.parametrize("seed", [*FAILED_ONCE, *range(FIRST, LAST)])
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    random = Random(seed)
    with World(random) as world:
        history = History(world, random)
        history.live()
        history.check()
