"""Records of one schema read as another: in native columns where that can be, else by fastavro. [D]

    fast    the plan's program makes columns of all records; each value is a `Row` that looks at
            them like a dict, or a dict where the caller asked for dicts
    slow    fastavro makes a dict of each record
    form    as fast; the column is an Arrow array, too

All give equal values. Which one it is is decided when the reader is made. Records that the program
refuses are read again by fastavro: its error is the one that counts, or its value, where it takes
more than Avro allows (an int of 40 bits).

Owns   the batches whose rows are looked at. Before it reads the next but one, a reader copies out
       the rows of a batch that somebody still holds: so a row in a state store keeps no batch.
Fails  with any Exception for bytes; the codec makes it SerdeError.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.protocol.record_codec import Spans
from kafkalite.errors import SerdeError
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.avro_arrow import to_arrow
from kafkalite.serde.avro_binary import Binary, binary
from kafkalite.serde.avro_columns import NATIVE, NOT_BUILT, decoder
from kafkalite.serde.avro_form import AvroValues, is_exact
from kafkalite.serde.avro_plan import Slow, plan
from kafkalite.serde.avro_resolve import added_fields
from kafkalite.serde.avro_schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalite.serde.avro_columns import Decoder

HEADER_BYTES: Final = 5  # of Confluent's wire format
BATCHES_OPEN: Final = 2  # whoever reads an old and a new column looks at both


class Reader:
    """The reader of `writer`'s records as `wanted`; `slow_because` says why it is slow.

    With `fields`, the fast way leaves out all others.
    """

    def __init__(
        self,
        writer: Schema,
        wanted: Schema,
        *,
        as_dicts: bool = False,
        fields: frozenset[str] | None = None,
    ) -> None:
        self._slow = _SlowReader(writer, wanted)  # refuses what cannot be read
        self._as_dicts = as_dicts
        self._open: deque[AvroValues] = deque()
        self._fast: Decoder | None = None
        self._is_exact = False
        made = plan(writer, None if wanted.text == writer.text else wanted, fields)
        self.slow_because: str | None = None
        if not NATIVE:
            self.slow_because = NOT_BUILT
        elif isinstance(made, Slow):
            self.slow_because = made.reason
        else:
            self._fast = decoder(made)
            self._is_exact = is_exact(made)

    def read(self, column: Sequence[bytes | None], out: list[Any]) -> None:
        """Appends the value of each record of a column."""
        values = self._values(column)
        if values is None:
            self._slow.read(column, out)  # fastavro says what is wrong with which record
        else:
            out += values.objects(range(len(values)))

    def read_form(self, column: Sequence[bytes | None]) -> ArrowForm | None:
        """The values as a form; None where they have no Arrow array, or no fast way."""
        values = self._values(column) if self._is_exact else None
        return None if values is None else ArrowForm(values)

    def _values(self, column: Sequence[bytes | None]) -> AvroValues | None:
        if self._fast is None:
            return None
        try:
            if isinstance(column, Spans):
                data, starts, ends = column.data, column.starts, column.ends
                batch = self._fast.decode_spans(data, starts, ends, HEADER_BYTES)
            else:
                batch = self._fast.decode(column, HEADER_BYTES)
        except (SerdeError, TypeError):
            return None
        return AvroValues(batch, self._keep, as_dicts=self._as_dicts)

    def read_arrow(self, column: Sequence[bytes | None]) -> pa.Array | None:
        """The records of a column as an Arrow array; None where fastavro must read some of them."""
        if self._fast is None:
            return None
        try:
            return to_arrow(self._fast.decode(column, HEADER_BYTES))
        except (SerdeError, TypeError):
            return None

    def _keep(self, values: AvroValues) -> None:
        self._open.append(values)
        if len(self._open) > BATCHES_OPEN:
            self._open.popleft().release()


class _SlowReader:
    """Reads with fastavro, at half the cost where no resolution is needed: as the writer's schema,
    and then `added` to the value."""

    def __init__(self, writer: Schema, wanted: Schema) -> None:
        added: Mapping[str, Any] | None = {}
        if wanted.text != writer.text:
            added = added_fields(writer, wanted)
        as_wanted = binary(wanted.text)  # also where only its being one that can be read matters
        self._writer: Binary = binary(writer.text)
        self._reader = as_wanted if added is None else None
        self._added = added or {}

    def read(self, column: Sequence[bytes | None], out: list[Any]) -> None:
        """Appends the value of each record of a column."""
        decode, reader, added = self._writer.decode, self._reader, self._added
        for data in column:
            if data is None:
                out.append(None)
                continue
            record = BytesIO(data)
            record.seek(HEADER_BYTES)
            value = decode(record, reader)
            if record.tell() != len(data):
                raise ValueError(f"{len(data) - record.tell()} bytes are left over")
            if added:
                value.update(added)
            out.append(value)
