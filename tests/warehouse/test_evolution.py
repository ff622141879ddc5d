"""What becomes of columns: new, gone, renamed by alias, wider; and rows of older files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafkalite.errors import ConfigError
from kafkalite.serde.avro_schema import parse_schema
from kafkalite.warehouse.delta_table import DeltaTarget
from kafkalite.warehouse.evolution import aliases_of, conformed, evolved
from kafkalite.warehouse.files import write_json
from kafkalite.warehouse.rewriting import forget
from kafkalite.warehouse.target import Rewritten, StagedFile, Stored


def schema(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()


def test_a_new_table_has_the_columns_of_its_rows() -> None:
    assert evolved(None, schema(a=INT), {"a": ("b",)}).columns == schema(a=INT)


def test_newest_columns_come_first_and_none_goes() -> None:
    found = evolved(schema(a=INT, b=INT), schema(c=INT, b=INT), {})
    assert found.columns == schema(c=INT, b=INT, a=INT)
    assert (found.added, found.changes_files) == (("c",), False)
    assert list(found.lines()) == ["column c is new; older rows are null there"]


@pytest.mark.parametrize(
    ("old", "new", "common"),
    [
        (INT, LONG, LONG),
        (LONG, INT, LONG),
        (INT, FLOAT, DOUBLE),
        (INT, DOUBLE, DOUBLE),
        (LONG, DOUBLE, DOUBLE),
        (FLOAT, DOUBLE, DOUBLE),
        (DOUBLE, INT, DOUBLE),
        (pa.string(), pa.binary(), pa.binary()),
        (pa.binary(), pa.string(), pa.binary()),
        (pa.decimal128(9, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.list_(INT), pa.list_(LONG), pa.list_(LONG)),
        (pa.map_(pa.string(), INT), pa.map_(pa.string(), LONG), pa.map_(pa.string(), LONG)),
    ],
)
def test_a_column_has_the_type_that_holds_both(
    old: pa.DataType, new: pa.DataType, common: pa.DataType
) -> None:
    found = evolved(schema(a=old), schema(a=new), {})
    assert found.columns.field("a").type == common
    assert found.changes_files == (old != common)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INT, pa.string()),
        (pa.bool_(), INT),
        (LONG, pa.timestamp("us", tz="UTC")),
        (pa.decimal128(9, 2), pa.decimal128(12, 3)),
        (pa.list_(INT), INT),
        (pa.struct([("x", INT)]), pa.map_(pa.string(), INT)),
    ],
)
def test_types_without_a_common_one_are_refused(old: pa.DataType, new: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=r"^column a is .* cannot become .* new warehouse"):
        evolved(schema(a=old), schema(a=new), {})


def test_an_alias_renames_unless_both_names_have_columns() -> None:
    aliases = {"city": ("place", "town")}
    found = evolved(schema(town=INT), schema(city=LONG), aliases)
    assert found.columns == schema(city=LONG)
    assert dict(found.renamed) == {"city": "town"}
    assert list(found.lines()) == [
        "column town is now city", "column city is now int64, and was int32",
    ]  # fmt: skip
    both = schema(town=INT, city=INT)
    assert evolved(both, schema(city=INT), aliases).renamed == {}
    assert evolved(schema(town=INT), both, aliases).added == ("city",)


def test_names_that_differ_in_capitals_need_an_alias() -> None:
    with pytest.raises(ConfigError, match="columns City and city have one name in SQL: give the"):
        evolved(schema(city=INT), schema(City=INT), {})
    assert evolved(schema(city=INT), schema(City=INT), {"City": ["city"]}).added == ()


def test_the_field_of_the_folders_keeps_its_name() -> None:
    for wanted in (schema(market=pa.string()), schema(shop=pa.binary())):
        with pytest.raises(ConfigError, match="column shop names the table's folders"):
            evolved(schema(shop=pa.string()), wanted, {"market": ["shop"]}, folders="shop")
    assert evolved(schema(shop=INT), schema(shop=LONG), {}, folders="shop").widened


def test_aliases_of_a_schema_stand_at_the_places_of_its_fields() -> None:
    place = {"type": "record", "name": "Place", "fields": [
        {"name": "city", "type": "string", "aliases": ["town", "village"]}]}  # fmt: skip
    fields = [
        {"name": "home", "type": ["null", place], "aliases": ["house"]},
        {"name": "stops", "type": {"type": "array", "items": "Place"}},
        {"name": "by", "type": {"type": "map", "values": "Place"}},
    ]
    found = aliases_of(parse_schema({"type": "record", "name": "Trip", "fields": fields}))
    assert found == {
        "home": ("house",),
        "home.city": ("town", "village"),
        "stops[].city": ("town", "village"),
        "by{}.city": ("town", "village"),
    }


OLD = pa.struct([("town", INT), ("zip", pa.string())])
NEW = pa.struct([("city", LONG), ("zip", pa.string()), ("far", pa.bool_())])
DEEP = {"home.city": ["town"], "stops[].city": ["town"], "by{}.city": ["town"]}


def deep(record: pa.DataType, home: str) -> pa.Schema:
    return pa.schema(
        [(home, record), ("stops", pa.list_(record)), ("by", pa.map_(pa.string(), record))]
    )


def test_rows_of_older_files_get_names_and_types_at_every_place() -> None:
    """Also where they are a slice of others, and where a record or a list is null."""
    found = evolved(deep(OLD, "house"), deep(NEW, "home"), {**DEEP, "home": ["house"]})
    old = {"town": 1, "zip": "z"}
    rows: list[dict[str, Any]] = [
        {"house": {"town": 9, "zip": "9"}, "stops": [old] * 3, "by": {"q": old}},
        {"house": old, "stops": [old, None], "by": {"k": old}},
        {"house": None, "stops": None, "by": None},
        {"house": old, "stops": [], "by": {}},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=deep(OLD, "house"))
    new = {"city": 1, "zip": "z", "far": None}
    made = conformed(batch.slice(1), found.columns, found.older_names)
    assert made.schema == deep(NEW, "home")
    assert made.to_pylist(maps_as_pydicts="strict") == [
        {"home": new, "stops": [new, None], "by": {"k": new}},
        {"home": None, "stops": None, "by": None},
        {"home": new, "stops": [], "by": {}},
    ]
    made.validate(full=True)


def test_a_value_that_the_wider_type_does_not_hold_is_an_error() -> None:
    batch = pa.RecordBatch.from_pylist([{"a": 2**53 + 1}], schema=schema(a=LONG))
    with pytest.raises(ConfigError, match="column a becomes double, which does not hold all"):
        conformed(batch, schema(a=DOUBLE))
    assert conformed(batch, schema(a=LONG, b=INT)).to_pylist() == [{"a": 2**53 + 1, "b": None}]


def test_a_name_of_an_older_field_is_not_that_of_a_new_one() -> None:
    batch = pa.RecordBatch.from_pylist([{"town": 1}])
    older = {"city": ("village", "town")}
    names = schema(city=LONG, town=LONG)
    assert conformed(batch, names, older).to_pylist() == [{"city": 1, "town": None}]
    later = pa.RecordBatch.from_pylist([{"town": 2, "city": 1}])
    assert conformed(later, names, older).to_pylist() == [{"city": 1, "town": 2}]


def test_forgotten_are_files_of_a_change_that_no_commit_made(tmp_path: Path) -> None:
    """The table has left the other file's change behind: an older version may need what it made."""

    class Table(DeltaTarget):
        def stored(self) -> list[Stored]:
            return [Stored("old.parquet")]

    for name in ("old", "merged"):
        made = StagedFile(f"{name}.tmp", f"{name}.columns-3.parquet", 1, 1)
        note = asdict(Rewritten(made, Stored(f"{name}.parquet")))
        write_json(tmp_path / f"rewritten-{name}.json", note)
        (tmp_path / made.path).touch()
    forget(Table(tmp_path), tmp_path)
    assert [file.name for file in tmp_path.glob("*.parquet")] == ["merged.columns-3.parquet"]
