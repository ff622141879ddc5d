"""What goes by age, size, request or compaction, and when its bytes go."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from random import Random

import pytest
from logs import LARGE, MakeBatch, OpenLog

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.port import Storage
from kafkalite.core.log.segment import Segment
from kafkalite.core.protocol.records import batches, decode_all
from kafkalite.errors import ApiError, ErrorCode, StorageError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage, PowerLoss


def five_segments(log: PartitionLog, batch: MakeBatch, **arguments: object) -> None:
    """Two batches of five records in each, stamped 1,000 to 1,009, all committed."""
    for i in range(10):
        if i and i % 2 == 0:
            log.roll(1_000)
        log.append_as_leader(batch(5, timestamp=1_000 + i, **arguments), 0, 1_000)
    log.high_watermark = log.log_end_offset


def offsets(log: PartitionLog) -> list[int]:
    found: list[int] = []
    offset = log.log_start_offset
    while (records := log.read(offset, LARGE, log.log_end_offset)) is not None:
        found += decode_all(records.read()).offsets or ()
        offset = found[-1] + 1
    return found


def files(storage: Storage, suffix: str) -> list[int]:
    names = [name for name in storage.files("orders-0") if name.endswith(suffix)]
    return sorted(int(name[:20]) for name in names)


def test_old_segments_go_whole(storage: Storage, open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(storage, retention_ms=100)
    five_segments(log, batch)
    assert log.delete_old_segments(at(1_103)) == 1, "the second one's last record is 1,003"
    assert log.log_start_offset == 10
    assert offsets(log) == list(range(10, 50))
    assert log.delete_old_segments(at(1_107)) == 2
    assert log.log_start_offset == 30
    assert log.epochs.entries == [(0, 30)]


def test_whole_segments_beyond_a_number_of_records_go(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, retention_ms=-1, retention_records=25)
    five_segments(log, batch)
    assert log.delete_old_segments(at(1_000)) == 2, "25 records stay at least, in whole segments"
    assert offsets(log) == list(range(20, 50))
    assert log.delete_old_segments(at(1_000)) == 0
    log.config = LogConfig(retention_ms=-1, retention_records=0)
    assert log.delete_old_segments(at(1_000)) == 3
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)


def test_only_what_is_committed_goes_by_number(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, retention_ms=-1, retention_records=0)
    five_segments(log, batch)
    log._high_watermark = 25
    assert log.delete_old_segments(at(1_000)) == 2


def test_a_compacted_log_is_rolled_in_time_for_its_compaction_lag(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    lag = {"segment_ms": 10_000, "max_compaction_lag_ms": 100}
    log = open_log(storage, cleanup_policy=("compact",), **lag)
    log.append_as_leader(batch(timestamp=1_000), 0, 1_000)
    log.append_as_leader(batch(timestamp=1_100), 0, 1_100)
    assert len(log.segments) == 1
    log.append_as_leader(batch(timestamp=1_101), 0, 1_101)
    assert len(log.segments) == 2
    log.config = LogConfig(**lag)
    log.append_as_leader(batch(timestamp=1_300), 0, 1_300)
    assert len(log.segments) == 2, "the lag is of compaction alone"


def test_the_active_segment_goes_too_and_offsets_go_on(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, retention_ms=100)
    five_segments(log, batch)
    assert log.delete_old_segments(at(9_999)) == 5
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (50, 50, 50)
    assert log.delete_old_segments(at(99_999)) == 0, "an empty log stays"
    log.close()
    again = open_log(storage, clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (50, 50)
    assert again.append_as_leader(batch(), 0, 1_000).base_offset == 50


def test_size_is_kept_below_its_bound(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, retention_ms=-1)
    five_segments(log, batch)
    segment = log.segments[0].size_bytes
    for bound, kept in ((6 * segment, 5), (5 * segment, 5), (4 * segment + 1, 5), (2 * segment, 2)):
        log.config = type(log.config)(retention_ms=-1, retention_bytes=bound)
        log.delete_old_segments(at(9_999))
        assert len(log.segments) == kept
    log.config = type(log.config)(retention_ms=-1, retention_bytes=0)
    log.delete_old_segments(at(9_999))
    assert log.log_start_offset == log.log_end_offset == 50


def test_nothing_goes_that_is_not_committed(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, retention_ms=0)
    five_segments(log, batch)
    log.high_watermark = 25
    assert log.delete_old_segments(at(9_999)) == 2
    assert log.log_start_offset == 20


def test_a_compacted_log_keeps_what_is_old(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, retention_ms=0, retention_bytes=0, cleanup_policy=("compact",))
    five_segments(log, batch)
    assert log.delete_old_segments(at(9_999)) == 0
    log.increment_log_start_offset(20)
    assert log.delete_old_segments(at(9_999)) == 2, "what was given up goes all the same"


def test_without_timestamps_the_files_age_counts(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, retention_ms=100)
    memory.now_ms = 5_000
    log.append_as_leader(batch(timestamp=-1), 0, 5_000)
    log.roll(5_000)
    log.high_watermark = 1
    assert log.delete_old_segments(at(5_100)) == 0
    assert log.delete_old_segments(at(5_101)) == 1


def test_records_are_given_up_by_request(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage)
    five_segments(log, batch)
    log.increment_log_start_offset(27)
    log.increment_log_start_offset(13)
    assert log.log_start_offset == 27
    assert log.epochs.entries == [(0, 27)]
    assert log.delete_old_segments(at(1_000)) == 2
    assert log.segments[0].base_offset == 20
    with pytest.raises(ApiError, match="51 is beyond the high watermark 50") as error:
        log.increment_log_start_offset(51)
    assert error.value.error_code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.increment_log_start_offset(50)
    assert log.delete_old_segments(at(1_000)) == 2, "the active one remains"
    log.close()
    again = open_log(storage, clean=True, log_start_offset=50)
    assert (again.log_start_offset, again.log_end_offset) == (50, 50)


def opened() -> list[str]:
    """The paths of this process's descriptors, where the system tells."""
    found: list[str] = []
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with suppress(FileNotFoundError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_deleted_files_keep_their_bytes_for_a_while(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, retention_ms=100, file_delete_delay_ms=1_000)
    five_segments(log, batch)
    log.delete_old_segments(at(1_103))
    assert not [path for path in opened() if path.endswith(".deleted")], "who reads has his own"
    assert files(storage, ".log") == [10, 20, 30, 40]
    assert files(storage, ".log.deleted") == [0]
    log.delete_old_segments(at(1_107))
    assert log.tick(at(2_102)) == []
    assert files(storage, ".log.deleted") == [0, 10, 20]
    for remove in log.tick(at(2_103)):
        remove()
    assert files(storage, ".log.deleted") == [10, 20]
    log.close()
    open_log(storage, clean=True)
    assert files(storage, ".deleted") == [], "a start removes what is left"


def test_deleted_segments_do_not_come_back(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, retention_ms=100)
    five_segments(log, batch)
    log.flush()
    log.delete_old_segments(at(1_103))
    log.sync_directory()
    for seed in range(10):
        again = open_log(memory.after_crash(Random(seed)), at=50)
        assert again.log_start_offset == 10


def test_snapshots_go_with_their_segments(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, retention_ms=100)
    five_segments(log, batch)
    assert files(storage, ".snapshot") == [10, 20, 30, 40]
    log.delete_old_segments(at(1_107))
    assert files(storage, ".snapshot") == [30, 40]


def test_a_deletion_that_fails_stops_the_log(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, retention_ms=100)
    five_segments(log, batch)
    memory.fail("rename", errno.EIO)
    with pytest.raises(StorageError, match="orders-0: deletion of segments below offset 10"):
        log.delete_old_segments(at(1_103))
    assert log.failure
    assert open_log(memory.after_kill()).log_end_offset == 50


# ---- compaction --------------------------------------------------------------------------------


def compacted(log: PartitionLog, old: list[Segment], keep: set[int]) -> Segment:
    """A segment with those batches of `old` that begin at an offset in `keep`."""
    cleaned = log.new_cleaned_segment(old[0].base_offset, 1_000)
    for segment in old:
        data = segment.log.read(0, segment.size_bytes)
        for position, header in batches(data):
            if header.base_offset in keep:
                part = data[position : position + header.size_bytes]
                cleaned.append(part, header.last_offset, header.max_timestamp, 100)
    cleaned.seal()
    return cleaned


def test_compacted_segments_take_the_place_of_others(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, cleanup_policy=("compact",), file_delete_delay_ms=0)
    five_segments(log, batch)
    old = list(log.segments[1:4])
    assert log.replace_segments(compacted(log, old, {15, 35}), old, 1_000)
    assert [segment.base_offset for segment in log.segments] == [0, 10, 40]
    kept = [*range(10), *range(15, 20), *range(35, 40), *range(40, 50)]
    assert offsets(log) == kept
    for remove in log.tick(at(1_000)):
        remove()
    assert files(storage, ".log") == [0, 10, 40]
    assert files(storage, ".deleted") == []
    assert log.offset_for_timestamp(1_004).offset == 35  # type: ignore[union-attr]
    log.close()
    again = open_log(storage, clean=True, cleanup_policy=("compact",))
    assert offsets(again) == kept


def test_segments_that_are_not_what_they_were_are_not_replaced(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, cleanup_policy=("compact", "delete"), retention_ms=100)
    five_segments(log, batch)
    old = list(log.segments[0:2])
    cleaned = compacted(log, old, {5})
    assert log.delete_old_segments(at(1_103)) == 1
    assert not log.replace_segments(cleaned, old, 1_000), "retention took the first of them"
    assert not log.replace_segments(cleaned, list(log.segments), 1_000), "the active one"
    assert offsets(log) == list(range(10, 50))
    log.close()
    assert not log.replace_segments(cleaned, list(log.segments[:1]), 1_000), "closed"


def test_a_crash_in_a_replacement_leaves_no_gap_and_nothing_twice(
    open_log: OpenLog, batch: MakeBatch
) -> None:
    """At every change of the disk, with every choice of what it kept."""
    before, after = list(range(50)), [*range(10), *range(15, 20), *range(40, 50)]
    seen = set()
    change = 0
    while True:
        change += 1
        memory = MemoryStorage()
        log = open_log(memory, cleanup_policy=("compact",), file_delete_delay_ms=0)
        five_segments(log, batch)
        log.flush()
        memory.crash_after(change)
        try:
            old = list(log.segments[1:4])
            log.replace_segments(compacted(log, old, {15}), old, 1_000)
            log.sync_directory()
            for remove in log.tick(at(1_000)):
                remove()
            break
        except PowerLoss:
            pass
        for seed in range(8):
            survivor = memory.after_crash(Random(seed)) if seed else memory.after_kill()
            again = open_log(survivor, at=50, cleanup_policy=("compact",))
            found = offsets(again)
            assert found == sorted(set(found)), (change, seed)
            assert set(after) <= set(found) <= set(before), "the newest of the old may be left"
            seen.add(len(found))
            assert files(survivor, ".swap") == files(survivor, ".cleaned") == []
    assert change > 8
    assert {len(before), len(after)} < seen
