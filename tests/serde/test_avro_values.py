"""Values written in native code: the bytes of fastavro, or left to it."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from avro_world import INT, World, record
from hypothesis import given, settings
from hypothesis import strategies as st
from test_avro_columns import planned, programs
from test_avro_properties import bounded, schemas, values, write

from kafkalite.errors import SerdeError
from kafkalite.serde.avro_columns import ValueEncoder

SURE, UNSURE = 1, 0


def encoded(schema: Any, value: Any) -> bytes | None:
    """What native code writes, None where it is not sure."""
    out: list[bytes | None] = []
    if ValueEncoder(planned(schema)).encode([value], 0, b"", out) == UNSURE:
        assert out == []
        return None
    assert isinstance(out[0], bytes)
    return out[0]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400, deadline=None)
def test_values_have_the_bytes_of_fastavro(data: st.DataObject) -> None:
    schema = data.draw(programs)
    column = data.draw(st.lists(st.none() | values(schema), max_size=5))
    out: list[bytes | None] = []
    assert ValueEncoder(planned(schema)).encode(column, 0, b"head", out) == len(column)
    assert out == [None if value is None else b"head" + write(schema, value) for value in column]


ODD = st.one_of(
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.booleans(),
    st.sampled_from([Decimal("1.5"), Decimal("NaN"), Decimal("-0"), Decimal("1E+9"), "\ud800", {}]),
    st.datetimes(timezones=st.none() | st.just(UTC)),
    st.binary(max_size=4),
    st.dictionaries(st.text(max_size=2) | st.integers(), st.none(), max_size=2),
)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=600, deadline=None)
def test_what_is_of_another_type_is_left_to_fastavro(data: st.DataObject) -> None:
    """Whatever is written, fastavro takes too, and writes the same."""
    schema = data.draw(programs)
    other = data.draw(schemas(logical=True).filter(bounded))
    value = data.draw(ODD | values(other))
    if isinstance(schema, dict) and "fields" in schema:
        names = [field["name"] for field in schema["fields"]]
        value = data.draw(st.dictionaries(st.sampled_from([*names, "x"]), ODD | values(other)))
    found = None if value is None else encoded(schema, value)
    if found is not None:
        assert found == write(schema, value)


TS: Any = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS: Any = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL: Any = {"type": "long", "logicalType": "local-timestamp-millis"}
DATE: Any = {"type": "int", "logicalType": "date"}
UUIDS: Any = {"type": "string", "logicalType": "uuid"}
TIME: Any = {"type": "int", "logicalType": "time-millis"}
NEW_YORK = ZoneInfo("America/New_York")
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999_999)


class Number(int):
    """An int that is none at first sight."""


class Broken(tzinfo):
    def utcoffset(self, at: datetime | None) -> timedelta:
        raise OSError("no zones here")


@pytest.mark.parametrize(
    ("schema", "value", "sure"),
    [
        ("int", 2**31 - 1, SURE),
        ("int", 2**31, UNSURE),
        ("int", True, UNSURE),
        ("int", Number(1), UNSURE),
        ("int", 1.0, UNSURE),
        ("long", -(2**63), SURE),
        ("long", 2**63, UNSURE),
        ("double", 1, SURE),
        ("double", 10**400, UNSURE),
        ("float", 0.1, SURE),
        ("float", float("inf"), SURE),
        ("float", 1e39, UNSURE),
        ("boolean", 1, UNSURE),
        ("string", "\ud800", UNSURE),
        ("string", b"a", UNSURE),
        ("bytes", bytearray(b"a"), UNSURE),
        (INT, 7, SURE),
        (INT, "7", UNSURE),
        (["int"], 7, SURE),
        ({"type": "fixed", "name": "F", "size": 1}, b"ab", UNSURE),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", UNSURE),
        ({"type": "array", "items": "int"}, (1, 2), UNSURE),
        ({"type": "map", "values": "int"}, {1: 2}, UNSURE),
        ({"type": "map", "values": "int"}, OrderedDict(a=1), UNSURE),
        (record(("a", "int"), ("b", INT)), {"b": None, "a": 1}, SURE),
        (record(("a", "int"), ("b", INT, None)), {"a": 1}, SURE),
        (record(("a", "int"), ("b", {"type": "array", "items": "int"}, [1, 2])), {"a": 1}, SURE),
        (record(("a", "int"), ("b", "bytes", "\u00ff")), {"a": 1}, SURE),
        (record(("a", "int"), ("b", INT, None)), {"a": 1, "c": 1}, UNSURE),
        (record(("a", "int"), ("b", INT)), {"a": 1}, UNSURE),
        (record(("a", "int")), {"a": 1, "b": 2}, UNSURE),
        (record(("a", "int")), {"b": 1}, UNSURE),
        (TS, BEFORE.replace(tzinfo=UTC), SURE),
        (MILLIS, BEFORE.replace(tzinfo=UTC), SURE),
        (MILLIS, BEFORE.replace(tzinfo=NEW_YORK), SURE),
        (TS, datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), SURE),
        (TS, datetime.min.replace(tzinfo=UTC), SURE),
        (TS, BEFORE, UNSURE),
        (TS, BEFORE.replace(tzinfo=Broken()), UNSURE),
        (TS, 5, SURE),
        (LOCAL, BEFORE, SURE),
        (LOCAL, BEFORE.replace(tzinfo=NEW_YORK), SURE),
        (DATE, date.min, SURE),
        (DATE, date(2000, 2, 29), SURE),
        (DATE, "2000-02-29", UNSURE),
        (DATE, datetime(2000, 2, 29), UNSURE),
        (TIME, time(23, 59, 59, 999_999), SURE),
        (UUIDS, UUID(int=7), SURE),
        (UUIDS, "no uuid", SURE),
    ],
)
def test_what_it_is_sure_of(schema: Any, value: Any, sure: int) -> None:
    found = encoded(schema, value)
    assert (found is not None) == bool(sure)
    if found is not None:
        assert found == write(schema, value)


@pytest.mark.parametrize("more", [{}, {"type": "fixed", "name": "D", "size": 3}], ids=str)
def test_decimals(more: dict[str, Any]) -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2} | more
    for text in ("0", "-0.01", "0.01", "1.5", "-1.28", "1.28", "9999.99", "-9999.99", "7E+2"):
        assert encoded(schema, Decimal(text)) == write(schema, Decimal(text)), text
    for wrong in ("0.001", "1000000", "NaN", "Infinity", "1E+9"):
        assert encoded(schema, Decimal(wrong)) is None
    assert encoded(schema, b"abc") is None


def test_what_native_code_leaves_out_is_written_between_the_others(world: World) -> None:
    schema = record(("a", "int"), ("b", INT, None))
    codec = world.codec(schema=schema)
    column: list[Any] = [{"a": 1, "b": 2}, {"a": 2}, None, {"a": Number(3), "b": None}, {"a": 4}]
    found = codec.deserialize("t", codec.serialize("t", column))
    assert [row and (row["a"], row["b"]) for row in found] == [
        (1, 2), (2, None), None, (3, None), (4, None)
    ]  # fmt: skip
    with pytest.raises(SerdeError, match="Flight.a: str 'x' is no int") as caught:
        codec.serialize("t", [{"a": 1, "b": 2}, {"a": 2}, {"a": "x", "b": 2}])
    assert caught.value.index == 2


def test_a_list_that_changes_while_it_is_written_breaks_nothing() -> None:
    items: list[Any] = []

    class Shrinking(tzinfo):
        def utcoffset(self, at: datetime | None) -> timedelta:
            items.clear()
            return timedelta(0)

    items += [datetime(2013, 1, 1, tzinfo=Shrinking()), 2, 3]
    assert encoded({"type": "array", "items": TS}, items) is None


def test_schemas_that_fastavro_writes_are_said_with_the_reason(world: World) -> None:
    codec: Any = world.codec(schema=["int", "string"])
    codec.serialize("t", [1, "x"])
    assert codec.slow_schemas == {("t", 1): "the schema is a union of 2 types"}
