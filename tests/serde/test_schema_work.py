"""The work that one schema can ask for: it grows with its length, or ends with a clear error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kafkalite.errors import SchemaError
from kafkalite.serde import avro_resolve, avro_schema, registry, registry_state
from kafkalite.serde.avro_resolve import COMPLAINTS_MAX, unreadable
from kafkalite.serde.avro_schema import parse_schema
from kafkalite.serde.compatibility import Compatibility
from kafkalite.serde.registry import SCHEMA_TOO_LARGE, Draft, MemoryRegistry
from kafkalite.serde.registry_records import Reference
from kafkalite.serde.work import Work

SOME = 2_000


def record(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


class Counted(str):
    """A text that counts how often texts of its kind are compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)


def enum_of(count: int) -> dict[str, Any]:
    symbols = [Counted(f"s{number}") for number in range(count)]
    return {"type": "enum", "name": "E", "symbols": symbols}


# --- comparing -----------------------------------------------------------------------------


def test_symbols_are_looked_up_not_searched_for() -> None:
    older, newer = parse_schema(enum_of(SOME)), parse_schema(enum_of(SOME))
    Counted.comparisons = 0
    assert unreadable(older, newer) == []
    assert Counted.comparisons <= SOME


def test_an_enum_that_many_fields_have_is_compared_once() -> None:
    lacking = {"type": "enum", "name": "E", "symbols": ["other"]}
    fields = [field(f"f{number}", "E") for number in range(50)]
    older = parse_schema(record("R", field("f", enum_of(SOME)), *fields))
    newer = parse_schema(record("R", field("f", lacking), *fields))
    work = Work(2 * SOME, "comparing")
    assert len(unreadable(older, newer, work=work)) == 51


def test_branches_are_looked_up_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    matches = avro_resolve._Walk._matches

    def counting(walk: Any, writer: Any, reader: Any) -> bool:
        nonlocal asked
        asked += 1
        return matches(walk, writer, reader)

    monkeypatch.setattr(avro_resolve._Walk, "_matches", counting)
    branches = [record(f"R{number}") for number in range(SOME)]
    assert unreadable(parse_schema(branches), parse_schema(branches[::-1])) == []
    assert asked <= 3 * SOME


def test_of_branches_that_match_by_name_and_by_alias_the_first_counts() -> None:
    older = parse_schema([record("n.Old", field("a", "int"))])
    by_alias = record("m.New", field("a", "string"), aliases=["n.Old"])
    by_name = record("m.Old", field("a", "int"))
    assert unreadable(older, parse_schema([by_name, by_alias])) == []
    assert len(unreadable(older, parse_schema([by_alias, by_name]))) == 1
    plain = parse_schema([record("n.Old")])
    assert unreadable(plain, parse_schema([record("X", aliases=["Old"]), record("m.Old")])) == []


def ring(length: int, space: str) -> dict[str, Any]:
    """Records of one name in so many namespaces, each with the next in it, the last with all."""
    first = f"{space}0.R"
    inner: Any = first
    for number in reversed(range(length)):
        inner = record(f"{space}{number}.R", field("next", ["null", inner]))
    return dict(inner)


def test_two_rings_of_records_are_compared_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_resolve, "STEPS_MAX", 500)
    older, newer = parse_schema(ring(15, "a")), parse_schema(ring(16, "b"))
    with pytest.raises(SchemaError, match="comparing the schemas takes more than the 500 steps"):
        unreadable(older, newer)


def test_a_chain_of_records_that_is_too_long_to_follow_is_an_error() -> None:
    def chain(first: str) -> Any:
        links = [record(f"R{n}", field("f", f"R{n - 1}" if n else "int")) for n in range(SOME)]
        start = field(first, ["null", *links], default=None)
        return parse_schema(record("T", start, field("b", f"R{SOME - 1}")))

    with pytest.raises(SchemaError, match="nested too deeply to be compared"):
        unreadable(chain("x"), chain("y"))


def test_complaints_end_somewhere_and_none_is_long() -> None:
    name = "n" * 10_000
    inner = [field(f"f{number}", "int") for number in range(COMPLAINTS_MAX + 50)]
    older = parse_schema(record("T", field(name, record("R"))))
    found = unreadable(older, parse_schema(record("T", field(name, record("R", *inner)))))
    assert len(found) == COMPLAINTS_MAX
    branches = [record(name + str(number)) for number in range(SOME)]
    found += unreadable(parse_schema("int"), parse_schema(branches))
    assert max(map(len, found)) < 2_000
    assert f"and {SOME - 10:,} more" in found[-1]


# --- defaults ------------------------------------------------------------------------------


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_schema, "DEFAULT_STEPS_MAX", 3_000)


@pytest.mark.usefixtures("few_steps")
def test_defaults_that_hold_each_other_are_followed_up_to_a_limit() -> None:
    """Thirty records, each with the next one twice: a billion values."""
    last: Any = record("R30", field("a", "int", default=0))
    for number in reversed(range(30)):
        twice = field("b", f"R{number + 1}", default={})
        last = record(f"R{number}", field("a", last, default={}), twice)
    with pytest.raises(SchemaError, match="checking the defaults .* more than the 3,000 steps"):
        parse_schema(last)


@pytest.mark.usefixtures("few_steps")
def test_a_default_is_tried_on_branches_up_to_a_limit() -> None:
    default: Any = "neither"
    for _ in range(40):
        default = {"x": default}
    one = record("One", field("x", ["null", "One", record("Two", field("x", ["One", "Two"]))]))
    schema = record("T", field("one", one), field("two", "One", default=default))
    with pytest.raises(SchemaError, match="more than the 3,000 steps"):
        parse_schema(schema)


def test_a_default_of_an_enum_is_looked_up() -> None:
    enum = enum_of(SOME)
    fields = [field(f"f{number}", "E", default=f"s{SOME - 1}") for number in range(50)]
    Counted.comparisons = 0
    parse_schema(record("R", field("e", enum), *fields))
    assert Counted.comparisons <= 5 * SOME


@pytest.mark.parametrize(
    ("kind", "default", "complaint"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, 2**63 - 1, "is no timestamp-millis"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 10_000},
            "\x7f" * 1_025,
            "has 1025 bytes, a decimal's may have 1024",
        ),
    ],
)
def test_a_default_that_cannot_be_a_value_is_an_error(
    kind: Any, default: Any, complaint: str
) -> None:
    with pytest.raises(SchemaError, match=complaint):
        parse_schema(record("R", field("f", kind, default=default)))


def test_defaults_in_a_chain_that_is_too_long_to_follow_are_an_error() -> None:
    links = [record("R0")]
    links += [record(f"R{n}", field("f", f"R{n - 1}", default={})) for n in range(1, SOME)]
    with pytest.raises(SchemaError, match="nested too deeply"):
        parse_schema(record("T", field("x", links), field("b", f"R{SOME - 1}", default={})))


# --- a registry's requests -----------------------------------------------------------------


def versions_of(count: int) -> MemoryRegistry:
    known = MemoryRegistry()
    known.append(known.registry.set_compatibility(Compatibility.FULL_TRANSITIVE))
    for number in range(count):
        known.register("s", record("R", *[field(f"f{n}", "int", default=0) for n in range(number)]))
    return known


def test_a_registration_is_compared_with_so_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "COMPARED_CHARS_MAX", 1_000)
    with pytest.raises(SchemaError, match="characters to compare .* 1,000 are possible") as refused:
        versions_of(100)
    assert refused.value.code == SCHEMA_TOO_LARGE


def test_all_versions_are_compared_within_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    known = versions_of(10)
    monkeypatch.setattr(avro_resolve, "STEPS_MAX", 100)
    refusal = "with 10 versions of subject 's' takes more than the 100 steps"
    with pytest.raises(SchemaError, match=refusal) as refused:
        known.register("s", record("R", field("g", "int", default=0)))
    assert refused.value.code == SCHEMA_TOO_LARGE


@pytest.mark.parametrize(
    ("limit", "complaint"),
    [
        ("REFERENCES_FOLLOWED_MAX", "more than the 9 references that it may"),
        ("REFERENCED_CHARS_MAX", "more than the 9 characters that it may"),
    ],
)
def test_references_are_followed_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, limit: str, complaint: str
) -> None:
    monkeypatch.setattr(registry_state, limit, 9)
    known = MemoryRegistry()
    references = []
    for number in range(10):
        known.register(f"s{number}", record(f"R{number}"))
        references.append(Reference(f"R{number}", f"s{number}", 1))
    with pytest.raises(SchemaError, match=complaint):
        known.register("t", Draft(json.dumps("R1"), references=tuple(references)))


def test_the_limits_leave_room_for_the_largest_ordinary_schemas() -> None:
    """Half a megabyte of fields with defaults, compared both ways."""
    fields = [field(f"field_{n}", ["null", "long"], default=None) for n in range(7_000)]
    schema = parse_schema(record("R", *fields))
    assert len(schema.text) > 400_000
    assert unreadable(schema, schema, work=Work(avro_resolve.STEPS_MAX // 40, "comparing")) == []
    avro_schema._check_defaults(schema)
