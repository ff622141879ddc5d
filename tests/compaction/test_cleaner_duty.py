"""The cleaner beside a broker: what it picks, where it works, what it tells, how it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from kafkalite.compaction.runner import LOGS_PER_SLICE, LogCleaner, Throttle
from kafkalite.core.config.settings import BrokerConfig, LogConfig
from kafkalite.core.duties import Duty, Slices
from kafkalite.core.log import checkpoints
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.segment import Segment
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import decode_all, encode
from kafkalite.core.types import Columns, Now, TopicPartition
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage

TOPIC_ID = UUID(int=7)
STATE, OTHER = TopicPartition("state", 0), TopicPartition("other", 0)


class Host:
    """As much of a broker as the cleaner needs."""

    def __init__(self, **settings: str) -> None:
        self.storage = MemoryStorage()
        self.logs = LogStore(self.storage)
        self.config = BrokerConfig.parse({k.replace("_", "."): v for k, v in settings.items()})
        self.duties: list[Duty] = []
        self.time_ms = 1_000
        self.tasks: set[asyncio.Future[None]] = set()

    def now(self) -> Now:
        return at(self.time_ms)

    def monotonic_ms(self) -> int:
        return self.now().monotonic_ms

    def add_duty(self, duty: Duty) -> None:
        self.duties.append(duty)

    def run_slices(self, slices: Slices, name: str, then: Callable[[], None] | None = None) -> None:
        async def run() -> None:
            try:
                await self._run(slices)
            finally:
                self.tasks.discard(task)
                if then is not None:
                    then()

        task = asyncio.ensure_future(run())
        self.tasks.add(task)

    async def _run(self, slices: Iterator[Any]) -> None:
        for future in slices:
            if future is not None:
                await asyncio.wait([future])
            else:
                await asyncio.sleep(0)

    def log(self, where: TopicPartition = STATE, **settings: Any) -> PartitionLog:
        """Five segments of one key."""
        config = LogConfig(**{"cleanup_policy": ("compact",), **settings})
        log = self.logs.open(where, TOPIC_ID, config, at(1_000))
        for i in range(25):
            batch = encode(Columns([b"key"], [b"%d" % i], [1_000]))
            log.append_as_leader(batch, 0, 1_000)
            if i % 5 == 4:
                log.roll(1_000)
        log.high_watermark = log.log_end_offset
        return log

    async def look(self, cleaner: LogCleaner) -> None:
        """One run of the duty, and all that follows from it."""
        self.time_ms += 15_000
        await self._run(self.duties[0].slices(self.monotonic_ms()))
        while self.tasks:
            await asyncio.wait(set(self.tasks))


def offsets(log: PartitionLog) -> list[int]:
    data = b"".join(s.log.read(0, s.size_bytes) for s in log.segments)
    return list(decode_all(data).offsets or ())


def cleaner_of(host: Host) -> LogCleaner:
    cleaner = LogCleaner(
        host,
        threads=ThreadPoolExecutor(8, "log-cleaner"),
        checkpointing=ThreadPoolExecutor(1),
        random_bytes=os.urandom,
        monotonic=time.monotonic,
    )
    cleaner.start()
    return cleaner


def test_what_was_cleaned_is_written_as_kafka_writes_it() -> None:
    async def main() -> None:
        host = Host()
        log, plain = host.log(), host.log(OTHER, cleanup_policy=("delete",))
        cleaner = cleaner_of(host)
        await host.look(cleaner)
        assert offsets(log) == [24]
        assert offsets(plain) == list(range(25))
        assert host.storage.read_small(checkpoints.CLEANED_OFFSETS) == b"0\n1\nstate 0 25\n"
        await cleaner.close()
        assert LogStore(host.storage).cleaned_offsets == {STATE: 25}

    asyncio.run(main())


def test_the_bytes_are_worked_on_in_threads_of_the_cleaners() -> None:
    async def main() -> None:
        host = Host()
        log = host.log()
        readers = set()
        for segment in log.segments[:-1]:
            reader = segment.log.reader

            def note(reader: Any = reader) -> Any:
                held = reader()

                class Noted:
                    def read(self, position: int, size: int) -> bytes:
                        readers.add(threading.current_thread().name)
                        return held.read(position, size)

                return Noted()

            segment.log = type("File", (), {})()  # what a segment's file must have
            segment.log.reader, segment.log.size_bytes = note, 345
            segment.log.path = "state-0/x"
        cleaner = cleaner_of(host)
        await host.look(cleaner)
        assert readers
        assert all(name.startswith("log-cleaner") for name in readers)
        await cleaner.close()

    asyncio.run(main())


def test_the_cleaner_can_be_left_out() -> None:
    async def main() -> None:
        host = Host(log_cleaner_enable="false")
        cleaner = cleaner_of(host)
        assert host.duties == []
        await cleaner.close()

    asyncio.run(main())


def test_the_cleaner_rests_as_long_as_is_set_now() -> None:
    async def main() -> None:
        host = Host(log_cleaner_backoff_ms="5000")
        cleaner = cleaner_of(host)
        (duty,) = host.duties
        assert duty.interval_ms == 1_000
        start_ms, looks = host.monotonic_ms(), []
        cleaner._look = lambda now_ms: iter(looks.append(now_ms - start_ms) or ())  # type: ignore[func-returns-value]
        for second in range(1, 8):
            list(duty.slices(start_ms + 1_000 * second))
        assert looks == [5_000, 6_000, 7_000]
        looks.clear()
        host.config = host.config.with_dynamic({"log.cleaner.backoff.ms": "7000"})
        for second in range(5, 8):
            list(duty.slices(start_ms + 1_000 * second))
        assert looks == [7_000]
        await cleaner.close()

    asyncio.run(main())


def test_all_that_is_dirty_is_cleaned_in_one_go() -> None:
    async def main() -> None:
        host = Host()
        logs = [host.log(TopicPartition("state", i)) for i in range(5)]
        cleaner = cleaner_of(host)
        await host.look(cleaner)
        assert [offsets(log) for log in logs] == [[24]] * 5
        await cleaner.close()

    asyncio.run(main())


def test_a_damaged_log_is_told_once_and_others_are_cleaned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        host = Host()
        damaged, sound = host.log(), host.log(OTHER)
        host.storage.names[damaged.segments[1].log.path].data[70] ^= 1
        cleaner = cleaner_of(host)
        for _ in range(3):
            await host.look(cleaner)
        assert offsets(sound) == [24]
        assert list(cleaner.uncleanable) == [STATE]
        assert cleaner.gauges() == {
            "cleaner_running": 0,
            "cleaner_max_dirty_percent": 0,
            "cleaner_uncleanable_partitions": 1,
        }
        told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(told) == 1
        assert told[0].startswith("state-0: not compacted until the broker starts again: ")
        host.logs.delete(damaged)
        await host.look(cleaner)
        assert cleaner.uncleanable == {}, "a new topic of that name is another one"
        await cleaner.close()

    asyncio.run(main())


def test_what_the_disk_refused_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        host = Host()
        log = host.log()
        cleaner = cleaner_of(host)
        host.logs.cleaned_offsets[STATE] = 0
        host.storage.fail("append")
        await host.look(cleaner)
        assert offsets(log) == list(range(25))
        await host.look(cleaner)
        assert offsets(log) == list(range(25)), "it rests"
        host.time_ms += 30_000
        await host.look(cleaner)
        assert offsets(log) == [24]
        assert "not compacted, tried again in 60 s: [Errno 28] ENOSPC" in caplog.text
        await cleaner.close()

    asyncio.run(main())


def test_a_deleted_log_is_let_go_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        host = Host()
        log = host.log()
        cleaner = cleaner_of(host)
        assert list(cleaner._look(host.monotonic_ms())) == [], "the cleaning has not begun to run"
        host.logs.delete(log)
        await host.look(cleaner)
        assert cleaner.uncleanable == {}
        assert STATE not in host.logs.cleaned_offsets
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
        await cleaner.close()

    asyncio.run(main())


def test_stopping_breaks_off_what_is_being_cleaned() -> None:
    async def main() -> None:
        host = Host(log_cleaner_io_max_bytes_per_second="1")
        log = host.log()
        cleaner = cleaner_of(host)
        running = asyncio.ensure_future(host.look(cleaner))
        while not cleaner._running:
            await asyncio.sleep(0)
        assert cleaner.gauges()["cleaner_running"] == 1
        assert cleaner.gauges()["cleaner_max_dirty_percent"] == 100
        await cleaner.close()  # it would take an hour
        assert offsets(log) == list(range(25))
        assert not [name for name in host.storage.files("state-0") if "cleaned" in name]
        await running

    asyncio.run(main())


@pytest.mark.parametrize("what", ["deleted", "not compacted", "failed"])
def test_a_cleaning_that_nobody_wants_any_more_is_broken_off(
    caplog: pytest.LogCaptureFixture, what: str
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        host = Host()
        log = host.log()
        before, looked = offsets(log), []

        def unwant(*arguments: float) -> float:
            looked.append(what)
            match what:
                case "deleted":
                    del host.logs.logs[STATE]
                case "not compacted":
                    log.config = replace(log.config, cleanup_policy=("delete",))
                case "failed":
                    log.health.failure = "the disk"
            return 0.0

        cleaner = cleaner_of(host)
        cleaner._throttle.wait_s = unwant  # type: ignore[method-assign]
        await host.look(cleaner)
        assert looked == [what], "no more was read"
        assert offsets(log) == before
        assert "state-0: gone, failed or no longer compacted" in caplog.text
        assert cleaner.uncleanable == {}
        assert host.logs.cleaned_offsets[STATE] == 0
        await cleaner.close()

    asyncio.run(main())


def test_a_log_that_goes_at_the_very_end_of_its_cleaning_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    synced = PartitionLog.sync_directory

    async def main() -> None:
        host = Host()
        host.log()
        cleaner = cleaner_of(host)

        def last(log: PartitionLog) -> None:
            synced(log)
            host.logs.delete(log)

        monkeypatch.setattr(PartitionLog, "sync_directory", last)
        await host.look(cleaner)
        assert STATE not in host.logs.cleaned_offsets
        assert host.storage.read_small(checkpoints.CLEANED_OFFSETS) == b"0\n1\nstate 0 0\n"
        await cleaner.close()

    asyncio.run(main())


def test_threads_share_the_buffers_and_many_logs_are_looked_at_in_slices() -> None:
    async def main() -> None:
        host = Host(log_cleaner_threads="4", log_cleaner_io_buffer_size="4096")
        cleaner = cleaner_of(host)
        settings = cleaner._settings()
        assert (settings.dedupe_buffer_bytes, settings.io_buffer_bytes) == (32 << 20, 1024)
        plain = host.log(cleanup_policy=("delete",))
        for i in range(2 * LOGS_PER_SLICE):
            host.logs.logs[TopicPartition("other", i)] = plain
        assert list(cleaner._look(host.monotonic_ms())) == [None, None]
        await cleaner.close()

    asyncio.run(main())


def test_what_was_written_of_a_cleaning_that_failed_goes_in_the_cleaners_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deleters: list[str] = []
    delete = Segment.delete

    def noted(segment: Segment) -> None:
        deleters.append(threading.current_thread().name)
        delete(segment)

    monkeypatch.setattr(Segment, "delete", noted)

    async def main() -> None:
        host = Host()
        host.log()
        cleaner = cleaner_of(host)
        host.logs.cleaned_offsets[STATE] = 0
        host.storage.fail("append")
        await host.look(cleaner)
        assert not [name for name in host.storage.files("state-0") if "cleaned" in name]
        await cleaner.close()

    asyncio.run(main())
    before, after = deleters
    assert before == threading.main_thread().name, "one that a crash may have left"
    assert after.startswith("log-cleaner")


def test_another_rate_is_kept_to_at_once() -> None:
    async def main() -> None:
        host = Host(log_cleaner_io_max_bytes_per_second="1")
        log = host.log()
        cleaner = cleaner_of(host)
        running = asyncio.ensure_future(host.look(cleaner))
        while not cleaner._throttle._ahead:
            await asyncio.sleep(0)
        host.config = host.config.with_dynamic({"log.cleaner.io.max.bytes.per.second": "1e9"})
        await running  # it would have taken an hour
        assert offsets(log) == [24]
        await cleaner.close()

    asyncio.run(main())


def test_a_log_shorter_than_it_was_cleaned_is_looked_at_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        host = Host()
        log = host.log()
        host.logs.cleaned_offsets[STATE] = 1_000
        cleaner = cleaner_of(host)
        await host.look(cleaner)
        assert offsets(log) == [24]
        assert "was compacted up to offset 1000 and ends at 25" in caplog.text
        await cleaner.close()

    asyncio.run(main())


def test_a_throttle_keeps_to_its_rate_over_all_who_share_it() -> None:
    throttle = Throttle()
    assert throttle.wait_s(500, 1_000.0, now=10.0) == 0.5
    assert throttle.wait_s(500, 1_000.0, now=10.1) == pytest.approx(0.9)
    assert throttle.wait_s(100, 1_000.0, now=50.0) == pytest.approx(0.1), "idle time is not saved"
    assert throttle.wait_s(1 << 40, 1.7976931348623157e308, now=60.0) == pytest.approx(0)
    assert throttle.wait_s(0, 1e300, now=61.0) == 0
    assert throttle.wait_s(600, 100.0, now=70.0) == 6
    assert throttle.wait_s(0, 1_000.0, now=70.5) == pytest.approx(0.1), "at the rate of now"
    assert throttle.wait_s(0, 1_000.0, now=70.4) == pytest.approx(0.1), "another thread was faster"


def test_gaps_are_known_for_what_they_are_after_a_change_of_policy() -> None:
    """A log that was compacted keeps its records when it is opened as a plain one, uncleanly."""

    async def main() -> None:
        host = Host()
        log = host.log(segment_bytes=400)  # two segments of before are never one
        cleaner = cleaner_of(host)
        await host.look(cleaner)
        assert [segment.size_bytes > 0 for segment in log.segments] == [False] * 4 + [True, False]
        log.append_as_leader(encode(Columns([b"a"], [b"1"], [1_000])), 0, 1_000)
        await cleaner.close()
        survivor = LogStore(host.storage.after_kill())
        again = survivor.open(STATE, TOPIC_ID, LogConfig(), at(1_000))
        assert offsets(again) == [24, 25]
        assert again.loss is None

    asyncio.run(main())
