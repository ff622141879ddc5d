"""The keyword arguments that operators take, and what is checked of them.                 [P]

Fails  with TypeError for a keyword argument that an operator does not have; with TopologyError for
       an aggregate that groups cannot have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, Required, TypedDict

from kafkalite.core.generics import K, R, V
from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serde, Serializer
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Aggregate, subtracts
from kafkalite.streams.durations import Duration
from kafkalite.streams.expressions.expression import Expression
from kafkalite.streams.functions import OfValue
from kafkalite.streams.merging import merges


class AggregateOptions(TypedDict, Generic[R], total=False):
    """What every aggregate takes. With `cached=False` a row's updates do not merge until the
    commit: every one goes on. `key`: of the group's key, or of its windowed key."""

    key: Serde | None
    value: Serializer[R] | None
    name: str | None
    cached: bool


class Named(TypedDict, total=False):
    """Options of every operator with a user function."""

    name: str | None
    on_error: p.OnError | None


class WithKey(Named):
    """The same, for a function of key and value."""

    with_key: Required[Literal[True]]


class WithRecord(Named):
    """The same, for a function of the whole record."""

    with_record: Required[Literal[True]]


class Grouping(Named, Generic[K, V], total=False):
    """Options of grouping: the serdes of the internal topic."""

    key: Serde[K] | None
    value: Serializer[V] | None


class Regrouping(Named, Generic[K, V], total=False):
    """Options of grouping the rows of a table."""

    key: Serde[K] | None
    value_serde: Serializer[V] | None


class SourceOptions(TypedDict, Generic[V], total=False):
    """Options of reading a topic as a stream, beside serdes."""

    timestamp: OfValue[V, int] | None
    offset_reset: Literal["earliest", "latest"]
    max_future: Duration | None
    name: str | None
    on_error: p.OnError | None


class TableSourceOptions(TypedDict, total=False):
    """Options of reading a topic as a table, beside serdes."""

    name: str | None
    history: Duration | None
    retention: Duration | None
    on_error: p.OnError | None


class GlobalOptions(TypedDict, total=False):
    """Options of reading a topic as a global table, beside serdes."""

    name: str | None
    on_error: p.OnError | None


class SinkOptions(TypedDict, Generic[K, V], total=False):
    """Options of writing to a topic, beside the key's serde."""

    value: Serializer[V] | None
    partitioner: Callable[[K, V, int], int] | Expression | None
    create: Mapping[str, Any] | None
    name: str | None
    on_error: p.OnError | None


class JoinOptions(Named, total=False):
    """What every join takes, beside what its kind does. The serdes are those of its internal
    topics and stores."""

    key_serde: Serde | None
    left_serde: Serde | None


class StreamJoinOptions(JoinOptions, total=False):
    """The same of a join of two streams."""

    right_serde: Serde | None


class TableJoinOptions(Named, Generic[R], total=False):
    """Options of a join of tables. `value`: the serde of its rows, if it has a store."""

    value: Serializer[R] | None
    cached: bool


class ForeignOptions(Named, Generic[R], total=False):
    """Options of a join of tables by a foreign key. `value` as in TableJoinOptions."""

    value: Serializer[R] | None


class TableOptions(Named, total=False):
    """Options of operators on tables, as they are implemented."""

    with_key: bool


class Options(TableOptions, total=False):
    """Options of operators on streams, as they are implemented."""

    with_record: bool


def check_options(operator: str, options: object, known: type) -> None:
    """TypeError for a keyword argument that the operator does not have."""
    assert isinstance(options, dict)
    for name in options.keys() - known.__annotations__.keys():
        raise TypeError(f"{operator}: unexpected keyword argument {name!r}")


def check_aggregate(label: str, part: object, *, of_table: bool, of_sessions: bool = False) -> None:
    """TopologyError unless `part` is an aggregate that groups can have, or those of a table."""
    if not isinstance(part, Aggregate):
        what = f"{type(part).__name__} {part!r}"
        hint = "; did you forget to call it?" if callable(part) else ""
        raise TopologyError(f"{label}: expected an aggregate such as count(), got {what}{hint}")
    if of_table and not subtracts(part):
        raise TopologyError(
            f"{label}: {part.word} cannot take out the old row of a table; "
            "count, sum_, mean, collect can, and fold and reduce_ with subtract="
        )
    if of_sessions and not merges(part):
        raise TopologyError(
            f"{label}: a record between two sessions makes them one, which {part.word} without "
            f"merge= cannot; write {part.word}(init, add, merge=lambda older, newer: …)"
        )


def topic_settings(create: object, topic: object, operator: str) -> dict[str, str]:
    """The settings of a topic that is to be made, as texts. TopologyError for anything else."""
    if not isinstance(topic, str):
        raise TopologyError(f"{operator}: create= makes one topic, and a function names many")
    if not isinstance(create, Mapping) or not all(isinstance(name, str) for name in create):
        raise TopologyError(f"{operator}: create= expected settings by name, got {create!r}")
    partitions = create.get("partitions", 1)
    if type(partitions) is not int or partitions < 1:
        raise TopologyError(f"{operator}: partitions: expected 1 or more, got {partitions!r}")
    spelt = {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in create.items()}
    return {"retention.ms": "-1", **spelt}


def is_row(value: object) -> bool:
    """Whether a table has a row where it has this value."""
    return value is not None


def of_pairs(options: Options) -> Options:
    """Functions of pairs always get the key, or the whole record."""
    return {**options, "with_key": not options.get("with_record", False)}
