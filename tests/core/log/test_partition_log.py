"""A partition's log: what is appended, refused, read, found, cut and kept."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from logs import (
    LARGE,
    MakeBatch,
    OpenLog,
    commit,
    offsets,
    patched,
    read_all,
    refusal,
    segment_names,
)

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.port import Storage
from kafkalite.core.protocol.compression import Compression
from kafkalite.core.protocol.records import (
    ControlType,
    EndTransactionMarker,
    batches,
    decode_all,
    encode_end_transaction_marker,
    read_header,
)
from kafkalite.errors import StorageError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage

# ---- append ------------------------------------------------------------------------------------


def test_an_append_sets_offsets_and_epoch(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 0, 0)
    first = log.append_as_leader(batch(3), 4, 1_000)
    assert first == (0, 2, -1, 0, False)
    second = log.append_as_leader(bytes(batch(2)), 5, 1_000)
    assert (second.base_offset, second.last_offset) == (3, 4)
    third = log.append_as_leader(memoryview(batch(1)), 5, 1_000)
    assert third.base_offset == log.log_end_offset - 1 == 5
    log.high_watermark = 99
    assert log.high_watermark == 6, "never beyond the end"
    found = [header for _, header in batches(read_all(log))]
    assert [h.base_offset for h in found] == [0, 3, 5]
    assert [h.partition_leader_epoch for h in found] == [4, 5, 5]
    assert log.epochs.entries == [(4, 0), (5, 3)]
    assert log.end_offset_for_epoch(4) == (4, 3)
    assert offsets(read_all(log)) == [0, 1, 2, 3, 4, 5]


def test_a_buffer_that_can_be_written_to_is_not_copied(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    commit(log, batch(5))
    frame = bytearray(b"frame") + batch(1)
    log.append_as_leader(memoryview(frame)[5:], 7, 1_000)
    header = read_header(frame, 5)
    assert (header.base_offset, header.partition_leader_epoch) == (5, 7)


REFUSED: list[tuple[str, Callable[[MakeBatch], bytearray], dict[str, Any], str, str]] = [
    ("bad CRC", lambda b: patched(b(), 70, b"!"), {}, "CORRUPT_MESSAGE", "CRC"),
    ("magic 1", lambda b: patched(b(), 16, b"\1"), {}, "INVALID_RECORD", "magic 1"),
    ("magic 3", lambda b: patched(b(), 16, b"\3"), {}, "CORRUPT_MESSAGE", "magic 3"),
    ("two batches", lambda b: b() + b(), {}, "INVALID_RECORD", "one batch of"),
    ("cut", lambda b: b()[:-1], {}, "INVALID_RECORD", "one batch of"),
    ("nothing", lambda b: bytearray(), {}, "INVALID_RECORD", "0 bytes"),
    ("base offset", lambda b: b(base_offset=3), {}, "INVALID_RECORD", "base offset 3"),
    ("control", lambda b: b(control=True), {}, "INVALID_RECORD", "control"),
    (
        "too large",
        lambda b: b(value=bytes(100)),
        {"max_message_bytes": 100},
        "MESSAGE_TOO_LARGE",
        "max.message.bytes is 100",
    ),
    (
        "larger than a segment",
        lambda b: b(value=bytes(100)),
        {"segment_bytes": 100},
        "RECORD_LIST_TOO_LARGE",
        "segment.bytes is 100",
    ),
    (
        "no key",
        lambda b: b(key=None),
        {"cleanup_policy": ("compact",)},
        "INVALID_RECORD",
        "key is null",
    ),
    (
        "too old",
        lambda b: b(2, timestamp=890, step=10),
        {"message_timestamp_before_max_ms": 100},
        "INVALID_TIMESTAMP",
        "record 0 has timestamp 890",
    ),
    (
        "too new",
        lambda b: b(2, timestamp=1_100, step=1),
        {"message_timestamp_after_max_ms": 100},
        "INVALID_TIMESTAMP",
        "record 1 has timestamp 1101",
    ),
]


@pytest.mark.parametrize(
    ("make", "settings", "code", "message"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
def test_what_is_refused_leaves_nothing(
    memory: MemoryStorage,
    open_log: OpenLog,
    batch: MakeBatch,
    make: Callable[[MakeBatch], bytearray],
    settings: dict[str, Any],
    code: str,
    message: str,
) -> None:
    log = open_log(memory, **settings)
    found_code, found_message = refusal(lambda: log.append_as_leader(make(batch), 0, 1_000))
    assert found_code == code
    assert found_message.startswith("orders-0: ")
    assert message in found_message
    assert found_message.count(code) == 1
    assert log.log_end_offset == log.size_bytes == 0
    assert log.epochs.entries == []


def test_log_append_time_is_the_brokers(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, message_timestamp_type="LogAppendTime")
    appended = log.append_as_leader(batch(3, timestamp=5, step=1), 0, 7_000)
    assert appended.log_append_time_ms == 7_000
    log.high_watermark = 3
    assert list(decode_all(read_all(log)).timestamps) == [7_000] * 3
    with_bit = bytearray(read_all(log))
    code, _ = refusal(lambda: log.append_as_leader(with_bit, 0, 1_000))
    assert code == "INVALID_TIMESTAMP"


def test_a_topics_codec_overrides_the_producers(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, compression_type="lz4")
    commit(log, batch(50, producer_id=7, producer_epoch=1, base_sequence=0, transactional=True))
    commit(log, batch(1, compression=Compression.LZ4))
    log.config = LogConfig(compression_type="uncompressed")
    commit(log, batch(1, compression=Compression.GZIP))
    found = [header for _, header in batches(read_all(log))]
    assert [h.compression.name for h in found] == ["LZ4", "LZ4", "NONE"]
    assert found[0].is_transactional
    assert (found[0].producer_id, found[0].producer_epoch, found[0].base_sequence) == (7, 1, 0)
    assert list(decode_all(read_all(log)).values) == [b"value"] * 52
    log.config = LogConfig(compression_type="uncompressed", max_message_bytes=500)
    code, _ = refusal(
        lambda: log.append_as_leader(batch(50, compression=Compression.GZIP), 0, 1_000)
    )
    assert code == "MESSAGE_TOO_LARGE"


# ---- idempotence and transactions --------------------------------------------------------------


def test_a_resent_batch_is_answered_and_not_stored(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage)
    ids = {"producer_id": 7, "producer_epoch": 0}
    commit(log, batch(2))
    for sequence in range(0, 18, 3):
        log.append_as_leader(batch(3, base_sequence=sequence, **ids), 0, 1_000)
    size = log.size_bytes
    again = log.append_as_leader(batch(3, base_sequence=9, **ids), 0, 2_000)
    assert again == (11, 13, -1, 0, True)
    assert (log.size_bytes, log.log_end_offset) == (size, 20)
    code, message = refusal(
        lambda: log.append_as_leader(batch(3, base_sequence=19, **ids), 0, 1_000)
    )
    assert code == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert "orders-0: producer 7 epoch 0 sequence 19, expected 18" in message


def marker(log: PartitionLog, kind: ControlType, producer_id: int = 7, epoch: int = 0) -> int:
    data = encode_end_transaction_marker(
        EndTransactionMarker(kind, 0),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=1_000,
    )
    return log.append_as_leader(data, 0, 1_000, from_client=False).base_offset


def test_readers_of_committed_records_stop_at_an_open_transaction(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage)
    ids = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    commit(log, batch(2), batch(3, base_sequence=0, **ids), batch(1))
    assert (log.high_watermark, log.last_stable_offset) == (6, 2)
    assert marker(log, ControlType.ABORT) == 6
    assert log.last_stable_offset == 2, "the marker is not replicated yet"
    log.high_watermark = 7
    assert log.last_stable_offset == 7
    (aborted,) = log.aborted_transactions(0, 7)
    assert aborted == (7, 2, 6, 7)
    assert log.aborted_transactions(0, 2) == []
    assert log.aborted_transactions(7, 9) == []
    commit(log, batch(1, base_sequence=3, **ids))
    assert marker(log, ControlType.COMMIT) == 8
    log.high_watermark = 9
    assert log.last_stable_offset == 9
    assert len(log.aborted_transactions(0, 9)) == 1


def test_aborts_are_cut_with_the_log(storage: Storage, open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(storage)
    ids = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    for sequence in range(2):
        commit(log, batch(1, base_sequence=sequence, **ids))
        marker(log, ControlType.ABORT)
    log.truncate_to(3)
    assert [aborted.last_offset for aborted in log.aborted_transactions(0, 9)] == [1]
    assert log.last_stable_offset == 2, "the second transaction is open again"


def test_markers_are_fenced(memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(memory)
    commit(log, batch(1, producer_id=7, producer_epoch=3, base_sequence=0, transactional=True))
    assert refusal(lambda: marker(log, ControlType.ABORT, epoch=2))[0] == "INVALID_PRODUCER_EPOCH"
    assert log.log_end_offset == 1


# ---- segments and reading ----------------------------------------------------------------------


def test_a_full_segment_is_followed_by_the_next(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    size = len(batch(10))
    log = open_log(storage, segment_bytes=size * 3)
    commit(log, *(batch(10) for _ in range(7)))
    assert segment_names(storage) == ["0", "30", "60"]
    assert [segment.size_bytes for segment in log.segments] == [size * 3, size * 3, size]
    assert offsets(read_all(log)) == list(range(70))


def test_an_old_segment_is_followed_by_the_next(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, segment_ms=100)
    commit(log, batch(timestamp=1_000), batch(timestamp=1_100), batch(timestamp=1_101))
    assert segment_names(storage) == ["0", "2"], "the records' time counts"
    commit(log, batch(timestamp=-1), now_ms=1_050)
    commit(log, batch(timestamp=-1), now_ms=1_101)
    assert segment_names(storage) == ["0", "2", "4"], "without one the clock does"


def test_jitter_brings_a_roll_forward(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, segment_ms=1_000_000, segment_jitter_ms=1_000_000)
    commit(log, batch(timestamp=0), batch(timestamp=1))
    rolled_at = 0
    while len(log.segments) == 1:
        rolled_at += 1_000
        commit(log, batch(timestamp=rolled_at))
    assert rolled_at < 1_000_000


def test_a_full_index_is_followed_by_the_next_segment(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, segment_index_bytes=20, index_interval_bytes=0)
    commit(log, *(batch() for _ in range(9)))
    assert len(log.segments) > 2
    assert offsets(read_all(log)) == list(range(9))


def test_a_read_is_whole_batches_between_its_bounds(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, segment_bytes=4_000, index_interval_bytes=300)
    sizes = [1, 7, 2, 40, 1, 1, 3]
    commit(log, *(batch(sizes[i % len(sizes)]) for i in range(60)))
    data = read_all(log)
    places = [(h.base_offset, h.next_offset, h.size_bytes) for _, h in batches(data)]
    for offset in range(0, log.log_end_offset, 3):
        for bytes_max in (0, 1, 200, 1_000, LARGE):
            for before in (log.log_end_offset, offset + 20, offset + 1):
                found = log.read(offset, bytes_max, before)
                expected = b""
                if found is not None:
                    expected = found.read()
                    headers = [h for _, h in batches(expected)]
                    assert sum(h.size_bytes for h in headers) == len(expected), "whole batches"
                    assert headers[0].base_offset <= offset < headers[0].next_offset
                    assert headers[-1].next_offset <= before
                    assert len(expected) <= bytes_max or len(headers) == 1
                else:
                    (holder,) = [p for p in places if p[0] <= offset < p[1]]
                    assert holder[1] > before


def test_small_reads_see_everything_once(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, segment_bytes=3_000, index_interval_bytes=100)
    commit(log, *(batch(i % 5 + 1) for i in range(80)))
    for bytes_max in (1, 150, 500, 5_000):
        assert offsets(read_all(log, bytes_max=bytes_max)) == list(range(log.log_end_offset))


def test_a_reader_that_waits_at_the_end_goes_on_there(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, segment_bytes=1_000)
    for i in range(50):
        assert log.read(i, LARGE, i) is None
        log.append_as_leader(batch(), 0, 1_000)
        found = log.read(i, LARGE, i + 1)
        assert found is not None
        assert offsets(found.read()) == [i]


def test_reading_outside_of_the_log_is_refused(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage)
    commit(log, batch(10))
    log.increment_log_start_offset(4)
    assert log.read(10, LARGE, 10) is None
    for offset in (-1, 3, 11):
        code, message = refusal(lambda o=offset: log.read(o, LARGE, 10))
        assert code == "OFFSET_OUT_OF_RANGE"
        assert f"orders-0: offset {offset}, there is [4, 10)" in message


def test_what_was_read_stays_readable(
    storage: Storage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(storage, segment_bytes=200, file_delete_delay_ms=0)
    commit(log, *(batch() for _ in range(10)))
    found = log.read(0, LARGE, 10)
    assert found is not None
    before = found.read()
    log.increment_log_start_offset(10)
    assert log.delete_old_segments(at(2_000)) > 0
    for remove in log.tick(at(2_000)):
        remove()
    assert found.read() == before


def test_a_damaged_file_is_told_to_readers(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    commit(log, batch(), batch())
    memory.names["orders-0/00000000000000000000.log"].data[16] = 9
    code, message = refusal(lambda: log.read(1, LARGE, 2))
    assert code == "KAFKA_STORAGE_ERROR"
    assert "orders-0: byte 0: magic 9" in message


# ---- faults ------------------------------------------------------------------------------------


def test_a_full_disk_refuses_the_append_and_nothing_else(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    ids = {"producer_id": 7, "producer_epoch": 0}
    commit(log, batch(2, base_sequence=0, **ids))
    size = log.size_bytes
    memory.fail("append", errno.ENOSPC)
    code, message = refusal(
        lambda: log.append_as_leader(batch(2, base_sequence=2, **ids), 0, 1_000)
    )
    assert code == "KAFKA_STORAGE_ERROR"
    assert f"orders-0: append: [Errno {errno.ENOSPC}] ENOSPC" in message
    assert log.size_bytes == size == memory.files("orders-0")["00000000000000000000.log"]
    assert log.failure is None
    assert not log.append_as_leader(batch(2, base_sequence=2, **ids), 0, 1_000).duplicate
    log.high_watermark = 4
    assert offsets(read_all(log)) == [0, 1, 2, 3]


def test_a_log_that_cannot_be_mended_has_failed(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    commit(log, batch(2))
    memory.fail("append", errno.EIO)
    memory.fail("truncate", errno.EIO)
    assert refusal(lambda: log.append_as_leader(batch(), 0, 1_000))[0] == "KAFKA_STORAGE_ERROR"
    assert "cannot be cut back" in (log.failure or "")
    assert refusal(lambda: log.append_as_leader(batch(), 0, 1_000))[0] == "KAFKA_STORAGE_ERROR"
    assert offsets(read_all(log)) == [0, 1], "what is there can be read"
    again = open_log(memory.after_kill())
    assert again.log_end_offset == 2


@pytest.mark.parametrize("operation", ["append", "create"])
def test_a_roll_that_fails_is_tried_again(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch, operation: str
) -> None:
    log = open_log(memory, segment_bytes=200, index_interval_bytes=1)
    commit(log, batch(), batch())
    memory.fail(operation, errno.ENOSPC)
    code, message = refusal(lambda: log.append_as_leader(batch(), 0, 1_000))
    assert code == "KAFKA_STORAGE_ERROR"
    assert "orders-0: roll: " in message
    assert len(log.segments) == 1
    commit(log, batch(), batch())
    assert offsets(read_all(log)) == [0, 1, 2, 3]
    again = open_log(memory.after_kill(), segment_bytes=200)
    assert again.log_end_offset == 4


def test_a_sync_that_fails_is_the_logs_end(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    commit(log, batch(2))
    memory.fail("sync", errno.EIO)
    with pytest.raises(StorageError, match="orders-0: flush at offset 2"):
        log.flush()
    code, message = refusal(lambda: log.append_as_leader(batch(), 0, 1_000))
    assert code == "KAFKA_STORAGE_ERROR"
    assert "flush" in message
    log.close()


def test_a_closed_log_takes_nothing(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory)
    log.close()
    code, message = refusal(lambda: log.append_as_leader(batch(), 0, 1_000))
    assert code == "KAFKA_STORAGE_ERROR"
    assert "orders-0: closed" in message


# ---- flushing ----------------------------------------------------------------------------------


def test_flush_messages_and_flush_ms(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, flush_messages=10, flush_ms=500)
    commit(log, batch(4), batch(5))
    assert (log.flush_is_due, log.acknowledged_end) == (False, 9)
    commit(log, batch(1))
    assert (log.flush_is_due, log.acknowledged_end) == (True, 0)
    log.flush(1_200)
    assert (log.flush_is_due, log.acknowledged_end) == (False, 10)
    assert not log.flush_is_overdue(9_999), "there is nothing to flush"
    commit(log, batch(1))
    assert not log.flush_is_overdue(1_699)
    assert log.flush_is_overdue(1_700)


def test_a_flush_may_wait_elsewhere(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(memory, segment_bytes=300)
    commit(log, *(batch(3) for _ in range(6)))
    flush = log.begin_flush()
    commit(log, batch(3))
    log.end_flush(flush, flush.run())
    assert log.recovery_point == 18
    other = log.begin_flush()
    log.truncate_to(6)
    commit(log, *(batch(3) for _ in range(8)))
    log.end_flush(other, other.run())
    assert log.recovery_point == 6, "what it flushed was cut off in between"


def test_an_empty_log_costs_no_file(storage: Storage, open_log: OpenLog) -> None:
    log = open_log(storage)
    log.high_watermark = 0
    assert log.read(0, LARGE, 0) is None
    log.flush()
    log.tick(at(10_000_000))
    assert log.delete_old_segments(at(1 << 50)) == 0
    log.close()
    assert storage.files("orders-0") == {}
