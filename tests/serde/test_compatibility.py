from __future__ import annotations

from typing import Any

import pytest

from kafkalite.serde.avro_schema import parse_schema
from kafkalite.serde.compatibility import Compatibility, complaints


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def timestamp(unit: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": f"timestamp-{unit}"}


def check(level: str, *versions: Any) -> list[str]:
    """Complaints about the last of `versions` after all the others."""
    *older, new = [parse_schema(version) for version in versions]
    return complaints(Compatibility[level], new, dict(enumerate(older, 1)))


A, B = field("a", "int"), field("b", "int")
B_DEFAULT = field("b", "int", default=0)
TREE = record(field("left", ["null", "R"]), field("value", "int"))

COMPATIBLE = [  # older, newer: the newer reads the older
    (record(A), record(A)),
    (record(A), record(A, B_DEFAULT)),
    (record(A, B), record(A)),
    (record(A, B), record(B, A)),
    (record(A), record(field("a", "long"))),
    (record(A), record(field("a", ["null", "int"]))),
    (record(A), record(field("z", "int", aliases=["a"]))),
    (record(A), record(A, name="S", aliases=["R"])),
    (record(A, namespace="one"), record(A, namespace="two")),
    ("int", "double"),
    ("long", "float"),
    ("string", "bytes"),
    ("bytes", "string"),
    (["int", "string"], ["string", "long"]),
    (["int"], "long"),
    (enum("A"), enum("B", "A")),
    (enum("A", "B"), enum("A", default="A")),
    (fixed(4), fixed(4)),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}),
    ({"type": "map", "values": "int"}, {"type": "map", "values": ["null", "float"]}),
    (TREE, record(field("left", ["null", "R"]), field("value", "long"))),
    (decimal(4, 2), decimal(9, 2)),
    ("long", timestamp("millis")),
    (timestamp("millis"), "long"),
]


@pytest.mark.parametrize(("older", "newer"), COMPATIBLE, ids=str)
def test_newer_schemas_that_can_read_the_older(older: Any, newer: Any) -> None:
    assert check("BACKWARD", older, newer) == []
    assert check("FORWARD", newer, older) == []


INCOMPATIBLE = [
    (
        record(A),
        record(A, field("distance_km", "double")),
        "field 'distance_km' has no default and is missing in the older schema",
    ),
    (
        record(field("route", record(A, name="N"))),
        record(field("route", record(A, field("km", "int"), name="N"))),
        "field 'route.km' has no default and is missing in the older schema",
    ),
    (
        record(field("stops", {"type": "array", "items": record(A, name="N")})),
        record(field("stops", {"type": "array", "items": record(field("a", "string"), name="N")})),
        "field 'stops[].a': int in the older schema cannot be read as string in the newer schema",
    ),
    (
        {"type": "map", "values": "long"},
        {"type": "map", "values": "int"},
        "field '{}': long in the older schema cannot be read as int in the newer schema",
    ),
    ("double", "float", "double in the older schema cannot be read as float in the newer schema"),
    ("string", "int", "string in the older schema cannot be read as int in the newer schema"),
    (
        ["null", "string"],
        "string",
        "null in the older schema cannot be read as string in the newer schema",
    ),
    (
        ["int", "string"],
        ["int", "null"],
        (
            "string in the older schema matches no branch of the union of int, null "
            "in the newer schema"
        ),
    ),
    (
        enum("A", "B"),
        enum("A"),
        (
            "enum 'E' has symbol 'B' in the older schema, which is missing in the newer schema "
            "and there is no default"
        ),
    ),
    (fixed(4), fixed(8), "fixed 'F' has 4 bytes in the older schema and 8 in the newer schema"),
    (
        record(A),
        record(A, name="S"),
        "record 'R' in the older schema cannot be read as record 'S' in the newer schema",
    ),
    (
        record(A, name="R", namespace="x"),
        record(A, name="S", aliases=["y.R"]),
        "record 'x.R' in the older schema cannot be read as record 'S' in the newer schema",
    ),
    (
        TREE,
        record(field("left", ["null", "R"]), field("value", "string")),
        "field 'value': int in the older schema cannot be read as string in the newer schema",
    ),
    (
        decimal(4, 2),
        decimal(4, 1),
        "decimal in the older schema cannot be read as decimal in the newer schema",
    ),
    (
        timestamp("millis"),
        timestamp("micros"),
        (
            "timestamp-millis in the older schema cannot be read as timestamp-micros "
            "in the newer schema"
        ),
    ),
    (
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        "array in the older schema cannot be read as map in the newer schema",
    ),
]


@pytest.mark.parametrize(("older", "newer", "complaint"), INCOMPATIBLE, ids=lambda v: str(v)[:40])
def test_newer_schemas_that_cannot_read_the_older(older: Any, newer: Any, complaint: str) -> None:
    assert check("BACKWARD", older, newer) == [f"version 1: {complaint}"]


def test_forward_says_which_of_the_two_lacks_the_field() -> None:
    assert check("FORWARD", record(A, B), record(A)) == [
        "version 1: field 'b' has no default and is missing in the newer schema"
    ]


def test_all_complaints_are_given_once_each() -> None:
    old = record(field("x", "string"), field("y", ["null", "string"]))
    new = record(field("x", "int"), field("y", "int"), field("z", "int"))
    assert len(check("BACKWARD", old, new)) == len(set(check("BACKWARD", old, new))) == 4


V1, V2, V3 = record(A), record(A, B_DEFAULT), record(A, B)


@pytest.mark.parametrize(
    ("level", "versions", "accepted"),
    [
        ("NONE", (V1, "string"), True),
        ("BACKWARD", (V1, V2), True),
        ("BACKWARD", (V1, V2, V3), True),  # against V2 alone
        ("BACKWARD_TRANSITIVE", (V1, V2, V3), False),  # V1 has no b
        ("BACKWARD", (V1, V3), False),
        ("FORWARD", (V1, V3), True),
        ("FORWARD", (V3, V1), False),
        ("FORWARD", (V3, V2, V1), True),  # V2 has a default for b
        ("FORWARD_TRANSITIVE", (V3, V2, V1), False),
        ("FULL", (V1, V2), True),
        ("FULL", (V1, V3), False),
        ("FULL", (V3, V1), False),
        ("FULL", (V1, V2, V3), True),
        ("FULL_TRANSITIVE", (V1, V2, V3), False),
        ("FULL_TRANSITIVE", (V2, V1, V2), True),
    ],
)
def test_the_seven_levels(level: str, versions: tuple[Any, ...], accepted: bool) -> None:
    assert (check(level, *versions) == []) is accepted


def test_a_first_version_is_always_accepted() -> None:
    for level in Compatibility:
        assert complaints(level, parse_schema("int"), {}) == []


def test_records_that_contain_each_other_are_checked_to_the_bottom() -> None:
    """A pair taken to match while it is looked at must not count as one that does."""

    def mutual(last: str) -> Any:
        inner = record(field("back", ["null", "R"]), field("x", last), name="Inner")
        return record(
            field("one", ["null", inner]), field("two", ["null", "Inner"]), field("y", last)
        )

    assert check("BACKWARD", mutual("int"), mutual("long")) == []
    found = check("BACKWARD", mutual("long"), mutual("int"))
    assert any("'one.x'" in text for text in found)
    assert any("'y'" in text for text in found)


def test_a_wide_schema_of_shared_records_takes_no_exponential_time() -> None:
    """Every record mentions the next one twice: 2^40 paths, 40 pairs."""
    schema: Any = "int"
    for depth in range(40):
        schema = record(
            field("a", schema),
            field("b", f"N{depth - 1}" if depth else "int"),
            name=f"N{depth}",
        )
    assert check("FULL", schema, schema) == []
