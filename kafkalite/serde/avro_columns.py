"""Whether Avro's bytes become columns here: the native modules, or fastavro alone.           [P]

All of the native modules or none. Without them (no C compiler was there, or they were built from
other sources) fastavro reads and writes each record, slower by an order of magnitude and more.

Owns   the choice, made once at import.
"""

from __future__ import annotations

from typing import Final

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_plan import Plan

try:
    from kafkalite.serde._avro_columns import Batch
    from kafkalite.serde._avro_read import Decoder, common_head, common_head_of_spans
    from kafkalite.serde._avro_rows import Row, Rows, objects
    from kafkalite.serde._avro_values import ValueEncoder
    from kafkalite.serde._avro_write import Encoder

    NATIVE = True
except ImportError:
    Batch = Decoder = Encoder = Row = Rows = ValueEncoder = None  # type: ignore[assignment,misc]
    common_head = common_head_of_spans = objects = None  # type: ignore[assignment]
    NATIVE = False

NOT_BUILT: Final = "the native module was not built"

__all__ = [
    "NATIVE",
    "NOT_BUILT",
    "Batch",
    "Decoder",
    "Encoder",
    "Row",
    "Rows",
    "ValueEncoder",
    "common_head",
    "common_head_of_spans",
    "decoder",
    "encoder",
    "is_row",
    "objects",
]


def decoder(plan: Plan) -> Decoder:
    """The native reader of a plan. SchemaError if the native module is missing."""
    if not NATIVE:
        raise SchemaError(f"Avro becomes columns in native code, and {NOT_BUILT}")
    return Decoder(plan)


def encoder(plan: Plan) -> Encoder:
    """The native writer of a plan. SchemaError if the native module is missing."""
    if not NATIVE:
        raise SchemaError(f"columns become Avro in native code, and {NOT_BUILT}")
    return Encoder(plan)


def is_row(value: object) -> bool:
    """Whether a value is a view of a record, which serdes without Avro write as its dict."""
    return NATIVE and isinstance(value, Row)
