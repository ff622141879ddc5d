"""Avro with a schema: bytes, subjects, reading as another schema, what does not fit."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pytest
from avro_world import INT, V1, V2, World, record

from kafkalite.errors import KafkaliteError, SchemaError, SerdeError
from kafkalite.serde import MemoryRegistry, RegisteredSchema, SerdeContext, avro

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
        ({"schema": "no/such/file.avsc"}, "is neither JSON nor a file that can be read"),
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


WITHOUT_NATIVE = """
from kafkalite.serde import MemoryRegistry, SerdeContext, avro
from kafkalite.serde.avro_columns import NATIVE, is_row
codec = avro("R").open(SerdeContext(MemoryRegistry()))
(value,) = codec.deserialize("t", codec.serialize("t", [{"a": 1}]))
print(NATIVE, is_row(value), type(value).__name__, value, *codec.slow_schemas.values())
import sys
print("pyarrow" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    [
        "import sys; sys.modules['kafkalite.serde._avro_columns'] = None",
        "import sys; sys.modules['kafkalite.serde._avro_read'] = None",
        "import sys; sys.modules['kafkalite.serde._avro_rows'] = None",
        "import sys; sys.modules['kafkalite.serde._avro_write'] = None",
        "import sys; sys.modules['kafkalite.serde._avro_values'] = None",
    ],
)
def test_without_the_native_modules_fastavro_reads_and_nobody_needs_pyarrow(before: str) -> None:
    command = [sys.executable, "-c", f"{before}\n{WITHOUT_NATIVE}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert found == "False False dict {'a': 1} the native module was not built\nFalse\n"
