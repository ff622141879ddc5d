"""A log's files inspected from outside: their content and their faults.                    [D]

    .log        every batch: framing, CRC, offsets that ascend, records that decode
    .index      entries ascend, and each points at the batch that holds its offset
    .timeindex  entries ascend, and each bears the largest timestamp of its offset's batch
    .txnindex   each entry ends with the abort marker of its producer

Owns   nothing, repairs nothing: a log that a broker has open may be inspected too.
Never  stops at the first fault, unless the start of the next batch is unknown.
Source apache/kafka DumpLogSegments; index.py has a picture of an index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple, Protocol

from kafkalite.core.log.index import OFFSET_ENTRY, TIME_ENTRY
from kafkalite.core.log.producer_state import marker_of
from kafkalite.core.log.values import AbortedTransaction
from kafkalite.core.protocol.records import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    ControlType,
    decode,
    read_header,
    verify_crc,
)
from kafkalite.core.types import Columns
from kafkalite.errors import CorruptBatchError

RUN_BYTES: Final = 1 << 20
BATCH_BYTES_MAX: Final = 1 << 30  # a length beyond it is a fault, not a batch
RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
ABORTED_ENTRY: Final = Struct(">hqqqq")


class Readable(Protocol):
    """A file that is read from."""

    @property
    def size_bytes(self) -> int:
        """Its size when it was opened."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`."""
        ...


class Fault(NamedTuple):
    """An error at a byte of a file."""

    position: int
    what: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole batch as it lies in a file."""

    position: int
    header: BatchHeader
    data: memoryview

    def records(self) -> Columns:
        """Its records; CorruptBatchError."""
        return decode(self.data, check_crc=False)


def batches(file: Readable) -> Iterator[Batch | Fault]:
    """Every batch of a log file, its CRC checked; a fault in the place of a wrong one.

    After a wrong CRC the next batch follows; after an impossible length, nothing does.
    """
    position, end = 0, file.size_bytes
    run, start = memoryview(b""), 0
    while position < end:
        if position + BATCH_HEADER_BYTES > start + len(run):
            run, start = memoryview(file.read(position, RUN_BYTES)), position
        try:
            header = read_header(run, position - start)
        except CorruptBatchError as error:
            yield Fault(position, _without_place(error))
            return
        size = header.size_bytes
        if position + size > end or size > BATCH_BYTES_MAX:
            what = f"a batch of {size} bytes, {end - position} are left in the file"
            yield Fault(position, what)
            return
        if position + size > start + len(run):
            run, start = memoryview(file.read(position, max(RUN_BYTES, size))), position
        data = run[position - start :][:size]
        try:
            verify_crc(data, 0, header)
            yield Batch(position, header, data)
        except CorruptBatchError as error:
            yield Fault(position, _without_place(error))
        position += size


def _without_place(error: CorruptBatchError) -> str:
    """The message of an error about a slice: its own byte position says nothing of the file."""
    text = str(error)
    head, colon, rest = text.partition(": ")
    return rest if colon and head.removeprefix("batch at ").startswith("byte ") else text


class Seen(NamedTuple):
    """The facts about one batch that an index must agree with."""

    position: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    aborts: int | None  # the producer whose transaction this control batch aborts


@dataclass(slots=True)
class SegmentCheck:
    """Checks one segment's log, then its indexes against the log."""

    base_offset: int
    next_offset: int  # where the segment before it ended
    batches: int = 0
    records: int = 0

    def log(self, file: Readable) -> Iterator[Seen | Fault]:
        """Checks the log. Yields its good batches, and faults."""
        self.next_offset = max(self.next_offset, self.base_offset)
        for found in batches(file):
            if isinstance(found, Fault):
                yield found
                continue
            self.batches += 1
            yield from self._batch(found)

    def _batch(self, batch: Batch) -> Iterator[Seen | Fault]:
        header, position = batch.header, batch.position
        if header.base_offset < self.next_offset:
            expected = f"expected {self.next_offset} or more"
            yield Fault(position, f"base offset {header.base_offset}, {expected}")
        if not 0 <= header.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX:
            yield Fault(position, f"last offset {header.last_offset} is out of the segment's range")
        self.next_offset = max(self.next_offset, header.next_offset)
        try:
            records = batch.records()
        except CorruptBatchError as error:
            yield Fault(position, _without_place(error))
            return
        self.records += len(records)
        offsets: Sequence[int] = records.offsets or ()
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            yield Fault(position, "the offsets of the records do not ascend")
        if len(offsets) and offsets[-1] > header.last_offset:
            yield Fault(position, f"offset {offsets[-1]} after the last one, {header.last_offset}")
        yield Seen(
            position,
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            _aborted_producer(batch),
        )


def _aborted_producer(batch: Batch) -> int | None:
    if not batch.header.is_control:
        return None
    marker = marker_of(batch.data)
    aborts = marker is not None and marker.control_type is ControlType.ABORT
    return batch.header.producer_id if aborts else None


# ---- indexes -----------------------------------------------------------------------------------


class OffsetEntry(NamedTuple):
    """The batch with `offset` begins at `log_position`, or before it."""

    position: int  # in the index
    offset: int
    log_position: int


class TimeEntry(NamedTuple):
    """No record below `offset` is later than `timestamp`."""

    position: int
    timestamp: int
    offset: int


class AbortedEntry(NamedTuple):
    """An aborted transaction."""

    position: int
    version: int
    transaction: AbortedTransaction


def offset_entries(data: bytes, base_offset: int) -> Iterator[OffsetEntry | Fault]:
    """The entries of an offset index, without space reserved for more."""
    yield from _odd_end(data, OFFSET_ENTRY)
    for number, (relative, log_position) in enumerate(_used(data, OFFSET_ENTRY)):
        yield OffsetEntry(number * OFFSET_ENTRY.size, base_offset + relative, log_position)


def time_entries(data: bytes, base_offset: int) -> Iterator[TimeEntry | Fault]:
    """The entries of a time index, without space reserved for more."""
    yield from _odd_end(data, TIME_ENTRY)
    for number, (timestamp, relative) in enumerate(_used(data, TIME_ENTRY)):
        yield TimeEntry(number * TIME_ENTRY.size, timestamp, base_offset + relative)


def aborted_entries(data: bytes) -> Iterator[AbortedEntry | Fault]:
    """The entries of a transaction index."""
    yield from _odd_end(data, ABORTED_ENTRY)
    whole = len(data) - len(data) % ABORTED_ENTRY.size
    for number, (version, *rest) in enumerate(ABORTED_ENTRY.iter_unpack(data[:whole])):
        position = number * ABORTED_ENTRY.size
        if version != 0:
            yield Fault(position, f"an entry of version {version}, expected 0")
        yield AbortedEntry(position, version, AbortedTransaction(*rest))


def _odd_end(data: bytes, entry: Struct) -> Iterator[Fault]:
    odd = len(data) % entry.size
    if odd:
        yield Fault(len(data) - odd, f"{odd} bytes, where entries have {entry.size}")


def _used(data: bytes, entry: Struct) -> Iterator[tuple[int, int]]:
    """Whole entries. Kafka reserves an open segment's indexes: zeros at their end are none."""
    used = len(data.rstrip(b"\0"))
    whole = min(-(-used // entry.size), len(data) // entry.size)
    for number in range(whole):
        first, second = entry.unpack_from(data, number * entry.size)
        yield first, second


def check_offset_index(data: bytes, base_offset: int, seen: Sequence[Seen]) -> Iterator[Fault]:
    """The errors of an offset index, given the batches of its log."""
    by_position = {batch.position: batch for batch in seen}
    before = OffsetEntry(0, base_offset - 1, -1)
    for entry in offset_entries(data, base_offset):
        if isinstance(entry, Fault):
            yield entry
            continue
        if entry.offset <= before.offset or entry.log_position <= before.log_position:
            yield Fault(entry.position, f"offset {entry.offset} does not follow {before.offset}")
        batch = by_position.get(entry.log_position)
        if batch is None:
            yield Fault(entry.position, f"no batch begins at byte {entry.log_position} of the log")
        elif not batch.base_offset <= entry.offset <= seen[-1].last_offset:
            where = f"the batch at byte {entry.log_position} begins at {batch.base_offset}"
            yield Fault(entry.position, f"offset {entry.offset}, {where}")
        before = entry


def check_time_index(data: bytes, base_offset: int, seen: Sequence[Seen]) -> Iterator[Fault]:
    """The errors of a time index, given the batches of its log."""
    before = TimeEntry(0, -1, base_offset - 1)
    todo = iter(seen)
    batch = next(todo, None)
    largest = -1
    for entry in time_entries(data, base_offset):
        if isinstance(entry, Fault):
            yield entry
            continue
        if entry.timestamp <= before.timestamp or entry.offset < before.offset:
            yield Fault(
                entry.position, f"time {entry.timestamp} does not follow {before.timestamp}"
            )
        while batch is not None and batch.base_offset <= entry.offset:
            largest = max(largest, batch.max_timestamp)
            batch = next(todo, None)
        if entry.timestamp != largest:
            what = f"time {entry.timestamp} at offset {entry.offset}, the log has {largest}"
            yield Fault(entry.position, what)
        before = entry


def check_transaction_index(data: bytes, seen: Sequence[Seen]) -> Iterator[Fault]:
    """The errors of a transaction index, given the batches of its log."""
    aborts = {batch.base_offset: batch.aborts for batch in seen if batch.aborts is not None}
    for entry in aborted_entries(data):
        if isinstance(entry, Fault):
            yield entry
            continue
        ended = entry.transaction
        if aborts.get(ended.last_offset) != ended.producer_id:
            what = f"no abort marker of producer {ended.producer_id} at offset {ended.last_offset}"
            yield Fault(entry.position, what)
        if not ended.first_offset <= ended.last_offset:
            what = f"a transaction from offset {ended.first_offset} to {ended.last_offset}"
            yield Fault(entry.position, what)
