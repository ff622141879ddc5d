from __future__ import annotations

import io
import re
import struct
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import orjson
import pytest

from kafkalite.errors import KafkaliteError, SchemaError, SerdeError
from kafkalite.serde import MemoryRegistry, RegisteredSchema, SerdeContext, avro
from kafkalite.serde.compatibility import Compatibility
from kafkalite.serde.serde import Codec

INT, STRING = ["null", "int"], ["null", "string"]


def record(*fields: tuple[Any, ...], name: str = "Flight") -> dict[str, Any]:
    """Fields are (name, type) or (name, type, default)."""
    described = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": described}


V1 = record(("origin", "string"), ("delay", INT, None))
V2 = record(("origin", "string"), ("delay", INT, None), ("km", "double", 0.0))


class World:
    """A registry and codecs that share it, as programs do."""

    def __init__(self) -> None:
        self.registry = MemoryRegistry()

    def codec(self, *args: Any, is_key: bool = False, **more: Any) -> Codec:
        return avro(*args, **more).open(SerdeContext(self.registry, is_key=is_key))

    def latest(self, subject: str) -> Any:
        return self.registry.latest(subject).schema.json


@pytest.fixture
def world() -> World:
    return World()


# --- wire format -------------------------------------------------------------------------


def test_a_record_is_magic_id_and_avro_binary(world: World) -> None:
    world.registry.register("other-value", "int")
    (data,) = world.codec(schema=V1).serialize("flights", [{"origin": "JFK", "delay": 7}])
    assert data == b"\0\0\0\0\2" + b"\6JFK" + b"\2\x0e"
    assert fastavro.schemaless_reader(io.BytesIO(data[5:]), V1) == {"origin": "JFK", "delay": 7}


def test_none_is_the_null_record_both_ways(world: World) -> None:
    codec = world.codec(schema=V1)
    value = {"origin": "JFK", "delay": None}
    column = codec.serialize("t", [None, value, None])
    assert [data is None for data in column] == [True, False, True]
    assert codec.deserialize("t", column) == [None, value, None]
    assert codec.serialize("t", []) == []
    assert codec.deserialize("t", [None, None]) == [None, None]


def test_keys_and_values_have_subjects_of_their_own(world: World) -> None:
    world.codec(schema="string").serialize("t", ["v"])
    world.codec(schema="long", is_key=True).serialize("t", [1])
    assert world.registry.registry.subjects() == ("t-key", "t-value")


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("topic", "flights-value"), ("record", "org.Flight"), ("topic_record", "flights-org.Flight")],
)
def test_subject_strategies(world: World, strategy: Any, subject: str) -> None:
    schema = record(("a", "int"), name="org.Flight")
    codec = world.codec(schema=schema, subject_strategy=strategy)
    column = codec.serialize("flights", [{"a": 1}])
    assert world.registry.registry.subjects() == (subject,)
    reader = world.codec(subject_strategy=strategy)
    assert reader.deserialize("flights", column) == [{"a": 1}]


def test_a_strategy_by_record_needs_a_name(world: World) -> None:
    with pytest.raises(SchemaError, match="without a name has no subject"):
        world.codec(schema="int", subject_strategy="record").serialize("t", [1])


# --- reading -----------------------------------------------------------------------------


def test_records_of_two_versions_come_out_as_the_latest_in_their_places(world: World) -> None:
    one, two = world.codec(schema=V1), world.codec(schema=V2)
    old = one.serialize("t", [{"origin": "JFK", "delay": 1}, {"origin": "LGA", "delay": None}])
    new = two.serialize("t", [{"origin": "EWR", "delay": 2, "km": 1.5}])
    column = [old[0], None, new[0], old[1]]
    assert world.codec().deserialize("t", column) == [
        {"origin": "JFK", "delay": 1, "km": 0.0},
        None,
        {"origin": "EWR", "delay": 2, "km": 1.5},
        {"origin": "LGA", "delay": None, "km": 0.0},
    ]


def test_a_given_schema_is_what_everything_is_read_as(world: World) -> None:
    written = record(("a", "int"), ("list", {"type": "array", "items": "int"}), ("b", "string"))
    column = world.codec(schema=written).serialize("t", [{"a": 1, "list": [1, 2], "b": "x"}])
    wanted = record(("b", "string"), ("a", "double"), ("c", {"type": "array", "items": "int"}, [7]))
    reader = world.codec(schema=wanted)
    (value,) = reader.deserialize("t", column)
    assert value == {"b": "x", "a": 1.0, "c": [7]}
    value["c"].append(8)  # defaults are not shared between values
    assert reader.deserialize("t", column)[0]["c"] == [7]


def test_a_newer_id_brings_the_newer_schema(world: World) -> None:
    one, two, reader = world.codec(schema=V1), world.codec(schema=V2), world.codec()
    old = one.serialize("t", [{"origin": "JFK", "delay": 1}])
    assert reader.deserialize("t", old) == [{"origin": "JFK", "delay": 1}]
    new = two.serialize("t", [{"origin": "EWR", "delay": 2, "km": 1.5}])
    assert reader.deserialize("t", [*old, *new])[0] == {"origin": "JFK", "delay": 1, "km": 0.0}
    assert reader.deserialize("t", old)[0] == {"origin": "JFK", "delay": 1, "km": 0.0}


def test_without_a_subject_records_are_read_as_they_were_written(world: World) -> None:
    column = world.codec(schema=V1).serialize("t", [{"origin": "JFK", "delay": 1}])
    assert world.codec().deserialize("copied", column) == [{"origin": "JFK", "delay": 1}]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a": 1}', "not Confluent's wire format"),
        (b"\0\0\0\0", "not Confluent's wire format"),
        (b"", "not Confluent's wire format"),
        (b"\0\0\0\0\x63\0", "schema id 99 is not known"),
        (b"\0\0\0\0\1\6JF", "the data ends early"),
        (b"\0\0\0\0\1\6JFK", "the data ends early"),
        (b"\0\0\0\0\1\6JFK\0\0", "1 bytes are left over"),
        (b"\0\0\0\0\1\6JFK\4", "a union has no such branch"),
        (b"\0\0\0\0\1\5JFK\0", "the data ends early"),
        (b"\0\0\0\0\1\6\xff\xff\xff\0", "invalid start byte"),
        (b"\0\0\0\0\1\xfe" + b"\xff" * 8 + b"\1JFK\0", "the data ends early"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_named_with_its_place(
    world: World, data: bytes, reason: str
) -> None:
    (good,) = world.codec(schema=V1).serialize("t", [{"origin": "JFK", "delay": 1}])
    with pytest.raises(SerdeError, match=reason) as caught:
        world.codec().deserialize("t", [good, None, good, data, good])
    assert caught.value.index == 3
    assert "avro()" in str(caught.value)
    assert "topic 't'" in str(caught.value)


def test_of_several_that_fail_the_first_is_named(world: World) -> None:
    one = world.codec(schema=V1).serialize("t", [{"origin": "JFK", "delay": 1}])[0]
    two = world.codec(schema=V2).serialize("t", [{"origin": "JFK", "delay": 1, "km": 1.0}])[0]
    assert one is not None
    assert two is not None
    with pytest.raises(SerdeError) as caught:
        world.codec().deserialize("t", [two, one, two[:-1], two, one[:-1]])
    assert caught.value.index == 2


def test_data_that_the_reader_cannot_take_says_why(world: World) -> None:
    column = world.codec(schema=V1).serialize("t", [{"origin": "JFK", "delay": 1}])
    with pytest.raises(SerdeError, match="No default value for field km"):
        world.codec(schema=record(("km", "int"))).deserialize("t", column)
    with pytest.raises(SerdeError, match="Schema mismatch: string is not int"):
        world.codec(schema=record(("origin", "int"))).deserialize("t", column)


def test_an_enum_symbol_that_the_reader_lacks_is_its_default_or_an_error(world: World) -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    column = world.codec(schema=enum).serialize("t", ["A", "B"])
    only_a = {**enum, "symbols": ["A"]}
    assert world.codec(schema={**only_a, "default": "A"}).deserialize("t", column) == ["A", "A"]
    with pytest.raises(SerdeError, match="B not found in reader symbol list E") as caught:
        world.codec(schema=only_a).deserialize("t", column)
    assert caught.value.index == 1


def varint(number: int) -> bytes:
    """A count of zero or more as Avro writes it."""
    zigzag, data = number << 1, bytearray()
    while zigzag > 127:
        data.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*data, zigzag])


@pytest.mark.parametrize("schema", [{"type": "array", "items": "int"}, "string", "bytes"], ids=str)
def test_a_length_that_the_bytes_do_not_have_is_refused(world: World, schema: Any) -> None:
    world.registry.register("t-value", schema)
    for claimed in (2**20, 2**40, 2**62):
        with pytest.raises(SerdeError, match="the data ends early"):
            world.codec().deserialize("t", [struct.pack(">bi", 0, 1) + varint(claimed) + b"\2"])


def test_an_array_whose_items_take_no_bytes_is_refused_both_ways(world: World) -> None:
    nulls = {"type": "array", "items": "null"}
    with pytest.raises(SchemaError, match="array whose items take no bytes") as caught:
        world.codec(schema=nulls).serialize("t", [None, [None]])
    assert caught.value.index == 1
    world.registry.register("t-value", nulls)
    with pytest.raises(SchemaError, match="array whose items take no bytes"):
        world.codec().deserialize("t", [struct.pack(">bi", 0, 1) + varint(2**40) + b"\0"])


def test_lists_of_nothing_are_written_without_a_schema(world: World) -> None:
    codec = world.codec()
    for column in ([[], [None, None]], [[{}, {"a": None}]], [[{"a": 1}]]):
        found = codec.deserialize("t", codec.serialize("t", column))
        assert [len(value) for value in found] == [len(value) for value in column]


LINKED = record(("next", ["null", "Flight"]), name="Flight")


def test_bytes_that_nest_without_end_are_an_error_not_the_end_of_the_process(world: World) -> None:
    codec = world.codec(schema=LINKED)
    (data,) = codec.serialize("t", [{"next": None}])
    assert data is not None
    outer = record(("more", "int", 7), name="Flight")
    for reader in (codec, world.codec(schema=outer)):  # also where it is skipped
        with pytest.raises(SerdeError, match="recursion") as caught:
            reader.deserialize("t", [data, data[:5] + b"\2" * 100_000 + b"\0"])
        assert caught.value.index == 1


def test_a_value_that_contains_itself_is_an_error_not_the_end_of_the_process(world: World) -> None:
    value: dict[str, Any] = {}
    value["next"] = value
    with pytest.raises(SerdeError, match="recursion"):
        world.codec(schema=LINKED).serialize("t", [value])


def test_a_record_that_cannot_end_is_an_error(world: World) -> None:
    endless = record(("self", "Flight"), name="Flight")
    world.registry.register("t-value", endless)
    with pytest.raises(SerdeError, match="recursion"):
        world.codec().deserialize("t", [struct.pack(">bi", 0, 1)])


def test_a_record_that_contains_itself_comes_back(world: World) -> None:
    tree = record(("left", ["null", "Flight"], None), ("value", "int"))
    codec = world.codec(schema=tree)
    value = {"left": {"left": None, "value": 1}, "value": 2}
    assert codec.deserialize("t", codec.serialize("t", [value])) == [value]
    wider = record(("left", ["null", "Flight"], None), ("value", "long"), ("more", "int", 3))
    (found,) = world.codec(schema=wider).deserialize("t", codec.serialize("t", [value]))
    assert found == {"left": {"left": None, "value": 1, "more": 3}, "value": 2, "more": 3}
    narrower = record(("left", ["null", "Flight"], None))
    (found,) = world.codec(schema=narrower).deserialize("t", codec.serialize("t", [value]))
    assert found == {"left": {"left": None}}


def test_all_types_can_be_skipped(world: World) -> None:
    inner = record(("x", "long"), ("y", "string"), name="Inner")
    skipped = [
        "null", "boolean", "int", "long", "float", "double", "bytes", "string",
        {"type": "fixed", "name": "F", "size": 3},
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "array", "items": inner},
        {"type": "map", "values": ["null", "Inner", "string"]},
        "Inner",
    ]  # fmt: skip
    values = [
        None, True, 2**31 - 1, -(2**63), 1.5, 2.5, b"x" * 200, "é" * 100, b"123", "A",
        [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}],
        {"k": {"x": 1, "y": "z"}, "l": None, "m": "text"},
        {"x": 300, "y": ""},
    ]  # fmt: skip
    names = [f"f{place}" for place in range(len(values))]
    schema = record(*zip(names, skipped, strict=True), ("last", "int"))
    value = dict(zip(names, values, strict=True)) | {"last": 7}
    codec = world.codec(schema=schema)
    column = codec.serialize("t", [value])
    assert codec.deserialize("t", column) == [value]
    assert world.codec(schema=record(("last", "int"))).deserialize("t", column) == [{"last": 7}]


def test_a_union_of_more_branches_than_one_byte_counts(world: World) -> None:
    branches = [{"type": "fixed", "name": f"F{size}", "size": size} for size in range(1, 80)]
    codec = world.codec(schema=branches)
    column = [b"x", b"y" * 70]
    assert codec.deserialize("t", codec.serialize("t", column)) == column


# --- writing with a schema ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"origin": 7, "delay": 1}, r"Flight\.origin: int 7 is no string"),
        ({"origin": None, "delay": 1}, r"Flight\.origin: NoneType None is no string"),
        ({"origin": "x", "delay": "1"}, r"Flight\.delay: str '1' is no int"),
        ({"origin": "x", "delay": True}, r"Flight\.delay: bool True is no int"),
        ({"origin": "x", "delay": 1.0}, r"Flight\.delay: float 1.0 is no int"),
        ({"origin": "x", "delay": 2**31}, r"Flight\.delay: int 2147483648 is no int"),
        ({"origin": "\ud800", "delay": 1}, "surrogates not allowed"),
        ({"delay": 1}, r"Flight\.origin: NoneType None is no string"),
        ({"origin": "x", "delay": 1, "more": 2}, "more fields than the schema specifies: more"),
        ({"origin": "x", "more": 2}, "more fields than the schema specifies: more"),
        ("text", "str 'text' is no record 'Flight'"),
        (7, "int 7 is no record 'Flight'"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_named_with_field_and_place(
    world: World, value: Any, reason: str
) -> None:
    good = {"origin": "JFK", "delay": 1}
    with pytest.raises(SerdeError, match=reason) as caught:
        world.codec(schema=V1).serialize("flights", [None, good, value])
    assert caught.value.index == 2
    assert "topic 'flights'" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("int", 1.5),
        ("int", True),
        ("int", 2**31),
        ("long", 2**63),
        ("boolean", 1),
        ("null", 1),
        ("double", "1.5"),
        ("double", True),
        ({"type": "array", "items": "string"}, "text"),
        ({"type": "array", "items": "int"}, [1.5]),
        ({"type": "map", "values": "int"}, {1: 1}),
        (record(("v", INT)), {}),  # nullable, but without a default
    ],
    ids=str,
)
def test_what_fastavro_alone_would_write_as_something_else_is_refused(
    world: World, schema: Any, value: Any
) -> None:
    with pytest.raises(SerdeError) as caught:
        world.codec(schema=schema).serialize("t", [value])
    assert not isinstance(caught.value, SchemaError)


def test_a_missing_field_takes_its_default(world: World) -> None:
    codec = world.codec(schema=V2)
    column = codec.serialize("t", [{"origin": "JFK"}])
    assert codec.deserialize("t", column) == [{"origin": "JFK", "delay": None, "km": 0.0}]


def test_a_schema_that_the_subject_refuses_is_a_schema_error(world: World) -> None:
    world.codec(schema=V1).serialize("flights", [{"origin": "JFK"}])
    refused = world.codec(schema=record(("origin", "int")))
    with pytest.raises(SchemaError, match="not BACKWARD compatible with version 1") as caught:
        refused.serialize("flights", [None, {"origin": 1}])
    assert caught.value.index == 1


def test_a_double_takes_integers_and_an_integer_no_double(world: World) -> None:
    codec = world.codec(schema=record(("km", "double"), ("ratio", "float")))
    column = codec.serialize("t", [{"km": 3, "ratio": 1}])
    assert codec.deserialize("t", column) == [{"km": 3.0, "ratio": 1.0}]


def test_unions_take_the_first_branch_that_fits(world: World) -> None:
    schema = [
        "null", "int", "long", "float", "double", "boolean", "string", "bytes",
        {"type": "array", "items": "int"},
        record(("a", "int"), name="A"),
        record(("a", "int"), ("b", "int"), name="AB"),
    ]  # fmt: skip
    codec = world.codec(schema=schema)
    values = [5, 2**40, 1.1, True, "x", b"x", [1], {"a": 1}, {"a": 1, "b": 2}]
    column = codec.serialize("t", values)
    # A double before a float, and of records the one with the most fields.
    assert [data[5] >> 1 for data in column if data] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert codec.deserialize("t", column) == values
    with pytest.raises(SerdeError, match=r"set {1, 2} is no null.*is no record 'AB'"):
        codec.serialize("t", [{1, 2}])


def test_a_tuple_is_a_list_also_in_a_union(world: World) -> None:
    codec = world.codec(schema=["null", {"type": "array", "items": "int"}])
    assert codec.deserialize("t", codec.serialize("t", [(1,)])) == [[1]]


# --- logical types -----------------------------------------------------------------------

MOMENT = datetime(2013, 1, 1, 10, 30, 15, 123456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "logical", "value", "read"),
    [
        ("long", "timestamp-millis", MOMENT, MOMENT.replace(microsecond=123000)),
        ("long", "timestamp-micros", MOMENT, MOMENT),
        ("long", "timestamp-millis", 0, datetime(1970, 1, 1, tzinfo=UTC)),
        ("long", "timestamp-micros", datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
        ("long", "local-timestamp-millis", datetime(2013, 1, 1), datetime(2013, 1, 1)),
        ("long", "local-timestamp-micros", datetime(2013, 1, 1), datetime(2013, 1, 1)),
        ("int", "date", date(1969, 12, 31), date(1969, 12, 31)),
        ("int", "time-millis", time(1, 2, 3, 4999), time(1, 2, 3, 4000)),
        ("long", "time-micros", time(23, 59, 59, 999999), time(23, 59, 59, 999999)),
        ("string", "uuid", UUID(int=7), UUID(int=7)),
    ],
    ids=str,
)
@pytest.mark.parametrize("nullable", [False, True])
def test_logical_types_are_pythons_own(
    world: World, kind: str, logical: str, value: Any, read: Any, nullable: bool
) -> None:
    plain: Any = {"type": kind, "logicalType": logical}
    schema = record(("v", ["null", plain] if nullable else plain))
    codec = world.codec(schema=schema)
    column = codec.serialize("t", [{"v": value}])
    assert codec.deserialize("t", column) == [{"v": read}]


def test_timestamps_of_another_zone_come_back_in_utc(world: World) -> None:
    codec = world.codec(schema={"type": "long", "logicalType": "timestamp-micros"})
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=-5)))
    (found,) = codec.deserialize("t", codec.serialize("t", [elsewhere]))
    assert found == MOMENT
    assert found.tzinfo is UTC


@pytest.mark.parametrize("fixed", [False, True])
def test_decimals(world: World, fixed: bool) -> None:
    plain: Any = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    if fixed:
        plain |= {"type": "fixed", "name": "D", "size": 4}
    codec = world.codec(schema=plain)
    values = [Decimal("0.01"), Decimal("-9999.99"), Decimal(7), Decimal("1.50"), Decimal("-1.28")]
    assert codec.deserialize("t", codec.serialize("t", values)) == values
    for wrong, reason in (
        (Decimal("0.001"), "Scale provided"),
        (Decimal(1000000), "precision is bigger"),
        (Decimal("NaN"), "cannot write"),
    ):
        with pytest.raises(SerdeError, match=reason):
            codec.serialize("t", [wrong])


NAIVE = datetime(2013, 1, 1)
TIMESTAMP: Any = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL: Any = {"type": "long", "logicalType": "local-timestamp-micros"}


@pytest.mark.parametrize(
    ("schema", "value", "place"),
    [
        (TIMESTAMP, NAIVE, ""),
        ({**TIMESTAMP, "logicalType": "timestamp-micros"}, NAIVE, ""),
        (record(("at", TIMESTAMP)), {"at": NAIVE}, "field 'at': "),
        (record(("at", ["null", TIMESTAMP])), {"at": NAIVE}, "field 'at': "),
        ({"type": "array", "items": TIMESTAMP}, [MOMENT, NAIVE], "field '[]': "),
        ({"type": "map", "values": [TIMESTAMP, "null"]}, {"x": NAIVE}, "field '{}': "),
        (
            {"type": "record", "name": "R", "fields": [
                {"name": "next", "type": ["null", "R"]}, {"name": "at", "type": TIMESTAMP}]},
            {"next": {"next": None, "at": NAIVE}, "at": MOMENT},
            "field 'next.at': ",
        ),
    ],
)  # fmt: skip
def test_a_datetime_without_a_time_zone_is_no_moment(
    world: World, schema: Any, value: Any, place: str
) -> None:
    codec = world.codec(schema=schema)
    reason = f"{place}datetime 2013-01-01 00:00:00 is no moment: give it a time zone"
    with pytest.raises(SerdeError, match=re.escape(reason)):
        codec.serialize("t", [value])


def test_a_datetime_without_a_time_zone_fits_a_local_timestamp(world: World) -> None:
    codec = world.codec(schema=record(("at", ["null", LOCAL]), ("moment", TIMESTAMP)))
    value = {"at": NAIVE, "moment": MOMENT.replace(microsecond=0)}
    assert codec.deserialize("t", codec.serialize("t", [value])) == [value]


def test_without_a_schema_a_datetime_needs_a_time_zone(world: World) -> None:
    codec = world.codec()
    with pytest.raises(SerdeError, match="field 'at': datetime 2013-01-01 00:00:00 is no moment"):
        codec.serialize("t", [{"at": NAIVE}])
    codec.serialize("t", [{"at": MOMENT}])
    with pytest.raises(SerdeError, match="is no moment: give it a time zone") as caught:
        codec.serialize("t", [{"at": MOMENT}, {"at": NAIVE}])
    assert caught.value.index == 1


def test_what_is_no_timestamp_is_said_to_be_none(world: World) -> None:
    with pytest.raises(SerdeError, match="str '2013' is no timestamp-millis"):
        world.codec(schema=TIMESTAMP).serialize("t", ["2013"])


def test_the_writers_logical_type_is_the_values(world: World) -> None:
    when = {"type": "long", "logicalType": "timestamp-millis"}
    plain = world.codec(schema=record(("v", "long"))).serialize("t", [{"v": 0}])
    dated = world.codec(schema=record(("v", when))).serialize("t", [{"v": 0}])
    assert world.codec(schema=record(("v", when))).deserialize("t", plain) == [{"v": 0}]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert world.codec(schema=record(("v", "long"))).deserialize("t", dated) == [{"v": epoch}]


def test_a_default_is_of_its_logical_type(world: World) -> None:
    column = world.codec(schema=V1).serialize("t", [{"origin": "x"}])
    when = {"type": "long", "logicalType": "timestamp-millis"}
    reader = world.codec(schema=record(("when", when, 1000)))
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert reader.deserialize("t", column) == [{"when": moment}]
    wider = record(("origin", "string"), ("when", ["null", when][::-1], 1000), ("b", "bytes", "ÿ"))
    written = world.codec(schema=wider).serialize("u", [{"origin": "x"}])
    found = world.codec().deserialize("u", written)
    assert found == [{"origin": "x", "when": moment, "b": b"\xff"}]


# --- writing without a schema ------------------------------------------------------------


def test_the_first_column_makes_the_schema(world: World) -> None:
    codec = world.codec("DelaysByOrigin")
    values = [{"flights": 3, "mean": 2.5, "worst": None}, {"flights": 1, "mean": 1.0, "worst": 7}]
    column = codec.serialize("delays-by-origin", values)
    assert codec.deserialize("delays-by-origin", column) == values
    assert world.latest("delays-by-origin-value") == {
        "type": "record",
        "name": "DelaysByOrigin",
        "fields": [
            {"name": "flights", "type": ["null", "long"], "default": None},
            {"name": "mean", "type": ["null", "double"], "default": None},
            {"name": "worst", "type": ["null", "long"], "default": None},
        ],
    }


def test_without_a_name_the_record_is_named_after_the_topic(world: World) -> None:
    world.codec().serialize("delays-by-origin", [{"a": 1}])
    assert world.latest("delays-by-origin-value")["name"] == "DelaysByOrigin"


def test_bare_values_are_written_as_they_are(world: World) -> None:
    codec = world.codec()
    for topic, values in {"ints": [1, 2], "texts": ["a"], "lists": [[1.5], []]}.items():
        assert codec.deserialize(topic, codec.serialize(topic, values)) == values
    assert world.latest("ints-value") == "long"


def test_a_column_of_none_registers_nothing(world: World) -> None:
    assert world.codec().serialize("t", [None, None]) == [None, None]
    assert world.registry.registry.subjects() == ()


def test_later_values_widen_the_schema_version_by_version(world: World) -> None:
    codec = world.codec()
    columns = [
        codec.serialize("t", [{"a": 1}]),
        codec.serialize("t", [{"a": 2}, {"a": 2.5}, {"a": 3}]),
        codec.serialize("t", [{"a": 1.0, "b": "x"}, {"a": 1.0}]),
    ]
    assert world.registry.versions("t-value") == (1, 2, 3)
    assert world.codec().deserialize("t", [data for column in columns for data in column]) == [
        {"a": 1.0, "b": None},
        {"a": 2.0, "b": None},
        {"a": 2.5, "b": None},
        {"a": 3.0, "b": None},
        {"a": 1.0, "b": "x"},
        {"a": 1.0, "b": None},
    ]


def test_a_restart_goes_on_with_the_latest_schema(world: World) -> None:
    world.codec().serialize("t", [{"a": 1, "b": 2}])
    world.codec().serialize("t", [{"b": 3}])
    assert world.registry.versions("t-value") == (1,)


def test_two_writers_grow_one_schema_together(world: World) -> None:
    one, two = world.codec(), world.codec()
    one.serialize("t", [{"a": 1}])
    two.serialize("t", [{"a": 1, "b": 2}])
    one.serialize("t", [{"a": 1, "c": 3}])
    assert [field["name"] for field in world.latest("t-value")["fields"]] == ["a", "b", "c"]
    assert world.registry.versions("t-value") == (1, 2, 3)
    two.serialize("t", [{"c": 1}])
    assert world.registry.versions("t-value") == (1, 2, 3)


def test_what_does_not_fit_and_cannot_evolve_is_a_schema_error_with_its_place(
    world: World,
) -> None:
    codec = world.codec()
    codec.serialize("t", [{"a": 1}])
    with pytest.raises(SchemaError, match="field 'a': long and string have no type") as caught:
        codec.serialize("t", [{"a": 1}, {"a": 2, "b": 1}, {"a": "x"}])
    assert caught.value.index == 2
    # The record before it was fine and has made its version.
    assert world.registry.versions("t-value") == (1, 2)


def test_the_registry_may_refuse_an_evolution(world: World) -> None:
    codec = world.codec()
    codec.serialize("t", [{"a": 1}])
    memory = world.registry
    memory.append(memory.registry.set_compatibility(Compatibility.FULL))
    with pytest.raises(SchemaError, match="not FULL compatible with version 1") as caught:
        codec.serialize("t", [{"a": 1.5}])
    assert caught.value.index == 0
    codec.serialize("t", [{"a": 1, "b": 1}])
    assert memory.versions("t-value") == (1, 2)


def test_a_first_column_with_a_stray_value_names_that_one(world: World) -> None:
    with pytest.raises(SchemaError, match="long and string") as caught:
        world.codec().serialize("t", [None, {"a": 1}, {"a": "x"}])
    assert caught.value.index == 2


def test_a_name_that_the_subject_does_not_have_is_not_ignored(world: World) -> None:
    world.codec("One").serialize("t", [{"a": 1}])
    with pytest.raises(SchemaError, match="record 'One' in the older schema cannot be read"):
        world.codec("Two").serialize("t", [{"a": 1}])


# --- the serde as data -------------------------------------------------------------------


def test_an_avro_serde_is_data(tmp_path: Path) -> None:
    path = tmp_path / "flight.avsc"
    path.write_text(orjson.dumps(V1, option=orjson.OPT_INDENT_2).decode())
    same = {avro(schema=V1), avro(schema=orjson.dumps(V1).decode()), avro(schema=path)}
    assert len(same | {avro(schema=str(path))}) == 1
    assert repr(avro()) == "avro()"
    assert repr(avro("Delays", subject_strategy="record")) == (
        "avro('Delays', subject_strategy='record')"
    )
    assert repr(avro(schema=V1)).startswith('avro(schema=\'{"type":"record"')


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"schema": "no/such/file.avsc"}, "is no JSON and no file"),
        ({"schema": "{"}, "is not JSON"),
        ({"schema": {"type": "x"}}, "type 'x' is not known"),
        ({"name": "a b"}, "'a b' is no legal name"),
        ({"name": "Other", "schema": V1}, "the schema's record is called 'Flight'"),
        ({"subject_strategy": "subject"}, "expected one of 'topic', 'record', 'topic_record'"),
    ],
    ids=str,
)
def test_what_makes_no_serde_is_refused_when_it_is_made(
    arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SchemaError, match=reason):
        avro(**arguments)


def test_without_a_registry_it_does_not_open() -> None:
    with pytest.raises(SchemaError, match=r"avro\(\) needs a schema registry"):
        avro().open(SerdeContext())


class Unreachable(MemoryRegistry):
    def latest(self, subject: str) -> RegisteredSchema:
        raise KafkaliteError("nobody answers")

    def register(self, subject: str, schema: object) -> int:
        raise KafkaliteError("nobody answers")


def test_a_registry_that_does_not_answer_is_no_fault_of_the_record() -> None:
    codec = avro(schema="int").open(SerdeContext(Unreachable()))
    with pytest.raises(KafkaliteError, match="nobody answers") as caught:
        codec.serialize("t", [1])
    assert not isinstance(caught.value, SerdeError)


def test_ids_of_four_bytes(world: World) -> None:
    world.registry.registry.replay(
        b'{"keytype":"SCHEMA","subject":"t-value","version":1,"magic":1}',
        b'{"subject":"t-value","version":1,"id":100000,"schema":"\\"int\\""}',
    )
    codec = world.codec(schema="int")
    assert codec.serialize("t", [1]) == [struct.pack(">bi", 0, 100000) + b"\2"]
