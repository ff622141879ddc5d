"""Avro's bytes as Arrow columns: what fastavro reads, and no byte beyond a record's end."""

from __future__ import annotations

import ctypes
import json
import mmap
from array import array
from contextlib import suppress
from io import BytesIO
from itertools import count
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from avro_world import record
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from test_avro_properties import bounded, evolved, records, schemas, values, write

from kafkalite.errors import SerdeError
from kafkalite.serde.avro_arrow import avro_to_arrow, to_arrow
from kafkalite.serde.avro_binary import binary
from kafkalite.serde.avro_columns import NATIVE, decoder
from kafkalite.serde.avro_plan import NODES_MAX, Kind, Plan, Slow, plan
from kafkalite.serde.avro_schema import Schema, parse_schema

if not NATIVE:
    pytest.skip("built without a compiler, or from other sources", allow_module_level=True)


def narrowed(schema: Any) -> Any:
    """The schema with unions of null and one type at most, which have a program."""
    match schema:
        case list():
            others = [narrowed(branch) for branch in schema if branch != "null"][:1]
            return ([*others, "null"], ["null", *others], others or ["null"])[len(schema) % 3]
        case {"fields": fields}:
            return {**schema, "fields": [{**f, "type": narrowed(f["type"])} for f in fields]}
        case {"items": inner}:
            return {**schema, "items": narrowed(inner)}
        case {"values": inner}:
            return {**schema, "values": narrowed(inner)}
    return schema


names = st.shared(st.builds(count), key="names")
writers = names.flatmap(lambda names: records(3, names, logical=True) | schemas(logical=True))
programs = writers.map(narrowed).filter(bounded)  # schemas that have one


def planned(writer: Any, reader: Any = None, wanted: set[str] | None = None) -> Plan:
    made = plan(parse_schema(writer), reader and parse_schema(reader), wanted)
    assert isinstance(made, Plan), made
    return made


def read(records: list[bytes | None], writer: Schema, reader: Schema | None) -> list[Any]:
    """What fastavro makes of records."""
    ours, theirs = binary(writer.text), reader and binary(reader.text)
    found = []
    for data in records:
        if data is None:
            found.append(None)
            continue
        stream = BytesIO(data)
        found.append(ours.decode(stream, theirs))
        if stream.tell() != len(data):
            raise ValueError("bytes are left over")
    return found


def in_python(made: Plan, value: Any, place: int = 0) -> Any:
    """A value of an array's `to_pylist` as fastavro gives it."""
    column = made.columns[place]
    match column.kind:
        case _ if value is None:
            return None
        case Kind.RECORD:
            parts = ((made.columns[part].name, part) for part in column.parts)
            return {name: in_python(made, value[name], part) for name, part in parts}
        case Kind.ARRAY:
            return [in_python(made, item, column.parts[0]) for item in value]
        case Kind.MAP:
            return {key: in_python(made, item, column.parts[1]) for key, item in value}
        case Kind.CONSTANT:
            return in_python(made, value, column.parts[0])
        case Kind.UUID:
            return UUID(bytes=value)
    return value


def columns_of(made: Plan, records: list[bytes | None]) -> list[Any]:
    found = avro_to_arrow(made, records)
    found.validate(full=True)
    return [in_python(made, value) for value in found.to_pylist()]


def guarded(made: Plan, data: bytes) -> pa.Array:
    """What is read of a record behind whose last byte is memory that nobody may read."""
    page = mmap.PAGESIZE
    size = -(-max(len(data), 1) // page) * page
    area = mmap.mmap(-1, size + page)
    view = (ctypes.c_char * (size + page)).from_buffer(area)
    libc = ctypes.CDLL(None, use_errno=True)
    last = ctypes.c_void_p(ctypes.addressof(view) + size)
    try:
        area[size - len(data) : size] = data
        assert libc.mprotect(last, page, 0) == 0, "PROT_NONE"
        starts, ends = array("q", [size - len(data)]), array("q", [size])
        return to_arrow(decoder(made).decode_spans(view, starts, ends))
    finally:
        libc.mprotect(last, page, 3)
        del view
        area.close()


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400, deadline=None)
def test_columns_hold_the_values_that_fastavro_reads(data: st.DataObject) -> None:
    writer = data.draw(programs)
    reader = data.draw(st.none() | evolved(writer).filter(bounded))
    ours, theirs = parse_schema(writer), reader and parse_schema(reader)
    made = plan(ours, theirs)
    assume(isinstance(made, Plan))
    assert isinstance(made, Plan)
    column = data.draw(st.lists(st.none() | values(writer), max_size=5))
    records = [None if value is None else write(writer, value) for value in column]
    try:
        expected = read(records, ours, theirs)
    except Exception:  # it resolves some names in unions wrongly, which the plan does not
        reject()
    assert columns_of(made, records) == expected


@pytest.mark.slow
@given(st.data())
@settings(max_examples=600, deadline=None)
def test_damaged_bytes_are_an_error_or_what_fastavro_reads(data: st.DataObject) -> None:
    schema = data.draw(programs)
    made = planned(schema)
    broken = bytearray(write(schema, data.draw(values(schema))))
    for place in data.draw(st.lists(st.integers(0, max(len(broken) - 1, 0)), max_size=3)):
        broken[place : place + 1] = [data.draw(st.integers(0, 255))]
    cut = bytes(broken)[: data.draw(st.integers(0, len(broken)))]
    damaged = cut + data.draw(st.just(b"") | st.binary(max_size=20))
    try:
        (found,) = guarded(made, damaged).to_pylist()
    except SerdeError:
        return
    expected = read([damaged], parse_schema(schema), None)
    same = [in_python(made, found)] == expected
    assert same or "nan" in repr(expected)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_wanted_fields_are_those_of_the_whole_record(data: st.DataObject) -> None:
    writer = narrowed(data.draw(records(3, data.draw(names), logical=True)))
    assume(bounded(writer))
    fields = [field["name"] for field in writer["fields"]]
    wanted = set(data.draw(st.lists(st.sampled_from([*fields, "no field"]), unique=True)))
    rows: list[bytes | None] = [write(writer, data.draw(values(writer)))]
    expected = read(rows, parse_schema(writer), None)
    found = columns_of(planned(writer, None, wanted), rows)
    assert found == [{k: v for k, v in row.items() if k in wanted} for row in expected]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_values_of_any_type_are_passed_over(data: st.DataObject) -> None:
    kind = data.draw(schemas(logical=True).filter(bounded))
    writer = record(("before", "int"), ("any", kind), ("after", "string"), name="Around")
    made = planned(writer, None, {"before", "after"})
    broken = bytearray(write(writer, {"before": 1, "any": data.draw(values(kind)), "after": "x"}))
    assert columns_of(made, [bytes(broken)]) == [{"before": 1, "after": "x"}]
    for place in data.draw(st.lists(st.integers(0, len(broken) - 1), max_size=2)):
        broken[place : place + 1] = [data.draw(st.integers(0, 255))]
    with suppress(SerdeError):
        guarded(made, bytes(broken))


def test_a_branch_that_a_union_lacks_is_not_passed_over() -> None:
    made = planned(record(("any", ["int", "string", "null"]), ("n", "int")), None, {"n"})
    assert columns_of(made, [b"\2\2a\2", b"\0\2\4", b"\4\6"]) == [{"n": 1}, {"n": 2}, {"n": 3}]
    for wrong in (b"\6\2", b"\1\2"):
        with pytest.raises(SerdeError, match="field 'any': a union has no branch"):
            avro_to_arrow(made, [wrong])


LONG = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("long", b"", "the data ends early"),
        ("long", b"\x80", "the data ends early"),
        ("long", b"\xff" * 10, "a number of more than 64 bits"),
        ("int", b"\xfe\xff\xff\xff\x1f", "4294967295 is out of the range of int"),
        (["null", "int"], b"\4", "a union has no branch 2"),
        (["int"], b"\2\2", "a union has no branch 1"),
        ("string", b"\1", "a length of -1"),
        ("string", b"\6ab", "a length of 3 runs past the end of the data"),
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01a", "runs past the end"),
        ("string", b"\4\xc0\x80", "text that is not UTF-8"),
        ("string", b"\6\xed\xa0\x80", "text that is not UTF-8"),
        ("boolean", b"\2", "2 is no boolean"),
        ("int", b"\2\2", "1 bytes are left over"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", "the data ends early"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\2", "an enum has no symbol 1"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", "range of a date"),
        ({"type": "int", "logicalType": "time-millis"}, b"\1", "-1 is out of the range of a time"),
        ({"type": "string", "logicalType": "uuid"}, b"\2a", "text that is no UUID"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            b"\2\x64",
            "a decimal of more digits than its precision",
        ),
        (record(("a", {"type": "array", "items": LONG})), b"\2\x80", "field 'a[].n': the data"),
        (record(("m", {"type": "map", "values": "int"})), b"\4\2a\2\3", "field 'm': a length"),
        # So many items that a byte each would be more than there is.
        ({"type": "array", "items": "int"}, b"\x80" * 8 + b"\x10\2", "runs past the end"),
        ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\x01\2", "runs past the end"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_record_and_field(
    schema: Any, data: bytes, reason: str
) -> None:
    made = planned(schema)
    with pytest.raises(SerdeError) as caught:
        avro_to_arrow(made, [None, data])
    assert reason in str(caught.value)
    assert caught.value.index == 1


def test_a_few_bytes_take_no_more_memory_than_their_share() -> None:
    """A null record takes a byte, and a place in each column of its fields."""
    wide = record(*((f"f{n}", "long") for n in range(2_000)), name="Wide")
    made = planned({"type": "array", "items": ["null", wide]})
    nulls = b"\x80\x89\x7a" + bytes(1_000_000) + b"\0"
    with pytest.raises(SerdeError, match=r"the columns take more than the [0-9,]+ bytes that they"):
        avro_to_arrow(made, [nulls])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (["int", "string"], "the schema is a union of 2 types"),
        (record(("u", ["null", "int", "string"])), "field 'u' is a union of 2 types"),
        (record(("next", ["null", "Flight"])), "a type contains itself"),
        ({"type": "array", "items": "null"}, "the items of an array take no bytes"),
        ({"type": "fixed", "name": "F", "size": 1_025}, "the schema is a fixed of 1,025 bytes"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 77},
            "the schema is a decimal of 77 digits",
        ),
        (record(*((f"f{n}", "int") for n in range(NODES_MAX))), "it has more than 4,096 parts"),
        (json.loads('{"type":"array","items":' * 70 + '"int"' + "}" * 70), "more than 64 deep"),
    ],
)
def test_what_has_no_program_says_why(schema: Any, reason: str) -> None:
    made = plan(parse_schema(schema))
    assert isinstance(made, Slow)
    assert reason in made.reason


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("string", "int", "the schema: string matches no type of the reader's"),
        (record(("a", "int")), record(("b", "int")), "field 'b' has no default"),
        (
            record(("a", "int"), ("b", "int")),
            {"type": "record", "name": "Flight",
             "fields": [{"name": "a", "type": "int", "aliases": ["b"]}]},
            "two fields lead to field 'a'",
        ),
    ],
)  # fmt: skip
def test_two_schemas_that_do_not_resolve_have_no_program(
    writer: Any, reader: Any, reason: str
) -> None:
    made = plan(parse_schema(writer), parse_schema(reader))
    assert isinstance(made, Slow)
    assert reason in made.reason


LOGICAL_ARRAYS = [
    ("long", {"logicalType": "timestamp-nanos"}, pa.timestamp("ns", "UTC")),
    ("long", {"logicalType": "local-timestamp-nanos"}, pa.timestamp("ns")),
    ("long", {"logicalType": "local-timestamp-micros"}, pa.timestamp("us")),
    ("long", {"logicalType": "timestamp-millis"}, pa.timestamp("ms", "UTC")),
    ("int", {"logicalType": "time-millis"}, pa.time32("ms")),
    ("long", {"logicalType": "time-micros"}, pa.time64("us")),
    ("int", {"logicalType": "date"}, pa.date32()),
]


@pytest.mark.parametrize(("word", "more", "kind"), LOGICAL_ARRAYS, ids=str)
def test_logical_types_are_arrows_own(word: str, more: Any, kind: pa.DataType) -> None:
    found = avro_to_arrow(planned({"type": word, **more}), [b"\4", None])
    assert found.type == kind
    assert found.cast(pa.int64() if word == "long" else pa.int32()).to_pylist() == [2, None]


def test_fixed_enums_uuids_decimals_and_durations() -> None:
    fixed = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    found = avro_to_arrow(planned(fixed), [b"123456789012"])
    assert (found.type, found.to_pylist()) == (pa.binary(12), [b"123456789012"])
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    found = avro_to_arrow(planned(enum), [b"\2", None, b"\0"])
    assert found.type == pa.dictionary(pa.int32(), pa.string())
    assert found.to_pylist() == ["B", None, "A"]
    uuid = {"type": "string", "logicalType": "uuid"}
    text = str(UUID(int=7)).upper().encode()
    assert avro_to_arrow(planned(uuid), [b"\x48" + text]).to_pylist() == [UUID(int=7).bytes]
    for digits, kind in ((38, pa.decimal128(38, 2)), (76, pa.decimal256(76, 2))):
        schema = {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 2}
        numbers = [0, 1, -1, 128, -128, -129, 10**digits - 1, 1 - 10**digits]
        records: list[bytes | None] = []
        for n in numbers:
            raw = n.to_bytes(n.bit_length() // 8 + 1, "big", signed=True)
            records.append(bytes([len(raw) * 2]) + raw)
        records += [b"\0", b"\x54" + b"\xff" * 42]  # no bytes, and more than it takes
        found = avro_to_arrow(planned(schema), records)
        assert found.type == kind
        expected = read(records, parse_schema(schema), None)
        assert found.to_pylist() == expected


def test_a_symbol_that_the_reader_lacks_is_its_default_or_an_error() -> None:
    writer = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
    reader = {"type": "enum", "name": "E", "symbols": ["C", "A"]}
    made = planned(writer, reader)
    assert avro_to_arrow(made, [b"\4", b"\0"]).to_pylist() == ["C", "A"]
    with pytest.raises(SerdeError, match="symbol 1 of the writer's enum is unknown"):
        avro_to_arrow(made, [b"\2"])
    made = planned(writer, {**reader, "default": "A"})
    assert avro_to_arrow(made, [b"\2"]).to_pylist() == ["A"]


def test_null_where_the_reader_takes_none_is_an_error() -> None:
    made = planned(["null", "int"], "long")
    assert avro_to_arrow(made, [b"\2\2"]).to_pylist() == [1]
    with pytest.raises(SerdeError, match="null, which the reader's schema does not take here"):
        avro_to_arrow(made, [b"\0"])


def test_records_of_one_buffer_and_bytes_before_each() -> None:
    made = planned(LONG)
    data = b"..\2..\4..\6"
    spans = array("q", [0, -1, 3]), array("q", [3, -1, 6])
    found = to_arrow(decoder(made).decode_spans(data, *spans, 2))
    assert found.to_pylist() == [{"n": 1}, None, {"n": 2}]
    assert avro_to_arrow(made, [b"..\2", None], 2).to_pylist() == [{"n": 1}, None]
    with pytest.raises(SerdeError, match="the data ends early"):
        avro_to_arrow(made, [b"."], 2)
    for start, end in ((0, 10), (-2, 3), (4, 3)):
        with pytest.raises(ValueError, match="record 0: "):
            decoder(made).decode_spans(data, array("q", [start]), array("q", [end]))
    with pytest.raises(TypeError, match="record 0: str, expected bytes"):
        decoder(made).decode(["x"])  # type: ignore[list-item]
