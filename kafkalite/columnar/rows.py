"""Rows: some records of one partition as columns of bytes, not yet decoded.                  [P]

    a fetched response ──> batches, decoded in native code ──> Rows of a bounded size

Keys and values are spans of the fetched bytes, so a record costs no Python object.

Owns   the bound: ROWS_MAX records, and BYTES_MAX bytes unless one record alone is larger.
Fails  with CorruptBatchError for bytes that are no batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkalite.clients.consumer.positions import Fetched
from kafkalite.core.protocol.records import TimestampType
from kafkalite.core.types import Columns, concat

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX: Final = 65_536
BYTES_MAX: Final = 8 << 20  # of keys and values
FORMS_FROM: Final = 16  # records of a batch: Arrow takes forms as a whole, lists object by object


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of one partition, in order; their timestamps are all of one type."""

    topic: str
    partition: int
    columns: Columns
    timestamp_type: TimestampType = TimestampType.CREATE_TIME

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def offsets(self) -> Sequence[int]:
        """Of each record."""
        assert self.columns.offsets is not None, "what is read from a log has offsets"
        return self.columns.offsets

    def to_arrow(self) -> pa.RecordBatch:
        """key, value, timestamp (ms, UTC), offset, headers."""
        return self.columns.to_arrow()

    def where(self, keep: Sequence[object]) -> Rows:
        """The records whose entry in `keep` is true."""
        return Rows(self.topic, self.partition, self.columns.where(keep), self.timestamp_type)

    def bounded(self) -> Iterator[Rows]:
        """The same records in parts that keep the bound."""
        size = len(self)
        most = min(ROWS_MAX, max(1, size * BYTES_MAX // max(1, payload_bytes(self.columns))))
        if size <= most:
            yield self
            return
        for start in range(0, size, most):
            part = self.columns.slice(start, min(size, start + most))
            yield from Rows(self.topic, self.partition, part, self.timestamp_type).bounded()


def payload_bytes(columns: Columns) -> int:
    """The bytes of all keys and values."""
    return _bytes_of(columns.keys) + _bytes_of(columns.values)


def _bytes_of(column: Sequence[bytes | None]) -> int:
    quick: int | None = getattr(column, "bytes_total", None)
    return sum(len(data) for data in column if data is not None) if quick is None else quick


def rows_of(
    fetched: Fetched, topic: str, partition: int, start: int, end: int, *, check_crcs: bool = True
) -> Iterator[Rows]:
    """The records [start, end) of a response."""
    for kind, parts in _runs(fetched, start, end, check_crcs):
        yield from Rows(topic, partition, concat(parts), kind).bounded()


def _runs(
    fetched: Fetched, start: int, end: int, check_crcs: bool
) -> Iterator[tuple[TimestampType, list[Columns]]]:
    """Batches that go into one `Rows`: of one type of timestamps, and not too many bytes."""
    run: list[Columns] = []
    kind, size = TimestampType.CREATE_TIME, 0
    while fetched:
        header, columns = fetched.read(check_crcs, as_forms=True, few=FORMS_FROM)
        if columns is None or header.next_offset <= start:
            continue
        columns = within(columns, start, end)
        if not len(columns):
            continue
        if run and (header.timestamp_type is not kind or size >= BYTES_MAX):
            yield kind, run
            run, size = [], 0
        kind = header.timestamp_type
        run.append(columns)
        size += payload_bytes(columns)
    if run:
        yield kind, run


def within(columns: Columns, start: int, end: int) -> Columns:
    """The records [start, end)."""
    offsets = columns.offsets
    assert offsets is not None, "what is read from a log has offsets"
    if not offsets or (offsets[0] >= start and offsets[-1] < end):
        return columns
    return columns.slice(bisect_left(offsets, start), bisect_left(offsets, end))
