"""Rows of partials in a repartition topic: one for many records of a key in a window.        [P]

    key        that of the records
    value      ROW · version Int8 · crc32 of the table's shape Int32
               · MessagePack [window start, records, a partial for each aggregate]
    timestamp  the newest of the records; headers those of the last one

Rows and records may stand in one topic: a value says by its first bytes that it is a row, and no
record may begin with them.

Owns   the form of rows.
Fails  with SerdeError for a row of another version, or of a table of another shape.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Self, overload
from zlib import crc32

from msgpack import Packer, UnpackException, unpackb

from kafkalite.core.columns import Form, take
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.core.types import Columns
from kafkalite.errors import SerdeError
from kafkalite.streams import plan as p
from kafkalite.streams.combining import shape_of
from kafkalite.streams.local.watermarks import MARKER_KEY

ROW: Final = b"\x00kafkalite-partial\x00"
ROW_VERSION: Final = 1
ROW_HEAD: Final = struct.Struct(f">{len(ROW)}sbI")

Row = tuple[Any, ...]  # window start, records, partials


class PartialRows(Form):
    """A column of rows in the place of values."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> Row | Self:
        if isinstance(place, slice):
            return type(self)(self.rows[place])
        return self.rows[place]

    def where(self, mask: Sequence[object]) -> Self:
        """The rows whose entry in the mask is true."""
        return type(self)([row for row, keep in zip(self.rows, mask, strict=True) if keep])

    def take(self, indexes: Sequence[int]) -> Self:
        """The rows at `indexes`."""
        return type(self)(take(self.rows, indexes))

    def followed_by(self, others: Sequence[Self]) -> Self:
        """These rows and others."""
        return type(self)([row for each in (self, *others) for row in each.rows])


class RowFormat:
    """How the rows of one table are written."""

    def __init__(self, node: p.Aggregate) -> None:
        shape = shape_of(node)
        self.name, self.length = node.name, 2 + len(node.aggregates)
        self.head = ROW_HEAD.pack(ROW, ROW_VERSION, crc32(shape.encode()))

    def encode(self, rows: Iterable[Row]) -> list[bytes]:
        """Values of records. OverflowError for an int of more than 64 bits."""
        head, pack = self.head, Packer().pack
        return [head + pack(row) for row in rows]

    def decode(self, values: Sequence[bytes | None]) -> PartialRows:
        """The rows in values."""
        head, skip = self.head, len(self.head)
        rows: list[Row] = []
        for index, value in enumerate(values):
            if value is None or not value.startswith(head):
                raise SerdeError(f"a row of partials of another table than {self.name!r}", index)
            try:
                row = unpackb(value[skip:], use_list=False)
            except (ValueError, UnpackException) as error:
                raise SerdeError(f"a row of partials: {error}", index) from None
            if type(row) is not tuple or len(row) != self.length:
                raise SerdeError(f"a row of partials of {self.name!r} of another length", index)
            rows.append(row)
        return PartialRows(rows)


def is_row(value: bytes | None) -> bool:
    """Whether a value is a row of some table."""
    return value is not None and value.startswith(ROW)


def may_hold_rows(values: Sequence[bytes | None]) -> bool:
    """False only where no value is a row."""
    if isinstance(values, Spans):
        return ROW in values.contiguous()[1]
    return any(map(is_row, values))


def runs(columns: Columns) -> list[Columns]:
    """The columns cut where rows and records meet. Markers stay with what follows them."""
    if not may_hold_rows(columns.values):
        return [columns]
    found: list[bool] = []
    for key, value in zip(reversed(columns.keys), reversed(columns.values), strict=True):
        follows = bool(found) and found[-1]
        found.append(follows if key == MARKER_KEY else is_row(value))
    found.reverse()
    cuts = [at for at in range(1, len(found)) if found[at] != found[at - 1]]
    bounds = [0, *cuts, len(found)]
    return [columns.slice(first, stop) for first, stop in pairwise(bounds)]
