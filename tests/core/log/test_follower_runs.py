"""Runs of batches in a follower's log: as they are, in few writes, and cut again."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import LARGE, ORDERS, MakeBatch, OpenLog, read_all

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.checkpoints import CLEANED_OFFSETS, LOG_START_OFFSETS, read_offsets
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.store import LogStore
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    encode_end_transaction_marker,
)
from kafkalite.errors import CorruptBatchError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryFile, MemoryStorage

ID = UUID(int=7)


def marker(producer_id: int, kind: ControlType) -> bytearray:
    return bytearray(
        encode_end_transaction_marker(
            EndTransactionMarker(kind, 1), producer_id=producer_id, producer_epoch=0, timestamp_ms=9
        )
    )


def grow(log: PartitionLog, batch: MakeBatch, random: Random, steps: int, epoch: int) -> int:
    """Random batches of random epochs: plain, idempotent, in transactions; gaps as compaction
    leaves them. Returns the last epoch."""
    sequences: dict[int, int] = {}
    for _ in range(steps):
        epoch += random.random() < 0.2
        count, producer_id = random.randint(1, 5), random.randint(1, 3)
        match random.choice(("plain", "idempotent", "transaction", "end", "gap")):
            case "plain":
                log.append_as_leader(batch(count, timestamp=random.randint(1, 99)), epoch, 1_000)
            case "idempotent":
                base = sequences.get(producer_id, 0)
                ids = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": base}
                log.append_as_leader(batch(count, **ids), epoch, 1_000)
                sequences[producer_id] = base + count
            case "transaction":
                ids = {"producer_id": 9, "producer_epoch": 0, "base_sequence": -1}
                one = batch(count, transactional=True, **ids)
                log.append_as_leader(one, epoch, 1_000, from_client=False)
            case "end":
                kind = random.choice((ControlType.ABORT, ControlType.COMMIT))
                log.append_as_leader(marker(9, kind), epoch, 1_000, from_client=False)
            case "gap":
                base = log.log_end_offset + random.randint(0, 9)
                log.append_as_follower(batch(2, base_offset=base, leader_epoch=epoch), 1_000)
    return epoch


def fetched(leader: PartitionLog, follower: PartitionLog, size: int) -> bytes:
    """What a follower's fetch brings, and perhaps a part of what comes next."""
    end = leader.log_end_offset
    found = leader.read(follower.log_end_offset, size, end)
    return b"" if found is None else found.read()


def state(log: PartitionLog) -> Any:
    """All that a log knows beside its bytes."""
    entries = {
        entry.producer_id: (entry.last_sequence, entry.transaction_first_offset)
        for entry in log.producers.entries.values()
    }
    aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    return log.epochs.entries, entries, aborted, log.log_end_offset, log.max_timestamp()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(80, 900), st.integers(400, 900), st.booleans())
def test_a_follower_that_fetches_slices_ends_equal_to_its_leader(
    open_log: OpenLog, batch: MakeBatch, seed: int, ours: int, theirs: int, restarts: bool
) -> None:
    random, storage = Random(seed), MemoryStorage()
    leader = open_log(MemoryStorage(), segment_bytes=theirs, index_interval_bytes=64)
    grow(leader, batch, random, 30, 0)
    follower = open_log(storage, segment_bytes=ours, index_interval_bytes=64)
    while follower.log_end_offset < leader.log_end_offset:
        data = fetched(leader, follower, random.randint(1, 2_000))
        tail = random.randint(0, 30)
        if not follower.append_next(memoryview(data), 1_000):
            follower.append_as_follower(data + data[:tail], 1_000)
        if restarts and random.random() < 0.2:
            follower.close()
            follower = open_log(
                storage, clean=random.random() < 0.5, segment_bytes=ours, index_interval_bytes=64,
                cleanup_policy=("compact",),  # so that gaps are none
            )  # fmt: skip
        elif random.random() < 0.2:
            follower.truncate_to(random.randint(0, follower.log_end_offset))
    for log in (leader, follower):
        log.high_watermark = log.log_end_offset
    assert read_all(follower) == read_all(leader)
    assert state(follower) == state(leader)
    for offset in range(0, leader.log_end_offset, 3):
        found, expected = (
            log.read(offset, LARGE, log.log_end_offset) for log in (follower, leader)
        )
        assert found is not None
        assert expected is not None
        assert found.read()[:60] == expected.read()[:60]


@pytest.mark.parametrize("segments", [1, 2])
def test_a_run_takes_one_write_for_each_segment(
    open_log: OpenLog, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, segments: int
) -> None:
    leader = open_log(MemoryStorage())
    for _ in range(20):
        leader.append_as_leader(batch(2), 1, 1_000)
    found = leader.read(0, LARGE, leader.log_end_offset)
    assert found is not None
    data = found.read()
    follower = open_log(MemoryStorage(), segment_bytes=len(data) // segments)
    written: list[str] = []
    append = MemoryFile.append

    def counted(file: MemoryFile, records: Any) -> int:
        written.append(file.path)
        return append(file, records)

    monkeypatch.setattr(MemoryFile, "append", counted)
    follower.append_as_follower(data, 1_000)
    assert len([path for path in written if path.endswith(".log")]) == segments
    assert len(follower.segments) == segments


def test_what_a_leader_cannot_have_sent_is_refused_as_a_whole(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    log.append_as_follower(batch(2, base_offset=5, leader_epoch=4), 1_000)
    good = batch(1, base_offset=7, leader_epoch=4)
    for other, words in (
        (batch(1, base_offset=7, leader_epoch=4), r"offsets \[7, 8\) where 8 or more"),
        (batch(1, base_offset=8, leader_epoch=3), r"epoch 3 where those in \[4, 6\]"),
        (batch(1, base_offset=8, leader_epoch=7), r"epoch 7 where those in \[4, 6\]"),
    ):
        with pytest.raises(CorruptBatchError, match=words):
            log.append_as_follower(good + other, 1_000, 6)
        assert log.log_end_offset == 7
    with pytest.raises(CorruptBatchError, match="epoch 3"):
        log.append_as_follower(batch(1, base_offset=7, leader_epoch=3), 1_000)


def test_the_batch_that_comes_next_is_appended_as_it_is(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log, twin = open_log(memory), open_log(MemoryStorage())
    first = batch(2, base_offset=5, leader_epoch=4)
    for each in (log, twin):
        each.append_as_follower(first, 1_000)
    ids = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}
    for one in (
        batch(2, base_offset=7, leader_epoch=4, timestamp=50),
        batch(1, base_offset=9, leader_epoch=4, **ids),
        batch(1, base_offset=10, leader_epoch=4, transactional=True, **ids | {"base_sequence": 1}),
    ):
        assert log.append_next(memoryview(one), 1_000)
        twin.append_as_follower(one, 1_000)
    assert state(log) == state(twin)
    assert log.commit(8, 6)
    assert (log.high_watermark, log.log_start_offset) == (8, 6)
    assert not log.commit(7, 5), "neither moves back"
    assert log.commit(99, 99)
    assert (log.high_watermark, log.log_start_offset) == (11, 11), "not beyond the log's end"
    twin.commit(11, 11)
    assert read_all(log) == read_all(twin)


def test_append_next_refuses_any_other_bytes(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, segment_bytes=300)
    log.append_as_follower(batch(2, base_offset=5, leader_epoch=4), 1_000)
    good = batch(1, base_offset=7, leader_epoch=4)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    for other in (
        b"",
        good[:30],
        good[:-1],
        good + b"x",
        good + batch(1, base_offset=8, leader_epoch=4),
        damaged,
        batch(1, base_offset=8, leader_epoch=4),
        batch(1, base_offset=6, leader_epoch=4),
        batch(1, base_offset=7, leader_epoch=3),
        batch(1, base_offset=7, leader_epoch=5),
    ):
        assert not log.append_next(memoryview(other), 1_000), other
        assert (log.log_end_offset, len(log.segments)) == (7, 1)
    assert log.append_next(memoryview(good), 1_000)
    assert log.append_next(memoryview(batch(40, base_offset=8, leader_epoch=4)), 1_000)
    assert (log.log_end_offset, len(log.segments)) == (48, 2), "it begins a segment where it must"


@pytest.mark.parametrize("is_cut_back", [True, False])
def test_a_disk_that_refuses_the_next_batch_leaves_the_log_as_it_was(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch,
    is_cut_back: bool,
) -> None:  # fmt: skip
    log = open_log(memory)
    log.append_as_follower(batch(2, leader_epoch=4), 1_000)

    def refuse(file: MemoryFile, *_: Any) -> Any:
        raise OSError(28, "the disk is full")

    good = memoryview(batch(1, base_offset=2, leader_epoch=4))
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFile, "append", refuse)
        if not is_cut_back:
            patch.setattr(MemoryFile, "truncate", refuse)
        assert not log.append_next(good, 1_000)
    assert log.log_end_offset == 2
    assert (log.failure is None) is is_cut_back
    assert log.append_next(good, 1_000) is is_cut_back


def test_a_log_may_begin_within_a_batch(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    """The leader's records up to offset 12 were deleted, in the middle of a batch."""
    log = open_log(memory)
    log.append_as_follower(batch(2, base_offset=0), 1_000)
    log.truncate_fully(12)
    log.append_as_follower(batch(5, base_offset=10, leader_epoch=1), 1_000)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (12, 15, 12)
    with pytest.raises(CorruptBatchError, match="batch at offset 12, the log ends at 15"):
        log.append_as_follower(batch(9, base_offset=12, leader_epoch=1), 1_000)


def opened(storage: MemoryStorage, **settings: Any) -> tuple[LogStore, PartitionLog]:
    store = LogStore(storage)
    return store, store.open(ORDERS, ID, LogConfig(**settings), at(1_000))


def test_a_log_that_begins_anew_further_back_does_so_after_a_crash(
    memory: MemoryStorage, batch: MakeBatch
) -> None:
    store, log = opened(memory)
    for _ in range(8):
        log.append_as_leader(batch(5), 1, 1_000)
    log.high_watermark = 40
    log.increment_log_start_offset(33)
    store.cleaned_offsets[ORDERS] = 20
    store.write_log_start_offsets()
    log.flush()
    store.write_recovery_points()
    store.start_anew(log, 12)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (12, 12, 12)
    assert read_offsets(memory, LOG_START_OFFSETS) == {}
    assert read_offsets(memory, CLEANED_OFFSETS) == {ORDERS: 12}
    log.append_as_follower(batch(3, base_offset=12, leader_epoch=2), 1_000)
    _, again = opened(memory)
    assert (again.log_start_offset, again.log_end_offset) == (12, 15)


def test_what_a_cleaner_has_read_does_not_replace_what_was_cut(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, segment_bytes=300)
    for _ in range(8):
        log.append_as_leader(batch(5), 1, 1_000)
    old = log.segments[:1]
    cleaned = log.new_cleaned_segment(0, 1_000)
    log.truncate_to(5)
    for _ in range(8):
        log.append_as_leader(batch(5, value=b"another"), 2, 1_000)
    assert len(log.segments) > 1
    assert not log.replace_segments(cleaned, old, 1_000)
