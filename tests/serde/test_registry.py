from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.errors import SchemaError
from kafkalite.serde.avro_schema import parse_schema
from kafkalite.serde.compatibility import Compatibility
from kafkalite.serde.registry import MemoryRegistry, Record, Registry


def record(*names: str, **defaults: Any) -> dict[str, Any]:
    fields: list[Any] = [{"name": name, "type": "int"} for name in names]
    fields += [{"name": name, "type": "int", "default": d} for name, d in defaults.items()]
    return {"type": "record", "name": "R", "fields": fields}


A, AB, ABC = record("a"), record("a", b=0), record("a", b=0, c=0)


def append(registry: Registry, records: tuple[Record, ...]) -> None:
    for key, value in records:
        assert registry.replay(key, value)


def register(registry: Registry, subject: str, schema: Any) -> tuple[int, int]:
    registration = registry.register(subject, schema)
    append(registry, registration.records)
    return registration.id, registration.version


def test_versions_count_in_a_subject_and_ids_everywhere() -> None:
    registry = Registry()
    assert register(registry, "x-value", A) == (1, 1)
    assert register(registry, "x-value", AB) == (2, 2)
    assert register(registry, "y-value", record("other")) == (3, 1)
    assert register(registry, "y-value", record("other", a=1)) == (4, 2)
    assert registry.subjects() == ("x-value", "y-value")
    assert registry.versions("x-value") == (1, 2)
    assert registry.latest("x-value").id == 2
    assert registry.version("x-value", 1).id == 1


def test_the_same_schema_has_the_same_id_in_every_subject_however_it_is_spelled() -> None:
    registry = Registry()
    assert register(registry, "x", A) == (1, 1)
    assert register(registry, "y", orjson.dumps(A, option=orjson.OPT_INDENT_2).decode()) == (1, 1)
    assert registry.register("x", A).records == ()


def test_the_records_are_confluents() -> None:
    ((key, value),) = Registry().register("s", '"int"').records
    assert key == b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert value == b'{"subject":"s","version":1,"id":1,"schema":"\\"int\\"","deleted":false}'


def test_a_log_of_confluents_is_understood() -> None:
    registry = Registry()
    log = [
        ('{"keytype":"NOOP","magic":0}', None),
        ('{"keytype":"CONFIG","magic":0}', '{"compatibilityLevel":"FULL"}'),
        ('{"keytype":"CONFIG","subject":"s","magic":0}', '{"compatibilityLevel":"NONE"}'),
        (
            '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
            (
                '{"subject":"s","version":1,"id":5,"md5":"x","schema":"{ \\"type\\" : \\"int\\" }",'
                '"deleted":false,"offset":3,"ts":17}'
            ),
        ),
        (
            '{"keytype":"SCHEMA","subject":"p","version":1,"magic":1}',
            '{"subject":"p","version":1,"id":6,"schemaType":"PROTOBUF","schema":"message M {}"}',
        ),
    ]
    for key, value in log:
        assert registry.replay(key.encode(), value and value.encode())
    assert registry.compatibility() is Compatibility.FULL
    assert registry.compatibility("s") is Compatibility.NONE
    assert registry.by_id(5) == '"int"'
    assert registry.register("t", "int").id == 5
    with pytest.raises(SchemaError, match="schema id 6 is PROTOBUF, not Avro"):
        registry.by_id(6)
    with pytest.raises(SchemaError, match="version 1: its schema is PROTOBUF, not AVRO"):
        registry.register("p", "int")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"", b""),
        (b"not json", b"{}"),
        (b"[]", b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b"not json"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1}'),
        (
            b'{"keytype":"SCHEMA","subject":"s","version":1}',
            b'{"subject":"other","version":1,"id":1,"schema":"x"}',
        ),
        (b'{"keytype":"CONFIG","subject":null}', b'{"compatibilityLevel":"SOME"}'),
        (b'{"keytype":"NEW_IN_2030"}', b"{}"),
    ],
)
def test_records_that_say_nothing_are_skipped(key: bytes | None, value: bytes) -> None:
    registry = Registry()
    assert registry.replay(key, value) is False
    assert registry.subjects() == ()
    assert registry.repairs() == ()


def test_what_is_unknown_is_named() -> None:
    registry = Registry()
    with pytest.raises(SchemaError, match="subject 'x' is not known"):
        registry.latest("x")
    with pytest.raises(SchemaError, match="schema id 7 is not known"):
        registry.by_id(7)
    with pytest.raises(SchemaError, match="subject 'x' has no version 2"):
        registry.version("x", 2)


def test_an_incompatible_schema_is_refused_in_one_line() -> None:
    registry = Registry()
    register(registry, "flights-value", A)
    with pytest.raises(SchemaError) as caught:
        registry.register("flights-value", record("a", "distance_km"))
    assert str(caught.value) == (
        "subject 'flights-value': not BACKWARD compatible with version 1: "
        "field 'distance_km' has no default and is missing in the older schema"
    )
    assert registry.check("flights-value", AB) == ()
    assert registry.versions("flights-value") == (1,)


def test_levels_are_of_a_subject_or_of_all() -> None:
    registry = Registry()
    register(registry, "s", A)
    append(registry, registry.set_compatibility(Compatibility.NONE))
    assert register(registry, "s", record("b")) == (2, 2)
    append(registry, registry.set_compatibility(Compatibility.FULL, "s"))
    with pytest.raises(SchemaError, match="not FULL compatible with version 2"):
        registry.register("s", record("c"))
    key, _ = registry.set_compatibility(Compatibility.FULL, "s")[0]
    registry.replay(key, None)
    assert registry.compatibility("s") is Compatibility.NONE


def test_a_read_only_registry_refuses_to_change() -> None:
    registry = Registry()
    registry.replay(b'{"keytype":"MODE","subject":null,"magic":0}', b'{"mode":"READONLY"}')
    with pytest.raises(SchemaError, match="mode READONLY"):
        registry.register("s", A)


def test_deleted_versions_keep_their_id_and_their_number() -> None:
    registry = Registry()
    register(registry, "s", A)
    register(registry, "s", AB)
    append(registry, registry.delete_version("s", 2))
    assert registry.latest("s").version == 1
    assert registry.by_id(2)
    assert registry.version("s", 2).deleted
    assert register(registry, "s", AB) == (2, 3)
    append(registry, registry.delete_subject("s"))
    assert registry.versions("s") == ()
    assert registry.subjects() == ()
    assert register(registry, "s", record("anything")) == (3, 4)


def test_gone_for_good_only_after_a_soft_delete() -> None:
    registry = Registry()
    register(registry, "s", A)
    with pytest.raises(SchemaError, match="was not deleted first"):
        registry.delete_version("s", 1, permanent=True)
    append(registry, registry.delete_version("s", 1))
    with pytest.raises(SchemaError, match="Version 1 was soft deleted"):
        registry.delete_version("s", 1)
    append(registry, registry.delete_version("s", 1, permanent=True))
    with pytest.raises(SchemaError, match="schema id 1 is not known"):
        registry.by_id(1)
    with pytest.raises(SchemaError, match="subject 's' is not known"):
        registry.delete_version("s", 1)
    register(registry, "s", A)
    append(registry, registry.delete_subject("s"))
    append(registry, registry.delete_subject("s", permanent=True))
    with pytest.raises(SchemaError, match="not known"):
        registry.delete_subject("s")


def test_an_id_lives_as_long_as_one_subject_has_it() -> None:
    registry = Registry()
    register(registry, "s", A)
    register(registry, "t", A)
    append(registry, registry.delete_subject("s"))
    append(registry, registry.delete_subject("s", permanent=True))
    assert registry.by_id(1)


# --- several writers ---------------------------------------------------------------------


def test_of_two_claims_of_one_version_the_first_wins_and_the_loser_is_repaired() -> None:
    registry = Registry()
    (first,) = registry.register("s", A).records
    (second,) = registry.register("s", AB).records  # decided without having seen the first
    assert registry.replay(*first)
    assert not registry.replay(*second)
    assert registry.latest("s").schema.json == A
    assert registry.repairs() == (first,)
    append(registry, registry.repairs())
    assert registry.repairs() == ()
    assert register(registry, "s", AB) == (2, 2)


def test_of_two_claims_of_one_id_the_first_wins_and_the_other_key_is_emptied() -> None:
    registry = Registry()
    (first,) = registry.register("s", A).records
    (second,) = registry.register("t", AB).records
    registry.replay(*first)
    assert not registry.replay(*second)
    assert registry.repairs() == ((second[0], None),)
    append(registry, registry.repairs())
    assert register(registry, "t", AB) == (2, 1)


def test_a_tombstone_of_a_living_version_is_ignored_and_repaired() -> None:
    registry = Registry()
    (claim,) = registry.register("s", A).records
    registry.replay(*claim)
    assert not registry.replay(claim[0], None)
    assert registry.latest("s").id == 1
    assert registry.repairs() == (claim,)


def test_a_repair_says_what_holds_now_not_what_held_then() -> None:
    registry = Registry()
    (claim,) = registry.register("s", A).records
    (late,) = registry.register("s", AB).records
    registry.replay(*claim)
    registry.replay(*late)
    append(registry, registry.delete_subject("s"))
    append(registry, registry.repairs())
    assert registry.versions("s") == ()


def compacted(log: list[Record], up_to: int) -> list[Record]:
    """What compaction leaves: of each key in the log's head the last record."""
    last = {key: place for place, (key, _) in enumerate(log[:up_to])}
    return [log[place] for place in sorted(last.values())] + log[up_to:]


def state(registry: Registry) -> Any:
    subjects = ["s", "t", "u"]
    return {
        (subject, version): (entry.id, entry.text, entry.deleted)
        for subject in subjects
        for version, entry in sorted(registry._subjects.get(subject, {}).items())
    }


def folded(log: list[Record]) -> Registry:
    registry = Registry()
    for key, value in log:
        registry.replay(key, value)
    return registry


class SlowWriter:
    """A writer that decides from what it has read so far, which may be behind the log's end."""

    def __init__(self, log: list[Record]) -> None:
        self.log, self.registry, self.read = log, Registry(), 0

    def catch_up(self, records: int) -> None:
        for key, value in self.log[self.read : self.read + records]:
            self.registry.replay(key, value)
        self.read = min(self.read + records, len(self.log))

    def try_to_register(self, subject: str, schema: Any) -> None:
        self.log += self.registry.repairs()
        self.log += self.registry.register(subject, schema).records


@pytest.mark.slow
@given(st.randoms(use_true_random=False), st.integers(2, 5))
@settings(max_examples=100, deadline=None)
def test_writers_that_race_end_with_one_truth_that_compaction_keeps(
    source: random.Random, writers: int
) -> None:
    log: list[Record] = []
    log += Registry().set_compatibility(Compatibility.NONE)
    crowd = [SlowWriter(log) for _ in range(writers)]
    schemas = [record(f"f{number}") for number in range(6)]
    for _ in range(30):
        writer = source.choice(crowd)
        writer.catch_up(source.randrange(4))
        writer.try_to_register(source.choice("stu"), source.choice(schemas))
    writer = SlowWriter(log)  # one that reads to the end and puts right what is left
    writer.catch_up(len(log))
    log += writer.registry.repairs()

    truth = folded(log)
    assert truth.repairs() == ()
    assert state(folded(compacted(log, len(log)))) == state(truth)
    ids: dict[int, str] = {}
    for entry_id, text, _ in state(truth).values():
        assert ids.setdefault(entry_id, text) == text


def test_a_memory_registry_is_the_same_fold_at_once() -> None:
    registry = MemoryRegistry()
    assert registry.register("s", A) == 1
    assert registry.register("s", AB) == 2
    assert parse_schema(registry.schema(1)).json == A
    assert registry.latest("s").version == 2
    assert registry.versions("s") == (1, 2)
    assert registry.versions("unknown") == ()
    assert registry.check("s", ABC) == ()
    assert registry.check("s", record("z")) == (
        "version 2: field 'z' has no default and is missing in the older schema",
    )
