"""What waits for the disk in threads: others are answered meanwhile, and order is kept."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kafkalite.core.broker.broker import Broker
from kafkalite.core.cluster.image import deletion_records, topic_record
from kafkalite.core.cluster.local import LocalCoordination
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.protocol.metadata import MetadataRequest
from kafkalite.core.protocol.topics import DeleteTopicsRequest
from kafkalite.errors import ErrorCode, StorageError

Start = Any
SECONDS_MAX = 60


class Gate:
    """Something that other threads wait at, until it is opened."""

    def __init__(self) -> None:
        self.is_reached = False
        self._open = threading.Event()

    def pass_through(self) -> None:
        assert threading.current_thread() is not threading.main_thread(), "it is on the loop"
        self.is_reached = True
        assert self._open.wait(SECONDS_MAX)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


def gated(act: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    def wait_and_act(*arguments: Any, **more: Any) -> Any:
        gate.pass_through()
        return act(*arguments, **more)

    return wait_and_act


def fail(log: PartitionLog) -> None:
    """As an append does that cannot be cut back."""
    with pytest.raises(StorageError):
        log.health.fail("append", OSError(errno.ENOSPC, "full"))


def try_again(broker: Broker) -> asyncio.Event:
    done = asyncio.Event()
    broker.run_slices(broker.try_again(), "second tries", done.set)
    return done


def directories(tmp_path: Path, topic: str) -> list[str]:
    return sorted(p.name for p in (tmp_path / "data").iterdir() if p.name.startswith(f"{topic}-"))


async def delete(peer: Any, name: str) -> ErrorCode:
    answer = await peer.ask(DeleteTopicsRequest(topic_names=(name,)), 5)
    code: ErrorCode = answer.responses[0].error_code
    return code


def test_a_failed_log_is_opened_anew_while_others_are_answered(
    start: Start, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.create("other")
            await peer.produce("t", b"a", b"b")
            fail(running.broker.partition("t", 0).log)
            assert await peer.values("t") == [b"a", b"b"]
            monkeypatch.setattr(PartitionLog, "open", gated(PartitionLog.open, gate))
            done = try_again(running.broker)
            await running.until(lambda: gate.is_reached)
            assert not (await peer.produce("other", b"v")).error_code
            assert (await peer.produce("t", b"c")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            peer.send_fetch("t")
            answer = await peer.received_fetch()
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "its files are changing"
            gate.open()
            await done.wait()
            assert (await peer.produce("t", b"c")).base_offset == 2
            assert await peer.values("t") == [b"a", b"b", b"c"]

    asyncio.run(story())


def test_a_log_that_cannot_be_opened_anew_is_read_as_before(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise StorageError("t-0: cannot be opened: still full")

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.produce("t", b"a")
            fail(running.broker.partition("t", 0).log)
            with monkeypatch.context() as patched:
                patched.setattr(PartitionLog, "open", refused)
                await try_again(running.broker).wait()
            assert await peer.values("t") == [b"a"]
            await try_again(running.broker).wait()
            assert (await peer.produce("t", b"b")).base_offset == 1

    asyncio.run(story())


@pytest.mark.parametrize("is_offline", [False, True])
def test_a_topic_may_go_and_come_again_while_its_log_is_opened(
    start: Start,
    tmp_path: Path,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], Callable[[], None]],
    is_offline: bool,
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.produce("t", b"old")
        mend = spoil(tmp_path / "data" / "t-0" / "leader-epoch-checkpoint") if is_offline else None
        async with start() as running:
            peer, other = await running.connect(), await running.connect()
            if mend is not None:
                mend()
            else:
                fail(running.broker.partition("t", 0).log)
            assert bool(running.broker.partitions.offline) is is_offline
            with monkeypatch.context() as patched:
                patched.setattr(PartitionLog, "open", gated(PartitionLog.open, gate))
                done = try_again(running.broker)
                await running.until(lambda: gate.is_reached)
            deleting = asyncio.create_task(delete(peer, "t"))
            await running.until(lambda: "t" not in running.broker.image.topics)
            creating = asyncio.create_task(other.create("t"))
            await (await running.connect()).ask(MetadataRequest(()), 9)
            assert directories(tmp_path, "t") == ["t-0"], "a thread is at its files"
            gate.open()
            await done.wait()
            assert await deleting == ErrorCode.NONE
            await creating
            assert (await peer.produce("t", b"new")).base_offset == 0
            assert await peer.values("t") == [b"new"]
            assert not running.broker.partitions.offline

    asyncio.run(story())


def test_second_tries_between_the_steps_of_a_change_find_what_the_image_has(
    start: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], Callable[[], None]],
) -> None:
    """One replay takes a topic whose log is offline, and another that has failed, and makes one
    with very many partitions: whoever gets a turn in between sees all of it."""

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            for name in ("offline", "failed"):
                await peer.create(name)
                await peer.produce(name, b"v")
        spoil(tmp_path / "data" / "offline-0" / "leader-epoch-checkpoint")
        async with start() as running:
            broker, peer = running.broker, await running.connect()
            assert broker.partitions.offline
            fail(broker.partition("failed", 0).log)
            gone = [broker.image.topics[name] for name in ("offline", "failed")]
            many = replace(
                gone[0], name="many", topic_id=uuid4(), partitions=gone[0].partitions * 9
            )
            records = (topic_record(many), *(r for topic in gone for r in deletion_records(topic)))
            changing = asyncio.create_task(broker.steering.apply(records))
            while "many" not in broker.image.topics:
                await asyncio.sleep(0)
            assert not changing.done()
            await try_again(broker).wait()
            await changing
            assert [held[0].topic_partition.topic for held in broker.topics_held()] == ["many"]

    asyncio.run(story())
    assert not [record for record in caplog.records if record.exc_info]


def test_the_files_of_deleted_topics_go_while_others_are_answered(
    start: Start, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer, other = await running.connect(), await running.connect()
            await peer.create("t", 3)
            await other.create("other")
            monkeypatch.setattr(FileStorage, "rename", gated(FileStorage.rename, gate))
            deleting = asyncio.create_task(delete(peer, "t"))
            await running.until(lambda: gate.is_reached)
            assert (await other.produce("t", b"v")).error_code == (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            assert not (await other.produce("other", b"v")).error_code
            assert not deleting.done(), "it is told when the names are gone"
            gate.open()
            assert await deleting == ErrorCode.NONE
            assert not [name for name in directories(tmp_path, "t") if "delete" not in name]

    asyncio.run(story())


def test_others_are_answered_while_the_controller_waits_for_the_disk(
    start: Start, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer, other = await running.connect(), await running.connect()
            await peer.create("other")
            monkeypatch.setattr(
                LocalCoordination, "_append", gated(LocalCoordination._append, gate)
            )
            creating = asyncio.create_task(peer.create("t"))
            await running.until(lambda: gate.is_reached)
            assert not (await other.produce("other", b"v")).error_code
            assert "t" not in running.broker.image.topics, "it is not durable yet"
            gate.open()
            await creating
            assert not (await other.produce("t", b"v")).error_code

    asyncio.run(story())


def test_a_stop_waits_for_what_the_controller_writes(
    start: Start, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        with monkeypatch.context() as patched:
            async with start() as running:
                peer = await running.connect()
                whole = gated(LocalCoordination._append, gate)
                patched.setattr(LocalCoordination, "_append", whole)
                creating = asyncio.create_task(peer.create("t"))
                await running.until(lambda: gate.is_reached)
                creating.cancel()
                threading.Timer(0.1, gate.open).start()
        async with start() as running:
            assert "t" in running.broker.image.topics
            assert not (await (await running.connect()).produce("t", b"v")).error_code

    asyncio.run(story())
