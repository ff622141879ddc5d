"""Values written with a registered schema: in native code, doubtful ones by fastavro.          [D]

    0        1                  5
    +--------+------------------+------------------
    | magic  | schema id        | Avro binary
    | 0x00   | int32 big-endian |
    +--------+------------------+------------------

Native code writes values that are plainly of the schema's types, in fastavro's bytes. The others
(a subclass, a tuple for an array, what does not fit) go to `avro_binary`, one by one, and
its errors are the errors.

Owns   nothing; the programs of schemas are kept by their texts.
Fails  with any Exception for a value; the codec makes it SerdeError.
Source Confluent wire format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.columns import FEW
from kafkalite.core.protocol.record_codec import NATIVE as SPANS
from kafkalite.errors import SerdeError
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.avro_binary import binary
from kafkalite.serde.avro_columns import NATIVE, NOT_BUILT, ValueEncoder
from kafkalite.serde.avro_encode import arrow_to_avro, arrow_to_spans
from kafkalite.serde.avro_plan import Plan, Slow, plan
from kafkalite.serde.avro_schema import Schema, parse_schema
from kafkalite.serde.avro_vectors import form_to_spans
from kafkalite.serde.text_cache import cached_by_text

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC: Final = 0
HEADER: Final = struct.Struct(">bi")


@dataclass(frozen=True, slots=True)
class Writer:
    """A registered schema, ready to write."""

    id: int
    schema: Schema

    @property
    def slow_because(self) -> str | None:
        """Why fastavro writes all values of this schema, if it does."""
        return _fast(self.schema.text)[1]

    def write(self, column: Sequence[Any], out: list[bytes | None]) -> None:
        """Appends the record of each value of a column."""
        header, place = HEADER.pack(MAGIC, self.id), 0
        encode, (fast, _) = binary(self.schema.text).encode, _fast(self.schema.text)
        while True:
            if fast is not None:
                place = fast.encode(column, place, header, out)
            if place == len(column):
                return
            out.append(_slowly(encode, column[place], header))
            place += 1

    def write_arrow(self, column: ArrowForm) -> Sequence[bytes | None] | None:
        """The records of a column, of its Arrow array; None where values have to be looked at."""
        made = _plan(self.schema.text)
        if not NATIVE or len(column) < FEW or not isinstance(made, Plan):
            return None
        try:
            if (spans := form_to_spans(made, column, HEADER.pack(MAGIC, self.id))) is not None:
                return spans
            write = arrow_to_spans if SPANS else arrow_to_avro
            return write(made, column.arrow(), HEADER.pack(MAGIC, self.id))
        except SerdeError:
            return None


def _slowly(encode: Callable[[Any, BytesIO], None], value: Any, header: bytes) -> bytes | None:
    if value is None:
        return None
    record = BytesIO()
    record.write(header)
    encode(value, record)
    return record.getvalue()


@cached_by_text
def _fast(text: str) -> tuple[ValueEncoder | None, str | None]:
    """The native writer of a schema's values, or the reason why there is none."""
    if not NATIVE:
        return None, NOT_BUILT
    made = _plan(text)
    return (ValueEncoder(made), None) if isinstance(made, Plan) else (None, made.reason)


@cached_by_text
def _plan(text: str) -> Plan | Slow:
    return plan(parse_schema(text))
