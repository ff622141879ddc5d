"""Avro without a given schema: the values make it, and widen it."""

from __future__ import annotations

import pytest
from avro_world import World

from kafkalite.errors import SchemaError
from kafkalite.serde.compatibility import Compatibility


def test_the_first_column_makes_the_schema(world: World) -> None:
    codec = world.codec("DelaysByOrigin")
    values = [{"flights": 3, "mean": 2.5, "worst": None}, {"flights": 1, "mean": 1.0, "worst": 7}]
    column = codec.serialize("delays-by-origin", values)
    assert codec.deserialize("delays-by-origin", column) == values
    assert world.latest("delays-by-origin-value") == {
        "type": "record",
        "name": "DelaysByOrigin",
        "fields": [
            {"name": "flights", "type": ["null", "long"], "default": None},
            {"name": "mean", "type": ["null", "double"], "default": None},
            {"name": "worst", "type": ["null", "long"], "default": None},
        ],
    }


def test_without_a_name_the_record_is_named_after_the_topic(world: World) -> None:
    world.codec().serialize("delays-by-origin", [{"a": 1}])
    assert world.latest("delays-by-origin-value")["name"] == "DelaysByOrigin"


def test_bare_values_are_written_as_they_are(world: World) -> None:
    codec = world.codec()
    for topic, values in {"ints": [1, 2], "texts": ["a"], "lists": [[1.5], []]}.items():
        assert codec.deserialize(topic, codec.serialize(topic, values)) == values
    assert world.latest("ints-value") == "long"


def test_a_column_of_none_registers_nothing(world: World) -> None:
    assert world.codec().serialize("t", [None, None]) == [None, None]
    assert world.registry.registry.subjects() == ()


def test_later_values_widen_the_schema_version_by_version(world: World) -> None:
    codec = world.codec()
    columns = [
        codec.serialize("t", [{"a": 1}]),
        codec.serialize("t", [{"a": 2}, {"a": 2.5}, {"a": 3}]),
        codec.serialize("t", [{"a": 1.0, "b": "x"}, {"a": 1.0}]),
    ]
    assert world.registry.versions("t-value") == (1, 2, 3)
    assert world.codec().deserialize("t", [data for column in columns for data in column]) == [
        {"a": 1.0, "b": None},
        {"a": 2.0, "b": None},
        {"a": 2.5, "b": None},
        {"a": 3.0, "b": None},
        {"a": 1.0, "b": "x"},
        {"a": 1.0, "b": None},
    ]


def test_a_restart_goes_on_with_the_latest_schema(world: World) -> None:
    world.codec().serialize("t", [{"a": 1, "b": 2}])
    world.codec().serialize("t", [{"b": 3}])
    assert world.registry.versions("t-value") == (1,)


def test_two_writers_grow_one_schema_together(world: World) -> None:
    one, two = world.codec(), world.codec()
    one.serialize("t", [{"a": 1}])
    two.serialize("t", [{"a": 1, "b": 2}])
    one.serialize("t", [{"a": 1, "c": 3}])
    assert [field["name"] for field in world.latest("t-value")["fields"]] == ["a", "b", "c"]
    assert world.registry.versions("t-value") == (1, 2, 3)
    two.serialize("t", [{"c": 1}])
    assert world.registry.versions("t-value") == (1, 2, 3)


def test_what_does_not_fit_and_cannot_evolve_is_a_schema_error_with_its_place(
    world: World,
) -> None:
    codec = world.codec()
    codec.serialize("t", [{"a": 1}])
    with pytest.raises(SchemaError, match="field 'a': long and string have no type") as caught:
        codec.serialize("t", [{"a": 1}, {"a": 2, "b": 1}, {"a": "x"}])
    assert caught.value.index == 2
    # The record before it was fine and has made its version.
    assert world.registry.versions("t-value") == (1, 2)


def test_the_registry_may_refuse_an_evolution(world: World) -> None:
    codec = world.codec()
    codec.serialize("t", [{"a": 1}])
    memory = world.registry
    memory.append(memory.registry.set_compatibility(Compatibility.FULL))
    with pytest.raises(SchemaError, match="not FULL compatible with version 1") as caught:
        codec.serialize("t", [{"a": 1.5}])
    assert caught.value.index == 0
    codec.serialize("t", [{"a": 1, "b": 1}])
    assert memory.versions("t-value") == (1, 2)


def test_a_first_column_with_a_stray_value_names_that_one(world: World) -> None:
    with pytest.raises(SchemaError, match="long and string") as caught:
        world.codec().serialize("t", [None, {"a": 1}, {"a": "x"}])
    assert caught.value.index == 2


def test_a_name_that_the_subject_does_not_have_is_not_ignored(world: World) -> None:
    world.codec("One").serialize("t", [{"a": 1}])
    with pytest.raises(SchemaError, match="record 'One' in the older schema cannot be read"):
        world.codec("Two").serialize("t", [{"a": 1}])
