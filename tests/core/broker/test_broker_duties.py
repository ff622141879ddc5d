"""What the broker does beside answering: retention, syncing, and telling the operator."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.duties import Duty
from kafkalite.core.log.flushing import Flush
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode, StorageError

Start = Any


def test_old_records_go(start: Start) -> None:
    async def story() -> None:
        async with start(log_retention_check_interval_ms="20") as running:
            peer = await running.connect()
            await peer.create("t", segment_bytes="200", retention_ms="1")
            await peer.create("kept", segment_bytes="200", retention_ms="-1")
            for _ in range(5):
                await peer.produce("t", b"x" * 50)
                await peer.produce("kept", b"x" * 50)
            log = running.broker.partition("t", 0).log
            await running.until(lambda: log.log_start_offset == 5)
            partition = FetchPartition(0, partition_max_bytes=1_000)
            topics = (FetchTopic("t", partitions=(partition,)),)
            (topic,) = (await peer.ask(FetchRequest(topics=topics), 12)).responses
            assert topic.partitions[0].error_code is ErrorCode.OFFSET_OUT_OF_RANGE
            assert (await peer.produce("t", b"next")).base_offset == 5
            assert running.broker.partition("kept", 0).log.log_start_offset == 0

    asyncio.run(story())


def test_what_was_rolled_is_synced_and_noted(start: Start, tmp_path: Path) -> None:
    async def story() -> None:
        async with start(log_flush_offset_checkpoint_interval_ms="20") as running:
            peer = await running.connect()
            await peer.create("t", segment_bytes="200")
            for _ in range(5):
                await peer.produce("t", b"x" * 50)
            checkpoint = tmp_path / "data" / "recovery-point-offset-checkpoint"
            log = running.broker.partition("t", 0).log
            await running.until(lambda: log.recovery_point >= log.segments[-1].base_offset == 4)
            synced = f"t 0 {log.recovery_point}"
            await running.until(lambda: checkpoint.exists() and synced in checkpoint.read_text())

    asyncio.run(story())


def test_a_sync_that_fails_ends_one_log(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Flush.run

    def failing(flush: Flush) -> OSError | StorageError | None:
        if "t-0" in flush.place.directory:
            return OSError(5, "Input/output error")
        return run(flush)

    async def story() -> None:
        monkeypatch.setattr(Flush, "run", failing)
        async with start(log_flush_offset_checkpoint_interval_ms="20") as running:
            peer = await running.connect()
            for topic in ("t", "u"):
                await peer.create(topic, segment_bytes="200")
                for _ in range(5):
                    await peer.produce(topic, b"x" * 50)
            await running.until(lambda: running.broker.partition("t", 0).log.failure)
            refused = await peer.produce("t", b"v")
            assert refused.error_code is ErrorCode.KAFKA_STORAGE_ERROR
            assert not (await peer.produce("u", b"v")).error_code

    asyncio.run(story())
    told = r"t-0 takes no more records: t-0: flush at offset \d: \[Errno 5\]"
    assert re.search(told, caplog.text)  # at whichever offset the flush came


def test_a_duty_that_fails_is_told_and_comes_again(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        runs: list[int] = []

        def fail(now_ms: int) -> Iterator[None]:
            runs.append(now_ms)
            yield None
            raise RuntimeError("no luck")

        async with start() as running:
            running.broker.add_duty(Duty("luck", 5, fail))
            await running.until(lambda: len(runs) > 2)
            peer = await running.connect()
            await peer.create("t")

    asyncio.run(story())
    assert "luck failed" in caplog.text


def test_the_same_trouble_is_told_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            file = running.broker.partition("t", 0).log.segments[-1].log

            def full(self: object, data: object) -> int:
                raise OSError(28, "No space left on device")

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(type(file), "append", full)
                for _ in range(20):
                    answer = await peer.produce("t", b"v")
                    assert answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR
            assert not (await peer.produce("t", b"v")).error_code
            assert TopicPartition("t", 0) in running.broker.logs.logs

    asyncio.run(story())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("t-0: ")
    assert "No space left on device" in line


def test_a_stop_ends_what_goes_on_in_slices(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with start() as running:
            broker, done = running.broker, []
            begun, may_end = threading.Event(), threading.Event()

            def slow() -> None:
                begun.set()
                assert may_end.wait(60)

            def work() -> Iterator[Any]:
                yield broker.in_thread(slow)
                done.append(1)
                yield broker.in_thread(slow)

            broker.run_slices(work(), "slow work")
            await running.until(begun.is_set)
            threading.Timer(0.1, may_end.set).start()
        await asyncio.sleep(0)
        assert done == [], "no thread would do the next"

    asyncio.run(story())
    assert "Traceback" not in caplog.text
