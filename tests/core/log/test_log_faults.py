"""A disk that refuses: full, broken, or lying about what it has."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from logs import LARGE, ORDERS, MakeBatch, OpenLog, fill

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log import checkpoints, flushing
from kafkalite.core.log.port import Storage
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    batches,
    encode_end_transaction_marker,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode, StorageError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage

OTHER = TopicPartition("other", 0)
ID = UUID(int=7)
CONFIG = LogConfig()


def code(act: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        act()
    return caught.value.error_code


# ---- a sync that failed ------------------------------------------------------------------------


def test_a_failed_sync_is_never_taken_back(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    """The system reports it once; the next sync succeeds and means nothing."""
    log = open_log(memory)
    fill(log, batch, 3)
    log.flush()
    fill(log, batch, 2)
    memory.fail("sync", errno.EIO)
    with pytest.raises(StorageError, match="orders-0: flush at offset 5: .*EIO"):
        log.flush()
    assert not log.can_reopen
    with pytest.raises(StorageError, match="EIO"):
        log.flush()
    late = log.begin_flush()
    log.end_flush(late, late.run())
    assert log.recovery_point == 3
    assert code(lambda: fill(log, batch)) is ErrorCode.KAFKA_STORAGE_ERROR


def test_what_may_not_be_on_the_disk_is_not_read(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    fill(log, batch, 3)
    log.flush()
    fill(log, batch, 2)
    memory.fail("sync", errno.EIO)
    with pytest.raises(StorageError):
        log.flush()
    found = log.read(0, LARGE, 5)
    assert found is not None
    ends = [header.next_offset for _, header in batches(found.read())]
    assert ends == [1, 2, 3], "where the disk was last heard of"
    assert code(lambda: log.read(3, LARGE, 5)) is ErrorCode.KAFKA_STORAGE_ERROR


def test_the_disk_is_read_where_the_cache_may_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    file = storage.open("x")
    file.append(b"bytes")
    forgotten: list[int] = []

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *rest: forgotten.append(rest[-1]))
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert forgotten == [os.POSIX_FADV_DONTNEED]
    assert file.is_dirty
    storage.close()


def test_a_truncation_that_fails_half_way_hides_what_it_was_to_cut(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, segment_bytes=300)
    fill(log, batch, 20)
    memory.fail("delete", errno.EIO)
    with pytest.raises(StorageError, match="truncation to offset 6"):
        log.truncate_to(6)
    assert log.can_reopen
    assert log.read(5, LARGE, 20) is not None
    assert code(lambda: log.read(6, LARGE, 20)) is ErrorCode.KAFKA_STORAGE_ERROR


# ---- a full disk -------------------------------------------------------------------------------


def test_epochs_that_do_not_fit_are_written_later(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    fill(log, batch, 2)
    memory.fail("replace", errno.ENOSPC)
    with pytest.raises(StorageError, match="orders-0: leader epochs: .*ENOSPC"):
        log.flush()
    assert (log.failure, log.recovery_point) == (None, 0)
    fill(log, batch)
    log.flush()
    assert log.recovery_point == 3
    assert memory.read_small("orders-0/leader-epoch-checkpoint") == b"0\n1\n0 0\n"


def test_epochs_that_change_during_a_flush_are_not_taken_for_written(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    fill(log, batch)
    flush = log.begin_flush()
    log.append_as_leader(batch(), 4, 1_000)
    log.end_flush(flush, flush.run())
    assert memory.read_small("orders-0/leader-epoch-checkpoint") == b"0\n1\n0 0\n"
    log.flush()
    assert memory.read_small("orders-0/leader-epoch-checkpoint") == b"0\n2\n0 0\n4 1\n"


@pytest.mark.parametrize("operation", ["append", "create"])
@pytest.mark.parametrize("skipped", range(4))
def test_a_roll_that_does_not_fit_is_made_good(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, operation: str, skipped: int
) -> None:
    """Whichever of its files the disk had no room for: the snapshot, an index, the next log."""
    log = open_log(memory, segment_bytes=400, index_interval_bytes=1)
    fill(log, batch, 5)
    for _ in range(skipped):
        memory.pass_over(operation)
    memory.fail(operation, errno.ENOSPC)
    refused = []
    while log.log_end_offset < 9:
        try:
            log.append_as_leader(batch(), 0, 1_000)
        except ApiError as error:
            refused.append(error.error_code)
    assert refused == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert len(log.segments) == 2
    log.close()
    again = open_log(memory, clean=True, segment_bytes=400)
    assert (again.log_end_offset, again.loss) == (9, None)
    assert [header.base_offset for s in again.segments for _, header in s.headers(0)] == [*range(9)]


def test_a_log_that_failed_for_want_of_room_is_opened_again(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    """An abort is in the log and its index entry did not fit: a fresh look makes the entry."""
    store = LogStore(memory)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    ids = {"producer_id": 7, "producer_epoch": 0}
    log.append_as_leader(batch(2, base_sequence=0, transactional=True, **ids), 0, 1_000)
    marker = encode_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 0), timestamp_ms=1_000, **ids
    )
    memory.pass_over("append")  # of the marker itself
    memory.fail("append", errno.ENOSPC)
    refused = code(lambda: log.append_as_leader(bytearray(marker), 0, 1_000, from_client=False))
    assert refused is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.can_reopen
    again = store.begin_reopen(log, at(2_000))()
    store.end_reopen(log, again)
    assert store.logs == {ORDERS: again}
    again.high_watermark = again.log_end_offset
    assert (again.log_end_offset, again.last_stable_offset, again.loss) == (3, 3, None)
    (aborted,) = again.aborted_transactions(0, 3)
    assert (aborted.producer_id, aborted.first_offset) == (7, 0)
    fill(again, batch)
    store.close(3_000)
    assert LogStore(memory.after_crash(Random(1))).was_clean_shutdown


@pytest.mark.parametrize("operation", ["create", "append"])
def test_readers_find_an_abort_whose_index_entry_was_refused(
    memory: MemoryStorage, batch: MakeBatch, operation: str
) -> None:
    """Followers have the marker, and consumers go on to read this log until it is opened again."""
    log = LogStore(memory).open(ORDERS, ID, CONFIG, at(1_000))
    ids = {"producer_id": 7, "producer_epoch": 0}
    log.append_as_leader(batch(2, base_sequence=0, transactional=True, **ids), 0, 1_000)
    marker = encode_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 0), timestamp_ms=1_000, **ids
    )
    if operation == "append":
        memory.pass_over("append")  # of the marker itself
    memory.fail(operation, errno.EIO)
    with pytest.raises(ApiError, match="transaction index"):
        log.append_as_leader(bytearray(marker), 0, 1_000, from_client=False)
    log.high_watermark = log.log_end_offset
    assert log.last_stable_offset == 3
    (aborted,) = log.aborted_transactions(0, 3)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (7, 0, 2)
    assert log.aborted_transactions(3, 4) == []


def test_a_write_that_fails_begins_no_leader_epoch(memory: MemoryStorage, batch: MakeBatch) -> None:
    """An epoch without records parts from every other log, and nothing can be cut to mend it: the
    follower that had it asked for ever."""
    log = LogStore(memory).open(ORDERS, ID, CONFIG, at(1_000))
    log.append_as_leader(batch(1), 0, 1_000)
    memory.fail("append", errno.ENOSPC)
    with pytest.raises(ApiError, match="ENOSPC"):
        log.append_as_leader(batch(1), 2, 1_000)
    assert log.latest_epoch == 0
    assert log.append_as_leader(batch(1), 2, 1_000).base_offset == 1
    assert log.latest_epoch == 2


# ---- all logs of a directory -------------------------------------------------------------------


def test_a_log_that_cannot_be_closed_harms_no_other(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = LogStore(memory)
    for where in (ORDERS, OTHER):
        fill(store.open(where, ID, CONFIG, at(1_000)), batch, 4)
    memory.fail("sync", errno.EIO)
    with pytest.raises(StorageError, match="orders-0: flush"):
        store.close(2_000)
    points = checkpoints.read_offsets(memory, checkpoints.RECOVERY_POINTS)
    assert points == {ORDERS: 0, OTHER: 4}
    assert not LogStore(memory).was_clean_shutdown


def test_a_partition_that_can_be_opened_after_all_does_not_make_the_shutdown_unclean(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = LogStore(memory)
    fill(store.open(ORDERS, ID, CONFIG, at(1_000)), batch, 4)
    store.close(2_000)
    again = LogStore(memory)
    memory.names["orders-0/partition.metadata"].data[:] = b""
    memory.fail("append", errno.ENOSPC)
    with pytest.raises(StorageError, match="orders-0: cannot be opened: .*ENOSPC"):
        again.open(ORDERS, ID, CONFIG, at(1_000))
    assert again.open(ORDERS, ID, CONFIG, at(1_000)).log_end_offset == 4
    again.close(3_000)
    assert LogStore(memory).was_clean_shutdown


def test_checkpoints_are_written_when_they_differ(memory: MemoryStorage, batch: MakeBatch) -> None:
    store = LogStore(memory)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    fill(log, batch, 4)
    log.flush()
    store.write_recovery_points()
    changes = memory.changes
    store.write_recovery_points()
    store.write_log_start_offsets()
    assert memory.changes == changes
    log.increment_log_start_offset(2)
    memory.fail("replace", errno.ENOSPC)
    with pytest.raises(StorageError, match="log-start-offset-checkpoint: .*ENOSPC"):
        store.write_log_start_offsets()
    store.write_log_start_offsets()
    assert checkpoints.read_offsets(memory, checkpoints.LOG_START_OFFSETS) == {ORDERS: 2}


@pytest.mark.parametrize("seed", range(4))
def test_a_deleted_topics_checkpoints_say_nothing_of_its_successor(
    memory: MemoryStorage, batch: MakeBatch, seed: int
) -> None:
    """Its log start offset would take all records of the new one, its recovery point hide tears,
    its high watermark call records committed that are on one replica alone."""
    store = LogStore(memory)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    fill(log, batch, 9)
    log.increment_log_start_offset(8)
    log.high_watermark = 9
    log.flush()
    store.write_recovery_points()
    store.write_log_start_offsets()
    store.write_high_watermarks()
    store.delete(log)
    log = store.open(ORDERS, UUID(int=8), CONFIG, at(2_000))
    fill(log, batch, 3)
    log.flush()
    survivor = memory.after_crash(Random(seed)) if seed else memory.after_kill()
    again = LogStore(survivor).open(ORDERS, UUID(int=8), CONFIG, at(3_000))
    assert (again.log_start_offset, again.log_end_offset, again.loss) == (0, 3, None)
    assert again.high_watermark == 0
    promises = checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS
    for name in (*promises, checkpoints.HIGH_WATERMARKS):
        assert not checkpoints.read_offsets(survivor, name).get(ORDERS)


def test_a_log_whose_promises_cannot_be_taken_back_is_not_open(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    """The disk has lost what was synced, and takes no checkpoint that says so: try again."""
    store = LogStore(memory)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    fill(log, batch, 9)
    log.flush()
    store.write_recovery_points()
    survivor = memory.after_kill()
    survivor.open(f"orders-0/{log.segments[-1].base_offset:020d}.log").truncate(0)
    again = LogStore(survivor)
    survivor.fail("replace")
    with pytest.raises(StorageError, match=checkpoints.RECOVERY_POINTS):
        again.open(ORDERS, ID, CONFIG, at(2_000))
    assert again.logs == {}
    log = again.open(ORDERS, ID, CONFIG, at(2_000))
    assert again.logs == {ORDERS: log}
    assert checkpoints.read_offsets(survivor, checkpoints.RECOVERY_POINTS) == {
        ORDERS: log.log_end_offset
    }


def test_the_newest_checkpoint_stays_whoever_writes_last(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = LogStore(memory)
    log = store.open(ORDERS, ID, CONFIG, at(1_000))
    fill(log, batch, 4)
    log.flush()
    early = store.recovery_points_writer()
    fill(log, batch, 1)
    log.flush()
    late = store.recovery_points_writer()
    assert early is not None
    assert late is not None
    late()
    early()
    assert checkpoints.read_offsets(memory, checkpoints.RECOVERY_POINTS) == {ORDERS: 5}


def test_half_written_files_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FileStorage(tmp_path)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                storage.replace("checkpoint", b"0\n0\n")
    assert storage.files("") == {}
    (tmp_path / "checkpoint.3.tmp").write_bytes(b"a crash left it")
    LogStore(storage)
    assert storage.files("") == {}
    storage.close()


def test_unsynced_files_keep_their_descriptors_longest(tmp_path: Path) -> None:
    """An error in writing them back is told to who has them open, and to nobody else."""
    storage = FileStorage(tmp_path, open_files_max=3)
    dirty, clean, third, fourth = (storage.open(name) for name in "abcd")
    dirty.append(b"x")
    clean.append(b"x")
    clean.sync()
    third.append(b"x")
    fourth.append(b"x")
    assert [file.is_dirty for file in (dirty, clean, third, fourth)] == [True, False, True, True]
    held = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            held.append(link.readlink())
    assert sorted(path.name for path in held if path.parent == tmp_path) == ["a", "c", "d"]
    storage.close()


def test_all_that_is_waited_for_is_waited_for(storage: Storage) -> None:
    assert storage.wait_for_all([]) == []
    assert storage.wait_for_all([lambda n=n: n for n in range(40)]) == list(range(40))  # type: ignore[misc]


# ---- very many logs ----------------------------------------------------------------------------


def many(storage: Storage, batch: MakeBatch) -> LogStore:
    store = LogStore(storage)
    for number in range(flushing.SYNC_EACH_MAX + 1):
        where = TopicPartition("many", number)
        fill(store.open(where, ID, CONFIG, at(1_000)), batch, 2)
    return store


def reopened(storage: Storage) -> list[int]:
    """Where the logs of `many` end after another start."""
    store = LogStore(storage)
    assert store.was_clean_shutdown
    ends = []
    for number in range(flushing.SYNC_EACH_MAX + 1):
        log = store.open(TopicPartition("many", number), ID, CONFIG, at(1_000))
        assert log.epochs.entries == [(0, 0)]
        ends.append(log.log_end_offset)
    return ends


def test_very_many_logs_are_synced_at_once(storage: Storage, batch: MakeBatch) -> None:
    many(storage, batch).close(2_000)
    assert set(reopened(storage)) == {2}


def test_what_was_synced_at_once_survives_a_power_cut(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = many(memory, batch)
    memory.pass_over("sync")
    memory.fail("sync", errno.EIO)  # the second: there is none
    store.close(2_000)
    assert set(reopened(memory.after_crash(Random(1)))) == {2}


@pytest.mark.parametrize("operation", ["sync", "replace"])
def test_a_sync_of_everything_that_fails_leaves_no_clean_shutdown(
    memory: MemoryStorage, batch: MakeBatch, operation: str
) -> None:
    store = many(memory, batch)
    memory.fail(operation, errno.EIO)
    with pytest.raises(StorageError, match="data directory: sync"):
        store.close(2_000)
    assert not LogStore(memory).was_clean_shutdown


def test_without_such_a_sync_every_log_is_synced(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalite.core.log.storage.SYNCFS_TELLS", False)
    storage = FileStorage(tmp_path)
    many(storage, batch).close(2_000)
    assert set(reopened(storage)) == {2}
    storage.replace_all({"a": b"1", "b": b"2"})
    assert storage.read_small("b") == b"2"
    storage.close()
