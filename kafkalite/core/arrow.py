"""Columns of bytes and of integers as Arrow arrays; needs pyarrow.                          [P]

    key value    binary                      timestamp    timestamp[ms, UTC]
    offset       int64, null where none      headers      list of (key, value), empty where none

Spans are copied as a whole and integers are lent, so neither costs an object for each record.

Owns   nothing.
Fails  with OverflowError for keys or values of 2 GiB and more, with Arrow's errors for entries that
       are no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.core.columns import Form

MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", MILLISECONDS),
        ("offset", pa.int64()),
        ("headers", pa.list_(HEADER)),
    ]
)


def binary(column: Sequence[bytes | None]) -> pa.Array:
    """A column of bytes and None."""
    quick = getattr(column, "contiguous", None)
    if quick is None:
        return pa.array(column, pa.binary())
    offsets, data, validity = quick()
    parts = [None if part is None else pa.py_buffer(part) for part in (validity, offsets, data)]
    return pa.Array.from_buffers(pa.binary(), len(column), parts)


def integers(column: Sequence[int], kind: pa.DataType | None = None) -> pa.Array:
    """A column of integers of 64 bits as int64, or another type of so many bits."""
    kind = pa.int64() if kind is None else kind
    if isinstance(column, range) and column and column.step == 1:
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(column))
        return pc.cumulative_sum(ones, start=column.start - 1).view(kind)
    if isinstance(column, Form):
        try:
            lent = pa.py_buffer(column)
        except TypeError:  # a form that lends no numbers
            return pa.array(list(column), kind)
        return pa.Array.from_buffers(kind, len(column), [None, lent])
    return pa.array(column, kind)


def header_lists(headers: Sequence[Any] | None, count: int) -> pa.Array:
    """A list for each of `count` records; empty ones where no record has a header."""
    kind = SCHEMA.field("headers").type
    if headers is None:
        none = pa.py_buffer(bytes(4 * (count + 1)))
        return pa.Array.from_buffers(kind, count, [None, none], children=[pa.array([], HEADER)])
    return pa.array(
        [[{"key": name, "value": value} for name, value in row] for row in headers], kind
    )


def record_batch(
    keys: Sequence[Any],
    values: Sequence[Any],
    timestamps: Sequence[int],
    offsets: Sequence[int] | None,
    headers: Sequence[Any] | None,
) -> pa.RecordBatch:
    """All columns of a batch, by `SCHEMA`."""
    count = len(values)
    arrays = [
        binary(keys),
        binary(values),
        integers(timestamps, MILLISECONDS),
        pa.nulls(count, pa.int64()) if offsets is None else integers(offsets),
        header_lists(headers, count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
