"""confluent-kafka, kafka-python and aiokafka behind one face, for tests that all of them share.

A `Writer` produces, within transactions if it has a transactional id. A `Reader` consumes; its
methods belong to one thread. A `Member` is a reader with a thread that polls it all the time, as
each of these clients wants it. Times are in milliseconds since the epoch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeVar

import aiokafka
import confluent_kafka
import kafka
from aiokafka.errors import ProducerFenced
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import FencedInstanceIdError, KafkaConnectionError, ProducerFencedError

SECONDS_MAX = 60.0
METADATA_MS = 300  # how long a new topic may go unnoticed by a pattern
T = TypeVar("T")


class Place(NamedTuple):
    topic: str
    partition: int


class Record(NamedTuple):
    place: Place
    offset: int
    key: bytes | None
    value: bytes | None


class Options(NamedTuple):
    """What a reader can be told."""

    group: str | None = None
    read_committed: bool = False
    instance_id: str | None = None
    is_cooperative: bool = False
    session_ms: int = 20_000


class Writer(Protocol):
    def send(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None
    ) -> None: ...
    def flush(self) -> None: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def send_offsets(self, offsets: Mapping[Place, int], group: Any) -> None: ...
    def close(self) -> None: ...


class Reader(Protocol):
    """`events` are the rebalances it saw: ("assigned" or "revoked", the partitions)."""

    events: list[tuple[str, set[Place]]]

    def subscribe(self, topics: Sequence[str]) -> None: ...
    def subscribe_matching(self, pattern: str) -> None: ...
    def assign(self, places: Collection[Place]) -> None: ...
    def poll(self) -> list[Record]: ...
    def assignment(self) -> set[Place]: ...
    def pause(self, places: Collection[Place]) -> None: ...
    def resume(self, places: Collection[Place]) -> None: ...
    def commit(self, offsets: Mapping[Place, int]) -> None: ...
    def committed(self, place: Place) -> int | None: ...
    def group_metadata(self) -> Any: ...
    def close(self) -> None: ...


# ---- confluent-kafka -----------------------------------------------------------------------------


def of_confluent(partitions: Iterable[Any]) -> set[Place]:
    return {Place(p.topic, p.partition) for p in partitions}


def for_confluent(places: Iterable[Place]) -> list[Any]:
    return [confluent_kafka.TopicPartition(*place) for place in places]


class ConfluentWriter:
    def __init__(self, bootstrap: str, transactional_id: str | None) -> None:
        config: dict[str, Any] = {"bootstrap.servers": bootstrap, "linger.ms": 5}
        if transactional_id:
            config |= {"transactional.id": transactional_id}
        self._producer = confluent_kafka.Producer(config)
        if transactional_id:
            self._producer.init_transactions(SECONDS_MAX)

    def send(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None
    ) -> None:
        where = {} if partition is None else {"partition": partition}
        self._producer.produce(topic, value, key, **where)

    def flush(self) -> None:
        assert self._producer.flush(SECONDS_MAX) == 0

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS_MAX)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS_MAX)

    def send_offsets(self, offsets: Mapping[Place, int], group: Any) -> None:
        pairs = [confluent_kafka.TopicPartition(*place, at) for place, at in offsets.items()]
        self._producer.send_offsets_to_transaction(pairs, group, SECONDS_MAX)

    def close(self) -> None:
        self._producer.purge()


class ConfluentReader:
    def __init__(self, bootstrap: str, options: Options) -> None:
        self.events: list[tuple[str, set[Place]]] = []
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": options.group or "nobody",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": options.session_ms,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            "isolation.level": isolation(options),
        }
        if options.instance_id:
            config |= {"group.instance.id": options.instance_id}
        if options.is_cooperative:
            config |= {"partition.assignment.strategy": "cooperative-sticky"}
        self._consumer = confluent_kafka.Consumer(config)

    def subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(
            list(topics),
            on_assign=lambda _, parts: self.events.append(("assigned", of_confluent(parts))),
            on_revoke=lambda _, parts: self.events.append(("revoked", of_confluent(parts))),
        )

    def subscribe_matching(self, pattern: str) -> None:
        self.subscribe([f"^{pattern}$"])

    def assign(self, places: Collection[Place]) -> None:
        at = confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign([confluent_kafka.TopicPartition(*place, at) for place in places])

    def poll(self) -> list[Record]:
        records = []
        for m in self._consumer.consume(500, 0.1):
            if m.error() is not None:
                raise confluent_kafka.KafkaException(m.error())
            records.append(Record(Place(m.topic(), m.partition()), m.offset(), m.key(), m.value()))
        return records

    def assignment(self) -> set[Place]:
        return of_confluent(self._consumer.assignment())

    def pause(self, places: Collection[Place]) -> None:
        self._consumer.pause(for_confluent(places))

    def resume(self, places: Collection[Place]) -> None:
        self._consumer.resume(for_confluent(places))

    def commit(self, offsets: Mapping[Place, int]) -> None:
        pairs = [confluent_kafka.TopicPartition(*place, at) for place, at in offsets.items()]
        for done in self._consumer.commit(offsets=pairs, asynchronous=False):
            assert done.error is None, done.error

    def committed(self, place: Place) -> int | None:
        (found,) = self._consumer.committed(for_confluent([place]), SECONDS_MAX)
        return None if found.offset == confluent_kafka.OFFSET_INVALID else found.offset

    def group_metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()


# ---- kafka-python --------------------------------------------------------------------------------


class KafkaPythonWriter:
    def __init__(self, bootstrap: str, transactional_id: str | None) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, linger_ms=5
        )
        self._sent: list[Any] = []
        if transactional_id:
            self._producer.init_transactions()

    def send(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None
    ) -> None:
        self._sent.append(self._producer.send(topic, value, key, partition=partition))

    def flush(self) -> None:
        self._producer.flush(SECONDS_MAX)
        for future in self._sent:
            future.get(SECONDS_MAX)
        self._sent.clear()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._sent.clear()
        self._producer.abort_transaction()

    def send_offsets(self, offsets: Mapping[Place, int], group: Any) -> None:
        self._producer.send_offsets_to_transaction(for_kafka_python(offsets), group)

    def close(self) -> None:
        self._producer.close(timeout=1)


def for_kafka_python(offsets: Mapping[Place, int]) -> dict[Any, Any]:
    return {
        kafka.TopicPartition(*place): kafka.OffsetAndMetadata(at, "", -1)
        for place, at in offsets.items()
    }


class KafkaPythonReader(kafka.ConsumerRebalanceListener):
    def __init__(self, bootstrap: str, options: Options) -> None:
        self.events: list[tuple[str, set[Place]]] = []
        more: dict[str, Any] = {}
        if options.instance_id:
            more |= {"group_instance_id": options.instance_id}
        if options.is_cooperative:
            more |= {"partition_assignment_strategy": [CooperativeStickyAssignor]}
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=options.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            session_timeout_ms=options.session_ms,
            metadata_max_age_ms=METADATA_MS,
            isolation_level=isolation(options),
            **more,
        )

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.events.append(("assigned", {Place(*tp) for tp in assigned}))

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.events.append(("revoked", {Place(*tp) for tp in revoked}))

    def subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(list(topics), listener=self)

    def subscribe_matching(self, pattern: str) -> None:
        self._consumer.subscribe(pattern=f"^{pattern}$", listener=self)

    def assign(self, places: Collection[Place]) -> None:
        self._consumer.assign([kafka.TopicPartition(*place) for place in places])
        self._consumer.seek_to_beginning()

    def poll(self) -> list[Record]:
        """Long: a poll that ends just as a join completes makes kafka-python lose what it got."""
        try:
            batches = self._consumer.poll(timeout_ms=1_000).values()
        except KafkaConnectionError:  # the next poll tries again
            return []
        return [plain(m) for messages in batches for m in messages]

    def assignment(self) -> set[Place]:
        return {Place(*tp) for tp in self._consumer.assignment()}

    def pause(self, places: Collection[Place]) -> None:
        self._consumer.pause(*(kafka.TopicPartition(*place) for place in places))

    def resume(self, places: Collection[Place]) -> None:
        self._consumer.resume(*(kafka.TopicPartition(*place) for place in places))

    def commit(self, offsets: Mapping[Place, int]) -> None:
        self._consumer.commit(for_kafka_python(offsets))

    def committed(self, place: Place) -> int | None:
        found: int | None = self._consumer.committed(kafka.TopicPartition(*place))
        return found

    def group_metadata(self) -> Any:
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.close()


# ---- aiokafka ------------------------------------------------------------------------------------


class Loop:
    """An event loop that runs while somebody waits for something in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, SECONDS_MAX))

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """A plain function, which looks for the loop that runs."""

        async def call() -> T:
            return function(*arguments, **named)

        told: T = self.run(call())
        return told

    def close(self) -> None:
        self._loop.close()


class AiokafkaWriter:
    def __init__(self, bootstrap: str, transactional_id: str | None) -> None:
        self._loop = Loop()
        self._producer = self._loop.call(
            aiokafka.AIOKafkaProducer,
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            linger_ms=5,
        )
        self._sent: list[Any] = []
        self._loop.run(self._producer.start())

    def send(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None
    ) -> None:
        self._sent.append(self._loop.run(self._producer.send(topic, value, key, partition)))

    def flush(self) -> None:
        async def all_sent() -> None:
            await asyncio.gather(*self._sent)

        self._loop.run(all_sent())
        self._sent.clear()

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction())

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._sent.clear()
        self._loop.run(self._producer.abort_transaction())

    def send_offsets(self, offsets: Mapping[Place, int], group: Any) -> None:
        pairs = {aiokafka.TopicPartition(*place): at for place, at in offsets.items()}
        self._loop.run(self._producer.send_offsets_to_transaction(pairs, group))

    def close(self) -> None:
        self._loop.run(self._producer.stop())
        self._loop.close()


class AiokafkaReader(aiokafka.ConsumerRebalanceListener):
    def __init__(self, bootstrap: str, options: Options) -> None:
        assert not options.is_cooperative, "aiokafka has no cooperative assignor"
        self.events: list[tuple[str, set[Place]]] = []
        self._group = options.group
        self._loop = Loop()
        self._consumer = self._loop.call(
            aiokafka.AIOKafkaConsumer,
            bootstrap_servers=bootstrap,
            group_id=options.group,
            group_instance_id=options.instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            session_timeout_ms=options.session_ms,
            metadata_max_age_ms=METADATA_MS,
            isolation_level=isolation(options),
        )
        self._is_started = False

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.events.append(("assigned", {Place(*tp) for tp in assigned}))

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self.events.append(("revoked", {Place(*tp) for tp in revoked}))

    def _start(self) -> None:
        if not self._is_started:
            self._loop.run(self._consumer.start())
            self._is_started = True

    def subscribe(self, topics: Sequence[str]) -> None:
        self._loop.call(self._consumer.subscribe, list(topics), listener=self)
        self._start()

    def subscribe_matching(self, pattern: str) -> None:
        self._loop.call(self._consumer.subscribe, pattern=f"^{pattern}$", listener=self)
        self._start()

    def assign(self, places: Collection[Place]) -> None:
        self._loop.call(self._consumer.assign, for_aiokafka(places))
        self._start()
        self._loop.run(self._consumer.seek_to_beginning())

    def poll(self) -> list[Record]:
        self._start()
        batches = self._loop.run(self._consumer.getmany(timeout_ms=100)).values()
        return [plain(m) for messages in batches for m in messages]

    def assignment(self) -> set[Place]:
        return {Place(*tp) for tp in self._consumer.assignment()}

    def pause(self, places: Collection[Place]) -> None:
        self._loop.call(self._consumer.pause, *for_aiokafka(places))

    def resume(self, places: Collection[Place]) -> None:
        self._loop.call(self._consumer.resume, *for_aiokafka(places))

    def commit(self, offsets: Mapping[Place, int]) -> None:
        pairs = {aiokafka.TopicPartition(*place): at for place, at in offsets.items()}
        self._loop.run(self._consumer.commit(pairs))

    def committed(self, place: Place) -> int | None:
        self._start()
        found: int | None = self._loop.run(
            self._consumer.committed(aiokafka.TopicPartition(*place))
        )
        return found

    def group_metadata(self) -> Any:
        return self._group

    def close(self) -> None:
        self._loop.run(self._consumer.stop())
        self._loop.close()


def for_aiokafka(places: Iterable[Place]) -> list[Any]:
    return [aiokafka.TopicPartition(*place) for place in places]


def plain(m: Any) -> Record:
    """A message of kafka-python or aiokafka."""
    return Record(Place(m.topic, m.partition), m.offset, m.key, m.value)


def isolation(options: Options) -> str:
    return "read_committed" if options.read_committed else "read_uncommitted"


# ---- what the tests are given --------------------------------------------------------------------


class Client(NamedTuple):
    """One client library. `fenced` are the errors by which it says that it lost its epoch or id."""

    name: str
    writer: Callable[[str, str | None], Writer]
    reader: Callable[[str, Options], Reader]
    fenced: tuple[type[Exception], ...]
    has_cooperative: bool = True


CLIENTS = [
    Client("confluent-kafka", ConfluentWriter, ConfluentReader, (confluent_kafka.KafkaException,)),
    Client(
        "kafka-python",
        KafkaPythonWriter,
        KafkaPythonReader,
        (ProducerFencedError, FencedInstanceIdError),
    ),
    Client(
        "aiokafka",
        AiokafkaWriter,
        AiokafkaReader,
        (ProducerFenced,),
        has_cooperative=False,
    ),
]


class Member:
    """A reader that a thread of its own polls; other calls run between its polls.

    `records` are all that it got, `assigned` is what it owned after its last poll, `error` is what
    ended its thread.
    """

    def __init__(self, make: Callable[[], Reader], set_up: Callable[[Reader], None]) -> None:
        self.records: list[Record] = []
        self.assigned: set[Place] = set()
        self.events: list[tuple[str, set[Place]]] = []
        self.error: Exception | None = None
        self._calls: deque[tuple[Future[Any], Callable[[Reader], Any]]] = deque()
        self._news = threading.Condition()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(make, set_up), daemon=True)
        self._thread.start()

    def _run(self, make: Callable[[], Reader], set_up: Callable[[Reader], None]) -> None:
        reader = make()
        try:
            set_up(reader)
            while not self._is_over.is_set():
                self._poll(reader)
        except Exception as error:
            with self._news:
                self.error = error
                self._news.notify_all()
        finally:
            reader.close()

    def _poll(self, reader: Reader) -> None:
        while self._calls:
            future, function = self._calls.popleft()
            try:
                future.set_result(function(reader))
            except Exception as error:
                future.set_exception(error)
        records = reader.poll()
        with self._news:
            self.records += records
            self.assigned = reader.assignment()
            self.events = list(reader.events)
            self._news.notify_all()

    def do(self, function: Callable[[Reader], T]) -> T:
        """What `function` gives for the reader, between two polls."""
        future: Future[T] = Future()
        self._calls.append((future, function))
        return future.result(SECONDS_MAX)

    def until(self, condition: Callable[[], object], *, may_fail: bool = False) -> None:
        """Waits until the condition holds after a poll; raises what ended the thread."""
        with self._news:
            done = self._news.wait_for(lambda: self.error or condition(), SECONDS_MAX)
        if self.error and not may_fail:
            raise self.error
        assert done, f"not so after {SECONDS_MAX:g} s; {len(self.records)} records"

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(SECONDS_MAX)
