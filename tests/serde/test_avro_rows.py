"""Rows of Avro look like the dicts that fastavro makes, and keep no batch alive."""

from __future__ import annotations

import copy
import gc
import json
import operator
import pickle
import weakref
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from avro_world import V1, V2, World, record
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from test_avro_columns import planned, programs, read
from test_avro_properties import evolved, values, write

from kafkalite.errors import SerdeError
from kafkalite.serde import json as json_serde
from kafkalite.serde import msgpack
from kafkalite.serde.avro_columns import Row, decoder, objects
from kafkalite.serde.avro_plan import Plan, plan
from kafkalite.serde.avro_schema import parse_schema
from kafkalite.serde.serde import SerdeContext

STOP = record(("name", "string"), ("minutes", "int"), name="Stop")
TRIP = record(
    ("id", "long"),
    ("tags", {"type": "array", "items": "string"}),
    ("first", ["null", STOP], None),
    ("stops", {"type": "array", "items": "Stop"}),
    ("by_name", {"type": "map", "values": "Stop"}),
    name="Trip",
)
A, B = {"name": "a", "minutes": 1}, {"name": "b", "minutes": 2}
ONE = {"id": 1, "tags": ["x", "y"], "first": A, "stops": [A, B], "by_name": {"b": B}}
TWO = {"id": 2, "tags": [], "first": None, "stops": [], "by_name": {}}


def rows_of(schema: Any, *column: Any) -> list[Any]:
    records = [None if value is None else write(schema, value) for value in column]
    return objects(decoder(planned(schema)).decode(records), False)[0]


@pytest.fixture
def row() -> Any:
    return rows_of(TRIP, ONE)[0]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400, deadline=None)
def test_rows_show_what_fastavro_reads(data: st.DataObject) -> None:
    writer = data.draw(programs)
    reader = data.draw(st.none() | evolved(writer))
    try:
        ours, theirs = parse_schema(writer), reader and parse_schema(reader)
        made = plan(ours, theirs)
        column = data.draw(st.lists(st.none() | values(writer), max_size=5))
        records = [None if value is None else write(writer, value) for value in column]
        expected = read(records, ours, theirs)
    except Exception:  # no schema, or one of the unions that fastavro does not resolve
        reject()
    if not isinstance(made, Plan):
        reject()
    for as_dicts in (True, False):
        found, kept = objects(decoder(made).decode(records), as_dicts)
        assert found == expected
        assert expected == found
        assert repr(found) == repr(expected), "types, order of fields"
        kept.release()
        assert repr(found) == repr(expected)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400, deadline=None)
def test_rows_of_damaged_bytes_show_what_fastavro_reads(data: st.DataObject) -> None:
    schema = data.draw(programs)
    broken = bytearray(write(schema, data.draw(values(schema))))
    for place in data.draw(st.lists(st.integers(0, max(len(broken) - 1, 0)), max_size=3)):
        broken[place : place + 1] = [data.draw(st.integers(0, 255))]
    batch = None
    with suppress(SerdeError):
        batch = decoder(planned(schema)).decode([bytes(broken)])
    if batch is not None:
        expected = read([bytes(broken)], parse_schema(schema), None)
        assert repr(objects(batch, False)[0]) == repr(expected)


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ({"type": "int", "logicalType": "date"},
         [date.min, date.max, date(1969, 12, 31), date(2000, 2, 29), date(1900, 3, 1)]),
        ({"type": "int", "logicalType": "time-millis"}, [time.min, time(23, 59, 59, 999_000)]),
        ({"type": "long", "logicalType": "time-micros"}, [time.min, time.max]),
        ({"type": "long", "logicalType": "timestamp-micros"},
         [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC),
          datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]),
        ({"type": "long", "logicalType": "local-timestamp-millis"},
         [datetime.min, datetime.max.replace(microsecond=999_000), datetime(2000, 2, 29)]),
        ({"type": "long", "logicalType": "timestamp-nanos"}, [2**63 - 1, -(2**63)]),
        ({"type": "string", "logicalType": "uuid"}, [UUID(int=0), UUID(int=2**128 - 1)]),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
         [Decimal("0.00"), Decimal("-99.99"), Decimal("99.99"), Decimal("1.50")]),
        ("float", [1.5, float("inf"), -0.0]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["B", "A"]),
        ({"type": "fixed", "name": "F", "size": 0}, [b""]),
    ],
    ids=str,
)  # fmt: skip
def test_the_ends_of_what_types_hold(schema: Any, column: list[Any]) -> None:
    found = rows_of(schema, *column)
    assert repr(found) == repr(column)
    expected = read([write(schema, value) for value in column], parse_schema(schema), None)
    assert repr(found) == repr(expected)


def test_a_row_is_used_like_a_dict(row: Any) -> None:
    assert isinstance(row, Mapping)
    assert row == ONE
    assert operator.eq(ONE, row)
    assert row != TWO
    assert row != [("id", 1)]
    assert row == rows_of(TRIP, ONE)[0]
    assert list(row) == list(ONE)
    assert list(reversed(row)) == list(reversed(ONE))
    assert len(row) == 5
    assert "id" in row
    assert "ID" not in row
    assert row["id"] == row.get("id") == 1
    assert row.get("ID") is None
    assert row.get("ID", 7) == 7
    with pytest.raises(KeyError, match="'ID'"):
        row["ID"]
    assert row.keys() == ONE.keys()
    assert row.keys() & {"id", "x"} == {"id"}
    assert list(row.values()) == list(ONE.values())
    assert list(row.items()) == list(ONE.items())
    assert {**row} == dict(row) == row.copy() == ONE
    assert type({**row}) is type(dict(row)) is type(row.copy()) is dict
    assert row | {"id": 2} == ONE | {"id": 2}
    assert {"id": 2, "more": 0} | row == {"more": 0} | ONE
    assert repr(row) == str(row) == repr(ONE)
    assert "{id} {tags[0]}".format(**row) == "1 x"
    match row:
        case {"id": int(found), "first": {"name": name}}:
            assert (found, name) == (1, "a")
        case _:
            pytest.fail("it is no mapping")
    with pytest.raises(TypeError, match="unhashable type"):
        hash(row)


def test_records_inside_are_rows_and_lists_and_maps_are_pythons_own(row: Any) -> None:
    assert type(row["first"]) is type(row["stops"][1]) is type(row["by_name"]["b"]) is Row
    assert type(row["stops"]) is type(row["tags"]) is list
    assert type(row["by_name"]) is dict
    assert row["first"]["name"] == "a"
    assert row["tags"] is row["tags"], "each value is made once"
    assert rows_of(TRIP, TWO, None, ONE) == [TWO, None, ONE]
    assert rows_of({"type": "array", "items": STOP}, [A, B], []) == [[A, B], []]


def test_a_row_cannot_be_changed(row: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be changed: make \{\*\*row, 'id': \.\.\.\}"):
        row["id"] = 2
    with pytest.raises(TypeError, match="cannot lose 'id': change a copy"):
        del row["id"]
    for change in (row.clear, row.popitem, row.update):
        with pytest.raises(TypeError, match=r"cannot be changed: change a copy, dict\(row\)"):
            change()
    for change in (row.pop, row.setdefault):
        with pytest.raises(TypeError, match="cannot be changed"):
            change("id", 2)
    with pytest.raises(TypeError, match="rows come from a batch"):
        type(row)()
    assert row == ONE


def test_copies_are_dicts(row: Any) -> None:
    for made in (copy.copy(row), copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        assert type(made) is dict
        assert made == ONE
    assert type(pickle.loads(pickle.dumps(row))["first"]) is dict
    assert type(copy.deepcopy(row)["stops"][0]) is dict
    assert copy.deepcopy(row)["tags"] is not row["tags"]
    assert json.loads(json.dumps(row, default=dict)) == ONE


@pytest.mark.parametrize("serde", [json_serde(), msgpack()], ids=repr)
def test_other_serdes_write_a_row_as_its_dict(row: Any, serde: Any) -> None:
    codec = serde.open(SerdeContext())
    assert codec.deserialize("t", codec.serialize("t", [row, [row]])) == [ONE, [ONE]]


def test_avro_writes_rows(world: World) -> None:
    (row,) = rows_of(TRIP, ONE)
    for topic, codec in (("given", world.codec(schema=TRIP)), ("inferred", world.codec())):
        assert codec.deserialize(topic, codec.serialize(topic, [row])) == [ONE]
    moments = rows_of(record(("at", {"type": "long", "logicalType": "local-timestamp-millis"})),
                      {"at": datetime(2013, 1, 1)})  # fmt: skip
    codec = world.codec(schema=record(("at", {"type": "long", "logicalType": "timestamp-millis"})))
    with pytest.raises(SerdeError, match="field 'at': datetime 2013-01-01 00:00:00 is no moment"):
        codec.serialize("t", moments)


def test_a_row_that_is_kept_keeps_no_batch() -> None:
    batch = decoder(planned(TRIP)).decode([write(TRIP, value) for value in (ONE, TWO, ONE)])
    gone = weakref.ref(batch)
    found, rows = objects(batch, False)
    kept, stop = found[0], found[2]["stops"][1]
    del batch, found
    assert gone() is not None
    rows.release()
    del rows
    assert gone() is None
    assert kept == ONE
    assert (kept["first"], kept["tags"], stop) == (A, ["x", "y"], B)
    assert list(kept) == list(ONE)
    assert kept.copy() is not kept.copy()
    with pytest.raises(TypeError, match="cannot be changed"):
        kept["id"] = 2


def test_a_codec_lets_go_of_all_but_the_last_two_batches(world: World) -> None:
    codec: Any = world.codec(schema=TRIP)
    records = codec.serialize("t", [ONE, TWO])
    kept = [codec.deserialize("t", records)[0] for _ in range(5)]
    (reader,) = codec._readers.values()
    assert len(reader._open) == 2
    assert kept == [ONE] * 5


def test_defaults_are_not_shared(world: World) -> None:
    tags = {"type": "array", "items": "string"}
    wide = record(("origin", "string"), ("tags", tags, ["x"]))
    records = world.codec(schema=record(("origin", "string"))).serialize("t", [{"origin": "a"}] * 2)
    one, two = world.codec(schema=wide).deserialize("t", records)
    one["tags"].append("y")
    assert (one["tags"], two["tags"]) == (["x", "y"], ["x"])


def test_a_codec_says_which_schemas_fastavro_reads_and_why(world: World) -> None:
    several = record(("u", ["int", "string"]))
    codec: Any = world.codec()
    fast = world.codec(schema=V1).serialize("fast", [{"origin": "x", "delay": None}])
    slow = world.codec(schema=several).serialize("slow", [{"u": 1}, {"u": "x"}])
    assert codec.deserialize("fast", fast) == [{"origin": "x", "delay": None}]
    assert codec.deserialize("slow", slow) == [{"u": 1}, {"u": "x"}]
    assert codec.slow_schemas == {("slow", 2): "field 'u' is a union of 2 types"}


def test_what_avro_does_not_allow_and_fastavro_reads_is_read(world: World) -> None:
    codec = world.codec(schema="int")
    (one,) = codec.serialize("t", [1])
    assert one is not None
    assert codec.deserialize("t", [one[:5] + b"\xfe\xff\xff\xff\x1f"]) == [4294967295]


def test_dicts_for_those_who_ask(world: World) -> None:
    from kafkalite.serde import avro

    records = world.codec(schema=V2).serialize("t", [{"origin": "x", "delay": 1, "km": 2.0}])
    codec = avro(schema=V2).open(SerdeContext(world.registry, as_dicts=True))
    (found,) = codec.deserialize("t", records)
    assert type(found) is dict
    (found,) = world.codec(schema=V2).deserialize("t", records)
    assert type(found) is Row


def test_a_column_of_records_as_an_arrow_array(world: World) -> None:
    old = world.codec(schema=V1).serialize("t", [{"origin": "a", "delay": 1}, {"origin": "b"}])
    new = world.codec(schema=V2).serialize("t", [{"origin": "c", "delay": None, "km": 2.5}])
    codec: Any = world.codec()
    a, b, c = [
        {"origin": "a", "delay": 1, "km": 0.0},
        {"origin": "b", "delay": None, "km": 0.0},
        {"origin": "c", "delay": None, "km": 2.5},
    ]
    assert codec.deserialize_arrow("t", [*old, *new]).to_pylist() == [a, b, c]
    assert codec.deserialize_arrow("t", [old[1], None, *new, old[0]]).to_pylist() == [b, None, c, a]
    assert codec.deserialize_arrow("t", new).to_pylist() == [c]
    assert codec.deserialize_arrow("t", [None]).to_pylist() == [None]
    assert codec.deserialize_arrow("t", []).to_pylist() == []
    assert new[0] is not None
    assert codec.deserialize_arrow("t", [new[0][:-1]]) is None
    with pytest.raises(SerdeError):
        codec.deserialize("t", [new[0][:-1]])
    several = world.codec(schema=["int", "string"]).serialize("u", [1])
    assert codec.deserialize_arrow("u", several) is None
    with pytest.raises(SerdeError, match="not Confluent's wire format"):
        codec.deserialize_arrow("t", [b"no"])


def test_columns_of_two_types_are_no_array(world: World) -> None:
    when = {"type": "long", "logicalType": "timestamp-millis"}
    plain = world.codec(schema=record(("v", "long"))).serialize("t", [{"v": 1}])
    dated = world.codec(schema=record(("v", when))).serialize("t", [{"v": 1}])
    codec: Any = world.codec()
    assert codec.deserialize_arrow("t", [*plain, *dated]) is None
    assert len(codec.deserialize("t", [*plain, *dated])) == 2


def test_a_batch_in_a_circle_of_garbage_frees_its_own_columns() -> None:
    """Before, the collector could empty a batch first, and the process ended."""

    class Holder:
        pass

    read_one = decoder(planned(record(*((f"f{place}", "string") for place in range(9))))).decode
    batches = []
    for _ in range(50):
        batch, holder = read_one([b"\x02a" * 9] * 20), Holder()
        vars(holder).update(batch=batch, itself=holder)
        batches.append(weakref.ref(batch))
    del batch, holder
    gc.collect()
    assert not any(batch() for batch in batches)
