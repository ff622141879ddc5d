"""Clients at work in a simulated cluster, and the history of what they did and saw.         [IO]

    work = Workload(cluster, cluster.client)
    work.begin()                          producers, transactions, a group, readers
    … faults, and time passes …
    work.finish()                         all end, and the logs are read
    assert not check_all(work.history)

Every value names its producer and its number, or its transaction: values are unique. A client that
is killed leaves its operations without an end, as nobody learnt it.

Owns   the history. Times in it are the world's, in seconds.
Never  repeats what its clients do not repeat themselves; errors that brokers may cause are noted by
       what the history does not say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.clients.producer.transactional import TransactionalProducer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode, KafkaliteError
from kafkalite.testing.checkers import (
    Commit,
    CommittedOffset,
    End,
    History,
    Read,
    Send,
    Transaction,
    TransactionEnd,
)
from kafkalite.testing.cluster import SimulatedCluster
from kafkalite.testing.simulation import Host

PATIENCE_SECONDS: Final = 1_800
SESSION_MS: Final = 2_000
TRANSACTION_MS: Final = 5_000
NEVER_MS: Final = 10**7
# Until markers are written: a leader asks the controller again after 5 s without an answer.
STABLE_SECONDS: Final = 20

PROGRAMS: Final = ("produce", "produce", "transact", "consume", "consume", "read", "look")
Program = Callable[[str], Coroutine[Any, Any, None]]


class Workload:
    """Clients of one cluster and one topic. `make_client` makes a client of theirs."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        make_client: Callable[..., Client],
        *,
        name: str = "work",
        partitions: int = 3,
        replication_factor: int = 1,
        programs: Sequence[str] = PROGRAMS,
        configs: Mapping[str, str | None] | None = None,
    ) -> None:
        self.cluster, self.name = cluster, name
        self.history = History()
        self.is_stopping = False
        self.topic = f"log-of-{name}"
        self.partitions = [TopicPartition(self.topic, number) for number in range(partitions)]
        self.programs: dict[Host, tuple[Program, str]] = {}
        self._make_client = make_client
        self._new_topic = NewTopic(self.topic, partitions, replication_factor, configs or {})
        self._begun_with = programs
        self._random = cluster.chance(f"workload {name}")
        self._numbers = count()
        self._group = f"group-of-{name}"

    def begin(self) -> None:
        """Makes the topic and starts the clients."""
        self.once("admin", self.make_topic())
        for name in self._begun_with:
            self.start(getattr(self, name))

    def start(self, program: Program, name: str = "") -> Host:
        """One more client, on a host of its own."""
        name = name or f"{self.name}-{program.__name__}-{next(self._numbers)}"
        host = self.cluster.host(name)
        self.programs[host] = program, name
        host.spawn(program(name))
        return host

    def once(self, name: str, program: Coroutine[Any, Any, Any]) -> Any:
        """The result of a short program."""
        host = self.cluster.host(f"{self.name}-{name}")
        return self.cluster.result(host, program, PATIENCE_SECONDS)

    # ---- programs ------------------------------------------------------------------------------

    async def produce(self, name: str) -> None:
        """An idempotent producer's records."""
        async with self._client() as client:
            producer = await self._started_producer(client)
            await self._produce_on(client, producer, name)
            await producer.close()

    async def produce_anew(self, name: str) -> None:
        """The same to a topic that may be deleted, or lose records: after an error another producer
        begins, whose records have no order with those before."""
        for life in count():
            if self.is_stopping:
                return
            try:
                async with self._client() as client:
                    producer = await self._started_producer(client)
                    try:
                        await self._produce_on(client, producer, f"{name}.{life}")
                    finally:
                        await producer.close(flush=False)
            except KafkaliteError:
                await self._rest(0.5)

    async def _produce_on(self, client: Client, producer: Producer, name: str) -> None:
        numbers = count()
        while not self.is_stopping:
            sends = [
                await self._send(client, producer, name, b"%s:%d" % (name.encode(), next(numbers)))
                for _ in range(self._random.randint(1, 20))
            ]
            failures = []
            for number, sent in sends:
                try:
                    await self._note_sent(number, sent)
                except KafkaliteError as error:
                    failures.append(error)
            if failures:
                raise failures[0]
            await self._rest(0.5)

    async def produce_hastily(self, name: str) -> None:
        """Records with acks=1, of which nothing is promised but that nobody else wrote them."""
        numbers = count()
        while not self.is_stopping:
            try:
                async with self._client() as client, Producer(client, acks=1) as producer:
                    while not self.is_stopping:
                        value = b"%s:%d" % (name.encode(), next(numbers))
                        _, sent = await self._send(
                            client, producer, name, value, is_idempotent=False
                        )
                        await sent
                        await self._rest(0.5)
            except KafkaliteError:
                await self._rest(0.2)

    async def transact(self, name: str) -> None:
        """Transactions of some records each, some of which it aborts."""
        while not self.is_stopping:
            try:
                async with (
                    self._client() as client,
                    TransactionalProducer(
                        client, name, transaction_timeout_ms=TRANSACTION_MS
                    ) as producer,
                ):
                    while not self.is_stopping:
                        await self._transaction(client, producer, name)
                        await self._rest(0.2)
            except KafkaliteError:
                await self._rest(0.2)  # fenced, or nobody knows how it ended: begin anew

    async def consume(self, name: str) -> None:
        """A member of a group, which commits what it was given."""
        while not self.is_stopping:
            try:
                async with (
                    self._client() as client,
                    self._consumer(client, group_id=self._group) as consumer,
                ):
                    consumer.subscribe([self.topic])
                    while not self.is_stopping:
                        polled = await consumer.poll(200)
                        for partition, columns in polled.items():
                            assert columns.offsets is not None
                            offset = int(columns.offsets[-1]) + 1
                            await self._commit(consumer, partition, offset)
            except KafkaliteError:
                await self._rest(0.2)

    async def read(self, name: str) -> None:
        """A reader of committed records, from the beginning, again and again."""
        while not self.is_stopping:
            try:
                async with self._client() as client, self._consumer(client) as consumer:
                    consumer.assign(self.partitions)
                    await self._read_on(consumer, name, lambda: self.is_stopping)
            except KafkaliteError:
                await self._rest(0.2)

    async def look(self, name: str) -> None:
        """Asks for ends and committed offsets."""
        while not self.is_stopping:
            try:
                async with self._client() as client:
                    while not self.is_stopping:
                        await self._look_once(client)
                        await self._rest(0.5)
            except KafkaliteError:
                await self._rest(0.2)

    # ---- faults of clients ---------------------------------------------------------------------

    def kill_one(self) -> None:
        """Kills a client; another takes its place, a transactional one under its name."""
        host = self._random.choice(list(self.programs))
        program, name = self.programs.pop(host)
        self.cluster.note(f"kill {name}")
        host.kill()
        self.start(program, name if program == self.transact else "")

    def pause_one(self) -> None:
        """Pauses a client beyond its session and transaction, or for less."""
        host = self._random.choice(list(self.programs))
        self.cluster.note(f"pause {host}")
        host.pause()
        self.cluster.pass_seconds(2 * TRANSACTION_MS / 1000 * self._random.random())
        host.go_on()

    # ---- the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Lets all end, waits for open transactions to be aborted, and reads the logs."""
        self.is_stopping = True
        tasks = [task for host in self.programs for task in host.tasks]
        self.cluster.run(lambda: all(task.done() for task in tasks), PATIENCE_SECONDS)
        for task in tasks:
            task.result()
        until = self.cluster.seconds + STABLE_SECONDS
        self.cluster.run(
            lambda: self.cluster.seconds >= until or self._is_stable(), PATIENCE_SECONDS
        )
        self.history.logs = self.once("auditor", self._read_all())
        self.once("last look", self._look_at_end())
        self.history.replicas = self.cluster.replicas(self.topic)

    def _is_stable(self) -> bool:
        """Whether no transaction is open, as far as brokers know."""
        nodes = [broker.node for broker in self.cluster.brokers.values()]
        return all(
            each.log.last_stable_offset == each.log.high_watermark == each.log.log_end_offset
            for node in nodes
            for each in (() if node is None else node.broker.partitions.of_topic(self.topic))
        )

    # ---- parts ---------------------------------------------------------------------------------

    def _client(self) -> Client:
        return self._make_client()

    async def _started_producer(self, client: Client) -> Producer:
        """A producer that has its id, however long no broker answers."""
        while True:
            producer = Producer(client, delivery_timeout_ms=NEVER_MS)
            try:
                await producer.start()
            except KafkaliteError:
                await self._rest(0.2)
            else:
                return producer

    def _consumer(self, client: Client, **options: Any) -> Consumer:
        """A consumer, in the rack of some broker where they have one."""
        if self.cluster.racks:
            options["client_rack"] = self._random.choice(sorted(self.cluster.racks.values()))
        if "group_id" in options:
            options |= {
                "session_timeout_ms": SESSION_MS,
                "heartbeat_interval_ms": SESSION_MS // 4,
                "enable_auto_commit": False,
            }
        return Consumer(
            client, auto_offset_reset="earliest", isolation_level="read_committed", **options
        )

    async def _rest(self, seconds_max: float) -> None:
        await asyncio.sleep(self._random.random() * seconds_max)

    async def make_topic(self) -> None:
        """Makes the topic, if the controller does not have it: others may not know yet that it was
        deleted."""
        async with self._client() as client, Admin(client) as admin:
            try:
                await admin.create_topics([self._new_topic])
            except ApiError as error:
                if error.error_code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise

    async def _send(
        self,
        client: Client,
        producer: Producer | TransactionalProducer,
        name: str,
        value: bytes,
        *,
        is_idempotent: bool = True,
    ) -> tuple[int, asyncio.Future[Any]]:
        """Sends a record; its number in the history, and its future."""
        known = client.cluster.partition_count(self.topic) or self._new_topic.partitions
        partition = self._random.choice(self.partitions[:known])  # the topic may have grown
        number = len(self.history.sends)
        send = Send(name, partition, value, self.cluster.seconds, is_idempotent=is_idempotent)
        self.history.sends.append(send)
        return number, await producer.send(self.topic, value, partition=partition.partition)

    async def _note_sent(self, number: int, sent: asyncio.Future[Any]) -> None:
        """Waits until a record is acknowledged. The offset counts from when the future had it,
        which is before this program goes on."""
        stored = await sent
        send = self.history.sends[number]
        self.history.sends[number] = replace(send, offset=stored.offset, ended=self.cluster.seconds)

    async def _transaction(
        self, client: Client, producer: TransactionalProducer, name: str
    ) -> None:
        values: dict[TopicPartition, tuple[bytes, ...]] = {}
        place, begun = len(self.history.transactions), next(self._numbers)
        self.history.transactions.append(Transaction(name, values))
        producer.begin()
        sends = []
        for number in range(self._random.randint(1, 10)):
            value = b"%s:t%d:%d" % (name.encode(), begun, number)
            sends.append(await self._send(client, producer, name, value))
            where = self.history.sends[sends[-1][0]].partition
            values[where] = (*values.get(where, ()), value)
            if self._random.random() < 0.1:
                await self._rest(1)
        is_aborted = self._random.random() < 0.3
        await (producer.abort() if is_aborted else producer.commit())
        end = TransactionEnd.ABORTED if is_aborted else TransactionEnd.COMMITTED
        self.history.transactions[place] = Transaction(name, values, end)
        if not is_aborted:
            for number, sent in sends:
                await self._note_sent(number, sent)

    async def _commit(self, consumer: Consumer, partition: TopicPartition, offset: int) -> None:
        began, place = self.cluster.seconds, len(self.history.commits)
        commit = Commit(self._group, partition, offset, began)
        self.history.commits.append(commit)
        await consumer.commit({partition: offset})
        self.history.commits[place] = replace(commit, ended=self.cluster.seconds)

    async def _read_on(self, consumer: Consumer, name: str, is_enough: Callable[[], bool]) -> None:
        """Reads, and notes what came between two positions."""
        positions = {each: consumer.position(each) for each in self.partitions}
        while not is_enough():
            began = self.cluster.seconds
            polled = await consumer.poll(200)
            ended = self.cluster.seconds
            for partition, columns in polled.items():
                position, next_position = positions[partition], consumer.position(partition)
                assert columns.offsets is not None
                assert next_position is not None
                records = dict(zip(map(int, columns.offsets), columns.values, strict=True))
                first = min(records) if position is None else position
                if partition in self.history.forgiven_until:
                    first = min(first, *records)  # the reader was told that the log is another
                self.history.reads.append(
                    Read(name, partition, first, next_position, records, began, ended)
                )
                positions[partition] = next_position

    async def _look_at_end(self) -> None:
        async with self._client() as client:
            await self._look_once(client)

    async def _look_once(self, client: Client) -> None:
        async with (
            self._consumer(client, group_id=self._group) as consumer,
            Consumer(client) as plain,
        ):
            began = self.cluster.seconds
            ends = await plain.end_offsets(self.partitions)
            ended = self.cluster.seconds
            self.history.ends += [End(each, offset, began, ended) for each, offset in ends.items()]
            began = self.cluster.seconds
            committed = await consumer.committed(self.partitions)
            ended = self.cluster.seconds
            for partition, known in committed.items():
                offset = None if known is None else known.offset
                self.history.committed.append(
                    CommittedOffset(self._group, partition, offset, began, ended)
                )

    async def _read_all(self) -> dict[TopicPartition, dict[int, bytes]]:
        """All that readers of committed records find now."""
        async with self._client() as client, self._consumer(client) as consumer:
            consumer.assign(self.partitions)
            ends = await consumer.end_offsets(self.partitions)
            found: dict[TopicPartition, dict[int, bytes]] = {tp: {} for tp in self.partitions}
            while any((consumer.position(each) or 0) < end for each, end in ends.items()):
                for where, columns in (await consumer.poll(200)).items():
                    rows = zip(columns.offsets or (), columns.values, strict=True)
                    found[where].update((int(at), value or b"") for at, value in rows)
            return found
