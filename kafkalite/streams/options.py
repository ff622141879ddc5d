"""The keyword arguments that operators take, and what is checked of them.                 [P]

Fails  with TypeError for a keyword argument that an operator does not have; with TopologyError for
       an aggregate that groups cannot have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from kafkalite.errors import TopologyError
from kafkalite.serde.serde import Serde
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Aggregate, subtracts


class AggregateOptions(TypedDict, total=False):
    """What every aggregate takes. With `cached=False` a row's updates do not merge until the
    commit: every one goes on."""

    key: Serde | None
    value: Serde | None
    name: str | None
    cached: bool


class TableOptions(TypedDict, total=False):
    """What every operator on tables with a user function takes."""

    name: str | None
    with_key: bool
    on_error: p.OnError | None


class Options(TableOptions, total=False):
    """What every operator on streams with a user function takes."""

    with_record: bool


def check_options(operator: str, options: object, known: type) -> None:
    """TypeError for a keyword argument that the operator does not have."""
    assert isinstance(options, dict)
    for name in options.keys() - known.__annotations__.keys():
        raise TypeError(f"{operator}: unexpected keyword argument {name!r}")


def check_aggregate(label: str, part: object, *, of_table: bool) -> None:
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
