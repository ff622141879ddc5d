"""The policy by itself: what is to be done with a batch, and with a record."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.compaction.retain import (
    Cleaned,
    LastBatch,
    Stays,
    Transactions,
    Verdict,
    judge,
    keeps,
)
from kafkalite.core.log.values import AbortedTransaction
from kafkalite.core.protocol.records import BatchHeader, ControlType, EndTransactionMarker

COMMIT = EndTransactionMarker(ControlType.COMMIT, 0)
ABORT = EndTransactionMarker(ControlType.ABORT, 0)
TRANSACTIONAL, CONTROL, HORIZON = 0x10, 0x30, 0x40


def header(
    offset: int, *, attributes: int = 0, producer_id: int = -1, **changes: Any
) -> BatchHeader:
    fields = {
        "base_offset": offset, "batch_length": 49, "partition_leader_epoch": 0, "magic": 2,
        "crc": 0, "attributes": attributes, "last_offset_delta": 0, "base_timestamp": 1_000,
        "max_timestamp": 1_000, "producer_id": producer_id, "producer_epoch": 0,
        "base_sequence": 0, "record_count": 1, **changes,
    }  # fmt: skip
    return BatchHeader(**fields)


def cleaned(now_ms: int = 0, **producers: LastBatch) -> Cleaned:
    return Cleaned(
        100, 100, {int(name[1:]): last for name, last in producers.items()}, now_ms, now_ms
    )


@pytest.mark.parametrize(
    ("has_value", "latest", "tombstones_go", "stays"),
    [
        (True, 5, False, True),
        (True, -1, False, True),
        (True, 6, False, False),
        (True, None, False, False),
        (False, 5, False, True),
        (False, 5, True, False),
        (False, -1, True, False),
        (False, 6, False, False),
        (True, 5, True, True),
    ],
)
def test_a_record_stays_if_it_is_the_latest_of_its_key(
    has_value: bool, latest: int | None, tombstones_go: bool, stays: bool
) -> None:
    def at(offset: int, until: int) -> bool:
        return keeps(
            offset, has_value, latest=latest, mapped_until=until, tombstones_go=tombstones_go
        )

    assert at(5, until=10) is stays
    assert at(5, until=5), "the map has not seen it"


def test_a_plain_batch_is_judged_by_its_keys_alone() -> None:
    """What the native loops take for granted."""
    none = Transactions([AbortedTransaction(7, 0, 50, 51)])
    for now_ms in (0, 5_000):
        verdict = judge(header(5, producer_id=7), None, none, cleaned(now_ms))
        assert verdict == Verdict(Stays.LATEST, False, False, False)


def test_tombstones_go_when_the_headers_horizon_has_passed() -> None:
    batch = header(5, attributes=HORIZON)
    for now_ms, go in ((999, False), (1_000, True)):
        assert judge(batch, None, Transactions([]), cleaned(now_ms)).tombstones_go is go


@pytest.mark.parametrize(
    ("last", "batch", "stays"),
    [
        (LastBatch(5, 0), header(5, producer_id=7), True),
        (LastBatch(6, 0), header(5, producer_id=7), False),
        (LastBatch(6, 0), header(5, producer_id=7, last_offset_delta=1), True),
        (LastBatch(5, 0), header(5, producer_id=8), False),
        (LastBatch(5, 0), header(5), False),
        (LastBatch(None, 0), header(5, producer_id=7), False),
        (LastBatch(None, 0), header(5, producer_id=7, attributes=CONTROL), True),
        (LastBatch(None, 1), header(5, producer_id=7, attributes=CONTROL), False),
        (LastBatch(5, 0), header(99), True),
        (LastBatch(5, 0), header(95, last_offset_delta=4), True),
    ],
)
def test_the_header_of_a_producers_last_batch_stays(
    last: LastBatch, batch: BatchHeader, stays: bool
) -> None:
    facts = cleaned(p7=last)
    marker = COMMIT if batch.is_control else None
    assert judge(batch, marker, Transactions([]), facts).keep_empty is stays
    if stays and not batch.is_control:
        assert batch.last_offset in facts.needed


def test_aborted_batches_go_and_their_marker_after_them() -> None:
    aborted = AbortedTransaction(7, 10, 20, 21)
    walk = Transactions([aborted, AbortedTransaction(8, 12, 22, 23)])
    data = header(15, producer_id=7, attributes=TRANSACTIONAL)
    assert judge(data, None, walk, cleaned()).stays is Stays.NONE
    end = header(20, producer_id=7, attributes=CONTROL)
    assert judge(end, ABORT, walk, cleaned(9_999)) == Verdict(Stays.ALL, False, False, False)
    assert walk.still_aborted == [aborted]
    other = header(22, producer_id=8, attributes=CONTROL)
    assert judge(other, ABORT, walk, cleaned()) == Verdict(Stays.ALL, False, True, False)
    assert walk.still_aborted == [aborted], "of the other no batch was met"
    again = header(30, producer_id=7, attributes=TRANSACTIONAL)
    assert judge(again, None, walk, cleaned()).stays is Stays.LATEST, "its next one is open"


def test_a_marker_goes_when_its_time_is_over_and_nothing_needs_it() -> None:
    due = header(20, producer_id=7, attributes=CONTROL | HORIZON)
    assert judge(due, COMMIT, Transactions([]), cleaned(1_000)).stays is Stays.NONE
    assert judge(due, COMMIT, Transactions([]), cleaned(999)).stays is Stays.ALL
    walk = Transactions([])
    judge(header(15, producer_id=7, attributes=TRANSACTIONAL), None, walk, cleaned())
    assert judge(due, COMMIT, walk, cleaned(1_000)).stays is Stays.ALL, "a batch of it is there"
    needed = cleaned(1_000, p7=LastBatch(None, 0))
    assert judge(due, COMMIT, Transactions([]), needed).stays is Stays.ALL, "it tells the epoch"


def test_control_records_of_a_kind_to_come_stay() -> None:
    unknown = header(20, producer_id=7, attributes=CONTROL | HORIZON)
    assert judge(unknown, None, Transactions([]), cleaned(9_999)).stays is Stays.ALL
    emptied = unknown._replace(record_count=0)
    assert judge(emptied, None, Transactions([]), cleaned(9_999)).stays is Stays.NONE
