"""How many bytes a record takes in its topic, and which are too many.                     [P]

Owns   nothing. A topic's `max.message.bytes` bounds a batch, so a record is measured as the only
       one of its batch, exactly.
Source Kafka's message format 2: a batch header of 61 bytes, then lengths as zigzag varints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kafkalite.core.protocol.record_codec import Spans
from kafkalite.core.types import Columns, Headers

BATCH_BYTES: Final = 61
OVERHEAD_BYTES_MAX: Final = 80  # around key and value, in a batch of one without headers
FIXED_BYTES: Final = 3  # attributes, the deltas of timestamp and offset
JOINED_RECORDS: Final = 256
JOINED_BYTES_MAX: Final = 65_536  # of so many; larger records are measured one by one
Limits = Mapping[str, int]  # by topic; one that is missing has no known limit


class RecordTooLarge(ValueError):
    """A record that its topic does not take."""

    def __init__(self, topic: str, size: int, limit: int) -> None:
        super().__init__(
            f"{size:,} bytes are more than topic {topic!r} takes in a record "
            f"(max.message.bytes={limit:,})"
        )


def too_large(columns: Columns, limit: int) -> list[tuple[int, int]]:
    """The records that are larger than `limit` bytes: index and size of each."""
    has_headers = columns.headers is not None and any(columns.headers)
    if not has_headers and _are_small(columns, limit - OVERHEAD_BYTES_MAX):
        return []
    sizes = (
        record_bytes(key, value, () if columns.headers is None else columns.headers[index])
        for index, (key, value) in enumerate(zip(columns.keys, columns.values, strict=True))
    )
    return [(index, size) for index, size in enumerate(sizes) if size > limit]


def _are_small(columns: Columns, limit: int) -> bool:
    """Whether surely each key and value have fewer bytes together; at little cost a record."""
    keys, values, count = columns.keys, columns.values, len(columns)
    if isinstance(keys, Spans) and isinstance(values, Spans):
        return _longest(keys) + _longest(values) < limit
    for start in range(0, count, JOINED_RECORDS):
        stop = start + JOINED_RECORDS
        if _total(keys[start:stop]) + _total(values[start:stop]) >= min(limit, JOINED_BYTES_MAX):
            return _longest(keys) + _longest(values) < limit
    return True


def _total(column: Sequence[bytes | None]) -> int:
    if isinstance(column, Spans):
        return column.bytes_total
    try:
        return len(b"".join(column))  # type: ignore[arg-type]  # copies faster than Python adds
    except TypeError:
        return len(b"".join(filter(None, column)))


def _longest(column: Sequence[bytes | None]) -> int:
    if isinstance(column, Spans):
        return column.longest
    try:
        return max(map(len, column))  # type: ignore[arg-type]
    except TypeError:
        return max(map(len, filter(None, column)), default=0)


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """The bytes of a batch that holds this record alone."""
    size = FIXED_BYTES + _varint_bytes(len(headers))
    for part in (key, value):
        size += 1 if part is None else _varint_bytes(len(part)) + len(part)
    for name, data in headers:
        raw = name.encode()
        size += _varint_bytes(len(raw)) + len(raw)
        size += 1 if data is None else _varint_bytes(len(data)) + len(data)
    return BATCH_BYTES + _varint_bytes(size) + size


def _varint_bytes(number: int) -> int:
    """The bytes of a number that is not negative, as a zigzag varint."""
    return max(1, ((2 * number).bit_length() + 6) // 7)
