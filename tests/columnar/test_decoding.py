"""Keys and values as Arrow arrays: the native way gives what the way of objects gives."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from kafkalite.columnar import formats
from kafkalite.columnar.decoding import Decoder, OnError
from kafkalite.columnar.formats import (
    AvroValues,
    Binary,
    Format,
    JsonValues,
    Text,
    WindowedKeys,
    holds,
)
from kafkalite.columnar.rows import Rows
from kafkalite.core.columns import joined
from kafkalite.core.protocol import record_codec
from kafkalite.core.protocol.record_codec import Spans
from kafkalite.core.types import Columns, Windowed
from kafkalite.errors import ConfigError, SerdeError
from kafkalite.serde import SerdeContext, avro, string, windowed
from kafkalite.serde.avro_columns import NATIVE
from kafkalite.serde.registry import MemoryRegistry

MANY = 2_000  # beyond which native code reads a column
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "hour", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
    ],
}


def order(i: int) -> dict[str, Any]:
    return {
        "id": i,
        "item": f"item-{i}" if i % 3 else None,
        "kind": "OLD" if i % 2 else "NEW",
        "at": 1_700_000_000_000 + i,
        "hour": i,
        "tags": ["a"] * (i % 3),
        "mark": b"ab",
    }


def rows_of(values: list[bytes | None], keys: list[bytes | None] | None = None) -> Rows:
    """As they come from the log: spans of one buffer, or a list where there is no native code."""
    n = len(values)
    column = Spans.gathered(values) or values
    assert isinstance(column, Spans) is record_codec.NATIVE
    return Rows("t", 3, Columns(keys or [None] * n, column, range(n), range(100, 100 + n)))


@pytest.fixture(scope="module")
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture(scope="module")
def orders(registry: MemoryRegistry) -> list[bytes | None]:
    codec = avro(schema=ORDER).open(SerdeContext(registry))
    return list(codec.serialize("t", [order(i) for i in range(MANY)]))


def decoded(value: Format, rows: Rows, on_error: OnError = "fail") -> pa.Array:
    return Decoder(Binary(), value, on_error=on_error).decode(rows).value


def test_avro_is_the_same_natively_and_by_objects(
    registry: MemoryRegistry, orders: list[bytes | None]
) -> None:
    values = AvroValues(json.dumps(ORDER), registry)
    at_once = decoded(values, rows_of(orders))
    apart = [decoded(values, rows_of(orders[i : i + 10])) for i in range(0, MANY, 10)]
    assert at_once.type == values.type
    assert at_once.equals(pa.concat_arrays(apart))
    assert at_once[7].as_py()["item"] == "item-7"
    assert values.type.field("kind").type == pa.string()
    assert values.type.field("hour").type == pa.int32()


def test_only_records_around_a_change_of_the_schema_are_read_as_objects(
    registry: MemoryRegistry, orders: list[bytes | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = ORDER | {"fields": [*ORDER["fields"], {"name": "n", "type": "int", "default": 7}]}
    codec = avro(schema=newer).open(SerdeContext(registry))
    mixed = orders + list(codec.serialize("t", [order(i) | {"n": i} for i in range(1_100)]))
    mixed[5] = None
    values = AvroValues(json.dumps(newer), registry)
    apart = [decoded(values, rows_of(mixed[i : i + 10])) for i in range(0, len(mixed), 10)]
    as_objects: list[int] = []
    array_of = formats.array_of

    def counted(values: Any, kind: pa.DataType) -> pa.Array:
        as_objects.append(len(values))
        return array_of(values, kind)

    monkeypatch.setattr(formats, "array_of", counted)
    array = decoded(values, rows_of(mixed))
    assert array.equals(pa.concat_arrays(apart))
    assert 0 < sum(as_objects) < (2_000 if NATIVE else len(mixed) + 1), "of 3,100 records"
    damaged = MANY + 1_000
    mixed[damaged] = (mixed[damaged] or b"")[:7]
    with pytest.raises(SerdeError, match=rf"^t-3 offset {100 + damaged}: avro cannot read"):
        decoded(values, rows_of(mixed))


def test_some_fields_alone_are_decoded(
    registry: MemoryRegistry, orders: list[bytes | None]
) -> None:
    values = AvroValues(json.dumps(ORDER), registry, ["at", "id"])
    for some in (orders, orders[:5]):
        array = decoded(values, rows_of(some))
        assert [field.name for field in array.type] == ["at", "id"]
        assert array.field("id").to_pylist() == list(range(len(some)))
    with pytest.raises(ConfigError, match="the value has no field 'price'; it has id, item"):
        AvroValues(json.dumps(ORDER), registry, ["price"])


def test_a_uuid_is_its_text(registry: MemoryRegistry) -> None:
    uuid = {"type": "string", "logicalType": "uuid"}
    schema = {"type": "record", "name": "U", "fields": [{"name": "u", "type": uuid}]}
    codec = avro(schema=schema).open(SerdeContext(registry))
    found = UUID(int=7)
    records = list(codec.serialize("u", [{"u": found}] * MANY))
    array = decoded(AvroValues(json.dumps(schema), registry), rows_of(records))
    assert set(array.field("u").to_pylist()) == {str(found)}


def test_a_number_is_no_moment() -> None:
    """A long that was written before it became a logical type would be off by a thousand."""
    assert not holds(pa.int64(), pa.timestamp("us", "UTC"))
    assert not holds(pa.timestamp("ms", "UTC"), pa.int64())
    assert not holds(pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())]))


JSON_COLUMNS = pa.struct(
    [("id", pa.int64()), ("price", pa.float64()), ("note", pa.string()), ("new", pa.bool_())]
)


def test_json_that_is_alike_and_json_that_is_not_give_the_same_rows() -> None:
    texts: list[bytes | None] = [
        json.dumps({"id": i, "price": i / 4, "note": f"n{i}"}).encode() for i in range(MANY)
    ]
    values = JsonValues(JSON_COLUMNS)
    at_once = decoded(values, rows_of(texts))
    apart = [decoded(values, rows_of(texts[i : i + 100])) for i in range(0, MANY, 100)]
    assert at_once.equals(pa.concat_arrays(apart))
    assert at_once[3].as_py() == {"id": 3, "price": 0.75, "note": "n3", "new": None}
    whole: list[bytes | None] = [b'{"id": %d, "price": 2}' % i for i in range(MANY)]
    assert decoded(values, rows_of(whole)).field("price").to_pylist() == [2.0] * MANY


@pytest.mark.parametrize("count", [10, MANY])
@pytest.mark.parametrize("text", [b'{"id": "a"}', b'{"id": 1, "more": 2}', b"[1]", b"{"])
def test_json_that_does_not_fit_is_an_error_either_way(count: int, text: bytes) -> None:
    with pytest.raises(SerdeError, match="t-3 offset 100"):
        decoded(JsonValues(JSON_COLUMNS), rows_of([text] * count))


@pytest.mark.parametrize("count", [10, MANY])
def test_fields_of_json_that_nobody_asked_for_are_ignored(count: int) -> None:
    texts: list[bytes | None] = [b'{"id": %d, "more": 1, "note": 5}' % i for i in range(count)]
    array = decoded(JsonValues(JSON_COLUMNS, ["new", "id"]), rows_of(texts))
    assert array[1].as_py() == {"new": None, "id": 1}
    with pytest.raises(ConfigError, match="the value has no field 'more'"):
        JsonValues(JSON_COLUMNS, ["more"])


def test_text_is_checked() -> None:
    texts: list[bytes | None] = [b"a", None, "ü".encode(), b"\xff"]
    with pytest.raises(SerdeError, match="t-3 offset 103"):
        decoded(Text(), rows_of(texts))
    array = decoded(Text(), rows_of(texts[:3]))
    assert array.to_pylist() == ["a", None, "ü"]
    assert array.type == pa.string()


def test_a_windowed_key_is_a_struct() -> None:
    codec = windowed(string(), size="1h").open(SerdeContext(is_key=True))
    keys = list(codec.serialize("t", [Windowed("k", 0, 3_600_000), None]))
    made = Decoder(WindowedKeys("windowed:1h"), Binary()).decode(rows_of([b"v"] * 2, keys))
    assert made.key[0].as_py()["key"] == "k"
    assert made.key[1].as_py() is None


@pytest.mark.parametrize("bad", [[0], [MANY - 1], [5, 6, 7, 1_500], list(range(0, MANY, 2))])
def test_what_cannot_be_read_is_left_out_or_null_or_collected(
    registry: MemoryRegistry, orders: list[bytes | None], bad: list[int]
) -> None:
    values = AvroValues(json.dumps(ORDER), registry, ["id"])
    records = [b"x%d" % i if i in bad else record for i, record in enumerate(orders)]
    good = [i for i in range(MANY) if i not in bad]
    rows = rows_of(records, [b"k%d" % i for i in range(MANY)])
    with pytest.raises(SerdeError, match=r"t-3 offset \d+: .* cannot read b'x"):
        decoded(values, rows)
    skipping = Decoder(Binary(), values, on_error="skip")
    made = skipping.decode(rows)
    assert made.value.field("id").to_pylist() == good
    assert made.key.to_pylist() == [b"k%d" % i for i in good]
    assert list(made.rows.offsets) == [100 + i for i in good]
    assert made.unread == ()
    assert skipping.unread_count == len(bad)
    nulled = decoded(values, rows, "null")
    assert [i for i, valid in enumerate(nulled.is_valid().to_pylist()) if not valid] == bad
    collected = Decoder(Binary(), values, on_error="collect").decode(rows).unread
    assert [found.offset for found in collected] == [100 + i for i in bad]
    first = collected[0]
    assert (first.key, first.value) == (b"k%d" % bad[0], b"x%d" % bad[0])
    assert (first.topic, first.partition, first.timestamp) == ("t", 3, bad[0])
    assert "not Confluent's wire format" in first.reason


def test_an_unknown_way_with_errors_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_error is 'dlq', not one of fail, skip"):
        Decoder(Binary(), Binary(), on_error="dlq")  # type: ignore[arg-type]


@pytest.mark.skipif(not record_codec.NATIVE, reason="columns are lists without native modules")
def test_rows_of_a_mask_stay_forms() -> None:
    rows = rows_of([b"%d" % i for i in range(MANY)])
    kept = rows.where(bytes(i % 2 for i in range(MANY)))
    assert type(joined([kept.columns.values])).__name__ == "Spans"
