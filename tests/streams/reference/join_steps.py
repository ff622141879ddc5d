"""Joins and patterns as data, as the other operators are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafkalite.streams import repeated
from reference import plain, plain_joins
from reference.foreign_joins import PlainForeignJoin
from reference.joins import PlainAsOf, PlainJoin
from reference.machine import Machine
from reference.matching import Step as PatternStep
from reference.steps import Made, Step, given, keyed
from reference.values import KEYS, TESTS, Value, field, joined, joined_expression, row


def function_of(as_expression: bool) -> Any:
    return joined_expression() if as_expression else joined


@dataclass(frozen=True)
class JoinedStreams(Step):
    """Two streams joined by time."""

    how: str
    before: int
    after: int
    grace: int
    as_expression: bool = False

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].join(
            inputs[1], function_of(self.as_expression), within=(self.before, self.after),
            how=self.how, grace=self.grace, name=self.name,
        )  # fmt: skip

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        model = PlainJoin(self.how, self.before, self.after, self.grace)
        return joined_streams(machine, inputs, model)


def joined_streams(machine: Machine, inputs: Sequence[Made], model: PlainJoin | PlainAsOf) -> Made:
    sides = {each.node: keyed(machine, each) for each in inputs}
    left, right = (sides[each.node] for each in inputs)
    return Made(machine.add(plain_joins.StreamsJoin(left, right, model, joined)))


@dataclass(frozen=True)
class JoinedAsOf(Step):
    """Each left record with the latest right one."""

    how: str
    tolerance: int
    grace: int
    as_expression: bool = False

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].join_as_of(
            inputs[1], function_of(self.as_expression), tolerance=self.tolerance, how=self.how,
            grace=self.grace, name=self.name,
        )  # fmt: skip

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        return joined_streams(machine, inputs, PlainAsOf(self.how, self.tolerance, self.grace))


@dataclass(frozen=True)
class LookedUp(Step):
    """A stream joined with a table."""

    how: str
    grace: int | None
    as_expression: bool = False

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        stream, table = inputs
        function = function_of(self.as_expression)
        return stream.join(table, function, how=self.how, grace=self.grace, name=self.name)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        stream, table = keyed(machine, inputs[0]), inputs[1].table
        return Made(
            machine.add(plain_joins.TableLookup(stream, table, self.how, joined, self.grace))
        )


@dataclass(frozen=True)
class LookedUpEverywhere(Step):
    """A stream joined with a global table."""

    how: str
    key: str
    as_expression: bool
    function_as_expression: bool = False

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        key = given(KEYS[self.key], self.as_expression)
        function = function_of(self.function_as_expression)
        return inputs[0].join(inputs[1], function, key=key, how=self.how)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        table = inputs[1].node
        assert isinstance(table, plain_joins.Everywhere)
        key = KEYS[self.key].function
        node = plain_joins.GlobalLookup(inputs[0].node, table, self.how, key, joined)
        return Made(machine.add(node), inputs[0].changed)


@dataclass(frozen=True)
class JoinedTables(Step):
    """Two tables as one."""

    how: str
    named: bool
    as_expression: bool = False

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        name = self.name if self.named else None
        return inputs[0].join(inputs[1], function_of(self.as_expression), how=self.how, name=name)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        left, right = (each.table for each in inputs)
        node = plain_joins.TableJoin(left, right, self.how, joined, named=self.named)
        return Made(machine.add(node), lag=max(each.lag for each in inputs), maps=None)


@dataclass(frozen=True)
class JoinedByField(Step):
    """Two tables joined by a foreign key."""

    how: str
    key: str
    named: bool
    as_expression: bool = False  # the key
    function_as_expression: bool = False

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        name = {"name": self.name} if self.named else {}
        key = given(KEYS[self.key], self.as_expression)
        function = function_of(self.function_as_expression)
        return inputs[0].join(inputs[1], function, foreign_key=key, how=self.how, **name)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        left, right = (each.table for each in inputs)
        model = PlainForeignJoin(self.how, KEYS[self.key].function, joined)
        asked = machine.through(left, drops_nulls=False)
        join = machine.add(plain_joins.ForeignJoin(asked, right, model))
        return Made(machine.add(plain_joins.Answers(machine.through(join), left)))


class Condition(NamedTuple):
    """A step of a pattern, for several records where `least` and `most` are given."""

    test: str
    bounds: tuple[int, int] | None = None

    def built(self) -> Any:
        function = TESTS[self.test].function
        if self.bounds is None:
            return function
        least, most = self.bounds
        return repeated(function, at_least=least, at_most=most)

    def plain(self) -> PatternStep:
        test = TESTS[self.test].function
        least, most = self.bounds or (1, 1)
        return PatternStep(lambda v, _: bool(test(v)), least, most, self.bounds is not None)


@dataclass(frozen=True)
class Matched(Step):
    """Sequences of records of a key."""

    steps: tuple[Condition, ...]
    without: bool
    within: int
    grace: int

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        steps = {f"s{n}": step.built() for n, step in enumerate(self.steps)}
        options: dict[str, Any] = {"not_between": is_five} if self.without else {}
        found = inputs[0].match(
            within=self.within, grace=self.grace, name=self.name, **steps, **options
        )
        return found.map(lambda v: sequence(list(v.values())))

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        steps = [step.plain() for step in self.steps]
        without = is_five if self.without else lambda v: False
        node = plain.Sequences(
            keyed(machine, inputs[0]), steps, without, self.within, self.grace, sequence
        )
        return Made(machine.add(node))


def is_five(value: Value) -> bool:
    return field(value, "n") == 5


def sequence(values: list[Any]) -> Value:
    met = [each if isinstance(each, list) else [each] for each in values]
    counts = "".join(str(len(each)) for each in met)
    return row(sum(field(value, "n") or 0 for each in met for value in each) % 101, counts)
