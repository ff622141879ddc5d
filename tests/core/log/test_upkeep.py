"""The care for logs: what waits for a disk does so in a thread, and what fails is told."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any
from uuid import UUID

import pytest

from kafkalite.core.config.settings import BrokerConfig, LogConfig
from kafkalite.core.log.shared_write import SharedWrite
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import encode
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.replicas.replication import PartitionReplication
from kafkalite.core.replicas.upkeep import Upkeep
from kafkalite.core.types import Columns, Now, TopicPartition
from kafkalite.errors import ApiError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage

ORDERS = TopicPartition("orders", 0)
ID = UUID(int=7)
NOW_MS = 1_000


class Host:
    """A broker of one log. What is to run in a thread waits in `work` until `run` is called."""

    def __init__(self, storage: MemoryStorage, **settings: Any) -> None:
        self.logs = LogStore(storage)
        self.log = self.logs.open(ORDERS, ID, LogConfig(segment_bytes=200, **settings), at(NOW_MS))
        self.partition = Partition(ORDERS, self.log, PartitionReplication(ORDERS, 1))
        self.log_starts = SharedWrite(self.logs.log_start_offsets_writer, self.in_thread)
        self.clock_ms = NOW_MS
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.told: list[Any] = []
        self.informed: list[str] = []
        self.upkeep = Upkeep(self, BrokerConfig.parse({}))

    def now(self) -> Now:
        return at(self.clock_ms)

    def monotonic_ms(self) -> int:
        return self.now().monotonic_ms

    def in_thread(self, act: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((future, act))
        return future

    def topics_held(self) -> Sequence[Sequence[Partition]]:
        return [(self.partition,)]

    def flushed(self, partition: Partition, byte_count: int) -> None:
        self.told.append(("flushed", byte_count))

    def failed(self, partition: Partition) -> None:
        self.told.append("failed")

    def look_for_lag(self, partition: Partition, monotonic_ms: int) -> None:
        self.told.append("looked for lag")

    def try_again(self) -> Iterator[None]:
        yield

    def note(self, message: str) -> None:
        self.told.append(message)

    def inform(self, message: str) -> None:
        self.informed.append(message)

    def run(self) -> None:
        """All that is to run in a thread runs."""
        while self.work:
            future, act = self.work.pop(0)
            try:
                future.set_result(act())
            except Exception as error:
                future.set_exception(error)

    def duty(self, name: str) -> Iterator[Any]:
        (duty,) = [duty for duty in self.upkeep.duties() if duty.name == name]
        return iter(duty.slices(self.monotonic_ms()))

    def go_through(self, name: str) -> None:
        for future in self.duty(name):
            self.run()
            assert future is None or future.done()

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            batch = encode(Columns([b"k"], [b"v"], [self.clock_ms]))
            self.log.append_as_leader(bytearray(batch), 0, self.clock_ms)
        self.log.high_watermark = self.log.log_end_offset


def names(storage: MemoryStorage, end: str) -> list[str]:
    return sorted(name for name in storage.files("orders-0") if name.endswith(end))


def test_files_are_removed_in_a_thread(memory: MemoryStorage) -> None:
    host = Host(memory, retention_records=1, file_delete_delay_ms=100)
    host.append(10)
    host.go_through("retention")
    doomed = names(memory, ".log.deleted")
    assert len(doomed) > 1
    host.clock_ms += 100
    slices = host.duty("housekeeping")
    assert next(future for future in slices if future is not None) is host.work[0][0]
    assert names(memory, ".log.deleted") == doomed, "the loop has removed nothing"
    host.run()
    assert names(memory, ".log.deleted") == doomed[1:]
    for _ in slices:
        host.run()
    assert names(memory, ".deleted") == []
    assert host.told == []


def test_what_cannot_be_removed_is_told_and_hinders_nothing(memory: MemoryStorage) -> None:
    host = Host(memory, retention_records=1, file_delete_delay_ms=100)
    host.append(10)
    host.go_through("retention")
    host.clock_ms += 100
    memory.fail("delete", errno.EIO)
    host.go_through("housekeeping")
    assert len(names(memory, ".log.deleted")) == 1
    assert [told.split(":")[:2] for told in host.told] == [["orders-0", " removal"]]
    assert host.log.failure is None


def test_the_directory_of_a_deleted_log_is_removed_in_a_thread(memory: MemoryStorage) -> None:
    host = Host(memory)
    host.append()
    host.logs.delete(host.log)
    host.go_through("housekeeping")
    host.clock_ms += 59_999
    host.go_through("housekeeping")
    assert len(memory.directories("")) == 1
    host.clock_ms += 1
    slices = host.duty("housekeeping")
    assert next(future for future in slices if future is not None) is host.work[0][0]
    assert len(memory.directories("")) == 1
    host.run()
    assert memory.directories("") == []


@pytest.mark.parametrize("seed", range(8))
def test_retention_is_durable_when_its_duty_is_done(memory: MemoryStorage, seed: int) -> None:
    host = Host(memory, retention_records=1)
    host.append(10)
    host.log.flush()
    host.go_through("retention")
    assert host.log.log_start_offset > 0
    found = Host(memory.after_crash(Random(seed)), retention_records=1)
    assert found.log.log_start_offset == host.log.log_start_offset


# ---- flushes of a log that fails meanwhile -----------------------------------------------------


def waiting_host(memory: MemoryStorage) -> Host:
    """One whose log failed while it was flushed: a record that does not fit cannot be cut off."""
    host = Host(memory, flush_messages=1)
    host.append()
    host.upkeep.await_flush(host.partition, 70)
    memory.fail("append")
    memory.fail("truncate", errno.EIO)
    with pytest.raises(ApiError, match="cannot be cut back"):
        host.append()
    assert host.log.can_reopen
    assert host.upkeep.is_flushing(host.partition)
    return host


def test_what_reached_the_disk_counts_though_the_log_failed_meanwhile(
    memory: MemoryStorage,
) -> None:
    host = waiting_host(memory)
    host.run()
    assert host.log.recovery_point == 1
    assert host.told == [("flushed", 70)]
    assert not host.upkeep.is_flushing(host.partition)


def test_a_sync_that_fails_is_final_though_the_log_failed_before(memory: MemoryStorage) -> None:
    host = waiting_host(memory)
    memory.fail("sync", errno.EIO)
    host.run()
    assert not host.log.can_reopen
    assert host.told[-1] == "failed"
    assert "orders-0 takes no more records" in host.told[0]


def test_nobody_waits_for_a_log_that_is_gone(memory: MemoryStorage) -> None:
    host = Host(memory, flush_messages=1)
    held = sys.getrefcount(host.partition)
    host.append()
    host.upkeep.await_flush(host.partition, 70)
    host.append()
    host.upkeep.await_flush(host.partition, 70)
    host.logs.delete(host.log)
    host.run()
    assert host.told == [("flushed", 70)], "the next one, for the other 70, does not begin"
    assert host.work == []
    still_held = sys.getrefcount(host.partition)
    assert still_held == held, "it is not remembered for ever"


def test_a_flush_that_lacks_only_its_epochs_is_made_good(memory: MemoryStorage) -> None:
    host = Host(memory, flush_messages=1)
    host.append()
    host.upkeep.await_flush(host.partition, 70)
    memory.fail("replace")
    host.run()
    assert [told.split(":")[:2] for told in host.told] == [["orders-0", " leader epochs"]]
    assert host.log.failure is None
    host.go_through("flush")
    assert host.told[1:] == [("flushed", 70)], "those that have waited since"
    assert host.log.recovery_point == 1


@pytest.mark.parametrize(
    ("settings", "given_up", "reason"),
    [
        ({"retention_ms": 10}, 0, "older than retention.ms 10"),
        ({"retention_bytes": 300}, 0, "the log is larger than retention.bytes 300"),
        ({"retention_records": 3}, 0, "the log has more than retention.records 3"),
        ({}, 7, "below log start offset 7"),
    ],
)
def test_what_retention_deletes_is_logged_with_its_reason(
    memory: MemoryStorage, settings: dict[str, int], given_up: int, reason: str
) -> None:
    host = Host(memory, **settings)
    host.append(10)
    host.log.increment_log_start_offset(given_up)
    before = host.log.size_bytes
    host.clock_ms += 11
    host.go_through("retention")
    gone, end = before - host.log.size_bytes, host.log.segments[0].base_offset
    assert end > 0
    assert host.informed == [f"orders-0: deletes records [0, {end}), {gone} bytes: {reason}"]
    assert host.told == []
    host.go_through("retention")
    assert len(host.informed) == 1, "nothing goes, nothing is said"
