"""Arrow's arrays as Avro: byte for byte what fastavro writes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from avro_world import record
from hypothesis import given, settings
from hypothesis import strategies as st
from test_avro_columns import planned, programs
from test_avro_properties import values, write

from kafkalite.errors import SerdeError
from kafkalite.serde.avro_arrow import arrow_type, avro_to_arrow
from kafkalite.serde.avro_encode import arrow_to_avro

STOP = record(("name", "string"), ("minutes", ["null", "int"]), name="Stop")


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400, deadline=None)
def test_rows_become_the_bytes_that_fastavro_writes(data: st.DataObject) -> None:
    schema = data.draw(programs)
    made = planned(schema)
    column = data.draw(st.lists(st.none() | values(schema), max_size=6))
    records = [None if value is None else write(schema, value) for value in column]
    array = avro_to_arrow(made, records)
    begin = data.draw(st.integers(0, len(records)))
    expected = [None if data is None else b"head" + data for data in records]
    assert arrow_to_avro(made, array, b"head") == expected
    assert arrow_to_avro(made, array.slice(begin), b"head") == expected[begin:]
    twice = pa.chunked_array([array, array], array.type)
    assert arrow_to_avro(made, twice, b"head") == expected * 2


def at_once(schema: Any, column: list[Any], kind: pa.DataType | None = None) -> Any:
    made = planned(schema)
    return arrow_to_avro(made, pa.array(column, arrow_type(made) if kind is None else kind))


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("digits", [38, 76])
def test_decimals_have_the_bytes_of_fastavro(fixed: bool, digits: int) -> None:
    schema: Any = {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 1}
    if fixed:
        schema |= {"type": "fixed", "name": "D", "size": 33}
    whole = [0, 1, -1, 127, 128, -127, -128, -129, 255, 256, 10**digits - 1, 1 - 10**digits]
    column = [Decimal((n < 0, tuple(map(int, str(abs(n)))), -1)) for n in whole]
    assert at_once(schema, column) == [write(schema, value) for value in column]


def test_a_decimal_fits_its_fixed_or_is_refused() -> None:
    schema = {"type": "fixed", "name": "D", "size": 1, "logicalType": "decimal", "precision": 3}
    assert at_once(schema, [Decimal(127), Decimal(-128)]) == [b"\x7f", b"\x80"]
    for wrong in (128, -129, 256):
        with pytest.raises(SerdeError, match="a decimal that does not fit 1 bytes") as caught:
            at_once(schema, [Decimal(1), Decimal(wrong)])
        assert caught.value.index == 1


@pytest.mark.parametrize(
    ("schema", "column", "kind"),
    [
        ("long", [1, -2], pa.int16()),
        ("int", [1, 2**31 - 1], pa.int64()),
        ("double", [1.0, 2.0], pa.int64()),
        ("double", [1.5, None], pa.float32()),
        ("float", [0.1, 1.5], pa.float64()),
        ("string", ["a", "é"], pa.large_string()),
        ("bytes", [b"a", b""], pa.large_binary()),
        ({"type": "fixed", "name": "F", "size": 2}, [b"ab"], pa.binary()),
        ({"type": "enum", "name": "E", "symbols": ["B", "A"]}, ["A", "B"], pa.string()),
        ({"type": "array", "items": "int"}, [[1], [], None], pa.large_list(pa.int64())),
        ({"type": "array", "items": ["null", "int"]}, [[1, None]], pa.list_(pa.int32(), 2)),
    ],
    ids=str,
)
def test_what_loses_nothing_is_converted(schema: Any, column: list[Any], kind: Any) -> None:
    expected = [None if value is None else write(schema, value) for value in column]
    assert at_once(schema, column, kind) == expected


def test_a_timestamp_of_another_unit_or_zone_is_the_same_moment() -> None:
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    moment = datetime(2013, 1, 1, 5, tzinfo=UTC)
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("s", "America/New_York")):
        assert at_once(schema, [moment], kind) == [write(schema, moment)]


def test_columns_are_found_by_name_and_record_batches_are_rows() -> None:
    made = planned(STOP)
    batch = pa.RecordBatch.from_pydict({"minutes": pa.nulls(2), "name": ["a", "b"]})
    expected = [write(STOP, {"name": name, "minutes": None}) for name in "ab"]
    assert arrow_to_avro(made, batch) == expected


STOPS = record(("stops", {"type": "array", "items": STOP}))
ENUM = record(("e", {"type": "enum", "name": "E", "symbols": ["A"]}))


@pytest.mark.parametrize(
    ("schema", "column", "kind", "reason"),
    [
        (STOPS, [{"stops": [{"name": None, "minutes": 1}]}], None, "field 'stops[].name': null,"),
        (record(("n", "int")), [{"n": 1}, {"n": None}], None, "field 'n': null, where the schema"),
        (ENUM, [{"e": "B"}], pa.struct([("e", pa.string())]), "field 'e': a symbol that the enum"),
        (record(("n", "int")), [{"n": 2**31}], pa.struct([("n", pa.int64())]),
         "field 'n': int64 does not fit int32: Integer value 2147483648 not in range"),
        (record(("n", "int")), [{"n": "1"}], pa.struct([("n", pa.string())]),
         "field 'n': string, expected int32"),
        (record(("n", "int")), [{"m": 1}], pa.struct([("m", pa.int32())]),
         "field 'm': the schema has no such field"),
        (record(("n", "int")), [{}], pa.struct([]), "field 'n': the struct has no such field"),
        (record(("n", STOP)), [{"n": 1}], pa.struct([("n", pa.int32())]),
         "field 'n': int32, expected a struct"),
        ({"type": "long", "logicalType": "timestamp-millis"}, [datetime(2013, 1, 1)],
         pa.timestamp("ms"), "timestamp[ms], expected timestamp[ms, tz=UTC]"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_named(schema: Any, column: list[Any], kind: Any, reason: str) -> None:
    with pytest.raises(SerdeError) as caught:
        at_once(schema, column, kind)
    assert reason in str(caught.value)
    if "null" in reason or "symbol" in reason:
        assert caught.value.index == len(column) - 1


def test_damaged_arrays_are_refused() -> None:
    made = planned({"type": "array", "items": "string"})
    texts = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\x02\0\0\0\x01\0\0\0"), pa.py_buffer(b"ab")]
    )
    offsets = pa.py_buffer(b"\0\0\0\0\2\0\0\0")
    with pytest.raises(SerdeError, match=r"field '\[\]': offset 1 lies outside"):
        arrow_to_avro(
            made, pa.Array.from_buffers(pa.list_(pa.string()), 1, [None, offsets], children=[texts])
        )


def test_a_plan_that_resolves_or_leaves_out_cannot_write() -> None:
    for made in (planned("int", "long"), planned(STOP, None, {"name"})):
        with pytest.raises(ValueError, match="a plan that resolves two schemas, or leaves fields"):
            arrow_to_avro(made, pa.nulls(0))
