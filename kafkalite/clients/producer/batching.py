"""How columns become record batches of a wanted size, and how a batch gets a new sequence. [P]

Owns   nothing.
Never  walks all records to know their size: a sample of them is enough. The encoding caller
       checks the result against the hard limit and halves a batch that is too large.
Source record batch layout, KIP-98:

    base_offset 8 │ batch_length 4 │ leader_epoch 4 │ magic 1 │ crc 4 │ attributes 2 │ …
    … last_offset_delta 4 │ base_timestamp 8 │ max_timestamp 8 │
    … producer_id 8 │ producer_epoch 2 │ base_sequence 4 │ record_count 4 │ records
    the CRC covers everything from attributes on
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafkalite.core.protocol.checksum import crc32c
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.core.types import Columns, Headers, concat

RECORD_OVERHEAD_BYTES: Final = 10  # lengths and deltas around a record's key and value
SAMPLE: Final = 16
MARGIN_PERCENT: Final = 95  # samples differ a little
CRC_AT: Final = 17
CHECKED_FROM: Final = 21
PRODUCER_AT: Final = 43
CRC: Final = struct.Struct(">I")
PRODUCER: Final = struct.Struct(">qhi")

Waiter = tuple[int, int, Any]  # place in the batch, timestamp in ms, whose record it is


@dataclass(slots=True)
class OpenBatch:
    """Records that still gather. Closed when full, when it lingered, or at a flush.

    Columns of forms wait as they are, before the records that came later.
    """

    number: int
    created_ms: float
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    headers: list[Headers] | None = None
    waiters: list[Waiter] = field(default_factory=list)
    size_bytes: int = 0
    _before: list[Columns] = field(default_factory=list)
    _count_before: int = 0

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers,
        whose: object,
    ) -> None:
        """Adds one record."""
        place = len(self.values)
        if headers and self.headers is None:
            self.headers = [()] * place
        if self.headers is not None:
            self.headers.append(headers)
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp_ms)
        self.waiters.append((self._count_before + place, timestamp_ms, whose))

    def extend(self, columns: Columns, size_bytes: int) -> None:
        """Adds whole columns of `size_bytes` bytes that have no headers."""
        self.size_bytes += size_bytes
        if isinstance(columns.keys, Spans) or isinstance(columns.values, Spans):
            self._close_lists()
            # Far larger buffers are left: a batch may wait for long.
            columns = columns.where(b"\x01" * len(columns))
            self._before.append(Columns(columns.keys, columns.values, columns.timestamps))
            self._count_before += len(columns)
            return
        if self.headers is not None:
            self.headers.extend([()] * len(columns))
        self.keys.extend(columns.keys)
        self.values.extend(columns.values)
        self.timestamps.extend(columns.timestamps)

    def columns(self) -> Columns:
        """The records gathered so far."""
        lists = Columns(self.keys, self.values, self.timestamps, None, self.headers)
        return concat([*self._before, lists]) if self._before else lists

    def _close_lists(self) -> None:
        if self.values:
            self._before.append(
                Columns(self.keys, self.values, self.timestamps, None, self.headers)
            )
            self._count_before += len(self.values)
            self.keys, self.values, self.timestamps, self.headers = [], [], [], None


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """About how many bytes one record takes in a batch."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += 4 + len(name) + (len(content) if content else 0)
    return size


def estimate_bytes(columns: Columns, start: int, stop: int) -> int:
    """About how many bytes the records [start, stop) take, judged by a sample of them."""
    count = stop - start
    if count <= 0:
        return 0
    step = -(-count // SAMPLE)
    places = range(start, stop, step)
    keys, values, headers = columns.keys, columns.values, columns.headers
    try:
        if headers is None:
            size = sum(record_bytes(keys[i], values[i]) for i in places)
        else:
            size = sum(record_bytes(keys[i], values[i], headers[i]) for i in places)
    except TypeError:
        check_bytes(columns)  # says which record it is
        raise
    return size * count // len(places)


def chunks(columns: Columns, batch_bytes: int) -> Iterator[tuple[Columns, int]]:
    """`columns` in pieces of about `batch_bytes`, each with its estimated size in bytes.

    Each piece is judged by a sample of its own, so record sizes may drift along the columns.
    """
    start, total = 0, len(columns)
    count = total
    while start < total:
        stop = min(start + count, total)
        size = estimate_bytes(columns, start, stop)
        while size > batch_bytes and stop - start > 1:
            fitting = (stop - start) * batch_bytes // size * MARGIN_PERCENT // 100
            stop = start + max(1, min(fitting, stop - start - 1))
            size = estimate_bytes(columns, start, stop)
        yield columns if stop - start == total else columns.slice(start, stop), size
        start, count = stop, _as_many(stop - start, size, batch_bytes)


def _as_many(count: int, size: int, batch_bytes: int) -> int:
    """How many records like the last `count` fill a batch, so that one look mostly is enough."""
    return max(1, min(count * batch_bytes // max(size, 1), 2 * count) * MARGIN_PERCENT // 100)


def halves(
    columns: Columns, waiters: Sequence[Waiter]
) -> tuple[tuple[Columns, list[Waiter]], tuple[Columns, list[Waiter]]]:
    """Two halves of a batch of at least two records, each with the waiters of its records."""
    middle = len(columns) // 2
    assert middle, "a single record cannot be halved"
    first = [waiter for waiter in waiters if waiter[0] < middle]
    second = [(place - middle, ts, whose) for place, ts, whose in waiters if place >= middle]
    return (
        (columns.slice(0, middle), first),
        (columns.slice(middle, len(columns)), second),
    )


def restamp(data: bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """The same batch from another producer, epoch or sequence, with its CRC made right."""
    batch = bytearray(data)
    PRODUCER.pack_into(batch, PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    CRC.pack_into(batch, CRC_AT, crc32c(bytes(batch[CHECKED_FROM:])))
    return bytes(batch)


def check_lengths(columns: Columns) -> None:
    """Raises ValueError if the columns are not equally long."""
    lengths = [len(columns.keys), len(columns.values), len(columns.timestamps)]
    if columns.headers is not None:
        lengths.append(len(columns.headers))
    if len(set(lengths)) > 1:
        named = zip(("keys", "values", "timestamps", "headers"), lengths, strict=False)
        raise ValueError("columns differ: " + ", ".join(f"{n:,} {name}" for name, n in named))


def check_bytes(columns: Columns) -> None:
    """Raises TypeError naming the first record whose key or value is neither bytes nor None."""
    for name, column in (("key", columns.keys), ("value", columns.values)):
        if isinstance(column, Spans) or set(map(type, column)) <= {bytes, type(None)}:
            continue
        for place, entry in enumerate(column):
            if entry is not None and not isinstance(entry, bytes):
                raise TypeError(
                    f"record {place}: the {name} is {type(entry).__name__}, not bytes or None"
                )
