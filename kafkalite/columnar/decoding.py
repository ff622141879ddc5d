"""Rows decoded: keys and values as Arrow arrays of known types, and what could not be read. [D]

    decoder = Decoder(Text(), AvroValues(schema, registry), on_error="collect")
    for rows in read_range(settings, wanted):
        decoded = decoder.decode(rows)
        decoded.key, decoded.value, decoded.unread

    fail       a record that cannot be read is an error that names its topic, partition and offset
    skip       it is left out
    null       its value is null, its key too if that is what cannot be read
    collect    it is left out; `unread` has its bytes and the reason

Where a column has such a record, it is halved until the record stands alone: others keep their
quick way.

Owns   the count of records that could not be read.
Fails  with SerdeError under `fail`; with what keeps the registry from answering, always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from kafkalite.columnar.formats import Format
from kafkalite.columnar.rows import Rows
from kafkalite.errors import ConfigError, SerdeError

OnError = Literal["fail", "skip", "null", "collect"]
ON_ERROR: Final = ("fail", "skip", "null", "collect")


@dataclass(frozen=True, slots=True)
class Unread:
    """A record that could not be read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    reason: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows with their keys and values as arrays of the same length; what was left out, if asked."""

    rows: Rows
    key: pa.Array
    value: pa.Array
    unread: tuple[Unread, ...] = ()


class Decoder:
    """Decodes the rows of one topic."""

    def __init__(self, key: Format, value: Format, *, on_error: OnError = "fail") -> None:
        if on_error not in ON_ERROR:
            raise ConfigError(f"on_error is {on_error!r}, not one of {', '.join(ON_ERROR)}")
        self._key, self._value, self._on_error = key, value, on_error
        self.unread_count = 0

    def decode(self, rows: Rows) -> Decoded:
        """The rows that can be read."""
        key, of_keys = self._column(self._key, rows, rows.columns.keys)
        value, of_values = self._column(self._value, rows, rows.columns.values)
        reasons = of_values | of_keys
        if not reasons:
            return Decoded(rows, key, value)
        self.unread_count += len(reasons)
        if self._on_error == "null":
            return Decoded(rows, key, value)
        unread: tuple[Unread, ...] = ()
        if self._on_error == "collect":
            unread = tuple(_unread(rows, index, reasons[index]) for index in sorted(reasons))
        mask = bytes(index not in reasons for index in range(len(rows)))
        kept = pa.array([bool(bit) for bit in mask])
        return Decoded(rows.where(mask), key.filter(kept), value.filter(kept), unread)

    def _column(
        self, format_: Format, rows: Rows, column: Sequence[bytes | None]
    ) -> tuple[pa.Array, dict[int, str]]:
        """The array, with null for what cannot be read, and why it cannot be by its index."""
        try:
            return format_.arrow(rows.topic, column), {}
        except SerdeError as error:
            if self._on_error == "fail":
                raise _placed(error, rows) from error
        reasons: dict[int, str] = {}
        parts = _halved(format_, rows.topic, column, 0, reasons)
        return pa.concat_arrays(parts), reasons


def _halved(
    format_: Format,
    topic: str,
    column: Sequence[bytes | None],
    first: int,
    reasons: dict[int, str],
) -> list[pa.Array]:
    try:
        return [format_.arrow(topic, column)]
    except SerdeError as error:
        if len(column) == 1:
            reasons[first] = error.words
            return [pa.nulls(1, format_.type)]
    middle = len(column) // 2
    return [
        *_halved(format_, topic, column[:middle], first, reasons),
        *_halved(format_, topic, column[middle:], first + middle, reasons),
    ]


def _placed(error: SerdeError, rows: Rows) -> SerdeError:
    where = f"{rows.topic}-{rows.partition}"
    if error.index is not None:
        where = f"{where} offset {rows.offsets[error.index]}"
    return error.of_record(where)


def _unread(rows: Rows, index: int, reason: str) -> Unread:
    columns = rows.columns
    return Unread(
        rows.topic,
        rows.partition,
        rows.offsets[index],
        columns.timestamps[index],
        columns.keys[index],
        columns.values[index],
        reason,
    )
