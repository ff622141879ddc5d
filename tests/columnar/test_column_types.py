"""Avro values as Arrow columns: each type has one, or is refused by its place."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from json import dumps
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from kafkalite.columnar.column_types import column_type
from kafkalite.columnar.formats import AvroValues
from kafkalite.errors import SchemaError
from kafkalite.serde import MemoryRegistry, SerdeContext, avro
from kafkalite.serde.avro_schema import parse_schema

ID = UUID("0188f1de-70c4-7c0e-8a3b-3f6d1c2b4a59")
COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}


def logical(kind: str, meaning: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": meaning, **more}


UUIDS = logical("string", "uuid")
DECIMAL = logical("bytes", "decimal", precision=12, scale=3)
FIXED_DECIMAL = logical("fixed", "decimal", precision=38, scale=0, name="Wide", size=16)
NOON = datetime(2024, 5, 6, 12, 30, 15, 250_000)


def row_of(schema: Any) -> dict[str, Any]:
    """A record of one field, which may be of any type."""
    return {"type": "record", "name": "Row", "fields": [{"name": "field", "type": schema}]}


def column_of(schema: Any, *values: Any, written: Any = None) -> pa.Array:
    """What records of `values` become, which may have been `written` with another schema."""
    registry = MemoryRegistry()
    context = SerdeContext(registry)
    writer = avro(schema=row_of(schema if written is None else written)).open(context)
    records = writer.serialize("t", [{"field": value} for value in values])
    values_of = AvroValues(dumps(row_of(schema)), registry)
    return values_of.arrow("t", records).field("field")


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (DECIMAL, Decimal("12.345"), pa.decimal128(12, 3)),
        (FIXED_DECIMAL, Decimal(10**37), pa.decimal128(38, 0)),
        (logical("int", "date"), date(2024, 5, 6), pa.date32()),
        (logical("long", "timestamp-millis"), NOON.replace(tzinfo=UTC), pa.timestamp("us", "UTC")),
        (logical("long", "timestamp-micros"), NOON.replace(tzinfo=UTC), pa.timestamp("us", "UTC")),
        (logical("long", "local-timestamp-millis"), NOON, pa.timestamp("us")),
        (logical("long", "local-timestamp-micros"), NOON, pa.timestamp("us")),
        (COLOR, "BLUE", pa.string()),
        ({"type": "fixed", "name": "Two", "size": 2}, b"ab", pa.binary()),
        (["null", "int"], None, pa.int32()),
        ({"type": "array", "items": "long"}, [1, 2], pa.list_(pa.int64())),
    ],
)
def test_values_stand_in_their_column(schema: Any, value: Any, expected: pa.DataType) -> None:
    column = column_of(schema, value)
    assert column.type == expected
    assert column.to_pylist() == [value]


@pytest.mark.parametrize(
    ("word", "meaning", "number", "expected"),
    [
        ("int", "date", 3, date(1970, 1, 4)),
        ("int", "time-millis", 5, 5),
        ("long", "time-micros", 5, 5),
        ("long", "timestamp-millis", 2_000, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)),
        ("long", "timestamp-micros", 2_000, datetime(1970, 1, 1, 0, 0, 0, 2_000, tzinfo=UTC)),
        ("long", "local-timestamp-millis", 2_000, datetime(1970, 1, 1, 0, 0, 2)),
        ("long", "local-timestamp-micros", 2_000, datetime(1970, 1, 1, 0, 0, 0, 2_000)),
    ],
)
def test_what_was_written_as_a_plain_number_means_the_same(
    word: str, meaning: str, number: int, expected: Any
) -> None:
    column = column_of(logical(word, meaning), number, written=word)
    assert column.to_pylist() == [expected]


def test_times_are_numbers_since_midnight() -> None:
    millis = column_of(logical("int", "time-millis"), time(1, 2, 3, 4_000))
    assert (millis.type, millis.to_pylist()) == (pa.int32(), [3_723_004])
    micros = column_of(logical("long", "time-micros"), time(23, 59, 59, 999_999))
    assert (micros.type, micros.to_pylist()) == (pa.int64(), [86_399_999_999])


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (UUIDS, ID, str(ID)),
        (["null", UUIDS], None, None),
        (["null", UUIDS], ID, str(ID)),
        ({"type": "array", "items": UUIDS}, [ID, ID], [str(ID)] * 2),
        (
            {"type": "map", "values": ["null", UUIDS]},
            {"a": ID, "b": None},
            [("a", str(ID)), ("b", None)],
        ),
    ],
)
def test_uuids_are_text_wherever_they_are(schema: Any, value: Any, expected: Any) -> None:
    assert column_of(schema, value).to_pylist() == [expected]


def test_a_type_that_is_mentioned_by_name_is_the_one_that_was_defined() -> None:
    pair = {
        "type": "record",
        "name": "Pair",
        "fields": [{"name": "first", "type": COLOR}, {"name": "second", "type": "Color"}],
    }
    value = {"first": "RED", "second": "BLUE"}
    assert column_of(pair, value).to_pylist() == [value]


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (["int", "string"], "value: a union of 2 types has no column type"),
        ("null", "value: Avro type null has no column type"),
        (logical("bytes", "decimal", precision=39), "value: a decimal of 39 digits has no column"),
        ({"type": "array", "items": ["int", "string"]}, r"value\[\]: a union of 2 types"),
        (
            {
                "type": "record",
                "name": "Node",
                "fields": [{"name": "next", "type": ["null", "Node"]}],
            },
            "Node: a type that contains itself has no column type",
        ),
    ],
)
def test_what_is_no_column_is_refused_by_its_place(schema: Any, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        column_type(parse_schema(schema))
