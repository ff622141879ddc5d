"""The fold of `_schemas`: logs of Confluent's, any order, any bytes, compacted or not."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.errors import SchemaError
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.compatibility import Compatibility
from kafkalite.serde.registry import Draft, MemoryRegistry, Record, Registry
from kafkalite.serde.registry_records import Reference, RegisteredSchema, schema_record
from kafkalite.serde.registry_state import LATEST, RegistryState

# As Confluent's registry (7.x and 8.x) writes them: some of older form, some with what we lack.
CONFLUENTS = [
    (
        '{"keytype":"SCHEMA","subject":":.c:a","version":1,"magic":1}',
        '{"subject":":.c:a","version":1,"id":1,"schema":"\\"bytes\\"","deleted":false}',
    ),
    ('{"keytype":"NOOP","magic":0}', None),
    ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FULL"}'),
    (
        '{"keytype":"CONFIG","subject":"p","magic":0}',
        '{"subject":"p","normalize":true,"compatibilityLevel":"NONE","alias":"q"}',
    ),
    ('{"keytype":"MODE","subject":"r","magic":0}', '{"subject":"r","mode":"READONLY"}'),
    ('{"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}',
     '{"tenant":"default","context":".c","offset":4,"ts":1}'),
    (
        '{"keytype":"SCHEMA","subject":"p","version":1,"magic":1}',
        ('{"subject":"p","version":1,"id":2,"schemaType":"AVRO","references":[{"name":"n.A",'
        '"subject":"a","version":1}],"schema":"{\\"type\\":\\"array\\",\\"items\\":\\"n.A\\"}",'
        '"deleted":false,"md5":"x","ruleSet":{"domainRules":[]}}'),
    ),
    (
        '{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}',
        ('{"subject":"a","version":1,"id":1,"schema":"{\\"type\\":\\"record\\",\\"name\\":\\"A\\",'
        '\\"namespace\\":\\"n\\",\\"fields\\":[]}","deleted":false}'),
    ),
    (
        '{"keytype":"SCHEMA","subject":"j","version":1,"magic":1}',
        ('{"subject":"j","version":1,"id":3,"schemaType":"JSON","metadata":{"properties":{"k":"v"},'
        '"tags":{"t":["x"]}},"schema":"{\\"type\\":\\"object\\"}","deleted":false}'),
    ),
    (
        '{"keytype":"SCHEMA","subject":"q","version":1,"magic":1}',
        ('{"subject":"q","version":1,"id":4,"schemaType":"PROTOBUF","schema":"message M {}"}'),
    ),
    (
        '{"keytype":"SCHEMA","subject":"d","version":2,"magic":1}',
        ('{"subject":"d","version":2,"id":5,"schema":"\\"int\\"","deleted":false}'),
    ),
    ('{"keytype":"DELETE_SUBJECT","subject":"d","magic":0}', '{"subject":"d","version":2}'),
    ('{"keytype":"CLEAR_SUBJECT","subject":"d","magic":0}', '{"subject":"d"}'),
]  # fmt: skip


def confluents() -> Registry:
    registry = Registry()
    for key, value in CONFLUENTS:
        assert registry.replay(key.encode(), value and value.encode()), key
    return registry


def test_a_log_of_confluents_is_read_though_compaction_put_a_referrer_first() -> None:
    registry = confluents()
    assert registry.subjects() == (":.c:a", "a", "j", "p", "q")
    assert registry.contexts() == (".", ".c")
    assert registry.compatibility() is Compatibility.FULL
    assert registry.compatibility("p") is Compatibility.NONE
    assert registry.config("p") == {
        "normalize": True,
        "compatibilityLevel": "NONE",
        "alias": "q",
    }
    assert registry.mode("r") == "READONLY"
    assert registry.mode("x") == "READWRITE"
    referrer = registry.latest("p")
    assert registry.schema_of(referrer).root == {"type": "array", "items": "n.A"}
    assert orjson.loads(registry.by_id(2))["items"]["name"] == "n.A"
    assert [entry.subject for entry in registry.referrers("a", 1)] == ["p"]
    assert orjson.loads(registry.latest("j").metadata or "") == {
        "properties": {"k": "v"},
        "tags": {"t": ["x"]},
    }
    assert registry.latest("p").rule_set == '{"domainRules":[]}'
    assert registry.version("d", 2).deleted
    assert registry.repairs() == ()
    with pytest.raises(SchemaError, match="schema id 4 is PROTOBUF, not Avro"):
        registry.by_id(4)


def test_what_follows_a_log_of_confluents_goes_on_in_it() -> None:
    registry = confluents()
    assert registry.register("new", "int").id == 5  # a deleted schema has its id still
    assert registry.register("new", "long").id == 6
    text = '{"type":"array","items":{"type":"record","name":"n.A","fields":[]}}'
    with pytest.raises(SchemaError, match="metadata must|ruleSet|rule sets"):
        registry.register("p", Draft(text, rule_set="{}"))
    assert registry.check("p", text) == ()
    with pytest.raises(SchemaError, match="mode READONLY"):
        registry.register("r", "int")


def test_a_serde_reads_and_writes_with_a_schema_that_has_references() -> None:
    memory = MemoryRegistry()
    memory.register("leg", '{"type":"record","name":"n.Leg","fields":[{"name":"km","type":"int"}]}')
    plan = Draft(
        '{"type":"record","name":"Plan","fields":[{"name":"legs","type":'
        '{"type":"array","items":"n.Leg"}}]}',
        references=(Reference("n.Leg", "leg", LATEST),),
    )
    registration = memory.registry.register("t-value", plan)
    memory.append(registration.records)
    codec = avro().open(SerdeContext(memory))
    value = {"legs": [{"km": 7}, {"km": 8}]}
    assert codec.deserialize("t", codec.serialize("t", [value])) == [value]


def test_references_that_run_in_a_circle_end_in_an_error() -> None:
    registry = Registry()
    for subject, other in (("a", "b"), ("b", "a")):
        reference = f'[{{"name":"{other}","subject":"{other}","version":1}}]'
        value = f'{{"subject":"{subject}","version":1,"id":{ord(subject)},"schema":"\\"{other}\\"",'
        value += f'"references":{reference}}}'
        key = f'{{"keytype":"SCHEMA","subject":"{subject}","version":1,"magic":1}}'
        assert registry.replay(key.encode(), value.encode())
    with pytest.raises(SchemaError):
        registry.by_id(ord("a"))


def test_references_nested_too_deep_end_in_an_error() -> None:
    memory = MemoryRegistry()
    memory.register("s0", '{"type":"enum","name":"E0","symbols":["A"]}')
    with pytest.raises(SchemaError, match="nested more than 64 deep"):
        for n in range(1, 70):
            field = f'{{"name":"f","type":"E{n - 1}"}}'
            draft = Draft(
                f'{{"type":"record","name":"E{n}","fields":[{field}]}}',
                references=(Reference(f"E{n - 1}", f"s{n - 1}", 1),),
            )
            memory.append(memory.registry.register(f"s{n}", draft).records)


def test_one_version_by_two_names_is_one() -> None:
    memory = MemoryRegistry()
    memory.register("e", '{"type":"enum","name":"E","symbols":["A"]}')
    twice = tuple(Reference(name, "e", 1) for name in ("E", "again"))
    memory.append(
        memory.registry.register(
            "s", Draft('{"type":"array","items":"E"}', references=twice)
        ).records
    )
    assert memory.latest("s").schema.json["items"]["name"] == "E"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False)
    | st.sampled_from(["s", "SCHEMA", "MODE", "CONFIG", '"int"', "NONE", "DELETE_SUBJECT", "JSON"]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(["keytype", "subject", "version", "id", "schema", "schemaType", "deleted",
                         "references", "name", "metadata", "properties", "tags", "mode",
                         "compatibilityLevel", "ruleSet"]),
        inner,
        max_size=6,
    ),
    max_leaves=10,
)  # fmt: skip


@pytest.mark.slow
@given(
    st.lists(st.tuples(JSON | st.just({"keytype": "SCHEMA", "subject": "s", "version": 1}), JSON))
)
@settings(max_examples=500, deadline=None)
def test_no_record_harms_the_fold(log: list[tuple[Any, Any]]) -> None:
    state = RegistryState()
    for key, value in log:
        if isinstance(key, dict) and isinstance(value, dict) and key.get("keytype") == "SCHEMA":
            value |= {name: key[name] for name in ("subject", "version") if name in key}
            value.setdefault("schema", "x")
            value.setdefault("id", 1)
        state.replay(orjson.dumps(key), orjson.dumps(value))
    for subject in state.subjects(deleted=True):
        for entry in state.entries(subject, deleted=True):
            assert state.find_id(entry.id, subject)
    told(state, state.repairs())
    told(state, state.repairs())  # the end of one may let another one end
    assert state.repairs() == ()


# Hypothesis decides the seed alone: it takes long over each number of hundreds in an example.
SOURCES = st.integers(0, 2**64 - 1).map(random.Random)


class Actor:
    """Somebody who does what the rules allow, on a log."""

    def __init__(self, source: random.Random) -> None:
        self.source, self.log, self.registry = source, list[Record](), Registry()

    def act(self) -> None:
        subject = self.source.choice("stu")
        version = self.source.randrange(1, 4)
        permanent = self.source.random() < 0.5
        schema = f'{{"type":"enum","name":"E{self.source.randrange(3)}","symbols":["A"]}}'
        other = Reference("x", self.source.choice("stu"), self.source.randrange(1, 4))
        registry = self.registry
        actions: list[Any] = [
            lambda: registry.register(subject, schema).records,
            lambda: registry.register(subject, Draft('"int"', references=(other,))).records,
            lambda: registry.delete_version(subject, version, permanent=permanent),
            lambda: registry.delete_subject(subject, permanent=permanent),
            lambda: registry.set_compatibility(Compatibility.NONE, subject),
            lambda: registry.delete_config(subject),
            lambda: registry.set_mode(
                self.source.choice(["READONLY", "READWRITE", "IMPORT"]), subject
            ),
            lambda: registry.delete_mode(subject),
            lambda: registry.register(subject, schema, id=self.source.randrange(20)).records,
        ]
        try:
            records = self.source.choice(actions)()
        except SchemaError:
            return
        self.tell(records)

    def tell(self, records: tuple[Record, ...]) -> None:
        for record in records:
            assert self.registry.replay(*record)
            self.log.append(record)


def knowledge(registry: Registry) -> Any:
    return {
        subject: (
            registry.entries(subject, deleted=True),
            registry.config(subject),
            registry.own_mode(subject),
        )
        for subject in "stu"
    }


def compacted(log: list[Record], up_to: int | None = None) -> list[Record]:
    """What compaction leaves: of each key in the log's head the last record."""
    last = {key: place for place, (key, _) in enumerate(log[:up_to])}
    return [log[place] for place in sorted(last.values())] + ([] if up_to is None else log[up_to:])


@pytest.mark.slow
@given(SOURCES)
@settings(max_examples=150, deadline=None)
def test_a_log_says_the_same_after_compaction(source: random.Random) -> None:
    actor = Actor(source)
    for record in Registry().set_compatibility(Compatibility.NONE):
        actor.registry.replay(*record)
        actor.log.append(record)
    for _ in range(60):
        actor.act()
    assert actor.registry.repairs() == ()
    again = Registry()
    for record in compacted(actor.log, source.randrange(len(actor.log) + 1)):
        again.replay(*record)
    assert knowledge(again) == knowledge(actor.registry)
    assert again.repairs() == ()


# --- a reference and the end of what it refers to ----------------------------------------------

NAMED = '{"type":"enum","name":"E","symbols":["A"]}'


def told(registry: RegistryState, records: tuple[Record, ...]) -> list[bool]:
    return [registry.replay(*record) for record in records]


def at_the_end_of_t() -> tuple[Registry, tuple[Record, ...], tuple[Record, ...]]:
    """A registry with a version that is hidden, what ends it, and what would refer to it."""
    registry = Registry()
    told(registry, registry.register("t", NAMED).records)
    draft = Draft('"E"', references=(Reference("E", "t", 1),))
    late = registry.register("s", draft).records
    told(registry, registry.delete_version("t", 1))
    return registry, registry.delete_version("t", 1, permanent=True), late


def test_what_a_schema_refers_to_does_not_end_when_the_schema_came_first() -> None:
    registry, end, late = at_the_end_of_t()
    assert told(registry, late) == [True]
    assert told(registry, end) == [False]
    assert registry.version("t", 1).deleted
    assert told(registry, registry.repairs()) == [True]
    assert registry.repairs() == ()
    with pytest.raises(SchemaError, match="referred to by 's' version 1"):
        registry.delete_version("t", 1, permanent=True)


def test_a_schema_falls_when_what_it_refers_to_ended_first() -> None:
    registry, end, late = at_the_end_of_t()
    assert told(registry, end) == [True]
    assert told(registry, late) == [False]
    assert registry.repairs() == ((late[0][0], None),)
    assert told(registry, registry.repairs()) == [True]
    assert (registry.repairs(), registry.subjects(deleted=True)) == ((), ())


def test_a_schema_that_fell_is_put_right_when_what_it_refers_to_is_there_again() -> None:
    """Compaction may leave an old tombstone before the version that it did not end."""
    registry, end, late = at_the_end_of_t()
    assert told(registry, (*end, *late)) == [True, False]
    assert told(registry, registry.register("t", NAMED).records) == [True]
    assert registry.repairs() == late
    assert told(registry, late) == [True]
    assert registry.repairs() == ()


def test_versions_of_a_subject_end_after_those_that_refer_to_them() -> None:
    registry = Registry()
    told(registry, registry.set_mode("IMPORT", "s"))
    told(registry, registry.register("s", NAMED, id=1, version=2).records)
    earlier = Draft('"E"', references=(Reference("E", "s", 2),))
    told(registry, registry.register("s", earlier, id=2, version=1).records)
    told(registry, registry.delete_subject("s"))
    assert all(told(registry, registry.delete_subject("s", permanent=True)))
    assert registry.subjects(deleted=True) == ()


def test_versions_that_refer_to_one_another_do_not_end() -> None:
    registry = Registry()
    for version, other in ((1, 2), (2, 1)):
        entry = RegisteredSchema("s", version, version, str(version), deleted=True,
                                 references=(Reference("E", "s", other),))  # fmt: skip
        assert registry.replay(*schema_record(entry))
    with pytest.raises(SchemaError, match="version 1 is referred to by 's' version 2"):
        registry.delete_subject("s", permanent=True)


def test_of_two_deletions_of_a_subject_the_one_that_saw_less_undoes_nothing() -> None:
    """Compaction keeps the last record of the subject's deletion, and that is the lesser one."""
    registry = Registry()
    log = [*registry.set_compatibility(Compatibility.NONE), *registry.register("s", "int").records]
    told(registry, tuple(log))
    lesser = registry.delete_subject("s")
    log += registry.register("s", "long").records
    told(registry, tuple(log[-1:]))
    log += [*registry.delete_subject("s"), *lesser]
    assert told(registry, tuple(log[-2:])) == [True, False]
    log += registry.repairs()
    assert told(registry, registry.repairs()) == [True]
    assert registry.repairs() == ()
    assert registry.subjects() == ()
    again = Registry()
    told(again, tuple(compacted(log)))
    assert knowledge(again) == knowledge(registry)


def test_a_schema_that_was_given_two_ids_keeps_the_one_that_is_left() -> None:
    registry = Registry()
    told(registry, registry.set_mode("IMPORT"))
    told(registry, registry.register("s", "int", id=7, version=1).records)
    told(registry, registry.register("s", "int", id=3, version=2).records)
    told(registry, registry.set_mode("READWRITE"))
    assert registry.register("t", "int").id == 3
    told(registry, registry.delete_version("s", 2))
    told(registry, registry.delete_version("s", 2, permanent=True))
    assert registry.register("t", "int").id == 7
    told(registry, registry.delete_subject("s"))
    told(registry, registry.delete_subject("s", permanent=True))
    assert registry.schema_count == 0
    assert registry.register("t", "int").id == 8


def test_versions_of_one_id_that_are_written_differently_have_guids_of_their_own() -> None:
    registry = Registry()
    spellings = ['{"type":"int"}', '"int"']
    for subject, text in zip("st", spellings, strict=True):
        assert registry.replay(*schema_record(RegisteredSchema(subject, 1, 1, text)))
    assert [
        registry.of_guid(Draft(text).guid)["."].subject for text in spellings
    ] == ["s", "t"]  # fmt: skip
    told(registry, registry.delete_subject("s"))
    told(registry, registry.delete_subject("s", permanent=True))
    assert registry.of_guid(Draft(spellings[0]).guid) == {}
    assert registry.of_guid(Draft(spellings[1]).guid)["."].id == 1


class Slow(Actor):
    """Somebody who has read the log up to a place, and writes what they find right then."""

    def __init__(self, source: random.Random, log: list[Record]) -> None:
        super().__init__(source)
        self.log, self.read = log, 0

    def catch_up(self, count: int) -> None:
        told(self.registry, tuple(self.log[self.read : self.read + count]))
        self.read = min(self.read + count, len(self.log))

    def tell(self, records: tuple[Record, ...]) -> None:
        self.log += records


@pytest.mark.slow
@given(SOURCES)
@settings(max_examples=300, deadline=None)
def test_whoever_races_every_living_schema_has_what_it_refers_to(source: random.Random) -> None:
    log = list(Registry().set_compatibility(Compatibility.NONE))
    crowd = [Slow(source, log) for _ in range(3)]
    for _ in range(60):
        actor = source.choice(crowd)
        actor.catch_up(source.randrange(6))
        actor.act()
    last = Slow(source, log)
    last.catch_up(len(log))
    for _ in range(3):
        log += last.registry.repairs()
        last.catch_up(len(log))
    assert last.registry.repairs() == ()
    for subject in "stu":
        for entry in last.registry.entries(subject):
            last.registry.referenced(subject, entry.references, deleted=True)
    again = Slow(source, compacted(log))
    again.catch_up(len(log))
    assert knowledge(again.registry) == knowledge(last.registry)
