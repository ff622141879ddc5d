"""A broker whose disk is slow, full or broken: who waits, who is told, what goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.coordinators.runtime import partition_for
from kafkalite.core.log.flushing import Flush
from kafkalite.core.protocol.groups import FindCoordinatorRequest
from kafkalite.core.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.topics import CreatableTopic, CreateTopicsRequest
from kafkalite.core.replicas import upkeep
from kafkalite.core.replicas.replication import ACKS_ALL
from kafkalite.core.types import Columns
from kafkalite.errors import ErrorCode, StorageError

Start = Any
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
ATTEMPTS_MAX = 2_000


class Gate:
    """Holds the flushes of one partition back, or lets them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
        self.runs = 0
        self.error: OSError | None = None
        self._open = threading.Event()
        run = Flush.run

        def gated(flush: Flush) -> OSError | StorageError | None:
            if flush.place.directory != directory:
                return run(flush)
            self.runs += 1
            assert self._open.wait(60)
            return self.error or run(flush)

        monkeypatch.setattr(Flush, "run", gated)

    def open(self) -> None:
        self._open.set()


# ---- group commit ------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
def test_flush_messages_is_a_group_commit(
    start: Start, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    async def story() -> None:
        async with start() as running:
            peers = [await running.connect() for _ in range(5)]
            await peers[0].create("t", flush_messages="1")
            await peers[0].create("u")
            gate = Gate(monkeypatch, "t-0")
            waiting = [asyncio.create_task(p.produce("t", b"v", acks=acks)) for p in peers[:4]]
            log = running.broker.partition("t", 0).log
            await running.until(lambda: log.log_end_offset == 4)
            assert not (await peers[4].produce("u", b"v")).error_code, "the others go on"
            assert not any(task.done() for task in waiting)
            assert (log.high_watermark, gate.runs) == (0, 1)
            assert await peers[4].values("t") == [], "what may be lost is not shown"
            gate.open()
            answers = await asyncio.gather(*waiting)
            assert [answer.error_code for answer in answers] == [ErrorCode.NONE] * 4
            assert sorted(answer.base_offset for answer in answers) == [0, 1, 2, 3]
            assert (log.high_watermark, log.recovery_point, gate.runs) == (4, 4, 2)
            assert await peers[4].values("t") == [b"v"] * 4

    asyncio.run(story())


def test_a_reader_that_waits_is_told_when_the_flush_is_done(start: Start) -> None:
    async def story() -> None:
        async with start() as running:
            reader, writer = await running.connect(), await running.connect()
            await writer.create("t", flush_messages="1")
            reader.send_fetch("t", max_wait_ms=60_000)
            await asyncio.sleep(0)
            await writer.produce("t", b"v")
            assert (await reader.received_fetch()).high_watermark == 1

    asyncio.run(story())


def test_what_waits_for_a_flush_that_fails_is_not_acknowledged(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", flush_messages="1")
            gate = Gate(monkeypatch, "t-0")
            gate.error = OSError(errno.EIO, "Input/output error")
            gate.open()
            answer = await peer.produce("t", b"v")
            assert answer.error_code is STORAGE_ERROR
            assert "t-0: flush at offset 1" in (answer.error_message or "")
            assert (await peer.produce("t", b"v")).error_code is STORAGE_ERROR
            peer.send_fetch("t")
            assert (await peer.received_fetch()).error_code is STORAGE_ERROR
            assert gate.runs == 1, "a failed sync is not tried again"

    asyncio.run(story())
    assert caplog.text.count("t-0 takes no more records") == 1


def test_offsets_that_wait_for_a_flush_that_fails_are_not_acknowledged(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start(
            offsets_topic_num_partitions="1", log_flush_interval_messages="1"
        ) as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.ask(FindCoordinatorRequest("g"), 3)
            assert await commit(peer, 5) is ErrorCode.NONE
            gate = Gate(monkeypatch, "__consumer_offsets-0")
            gate.error = OSError(errno.EIO, "Input/output error")
            gate.open()
            assert await commit(peer, 6) is ErrorCode.NOT_COORDINATOR
            assert await committed(peer) == 5, "what is on the disk is still served"
            assert await commit(peer, 7) is ErrorCode.NOT_COORDINATOR

    asyncio.run(story())


def test_what_is_committed_is_told_in_the_log_s_order(start: Start) -> None:
    """A coordinator replays its records as they are told: the last one in the log must count."""

    async def story() -> None:
        async with start() as running:
            broker, told = running.broker, []
            peer = await running.connect()
            await peer.create("t")
            partition, now_ms = broker.partition("t", 0), broker.wall_ms()
            broker.when_committed(partition, 1, lambda: told.append("first"))
            for _ in range(2):
                batch = bytearray(encode(Columns([None], [b"v"], [now_ms])))
                partition.append(batch, ACKS_ALL, now_ms)
            broker.appended(partition, 100)  # now the first one's time has come
            broker.when_committed(partition, 2, lambda: told.append("second"))
            await running.until(lambda: len(told) == 2)
            assert told == ["first", "second"]
            broker.when_committed(partition, 2, lambda: told.append("at once"))
            assert told[2:] == ["at once"]

    asyncio.run(story())


def test_flush_ms_is_kept_off_the_loop(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(upkeep, "FLUSH_CHECK_MS", 20)
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", flush_ms="1")
            await peer.create("u")
            for topic in ("t", "u"):
                assert not (await peer.produce(topic, b"v")).error_code
            log, other = (running.broker.partition(topic, 0).log for topic in ("t", "u"))
            await running.until(lambda: log.recovery_point == 1)
            assert other.recovery_point == 0

    asyncio.run(story())


@pytest.mark.parametrize("interval_ms", ["0", "-1", "5"])
def test_a_flush_scheduler_without_a_pause_does_not_spin(interval_ms: str) -> None:
    config = BrokerConfig.parse({"log.flush.scheduler.interval.ms": interval_ms})
    host: Any = None  # asked for nothing before a duty is due
    assert min(duty.interval_ms for duty in upkeep.Upkeep(host, config).duties()) == 10


def test_a_stop_waits_for_the_flushes_under_way(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", flush_messages="1")
            gate = Gate(monkeypatch, "t-0")
            waiting = asyncio.create_task(peer.produce("t", b"v"))
            await running.until(lambda: gate.runs)
            asyncio.get_running_loop().call_later(0.05, gate.open)
        async with start() as running:
            assert running.broker.logs.was_clean_shutdown
            assert running.broker.partition("t", 0).log.log_end_offset == 1
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(story())


# ---- second tries ------------------------------------------------------------------------------


def test_a_partition_comes_back_when_its_trouble_is_over(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: Any,
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.produce("t", b"v")
        mend = spoil(tmp_path / "data" / "t-0" / "leader-epoch-checkpoint")
        monkeypatch.setattr(upkeep, "HOUSEKEEPING_MS", 20)
        async with start() as running:
            peer = await running.connect()
            assert (await peer.produce("t", b"w")).error_code is STORAGE_ERROR
            mend()
            await running.until(lambda: "t-0 is online again" in caplog.text)
            assert (await peer.produce("t", b"w")).base_offset == 1
        async with start() as running:
            assert running.broker.logs.was_clean_shutdown

    asyncio.run(story())
    assert caplog.text.count("t-0 is offline") == 1, "told once"


def test_groups_are_loaded_though_one_of_their_partitions_is_offline(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any
) -> None:
    async def story() -> None:
        async with start(offsets_topic_num_partitions="2") as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.ask(FindCoordinatorRequest("g"), 3)
            assert await commit(peer, 5) is ErrorCode.NONE
        index = partition_for("g", 2)
        other = tmp_path / "data" / f"__consumer_offsets-{1 - index}"
        other.mkdir()
        spoil(other / "leader-epoch-checkpoint")
        async with start() as running:
            peer = await running.connect()
            assert await committed(peer) == 5
            name = next(name for name in "abcdefgh" if partition_for(name, 2) != index)
            found = await peer.ask(FindCoordinatorRequest(name), 3)
            assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)

    asyncio.run(story())
    assert "Traceback" not in caplog.text
    assert f"__consumer_offsets-{1 - partition_for('g', 2)} is offline" in caplog.text


def test_a_log_that_failed_takes_records_again_when_that_is_safe(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        monkeypatch.setattr(upkeep, "HOUSEKEEPING_MS", 20)
        async with start() as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.produce("t", b"v")
            file = type(running.broker.partition("t", 0).log.segments[-1].log)

            def torn(self: Any, data: Any) -> int:
                os.write(self.reader().fd, bytes(data)[:10])
                self.size_bytes += 10
                raise OSError(errno.ENOSPC, "No space left on device")

            def stuck(self: Any, size: int) -> None:
                raise OSError(errno.EIO, "Input/output error")

            with monkeypatch.context() as patched:
                patched.setattr(file, "append", torn)
                patched.setattr(file, "truncate", stuck)
                answer = await peer.produce("t", b"lost")
                assert answer.error_code is STORAGE_ERROR
                assert "cannot be cut back" in (answer.error_message or "")
                assert await peer.values("t") == [b"v"], "what is whole is served on"
            await running.until(lambda: "t-0 takes records again" in caplog.text)
            assert (await peer.produce("t", b"w")).base_offset == 1
            assert await peer.values("t") == [b"v", b"w"]

    asyncio.run(story())
    assert "t-0: 10 bytes from offset 1 on were torn or corrupt, and cut" in caplog.text


# ---- a full disk -------------------------------------------------------------------------------


class FullDisk:
    """The data directory's disk, to be filled and emptied."""

    def __init__(self, fill: Callable[[], None], free: Callable[[], None]) -> None:
        self.fill, self.free = fill, free


@pytest.fixture(params=["file system", "file size limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullDisk]:
    """A small file system where one may be mounted; and everywhere a limit on the size of files,
    which refuses every append with EFBIG."""
    if request.param == "file size limit":
        before = resource.getrlimit(resource.RLIMIT_FSIZE)

        def free() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

        yield FullDisk(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1])), free)
        free()
        return
    where = tmp_path / "data"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(where)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system takes root")
    filler = where / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    return

    yield FullDisk(fill, lambda: filler.unlink(missing_ok=True))
    subprocess.run(["umount", "-l", str(where)], check=True)


async def commit(peer: Any, offset: int) -> ErrorCode:
    partition = OffsetCommitRequestPartition(0, offset)
    topics = (OffsetCommitRequestTopic("t", (partition,)),)
    answer = await peer.ask(OffsetCommitRequest("g", topics=topics), 8)
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


async def committed(peer: Any) -> int:
    topics = (OffsetFetchRequestTopic("t", (0,)),)
    answer = await peer.ask(OffsetFetchRequest("g", topics=topics), 7)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


async def all_values(peer: Any) -> list[bytes]:
    """Of topic t, segment by segment."""
    values: list[bytes] = []
    while more := await peer.values("t", len(values)):
        values += more
    return values


async def create(peer: Any, name: str) -> ErrorCode:
    answer = await peer.ask(CreateTopicsRequest((CreatableTopic(name, 1, 1, (), ()),)))
    code: ErrorCode = answer.topics[0].error_code
    return code


def test_a_full_disk_is_said_and_survived(
    start: Start, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing acknowledged is lost, what can be served is, and all goes on when there is room."""
    acknowledged: list[bytes] = []

    async def produce(peer: Any) -> ErrorCode:
        value = b"%d" % len(acknowledged) + bytes(500)
        answer = await peer.produce("t", value)
        if not answer.error_code:
            assert answer.base_offset == len(acknowledged)
            acknowledged.append(value)
        return ErrorCode(answer.error_code)

    async def until_refused(act: Callable[[], Any]) -> ErrorCode:
        """A file's last block may have room for some more."""
        for number in range(ATTEMPTS_MAX):
            if (code := await act()) is not ErrorCode.NONE:
                return ErrorCode(code)
            assert number < ATTEMPTS_MAX - 1, "it was never full"
        raise AssertionError

    async def story() -> None:
        monkeypatch.setattr(upkeep, "HOUSEKEEPING_MS", 20)
        async with start(offsets_topic_num_partitions="1") as running:
            peer = await running.connect()
            await peer.create("t", segment_bytes="4000", index_interval_bytes="100")
            for _ in range(20):
                assert await produce(peer) is ErrorCode.NONE
            await peer.ask(FindCoordinatorRequest("g"), 3)
            assert await commit(peer, 3) is ErrorCode.NONE
            disk.fill()
            assert await until_refused(lambda: produce(peer)) is STORAGE_ERROR
            assert await all_values(peer) == acknowledged
            offset = 3
            while (code := await commit(peer, offset + 1)) is ErrorCode.NONE:
                offset += 1
            assert code is ErrorCode.NOT_COORDINATOR
            assert await committed(peer) == offset
            names = (f"new-{number}" for number in range(ATTEMPTS_MAX))
            refused = await until_refused(lambda: create(peer, next(names)))
            assert refused is STORAGE_ERROR
            disk.free()
            assert await produce(peer) is ErrorCode.NONE
            assert await commit(peer, offset + 1) is ErrorCode.NONE
            assert await create(peer, "another") is ErrorCode.NONE
            disk.fill()
            await until_refused(lambda: produce(peer))
            disk.free()
            await running.until(lambda: not running.broker.partitions.offline)
        async with start() as running:
            peer = await running.connect()
            assert running.broker.logs.was_clean_shutdown
            assert await all_values(peer) == acknowledged
            assert await committed(peer) == offset + 1
            assert await create(peer, "another") is ErrorCode.TOPIC_ALREADY_EXISTS
            assert await produce(peer) is ErrorCode.NONE

    asyncio.run(story())


def test_a_broker_that_stops_on_a_full_disk_says_so_and_loses_nothing(
    start: Start, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr(upkeep, "HOUSEKEEPING_MS", 20)
        with pytest.raises(StorageError):
            async with start() as running:
                peer = await running.connect()
                await peer.create("t")
                for number in range(20):
                    assert not (await peer.produce("t", b"%d" % number)).error_code
                disk.fill()
        async with start() as running:  # on the full disk
            assert not running.broker.logs.was_clean_shutdown
            disk.free()
            await running.until(lambda: not running.broker.partitions.offline)
            peer = await running.connect()
            assert await peer.values("t") == [b"%d" % number for number in range(20)]
            assert (await peer.produce("t", b"20")).base_offset == 20

    asyncio.run(story())


def test_what_a_start_finds_unflushed_is_flushed_before_it_counts(
    start: Start, tmp_path: Path
) -> None:
    """Else a batch that is sent again, and stored already, would wait for ever."""

    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", flush_messages="2")
            again = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
            await peer.produce("t", b"v", **again)
            await peer.produce("t", b"w")
        for kind in ("recovery-point", "replication"):  # as after a kill
            (tmp_path / "data" / f"{kind}-offset-checkpoint").write_text("0\n0\n")
        (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
        async with start() as running:
            peer = await running.connect()
            log = running.broker.partition("t", 0).log
            answer = await peer.produce("t", b"v", **again)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
            assert log.recovery_point == 2
            assert await peer.values("t") == [b"v", b"w"]

    asyncio.run(story())


def test_offsets_that_a_start_finds_unflushed_are_loaded(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were appended by a coordinator that is no more: nobody will tell when they count."""

    async def story() -> None:
        settings = {"offsets_topic_num_partitions": "1", "log_flush_interval_messages": "2"}
        async with start(**settings) as running:
            peer = await running.connect()
            await peer.create("t")
            await peer.ask(FindCoordinatorRequest("g"), 3)
            for offset in (5, 6):
                assert await commit(peer, offset) is ErrorCode.NONE
        for kind in ("recovery-point", "replication"):  # as after a kill
            (tmp_path / "data" / f"{kind}-offset-checkpoint").write_text("0\n0\n")
        (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
        gate = Gate(monkeypatch, "__consumer_offsets-0")
        async with start(**settings) as running:
            try:
                assert running.broker.partition("__consumer_offsets", 0).log.high_watermark == 0
                assert await committed(await running.connect()) == 6
            finally:
                gate.open()

    asyncio.run(story())
