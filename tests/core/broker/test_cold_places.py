"""Old segments whose pages the system has dropped: a thread reads what a search needs of them."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.log import cold
from kafkalite.core.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    encode,
    encode_end_transaction_marker,
)
from kafkalite.core.types import Columns

Start = Any
PAGE_BYTES = 4_096
BATCHES = 40
VALUE = bytes(3_000)


class Disk:
    """What the cache holds of some files: nothing, until a thread reads it. Who waited for what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, paths: list[Path]) -> None:
        self.files = {path.stat().st_ino for path in paths}
        self.cached: set[tuple[int, int]] = set()
        self.read_by_thread = self.read_by_loop = 0
        self._preadv, self._pread = os.preadv, os.pread
        monkeypatch.setattr(cold, "NOWAIT", 8)
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "pread", self.pread)

    def pages(self, fd: int, position: int, size: int) -> set[tuple[int, int]]:
        inode = os.fstat(fd).st_ino
        last = position + max(size, 1) - 1
        pages = range(position // PAGE_BYTES, last // PAGE_BYTES + 1)
        return {(inode, page) for page in pages} if inode in self.files else set()

    def preadv(self, fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        if flags and not self.pages(fd, position, len(buffers[0])) <= self.cached:
            raise BlockingIOError
        return self._preadv(fd, buffers, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if pages := self.pages(fd, position, size):
            if threading.current_thread() is threading.main_thread():
                self.read_by_loop += 1
            else:
                self.read_by_thread += 1
                self.cached |= pages
        return self._pread(fd, size, position)


async def fill(peer: Any) -> None:
    """Some segments of large batches, a second apart."""
    await peer.create("t", segment_bytes="50000", index_interval_bytes="1")
    for number in range(BATCHES):
        batch = encode(Columns([None], [b"%d" % number + VALUE], [1_000 * number]))
        assert not (await peer.produce("t", batch=batch)).error_code


def forget(running: Any, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The old segments are cold, and the broker remembers nothing of them."""
    log = running.broker.partition("t", 0).log
    storage = running.broker.logs._storage
    assert len(log.segments) > 2
    paths: list[Path] = []
    for segment in log.segments[:-1]:
        segment._cursors.clear()
        if segment.transaction_index.file.size_bytes:
            paths.append(storage.absolute(segment.transaction_index.file.path))
        for index in (segment.index, segment.time_index):
            index.unload()
            paths.append(storage.absolute(index.file.path))
        paths.append(storage.absolute(segment.log.path))
    return Disk(monkeypatch, paths)


def test_a_fetch_from_an_old_segment_waits_for_the_disk_in_a_thread(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await fill(peer)
            disk = forget(running, monkeypatch)
            for offset in (3, 7):
                values = await peer.values("t", offset, max_bytes=20_000, max_wait_ms=100)
                assert values[0] == b"%d" % offset + VALUE
            assert disk.read_by_thread
            assert not disk.read_by_loop
            before = disk.read_by_thread
            await peer.values("t", BATCHES - 1)
            assert disk.read_by_thread == before, "the active segment is not asked about"

    asyncio.run(story())


def test_aborted_transactions_of_an_old_segment_are_read_in_a_thread(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await peer.create("t", segment_bytes="20000", index_interval_bytes="1")
            partition = running.broker.partition("t", 0)
            for number in range(BATCHES):
                columns = Columns([None], [b"%d" % number + VALUE], [1_000])
                batch = encode(
                    columns,
                    producer_id=7,
                    producer_epoch=0,
                    base_sequence=number,
                    transactional=True,
                )
                partition.append(bytearray(batch), -1, 1_000)
                marker = encode_end_transaction_marker(
                    EndTransactionMarker(ControlType.ABORT, 0),
                    producer_id=7,
                    producer_epoch=0,
                    timestamp_ms=1_000,
                )
                partition.append(bytearray(marker), -1, 1_000, from_client=False)
            for usual in (False, True):  # with a session, and by the short way
                disk = forget(running, monkeypatch)
                session = {"session_epoch": -1 if usual else 0}
                peer.send_fetch("t", max_bytes=20_000, isolation_level=1, **session)
                aborted = (await peer.received_fetch()).aborted_transactions
                assert [each.first_offset for each in aborted or ()] == [0, 2, 4, 6, 8, 10]
                index = running.broker.partition("t", 0).log.segments[0].transaction_index.file
                inode = index.reader().fileno()
                assert disk.pages(inode, 0, index.size_bytes) <= disk.cached
                assert disk.read_by_thread
                assert not disk.read_by_loop
                monkeypatch.undo()

    asyncio.run(story())


def test_a_search_by_time_waits_for_the_disk_in_a_thread(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with start() as running:
            peer = await running.connect()
            await fill(peer)
            for segment in running.broker.partition("t", 0).log.segments[:-1]:
                segment._max_timestamp = -2  # as after a restart
            disk = forget(running, monkeypatch)
            wanted = (ListOffsetsPartition(0, timestamp=6_500),)
            answer = await peer.ask(ListOffsetsRequest(-1, 0, (ListOffsetsTopic("t", wanted),)), 6)
            assert answer.topics[0].partitions[0].offset == 7
            assert disk.read_by_thread
            assert not disk.read_by_loop

    asyncio.run(story())
