"""All logs of a data directory, and a broker process that is killed while it writes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from logs import LARGE, ORDERS, MakeBatch, fill

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log import checkpoints
from kafkalite.core.log.port import Storage
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import decode_all
from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage, PowerLoss

OTHER = TopicPartition("a.b_c-d", 12)
ID = UUID(int=7)
CONFIG = LogConfig()


def test_logs_come_back_with_all_their_offsets(storage: Storage, batch: MakeBatch) -> None:
    store = LogStore(storage)
    assert not store.was_clean_shutdown
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    fill(store.open(OTHER, ID, CONFIG, at(1_000)), batch, 1)
    fill(log, batch, 10)
    log.high_watermark = 8
    log.increment_log_start_offset(3)
    store.close(2_000)
    assert store.logs == {}
    assert sorted(storage.directories("")) == ["a.b_c-d-12", "orders-0"]
    assert checkpoints.read_offsets(storage, checkpoints.LOG_START_OFFSETS) == {ORDERS: 3}

    again = LogStore(storage)
    assert again.was_clean_shutdown
    assert sorted(again.unopened()) == [OTHER, ORDERS]
    log = again.open(ORDERS, ID, CONFIG, at(3_000))
    offsets = (log.log_start_offset, log.high_watermark, log.log_end_offset, log.recovery_point)
    assert offsets == (3, 8, 10, 10)
    assert again.unopened() == [OTHER]
    assert not LogStore(storage).was_clean_shutdown, "the first one took the marker"


def test_a_partition_without_records_has_no_directory(storage: Storage, batch: MakeBatch) -> None:
    store = LogStore(storage)
    store.open(ORDERS, ID, CONFIG, at(1_000))
    store.delete(store.open(OTHER, ID, CONFIG, at(1_000)))
    store.close(2_000)
    assert storage.directories("") == []

    again = LogStore(storage)
    assert again.was_clean_shutdown
    again.delete(again.open(ORDERS, UUID(int=8), CONFIG, at(3_000)))
    log = again.open(ORDERS, ID, CONFIG, at(3_000))
    assert (storage.directories(""), again.unopened()) == ([], [])
    fill(log, batch, 2)
    assert storage.directories("") == ["orders-0"]
    assert checkpoints.read_topic_id(storage, "orders-0") == ID
    again.close(4_000)
    assert LogStore(storage).open(ORDERS, ID, CONFIG, at(5_000)).log_end_offset == 2


def test_a_promised_directory_is_promised_again_where_its_log_could_not_be_opened(
    memory: MemoryStorage,
) -> None:
    """A checkpoint tells of records that are gone with their directory, and cannot be corrected."""
    checkpoints.write_offsets(memory, checkpoints.RECOVERY_POINTS, {ORDERS: 5})
    store = LogStore(memory)
    memory.fail("replace", errno.ENOSPC)
    with pytest.raises(StorageError, match="ENOSPC"):
        store.open(ORDERS, ID, CONFIG, at(1_000))
    assert store.open(ORDERS, ID, CONFIG, at(1_000)).log_end_offset == 0
    assert memory.directories("") == []


@pytest.mark.parametrize("is_killed", [True, False], ids=["kill", "power loss"])
@pytest.mark.parametrize("change", range(1, 6))
def test_a_first_record_that_breaks_off_after_any_change_leaves_a_log_that_opens(
    memory: MemoryStorage, batch: MakeBatch, change: int, is_killed: bool
) -> None:
    """Directory, file with the topic's id, its text, log, record."""
    store = LogStore(memory)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    memory.crash_after(change)
    with pytest.raises(PowerLoss):
        fill(log, batch, 1)
    for seed in range(1 if is_killed else 8):
        disk = memory.after_kill() if is_killed else memory.after_crash(Random(seed))
        again = LogStore(disk)
        log = again.open(ORDERS, ID, CONFIG, at(2_000), is_elsewhere=True)
        assert log.log_end_offset == 0
        fill(log, batch, 2)
        again.close(3_000)
        assert LogStore(disk).open(ORDERS, ID, CONFIG, at(4_000)).log_end_offset == 2
        assert checkpoints.read_topic_id(disk, "orders-0") == ID


def test_checkpoints_keep_what_is_not_open(storage: Storage, batch: MakeBatch) -> None:
    store = LogStore(storage)
    fill(store.open(ORDERS, ID, CONFIG, at(1_000)), batch, 5)
    fill(store.open(OTHER, ID, CONFIG, at(1_000)), batch, 6)
    store.close(2_000)
    again = LogStore(storage)
    log = again.open(OTHER, ID, CONFIG, at(1_000))
    fill(log, batch, 1)
    log.flush()
    again.write_recovery_points()
    again.write_high_watermarks()
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS):
        assert checkpoints.read_offsets(storage, name) == {ORDERS: 5, OTHER: 7}


def test_a_deleted_log_is_gone_at_once_and_its_files_later(
    storage: Storage, batch: MakeBatch
) -> None:
    store = LogStore(storage)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    fill(log, batch, 5)
    found = log.read(0, LARGE, 5)
    assert found is not None
    store.delete(log)
    assert store.logs == {}
    (renamed,) = storage.directories("")
    assert renamed.startswith("orders-0.")
    assert renamed.endswith("-delete")
    assert len(decode_all(found.read())) == 5, "whoever reads it reads on"
    anew = store.open(ORDERS, UUID(int=8), CONFIG, at(1_000))
    assert anew.log_end_offset == 0
    fill(anew, batch, 1)
    assert store.tick(5_000, 100) == []
    assert store.tick(5_099, 100) == []
    assert renamed in storage.directories("")
    (remove,) = store.tick(5_100, 100)
    remove()
    assert storage.directories("") == ["orders-0"]


def test_a_deleted_log_does_not_come_back(memory: MemoryStorage, batch: MakeBatch) -> None:
    store = LogStore(memory)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    fill(log, batch, 5)
    log.flush()
    store.delete(log)
    for seed in range(10):
        assert LogStore(memory.after_crash(Random(seed))).unopened() == []


def test_deleted_logs_wait_for_the_disk_once(
    memory: MemoryStorage, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them cannot be renamed: it is told, and the others are gone."""
    store = LogStore(memory)
    logs = [store.open(TopicPartition("orders", i), ID, CONFIG, at(1_000)) for i in range(3)]
    for log in logs:
        fill(log, batch, 5)
        log.flush()
    syncs: list[str] = []
    sync_directory = memory.sync_directory
    monkeypatch.setattr(
        memory, "sync_directory", lambda path: (syncs.append(path), sync_directory(path))
    )
    memory.pass_over("rename")
    memory.fail("rename", errno.EIO)
    with pytest.raises(StorageError, match="orders-1: deletion: .*EIO"):
        store.delete(*logs)
    assert (syncs, store.logs) == ([""], {})
    found = LogStore(memory.after_crash(Random(1)))
    assert found.unopened() == [TopicPartition("orders", 1)]
    for each in (store, found):
        anew = each.open(TopicPartition("orders", 1), UUID(int=8), CONFIG, at(1_000))
        assert anew.log_end_offset == 0, "its records are not those of a new topic of that name"


def test_a_log_left_unopened_after_a_crash_is_still_to_be_recovered(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = LogStore(memory)
    for where in (ORDERS, OTHER):
        fill(store.open(where, ID, CONFIG, at(1_000)), batch, 5)
    survivor = memory.after_kill()
    again = LogStore(survivor)
    again.open(ORDERS, ID, CONFIG, at(1_000))
    again.close(2_000)
    last = LogStore(survivor)
    assert not last.was_clean_shutdown
    for where in (ORDERS, OTHER):
        last.open(where, ID, CONFIG, at(1_000))
    last.close(3_000)
    assert LogStore(survivor).was_clean_shutdown


def test_a_start_removes_what_was_deleted(storage: Storage, batch: MakeBatch) -> None:
    store = LogStore(storage)
    store.delete(store.open(ORDERS, ID, CONFIG, at(1_000)))
    LogStore(storage)
    assert storage.directories("") == []


def test_a_directory_of_another_topic_of_that_name_goes(storage: Storage, batch: MakeBatch) -> None:
    store = LogStore(storage)
    fill(store.open(ORDERS, ID, CONFIG, at(1_000)), batch, 5)
    store.close(2_000)
    again = LogStore(storage)
    log = again.open(ORDERS, UUID(int=8), CONFIG, at(1_000))
    assert log.log_end_offset == 0
    fill(log, batch, 1)
    again.tick(0, 0)
    for remove in again.tick(0, 0):
        remove()
    assert storage.directories("") == ["orders-0"]


def test_directories_nobody_opens_can_be_deleted(storage: Storage, batch: MakeBatch) -> None:
    store = LogStore(storage)
    fill(store.open(ORDERS, ID, CONFIG, at(1_000)), batch, 1)
    store.close(2_000)
    storage.make_directory("not a partition")
    storage.make_directory("lost+found")
    again = LogStore(storage)
    assert again.unopened() == [ORDERS]
    again.delete_unopened(ORDERS)
    assert again.unopened() == []
    assert again.open(ORDERS, ID, CONFIG, at(1_000)).log_end_offset == 0


def test_a_log_that_does_not_say_whose_it_is_counts_only_where_nobody_else_has_its_records(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    """A power cut may tear the file with the topic's id: the log may be of a deleted topic."""
    store = LogStore(memory)
    fill(store.open(ORDERS, ID, CONFIG, at(1_000)), batch, 5)

    def found(disk: MemoryStorage, *, is_elsewhere: bool) -> tuple[int, int]:
        told: list[str] = []
        disk.open("orders-0/partition.metadata").truncate(0)
        again = LogStore(disk, report=told.append)
        log = again.open(ORDERS, ID, CONFIG, at(2_000), is_elsewhere=is_elsewhere)
        return log.log_end_offset, len(told)

    assert found(memory.after_kill(), is_elsewhere=False) == (5, 0)
    assert found(memory.after_kill(), is_elsewhere=True) == (0, 1)
    store.close(2_000)
    assert found(memory.after_kill(), is_elsewhere=True) == (5, 0), "after a clean shutdown"


def test_a_long_name_can_be_deleted(storage: Storage) -> None:
    store = LogStore(storage)
    where = TopicPartition("t" * 249, 12345)
    store.delete(store.open(where, ID, CONFIG, at(1_000)))
    assert all(len(name) <= 255 for name in storage.directories(""))
    store.open(where, ID, CONFIG, at(1_000))


def test_a_log_that_failed_makes_the_shutdown_unclean(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = LogStore(memory)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    good = store.open(OTHER, ID, CONFIG, at(1_000))
    fill(log, batch, 3)
    fill(good, batch, 4)
    memory.fail("sync", errno.EIO)
    with pytest.raises(StorageError, match="flush"):
        log.flush()
    store.close(2_000)
    again = LogStore(memory)
    assert not again.was_clean_shutdown
    assert again.open(ORDERS, ID, CONFIG, at(1_000)).log_end_offset == 3
    assert again.open(OTHER, ID, CONFIG, at(1_000)).recovery_point == 4


def test_a_log_that_cannot_be_closed_is_named_and_the_others_are_closed(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = LogStore(memory)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    good = store.open(OTHER, ID, CONFIG, at(1_000))
    fill(log, batch, 3)
    fill(good, batch, 4)
    memory.fail("sync", errno.EIO)
    with pytest.raises(StorageError, match="orders-0: flush"):
        store.close(2_000)
    assert "closed" in (good.failure or "")
    assert not LogStore(memory).was_clean_shutdown


def test_a_log_that_cannot_be_opened_harms_no_other(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = LogStore(memory)
    fill(store.open(ORDERS, ID, CONFIG, at(1_000)), batch, 3)
    store.close(2_000)
    memory.replace("orders-0/partition.metadata", b"version: 9")
    again = LogStore(memory)
    with pytest.raises(StorageError, match="orders-0/partition.metadata: version 9"):
        again.open(ORDERS, ID, CONFIG, at(1_000))
    again.open(OTHER, ID, CONFIG, at(1_000))
    again.close(3_000)
    assert not LogStore(memory).was_clean_shutdown


def test_a_power_cut_during_a_shutdown_is_no_clean_one(batch: MakeBatch) -> None:
    change = 0
    while True:
        change += 1
        memory = MemoryStorage()
        store = LogStore(memory)
        fill(store.open(ORDERS, ID, CONFIG, at(1_000)), batch, 3)
        fill(store.open(OTHER, ID, CONFIG, at(1_000)), batch, 4)
        memory.crash_after(change)
        try:
            store.close(2_000)
            break
        except PowerLoss:
            survivor = memory.after_crash(Random(change))
            again = LogStore(survivor)
            log = again.open(ORDERS, ID, CONFIG, at(1_000))
            if again.was_clean_shutdown:
                assert log.log_end_offset == 3
            again.close(3_000)
    assert change > 8
    for seed in range(20):
        again = LogStore(memory.after_crash(Random(seed)))
        assert again.was_clean_shutdown
        assert again.open(ORDERS, ID, CONFIG, at(1_000)).log_end_offset == 3
        assert again.open(OTHER, ID, CONFIG, at(1_000)).log_end_offset == 4


WRITER = """
import sys
from uuid import UUID
from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import encode
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.testing.clock import at

storage = FileStorage(sys.argv[1])
storage.lock()
log = LogStore(storage).open(
    TopicPartition("orders", 0), UUID(int=7), LogConfig(segment_bytes=20_000), at(1_000)
)
number = log.log_end_offset
while True:
    log.append_as_leader(encode(Columns([None], [b"%d" % number], [number])), 0, 1_000)
    number += 1
    print(number, flush=True)
"""


def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    acknowledged = 0
    for lines in (1, 400, 900):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(lines):
            acknowledged = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split()
        acknowledged = int(rest[-1]) if rest else acknowledged
        writer.wait()
        storage = FileStorage(tmp_path)
        storage.lock()
        store = LogStore(storage)
        assert not store.was_clean_shutdown
        log = store.open(ORDERS, ID, LogConfig(segment_bytes=20_000), at(1_000))
        assert acknowledged <= log.log_end_offset <= acknowledged + 1
        found, offset = [], 0
        while (records := log.read(offset, LARGE, log.log_end_offset)) is not None:
            found += decode_all(records.read()).values
            offset = len(found)
        assert found == [b"%d" % i for i in range(log.log_end_offset)]
        log.abandon()
        storage.close()
