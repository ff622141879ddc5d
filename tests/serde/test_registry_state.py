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
from kafkalite.serde.registry_records import Reference
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
    state.repairs()


class Actor:
    """Somebody who does what the rules allow, on a log."""

    def __init__(self, source: random.Random) -> None:
        self.source, self.log, self.registry = source, list[Record](), Registry()

    def act(self) -> None:
        subject = self.source.choice("stu")
        version = self.source.randrange(1, 4)
        permanent = self.source.random() < 0.5
        schema = f'{{"type":"enum","name":"E{self.source.randrange(3)}","symbols":["A"]}}'
        registry = self.registry
        actions: list[Any] = [
            lambda: registry.register(subject, schema).records,
            lambda: registry.register(subject, schema).records,
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
        for record in records:
            assert registry.replay(*record)
            self.log.append(record)


def knowledge(registry: Registry) -> Any:
    return {
        subject: (
            [(e.version, e.id, e.text, e.deleted) for e in registry.entries(subject, deleted=True)],
            registry.config(subject),
            registry.own_mode(subject),
        )
        for subject in "stu"
    }


@given(st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_log_says_the_same_after_compaction(source: random.Random) -> None:
    actor = Actor(source)
    for record in Registry().set_compatibility(Compatibility.NONE):
        actor.registry.replay(*record)
        actor.log.append(record)
    for _ in range(60):
        actor.act()
    assert actor.registry.repairs() == ()
    cut = source.randrange(len(actor.log) + 1)
    last = {key: place for place, (key, _) in enumerate(actor.log[:cut])}
    kept = [actor.log[place] for place in sorted(last.values())] + actor.log[cut:]
    again = Registry()
    for record in kept:
        again.replay(*record)
    assert knowledge(again) == knowledge(actor.registry)
    assert again.repairs() == ()
