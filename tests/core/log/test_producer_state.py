"""Producers of a partition: sequences, epochs, transactions, snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.core.log.producer_state import SEQUENCE_MAX, ProducerState
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.records import (
    BatchHeader,
    ControlType,
    EndTransactionMarker,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError, ErrorCode, StorageError
from kafkalite.testing.clock import at
from kafkalite.testing.storage import MemoryStorage

MakeBatch = Callable[..., bytearray]
OpenLog = Callable[..., Any]

ORDERS = TopicPartition("orders", 3)


def header(
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = 9,
    epoch: int = 0,
    transactional: bool = False,
    timestamp: int = 1_000,
) -> BatchHeader:
    attributes = 0x10 if transactional else 0
    return BatchHeader(
        0, 49, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence,
        count,
    )  # fmt: skip


def state(*headers: BatchHeader) -> ProducerState:
    """As after appends of these batches, one after the other."""
    made, offset = ProducerState(ORDERS), 0
    for one in headers:
        made.append(one, offset, one.max_timestamp)
        offset += one.last_offset_delta + 1
    return made


def refused(state: ProducerState, one: BatchHeader) -> tuple[ErrorCode, str] | None:
    try:
        state.check(one)
    except ApiError as error:
        return error.error_code, str(error)
    return None


def test_sequences_follow_one_another() -> None:
    known = state(header(0, 5))
    assert refused(known, header(5, 2)) is None
    code, message = refused(known, header(17)) or (None, "")
    assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert "orders-3: producer 9 epoch 0 sequence 17, expected 5" in message
    assert refused(known, header(4))
    assert refused(known, header(17, producer_id=10)) is None, "an unknown one may begin anywhere"


def test_sequences_begin_again_after_the_largest() -> None:
    known = state(header(SEQUENCE_MAX - 1, 2))
    assert refused(known, header(0)) is None
    assert refused(known, header(1))
    across = state(header(SEQUENCE_MAX, 3))
    assert across.entries[9].last_sequence == 1
    assert across.entries[9].batches[0].base_sequence == SEQUENCE_MAX
    assert refused(across, header(2)) is None
    assert across.duplicate(header(SEQUENCE_MAX, 3)) is not None


def test_the_last_five_batches_are_recognised() -> None:
    known = state(*(header(2 * i, 2, timestamp=1_000 + i) for i in range(7)))
    assert known.duplicate(header(2, 2)) is None
    found = known.duplicate(header(4, 2))
    assert found is not None
    assert (found.base_offset, found.last_offset, found.timestamp) == (4, 5, 1_002)
    assert known.duplicate(header(4, 1)) is None, "not the same batch"
    assert known.duplicate(header(5, 1)) is None
    assert known.duplicate(header(4, 2, epoch=1)) is None
    assert len(known.entries[9].batches) == 5


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    known = state(header(0, 5, epoch=2))
    code, message = refused(known, header(5, epoch=1)) or (None, "")
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert "producer 9 epoch 1, current 2" in message
    assert refused(known, header(5, epoch=3))
    assert refused(known, header(0, epoch=3)) is None
    known.append(header(0, epoch=3), 5, 1_000)
    assert known.entries[9].producer_epoch == 3
    assert len(known.entries[9].batches) == 1


def test_a_brokers_own_records_have_no_sequence_to_check() -> None:
    known = state(header(0, 5))
    known.check(header(-1), from_client=False)


COMMIT = EndTransactionMarker(ControlType.COMMIT, 0)
ABORT = EndTransactionMarker(ControlType.ABORT, 0)


def test_a_transaction_is_open_until_its_marker_is_replicated() -> None:
    known = state(header(0, 3), header(3, 2, transactional=True), header(5, transactional=True))
    assert known.first_unstable_offset == 3
    code, message = refused(known, header(6)) or (None, "")
    assert code is ErrorCode.INVALID_TXN_STATE
    assert "open since offset 3" in message
    completed = known.end_transaction(header(-1, transactional=True), 6, COMMIT)
    assert completed == (9, 3, 6, False)
    assert known.first_unstable_offset == 3
    known.on_high_watermark(6)
    assert known.first_unstable_offset == 3
    known.on_high_watermark(7)
    assert known.first_unstable_offset is None
    assert refused(known, header(6)) is None


def test_the_earliest_open_transaction_counts() -> None:
    known = state(
        header(0, transactional=True, producer_id=1),
        header(0, transactional=True, producer_id=2),
        header(0, transactional=True, producer_id=3),
    )
    done = known.end_transaction(header(-1, producer_id=1), 3, ABORT)
    assert done is not None
    assert done.is_aborted
    assert known.last_stable_offset_after(done) == 1
    known.on_high_watermark(4)
    assert known.first_unstable_offset == 1
    known.append(header(1, transactional=True, producer_id=1), 4, 1_000)
    for producer_id in (2, 3):
        done = known.end_transaction(header(-1, producer_id=producer_id), 5, COMMIT)
    assert done is not None
    assert known.last_stable_offset_after(done) == 4
    known.on_high_watermark(6)
    assert known.first_unstable_offset == 4


def test_a_marker_without_a_transaction_ends_none_but_fences() -> None:
    known = ProducerState(ORDERS)
    marker = EndTransactionMarker(ControlType.ABORT, 4)
    assert known.end_transaction(header(-1, epoch=2), 0, marker) is None
    assert refused(known, header(0, epoch=1))
    assert refused(known, header(5, epoch=2)), "the epoch is known, so it begins at 0"
    assert refused(known, header(0, epoch=2)) is None
    with pytest.raises(ApiError, match="coordinator epoch 3, current 4") as error:
        known.check_marker(9, 2, EndTransactionMarker(ControlType.COMMIT, 3))
    assert error.value.error_code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    with pytest.raises(ApiError, match="epoch 1, current 2"):
        known.check_marker(9, 1, marker)
    known.check_marker(9, 2, marker)


def test_silent_producers_are_forgotten_unless_in_a_transaction() -> None:
    known = state(
        header(0, producer_id=1, timestamp=1_000),
        header(0, producer_id=2, timestamp=5_000),
        header(0, producer_id=3, timestamp=1_000, transactional=True),
    )
    known.expire(6_000, 5_000)
    assert sorted(known.entries) == [2, 3]


def test_a_snapshot_is_kafkas_and_brings_everything_back() -> None:
    known = state(header(0, 2), header(2, 3), header(0, 1, producer_id=11, transactional=True))
    data = known.to_snapshot()
    assert data[:2] == b"\x00\x01"
    assert data[6:102] == bytes.fromhex(  # Kafka takes the last of a producer's batches
        "00000003 0000000000000009 0000 00000001 0000000000000001 00000001"
        "00000000000003e8 ffffffff ffffffffffffffff"
        "0000000000000009 0000 00000004 0000000000000004 00000002"
        "00000000000003e8 ffffffff ffffffffffffffff"
    )
    again = state(header(0, producer_id=77))
    again.load_snapshot(data, "x.snapshot")
    assert again.entries == known.entries
    assert again.first_unstable_offset == 5
    for repeated in (header(0, 2), header(2, 3)):
        assert again.duplicate(repeated) == known.duplicate(repeated)
        assert again.duplicate(repeated) is not None
    assert refused(again, header(5)) is None
    assert again.to_snapshot() == data


def test_of_many_batches_in_a_snapshot_the_last_five_count() -> None:
    known = state(*(header(number) for number in range(5)))
    newer = state(*(header(number) for number in range(7)))
    both = known.to_snapshot()[10:] + newer.to_snapshot()[10:]  # four batches are there twice
    head = (10).to_bytes(4, "big")
    data = b"\0\1" + crc32c(head + both).to_bytes(4, "big") + head + both
    again = ProducerState(ORDERS)
    again.load_snapshot(data, "x.snapshot")
    assert again.entries == newer.entries


def test_a_snapshot_of_a_fenced_producer_keeps_its_epoch() -> None:
    known = ProducerState(ORDERS)
    known.end_transaction(header(-1, epoch=2), 7, EndTransactionMarker(ControlType.ABORT, 4))
    again = ProducerState(ORDERS)
    again.load_snapshot(known.to_snapshot(), "x.snapshot")
    assert again.entries[9].coordinator_epoch == 4
    assert again.entries[9].batches == []
    assert refused(again, header(0, epoch=1))


def test_a_broken_snapshot_changes_nothing() -> None:
    data = state(header(0, 2)).to_snapshot()
    known = state(header(0, producer_id=5))
    for bad in (b"", data[:-1], data + b"x", b"\0\2" + data[2:], data[:-1] + b"x"):
        with pytest.raises(StorageError, match=r"x\.snapshot"):
            known.load_snapshot(bad, "x.snapshot")
    assert list(known.entries) == [5]


def test_silent_producers_are_looked_for_now_and_then(
    memory: MemoryStorage, open_log: OpenLog, batch: MakeBatch
) -> None:
    """One that has a transaction open is kept, however silent."""
    settings = {"producer_id_expiration_ms": 5_000}
    settings["producer_id_expiration_check_interval_ms"] = 10_000
    log = open_log(memory, **settings)
    ids = {"producer_epoch": 0, "base_sequence": 0}
    log.append_as_leader(batch(producer_id=7, **ids), 0, 1_000)
    log.append_as_leader(batch(producer_id=8, transactional=True, **ids), 0, 1_000)
    log.append_as_leader(batch(producer_id=9, timestamp=9_000, **ids), 0, 9_000)
    log.tick(at(10_999))
    assert set(log.producers.entries) == {7, 8, 9}
    log.tick(at(11_000))
    assert set(log.producers.entries) == {8, 9}
    log.tick(at(20_999))
    assert set(log.producers.entries) == {8, 9}
    log.tick(at(21_000))
    assert set(log.producers.entries) == {8}
