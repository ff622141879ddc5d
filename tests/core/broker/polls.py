"""Readers of one topic for the tests of long polls and sessions, and what may happen to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from kafkalite.core.broker import sessions
from kafkalite.core.broker.reading import Key, Reading
from kafkalite.core.handlers import fetch as fetching
from kafkalite.core.handlers.fetch import _Fetching, fetch
from kafkalite.core.log.segment import FileRecords
from kafkalite.core.log.values import MemoryRecords
from kafkalite.core.pending import Encoded, Pending
from kafkalite.core.protocol.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    encode,
    encode_end_transaction_marker,
)
from kafkalite.core.protocol.topics import DeleteTopicsRequest
from kafkalite.core.replicas.partition import READ_COMMITTED, Partition
from kafkalite.core.types import Columns, Now, RequestContext
from kafkalite.errors import ApiError, ErrorCode, StorageError
from kafkalite.node import Node

PARTITIONS = 4
VERSION = 12
HOUR_MS = 3_600_000

TOPIC_NAMES = (f"t{number}" for number in count())


class Looks:
    """Makes some readings look at everything each time, and knows what the others found last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole: set[Reading] = set()
        self.found: dict[Reading, dict[Key, PartitionData]] = {}
        self.fetching: dict[Reading, _Fetching] = {}
        self._look = look = _Fetching._read
        stale = Reading.stale

        def stale_or_all(reading: Reading, isolation_level: int) -> Any:
            if reading in self.whole:
                reading._stale = None
            return stale(reading, isolation_level)

        def noted(fetching: _Fetching, key: Key, *more: Any, **given: Any) -> PartitionData:
            reading = fetching.opened.reading
            self.fetching[reading] = fetching
            data = look(fetching, key, *more, **given)
            self.found.setdefault(reading, {})[key] = data
            return data

        read = Partition.read
        self.from_memory = 0

        def compared(partition: Partition, *more: Any, **given: Any) -> Any:
            """What is read from memory is what the file has."""
            records, fresh = read(partition, *more, **given), partition.fresh
            if isinstance(records, MemoryRecords):
                self.from_memory += 1
                partition.fresh = None
                in_file = read(partition, *more)
                partition.fresh = fresh
                assert isinstance(in_file, FileRecords)
                assert bytes(records.data) == in_file.read()
                assert records.before_offset == in_file.before_offset
            return records

        monkeypatch.setattr(Partition, "read", compared)
        monkeypatch.setattr(Reading, "stale", stale_or_all)
        monkeypatch.setattr(_Fetching, "_read", noted)

    def check(self) -> None:
        """What the next look passes over has nothing to read, and is what it was."""
        for reading, found in self.found.items():
            fetching = self.fetching[reading]
            committed = fetching.request.isolation_level == READ_COMMITTED
            passed_over = reading.asked.keys() - reading.unsettled()
            for key in passed_over:
                now_stale: set[Key] = set()
                context = RequestContext(VERSION)
                scratch = _Fetching(fetching.broker, fetching.request, fetching.opened, context)
                data = self._look(scratch, key, reading.asked[key], committed, now_stale)
                assert (data, now_stale) == (found[key], set())


class Reader:
    """One that asks again and again, within a session or without."""

    def __init__(self, node: Node, looks: Looks, *, is_whole: bool) -> None:
        self.node, self.looks = node, looks
        self.is_whole = is_whole
        self.session_id, self.epoch = 0, 0
        self.pending: Pending[Any] | None = None
        self.answer: FetchResponse | None = None

    def ask(self, request: FetchRequest, *, in_session: bool) -> None:
        """One request, for which it waits if the broker wants it to."""
        epoch = self.epoch if in_session else -1
        request = replace(
            request, session_id=self.session_id if in_session else 0, session_epoch=epoch
        )
        broker = self.node.broker
        if self.is_whole:
            self._look_at_everything(request)
        broker.waiting.hold()
        answer = fetch(broker, request, RequestContext(VERSION))
        self.answer = self.pending = None
        if isinstance(answer, Pending):
            self.pending = answer
            answer.when_done(self._learn)
        else:
            self._learn(answer)
        broker.waiting.settle()

    def _look_at_everything(self, request: FetchRequest) -> None:
        sessions = self.node.broker.fetch_sessions
        opened = sessions.open

        def open_whole(*arguments: Any) -> Any:
            found = opened(*arguments)
            if not isinstance(found, ErrorCode):
                self.looks.whole.add(found.reading)
            sessions.open = opened  # type: ignore[method-assign]
            return found

        sessions.open = open_whole  # type: ignore[method-assign]

    def _learn(self, answer: FetchResponse | Encoded) -> None:
        answer = answer.message if isinstance(answer, Encoded) else answer
        self.answer = answer
        self.pending = None
        self.session_id = answer.session_id
        self.epoch = self.epoch + 1 if answer.session_id else 0

    def leave(self) -> None:
        """Waits no longer."""
        if self.pending is not None:
            self.pending.abandon()
            self.pending = None


def shown(reader: Reader) -> Any:
    """What a reader was told, its records by where they lie; None while it waits."""
    if reader.answer is None:
        return None
    return reader.answer.error_code, [
        (topic.topic, [replace(each, records=lies(each.records)) for each in topic.partitions])
        for topic in reader.answer.responses
    ]


def lies(records: Any) -> Any:
    if isinstance(records, FileRecords):
        return records.position, records.size_bytes
    return bytes(records)


class Game:
    """A topic, to whose partitions anything may happen, and two readers that ask the same."""

    def __init__(self, node: Node, looks: Looks, *, in_session: bool) -> None:
        self.node, self.broker, self.looks = node, node.broker, looks
        self.topic = next(TOPIC_NAMES)
        self.in_session = in_session
        self.readers = [Reader(node, looks, is_whole=whole) for whole in (False, True)]
        self.offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.changed: set[int] = set(range(PARTITIONS))
        self.forgotten: set[int] = set()
        self.settings: dict[str, Any] = {}
        self.leader_epochs: dict[int, int] = {}
        self.open_transactions: set[int] = set()
        self.sequences = dict.fromkeys(range(PARTITIONS), 0)

    async def begin(self) -> None:
        created = asyncio.Event()
        self.broker.create_topics([self.topic]).when_done(lambda _: created.set())
        await created.wait()

    def partition(self, index: int) -> Partition | None:
        try:
            return self.broker.partition(self.topic, index)
        except ApiError:
            return None

    # -- what happens

    def produce(self, index: int, size: int, *, transactional: bool = False) -> None:
        partition = self.partition(index)
        if partition is None:
            return
        more: dict[str, Any] = {}
        if transactional:
            sequence = self.sequences[index]
            more = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
            more["transactional"] = True
        columns = Columns([b"k"], [b"v" * size], [self.broker.wall_ms()])
        batch = bytearray(encode(columns, **more))
        try:
            appended = partition.append(batch, 1, self.broker.wall_ms())
        except ApiError:
            return
        self.sequences[index] += transactional
        fresh = MemoryRecords(batch, appended.base_offset, appended.last_offset + 1)
        self.broker.appended(partition, len(batch), fresh)

    def mark(self, index: int, *, commit: bool) -> None:
        partition = self.partition(index)
        if partition is None:
            return
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        batch = encode_end_transaction_marker(
            EndTransactionMarker(kind, 0),
            producer_id=7,
            producer_epoch=0,
            timestamp_ms=self.broker.wall_ms(),
        )
        try:
            partition.append(batch, 1, self.broker.wall_ms(), from_client=False)
        except ApiError:
            return
        self.broker.appended(partition, 1 << 40)

    def happen(self, what: str, index: int, amount: int) -> None:
        partition = self.partition(index)
        if partition is None:
            return
        log = partition.log
        match what:
            case "produce":
                self.produce(index, 10 * amount)
            case "transaction":
                self.produce(index, 10 * amount, transactional=True)
            case "commit" | "abort":
                self.mark(index, commit=what == "commit")
            case "delete records" if log.failure is None:
                log.increment_log_start_offset(min(log.high_watermark, amount))
            case "retention" if log.failure is None:
                log.config, wall = replace(log.config, retention_ms=0), self.broker.wall_ms()
                log.delete_old_segments(Now(wall, wall, wall + HOUR_MS))
            case "truncate" if log.failure is None:
                self.broker.logs.truncate(log, max(log.log_end_offset - amount, 0))
            case "fail" if log.failure is None:
                with pytest.raises(StorageError):
                    log.health.fail("test", OSError("broken"), readable_end=log.high_watermark - 1)
            case "fail and tell" if log.failure is None:
                with pytest.raises(StorageError):
                    log.health.fail("test", OSError("broken"), readable_end=log.high_watermark - 1)
                self.broker.failed(partition)
            case "lag" | "catch up":
                image = self.broker.image.topics[self.topic].partitions[index]
                replicas = (*image.in_sync_replicas, 99) if what == "lag" else image.replicas
                epoch = partition.replication.leader_epoch
                image = replace(image, in_sync_replicas=replicas, leader_epoch=epoch)
                partition.replay(image, self.broker.monotonic_ms())
                self.broker.waiting.advanced(partition, 10)
            case "new epoch":
                image = self.broker.image.topics[self.topic].partitions[index]
                epoch = partition.replication.leader_epoch + 1
                partition.replay(replace(image, leader_epoch=epoch), self.broker.monotonic_ms())
            case "other leader":
                image = self.broker.image.topics[self.topic].partitions[index]
                epoch = partition.replication.leader_epoch + 1
                partition.replay(
                    replace(image, leader=99, leader_epoch=epoch), self.broker.monotonic_ms()
                )

    async def mend(self) -> None:
        """Logs that failed are opened again, in threads."""
        for future in self.broker.try_again():
            if future is not None:
                self.compare()
                await asyncio.wait([future])

    async def remake(self, what: str) -> None:
        """The topic goes, and perhaps comes back."""
        gone = asyncio.Event()
        if what == "delete topic":
            request = DeleteTopicsRequest(topic_names=(self.topic,), timeout_ms=1_000)
            answer: Any = self.broker.control(request)
        else:
            answer = self.broker.create_topics([self.topic])
        answer.when_done(lambda _: gone.set())
        await gone.wait()

    # -- what is asked

    def want(self, what: str, index: int, amount: int) -> None:
        """What the next request says."""
        partition = self.partition(index)
        self.changed.add(index)
        self.forgotten.discard(index)
        match what:
            case "to end" if partition is not None:
                self.offsets[index] = partition.log.high_watermark
            case "all to end":
                for each in range(PARTITIONS):
                    self.want("to end", each, 0)
            case "to offset":
                self.offsets[index] = amount
            case "forget":
                self.changed.discard(index)
                self.forgotten.add(index)
            case "leader epoch":
                self.leader_epochs[index] = amount - 1
            case "isolation":
                self.settings["isolation_level"] = amount % 2
            case "min bytes":
                self.settings["min_bytes"] = 100 * amount
            case "max bytes":
                self.settings["max_bytes"] = 100 * amount

    def request(self, max_wait_ms: int) -> FetchRequest:
        is_full = not (self.in_session and self.readers[0].session_id)
        told = set(range(PARTITIONS)) - self.forgotten if is_full else self.changed
        wanted = tuple(
            FetchPartition(
                index,
                self.leader_epochs.get(index, -1),
                self.offsets[index],
                partition_max_bytes=300,
            )
            for index in sorted(told)
        )
        forgotten = () if is_full else tuple(sorted(self.forgotten))
        self.changed = set()
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            topics=(FetchTopic(self.topic, partitions=wanted),) if wanted else (),
            forgotten_topics_data=(ForgottenTopic(self.topic, partitions=forgotten),),
            **{"min_bytes": 1, **self.settings},
        )

    def ask(self, max_wait_ms: int) -> None:
        if any(reader.pending is not None for reader in self.readers):
            return
        request = self.request(max_wait_ms)
        for reader in self.readers:
            reader.ask(request, in_session=self.in_session)

    async def settle(self) -> None:
        """Lets what goes on in slices come to its end."""
        for _ in range(3):
            while self.broker._agenda._due or self.broker.waiting._finished:
                await asyncio.sleep(0)
            await asyncio.sleep(0)

    def pass_time(self) -> None:
        """What waits has waited long enough."""
        waiting = self.broker.waiting
        waiting.hold()
        waiting._expire(self.broker.monotonic_ms() + 2 * HOUR_MS)
        waiting.settle()

    def compare(self) -> None:
        self.looks.check()
        one, other = map(shown, self.readers)
        assert one == other

    def end(self) -> None:
        for reader in self.readers:
            reader.leave()


def look_in_slices(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    """Two partitions are many from now on, and each takes a turn of the loop."""
    monkeypatch.setattr(fetching, "PARTITIONS_AT_ONCE", 1)
    monkeypatch.setattr(fetching, "PARTITIONS_PER_SLICE", 1)
    monkeypatch.setattr(sessions, "PARTITIONS_PER_SLICE", 1)

    def compute(act: Any) -> Any:
        done = asyncio.get_running_loop().create_future()
        done.set_result(act())
        return done

    monkeypatch.setattr(node.broker, "compute", compute)
