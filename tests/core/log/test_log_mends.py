"""What a start mends, cuts or refuses to believe, one by one: each was once taken for good."""

from __future__ import annotations

import errno
from random import Random
from uuid import UUID

import pytest
from logs import LARGE, ORDERS, MakeBatch, OpenLog, fill

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.checkpoints import RECOVERY_POINTS, read_offsets
from kafkalite.core.log.index import OFFSET_ENTRY, RELATIVE_OFFSET_MAX, IndexCache
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    encode_end_transaction_marker,
    patch,
)
from kafkalite.errors import StorageError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage, PowerLoss

LOG = "orders-0/00000000000000000000"


def based(batch: bytearray, base_offset: int) -> bytearray:
    """The batch as a leader sends it whose log ends at `base_offset`."""
    patch(batch, 0, base_offset, 0)
    return batch


# ---- what was lost is told ---------------------------------------------------------------------


def test_bytes_that_were_cut_are_told(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    fill(log, batch, 3)
    assert open_log(memory.after_kill()).loss is None
    memory.names[LOG + ".log"].data += b"torn"
    again = open_log(memory.after_kill())
    assert again.loss == "4 bytes from offset 3 on were torn or corrupt, and cut"


def test_records_that_were_on_the_disk_and_are_gone_are_told(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    fill(log, batch, 3)
    log.flush()
    size = len(memory.names[LOG + ".log"].data) // 3
    del memory.names[LOG + ".log"].data[2 * size :]
    for clean in (True, False):
        again = open_log(memory.after_kill(), at=3, clean=clean)
        assert again.loss == "it ends at offset 2, though all below 3 was on the disk"
    del memory.names[LOG + ".log"].data[2 * size - 5 :]
    again = open_log(memory.after_kill(), at=3)
    assert again.loss == (
        f"{size - 5} bytes from offset 1 on were torn or corrupt, and cut; "
        "it ends at offset 1, though all below 3 was on the disk"
    )


# ---- indexes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [b"\0\0\0\0\x7f\xff\xff\xff", b"\xff\xff\xff\xff\0\0\0\1"])
def test_the_last_segments_index_is_mended_on_a_clean_start(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, entry: bytes
) -> None:
    """The end of a log that was closed is found through it."""
    log = open_log(memory, index_interval_bytes=100)
    fill(log, batch, 20)
    log.close()
    index = memory.names[LOG + ".index"].data
    good = bytes(index)
    index[-8:] = entry
    again = open_log(memory.after_kill(), clean=True, index_interval_bytes=100)
    assert (again.log_end_offset, again.loss) == (20, None)
    survivor = memory.after_kill()
    open_log(survivor, clean=True, index_interval_bytes=100).close()
    assert survivor.read_small(LOG + ".index") == good


def test_mending_an_index_keeps_the_aborted_transactions(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    """A segment that was flushed and then rolled: its last index entries were never synced, and
    nobody reads it again to learn which transactions were aborted."""
    ids = {"producer_id": 7, "producer_epoch": 0}
    log = open_log(memory)
    log.append_as_leader(batch(2, base_sequence=0, transactional=True, **ids), 0, 1_000)
    marker = encode_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 0), timestamp_ms=1_000, **ids
    )
    log.append_as_leader(bytearray(marker), 0, 1_000, from_client=False)
    log.flush()
    log.roll(1_000)
    memory.sync_directory("orders-0")
    for path in (LOG + ".index", LOG + ".timeindex"):
        memory.names[path].data.clear()
    again = open_log(memory.after_kill(), at=log.recovery_point)
    assert [a.producer_id for a in again.aborted_transactions(0, LARGE)] == [7]
    assert len(again.segments) == 2


@pytest.mark.parametrize("clean", [True, False])
def test_aborted_transactions_are_known_when_all_indexes_were_removed(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, clean: bool
) -> None:
    """As operators do with indexes that they do not trust. One transaction lies in two segments."""
    ids = {"producer_id": 7, "producer_epoch": 0}
    log = open_log(memory)
    for number in range(3):
        for sequence in (2 * number, 2 * number + 1):
            records = batch(base_sequence=sequence, transactional=True, **ids)
            log.append_as_leader(records, 0, 1_000)
            if number < 2:
                log.roll(1_000)
        kind = ControlType.COMMIT if number == 1 else ControlType.ABORT
        marker = encode_end_transaction_marker(
            EndTransactionMarker(kind, 0), timestamp_ms=1_000, **ids
        )
        log.append_as_leader(bytearray(marker), 0, 1_000, from_client=False)
    known = log.aborted_transactions(0, LARGE)
    assert [(each.first_offset, each.last_offset) for each in known] == [(0, 2), (6, 8)]
    log.close()
    for name in list(memory.names):
        if name.endswith("index"):
            del memory.names[name]
    again = open_log(memory.after_kill(), clean=clean, at=log.recovery_point)
    assert again.aborted_transactions(0, LARGE) == known


def test_an_empty_checkpoint_of_epochs_is_none(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    memory.make_directory("orders-0")
    memory.open("orders-0/leader-epoch-checkpoint").create()
    log = open_log(memory, clean=True)
    assert log.epochs.entries == []
    fill(log, batch, 1)
    assert log.epochs.entries == [(0, 0)]


# ---- offsets too far from their segment's ------------------------------------------------------


def test_an_offset_that_no_index_entry_can_hold_begins_a_segment(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, index_interval_bytes=1)
    fill(log, batch, 2)
    log.append_as_follower(based(batch(), RELATIVE_OFFSET_MAX - 1), 1_000)
    assert len(log.segments) == 1
    appended = log.append_as_leader(batch(2), 0, 1_000)  # its last offset is one too far
    assert [segment.base_offset for segment in log.segments] == [0, RELATIVE_OFFSET_MAX]
    assert appended.last_offset == RELATIVE_OFFSET_MAX + 1
    log.append_as_follower(based(batch(), 3 * RELATIVE_OFFSET_MAX), 1_000)
    assert log.segments[-1].base_offset == 3 * RELATIVE_OFFSET_MAX
    log.close()
    again = open_log(memory, clean=True, cleanup_policy=("compact",))
    assert again.log_end_offset == 3 * RELATIVE_OFFSET_MAX + 1
    assert again.read(RELATIVE_OFFSET_MAX, LARGE, again.log_end_offset) is not None


def test_a_base_offset_that_no_index_entry_can_hold_is_damage(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    """The CRC does not cover it."""
    log = open_log(memory)
    fill(log, batch, 3)
    data = memory.names[LOG + ".log"].data
    size = len(data) // 3
    data[2 * size : 2 * size + 8] = (RELATIVE_OFFSET_MAX + 1).to_bytes(8, "big")
    again = open_log(memory.after_kill())
    assert again.log_end_offset == 2
    assert again.loss == f"{size} bytes from offset 2 on were torn or corrupt, and cut"


# ---- truncation --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_power_cut_in_a_truncation_leaves_no_gap(batch: MakeBatch, policy: str) -> None:
    """Segments that it removed must not come back behind the one that it cut."""
    config = LogConfig(segment_bytes=300, cleanup_policy=(policy,))
    change, is_over = 0, False
    while not is_over:
        change += 1
        memory = MemoryStorage()
        store = LogStore(memory)
        log = store.open(ORDERS, UUID(int=7), config, at(1_000))
        fill(log, batch, 12)
        log.flush()
        store.write_recovery_points()
        memory.crash_after(change)
        try:
            store.truncate(log, 4)
            is_over = True
        except PowerLoss:
            pass
        for seed in range(12):
            again = LogStore(memory.after_crash(Random(seed))).open(
                ORDERS, UUID(int=7), config, at(1_000)
            )
            headers = [header for s in again.segments for _, header in s.headers(0)]
            found = [header.base_offset for header in headers]
            assert found == list(range(again.log_end_offset)), f"change {change}, seed {seed}"
            assert again.log_end_offset in ((4,) if is_over else range(4, 13))
    assert change > 4


def test_a_recovery_point_beyond_a_truncation_is_taken_back(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    """Else what is appended there next would not be looked at after a crash."""
    store = LogStore(memory)
    config = LogConfig(segment_bytes=300)
    log = store.open(ORDERS, UUID(int=7), config, at(1_000))
    fill(log, batch, 12)
    log.flush()
    store.write_recovery_points()
    store.truncate(log, 1)
    fill(log, batch, 8)
    memory.names[log.segments[0].log.path].data[-1] ^= 1
    again = LogStore(memory.after_kill()).open(ORDERS, UUID(int=7), config, at(1_000))
    assert again.log_end_offset < 5
    assert again.loss is not None


def test_a_truncation_that_fails_half_way_has_taken_back_what_was_promised(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = LogStore(memory)
    log = store.open(ORDERS, UUID(int=7), LogConfig(segment_bytes=300), at(1_000))
    fill(log, batch, 12)
    log.flush()
    store.write_recovery_points()
    memory.fail("delete", errno.EIO)
    with pytest.raises(StorageError, match="truncation to offset 1"):
        store.truncate(log, 1)
    assert read_offsets(memory, RECOVERY_POINTS) == {ORDERS: 1}


def test_epochs_of_records_that_are_lost_are_forgotten(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    log.append_as_leader(batch(5), 0, 1_000)
    size = log.size_bytes
    log.append_as_leader(batch(5), 1, 1_000)
    log.flush()
    del memory.names[LOG + ".log"].data[size:]
    again = open_log(memory.after_kill())
    assert (again.log_end_offset, again.epochs.latest) == (5, 0)


# ---- snapshots ---------------------------------------------------------------------------------


def test_a_snapshot_takes_the_place_of_a_torn_one(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    log.append_as_leader(batch(producer_id=7, producer_epoch=0, base_sequence=0), 0, 1_000)
    torn = memory.open(f"orders-0/{1:020d}.snapshot")
    torn.append(b"what did not fit")
    log.roll(1_000)
    assert memory.read_small(torn.path) == log.producers.to_snapshot()


def test_a_log_that_has_not_changed_is_closed_without_a_write(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    fill(log, batch, 3)
    log.close()
    again = open_log(memory, clean=True)
    before = memory.changes
    again.close()
    assert memory.changes == before


def test_snapshots_do_not_pile_up(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    for end in range(1, 5):
        log = open_log(memory, clean=end > 1)
        snapshots = [name for name in memory.files("orders-0") if name.endswith(".snapshot")]
        assert snapshots == ([f"{end - 1:020d}.snapshot"] if end > 1 else [])
        fill(log, batch, 1)
        log.close()


# ---- what else one line keeps right ------------------------------------------------------------


def test_a_start_takes_the_mark_of_a_clean_shutdown_durably(memory: MemoryStorage) -> None:
    LogStore(memory).close(1_000)
    assert LogStore(memory).was_clean_shutdown
    for seed in range(10):
        assert not LogStore(memory.after_crash(Random(seed))).was_clean_shutdown


def test_a_log_that_was_compacted_keeps_its_gaps_under_another_policy(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store = LogStore(memory)
    log = store.open(ORDERS, UUID(int=7), LogConfig(segment_bytes=300), at(1_000))
    fill(log, batch, 12)
    gone = log.segments[1]
    store.cleaned_offsets[ORDERS] = log.segments[-1].base_offset
    write = store.cleaned_offsets_writer()
    assert write is not None
    write()
    survivor = memory.after_kill()
    for name in [name for name in survivor.names if name.startswith(gone.stem)]:
        del survivor.names[name]
    again = LogStore(survivor).open(ORDERS, UUID(int=7), LogConfig(segment_bytes=300), at(1_000))
    assert (again.log_end_offset, again.loss) == (12, None)


def test_a_roll_that_fails_leaves_the_indexes_in_memory(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    memory.make_directory("orders-0")
    log = PartitionLog.open(
        memory, "orders-0", ORDERS, LogConfig(index_interval_bytes=1), at(1_000),
        clean_shutdown=False, index_cache=IndexCache(1),
    )  # fmt: skip
    fill(log, batch, 3)
    memory.pass_over("create")  # that of an index
    memory.pass_over("create")
    memory.pass_over("create")
    memory.fail("create")
    with pytest.raises(StorageError, match="roll"):
        log.roll(1_000)
    fill(log, batch, 3)
    assert log.segments[0].index.size_bytes == 5 * OFFSET_ENTRY.size


def test_a_log_start_offset_within_a_batch_outlives_its_truncation(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    for epoch in range(2):
        log.append_as_leader(batch(5), epoch, 1_000)
    log.high_watermark = 10
    log.flush()
    log.increment_log_start_offset(7)
    again = open_log(memory.after_kill(), log_start_offset=7)
    assert again.epochs.entries == [(1, 7)]
    log.truncate_to(8)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)


def test_what_a_cleaning_left_is_not_added_to(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    memory.open(f"{LOG}.log.cleaned").append(b"half a batch")
    assert log.new_cleaned_segment(0, 1_000).size_bytes == 0
