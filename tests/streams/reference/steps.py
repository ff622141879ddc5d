"""Operators as data: each can be built with the API and with the nodes of a plain machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kafkalite.core.types import Columns
from kafkalite.serde.serde import Serde
from kafkalite.streams import avro, json, msgpack, store, string
from reference import plain, plain_joins
from reference.emit import FinalRows, Suppress
from reference.machine import Machine, Node, Output, Source, Table
from reference.tables import PlainRetention
from reference.values import (
    KEYS,
    MAPS,
    PROCESSORS,
    TESTS,
    Form,
    Looking,
    Value,
    awaited,
    fragile,
    several,
)

Kind = Literal[
    "stream", "keyed by windows", "table", "windows", "spans", "endless", "versions", "global"
]


Policy = Literal["skip", "dlq"]


@dataclass(frozen=True)
class Made:
    """A node, and what those below have to know of it."""

    node: Node
    changed: bool = False  # the key, since the last topic
    window: Node | None = None  # of a table: the windows that it was aggregated over
    lag: int = 0  # of these windows
    maps: tuple[Callable[[Any, Any], Any], ...] | None = ()  # since; None: more than maps

    @property
    def table(self) -> Table:
        """The node, where it has rows."""
        assert isinstance(self.node, Table)
        return self.node


@dataclass(frozen=True)
class Step(ABC):
    """An operator. `parents` are the places of its inputs among the steps of the topology."""

    parents: tuple[int, ...]
    kind: Kind
    name: str

    @abstractmethod
    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        """The operator with the API, on what its parents have made."""

    @abstractmethod
    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        """The same in plain Python."""


SCHEMA = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "n", "type": ["null", "long"]},
        {"name": "t", "type": ["null", "string"]},
    ],
}
SERDES: dict[str, Serde[Any]] = {
    "json": json(),
    "msgpack": msgpack(),
    "avro": avro(schema=SCHEMA),
}


def keyed(machine: Machine, given: Made) -> Node:
    """A stream in whose partitions equal keys meet."""
    return machine.through(given.node) if given.changed else given.node


@dataclass(frozen=True)
class Read(Step):
    """A topic."""

    topic: str
    named: bool = True
    history: int | None = None
    retention: int | None = None
    serde: Literal["json", "msgpack", "avro"] = "json"

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        value = SERDES[self.serde]
        if self.kind == "stream":
            return app.stream(self.topic, value=value)
        if self.kind == "global":
            return app.global_table(self.topic, value=value)
        name = self.name if self.named else None
        return app.table(
            self.topic, name=name, history=self.history, retention=self.retention, value=value
        )

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        if self.kind == "global":
            machine.globals[self.topic] = machine.add(plain_joins.Everywhere())
            return Made(machine.globals[self.topic])
        machine.sources[self.topic] = source = machine.add(Source())
        if self.kind == "stream":
            return Made(source)
        return Made(latest(machine, source, self))


def latest(machine: Machine, parent: Node, step: Read | AsTable) -> Node:
    """The table of a topic or a stream."""
    if step.history is not None:
        return machine.add(plain.Versions(parent, step.history))  # type: ignore[no-any-return]
    if step.retention is not None:
        parent = machine.add(plain.Expiring(parent, PlainRetention(step.retention)))
    return machine.add(plain.Latest(parent, named=step.named))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Write(Step):
    """A topic that is read outside. Several may write one."""

    topic: str

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        (above,) = inputs
        stream = above.to_stream() if hasattr(above, "to_stream") else above
        stream.to(self.topic, value=json())

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        output = machine.add(Output(inputs[0].node))
        output.rows = machine.outputs.setdefault(self.topic, output).rows
        return inputs[0]


# Streams


@dataclass(frozen=True)
class Stateless(Step):
    """A record at a time. `how`: by a function or by an expression."""

    word: str
    function: str
    as_expression: bool = False
    on_error: Policy | None = None  # of a function that fails on some values

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        (above,) = inputs
        if self.on_error is not None:
            return self._build_fragile(above, self.on_error)
        if self.word == "map" and self.as_expression:
            return above.select(**given(MAPS[self.function], True))
        if self.word == "map":
            return above.map(MAPS[self.function].function)
        if self.word in ("map_async", "map_batch"):
            return getattr(above, self.word)(awaited if self.word == "map_async" else batched)
        if self.word in ("filter", "filter_not"):
            return getattr(above, self.word)(given(TESTS[self.function], self.as_expression))
        if self.word == "flat_map":
            return above.flat_map(several)
        key = KEYS[self.function]
        if self.word == "map_pairs":
            return above.map_pairs(lambda k, v: (key.function(v), v))
        if self.word == "flat_map_pairs":
            return above.flat_map_pairs(lambda k, v: [(k, v), (key.function(v), v)])
        return above.select_key(given(key, self.as_expression))

    def _build_fragile(self, above: Any, on_error: Policy) -> Any:
        if self.word == "flat_map":
            return above.flat_map(fragile(several), on_error=on_error)
        forms = {"map": MAPS, "select_key": KEYS}.get(self.word, TESTS)
        function = fragile(forms[self.function].function)
        return getattr(above, self.word)(function, on_error=on_error)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        changes = self.word in ("select_key", "map_pairs", "flat_map_pairs", "map_batch")
        kind = plain.Called if self.word == "map_async" else plain.Each
        node = machine.add(kind(inputs[0].node, self.one))
        return Made(node, changed=changes or inputs[0].changed)

    def one(self, key: Any, value: Value) -> list[tuple[Any, Any]]:
        """What becomes of a record."""
        if self.on_error is not None:
            fragile(lambda v: v)(value)
        if self.word == "map":
            return [(key, MAPS[self.function].function(value))]
        if self.word in ("map_async", "map_batch"):
            return [(key, MAPS["step"].function(value))]
        if self.word in ("filter", "filter_not"):
            passes = passed(self.word, TESTS[self.function], value, self.as_expression)
            return [(key, value)] if passes else []
        if self.word == "flat_map":
            return [(key, each) for each in several(value)]
        new = KEYS[self.function].function(value)
        return [(key, value), (new, value)] if self.word == "flat_map_pairs" else [(new, value)]


def batched(columns: Columns) -> Columns:
    return replace(columns, values=[MAPS["step"].function(value) for value in columns.values])


def given(form: Form, as_expression: bool) -> Any:
    if not as_expression:
        return form.function
    assert form.expression is not None
    return form.expression()


def passed(word: str, test: Form, value: Value, as_expression: bool) -> bool:
    """Whether a filter lets a value by. What an expression does not know does not pass."""
    verdict = test.function(value)
    if as_expression and verdict is None:
        return False
    return bool(verdict) != (word == "filter_not")


@dataclass(frozen=True)
class Arms(Step):
    """A branch; its arms follow."""

    tests: tuple[str, ...]

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].branch(*(TESTS[name].function for name in self.tests), default=True)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        tests = [TESTS[name].function for name in self.tests]
        node = machine.add(plain.Branch(inputs[0].node, tests))
        return Made(node, inputs[0].changed)


@dataclass(frozen=True)
class Arm(Step):
    """One arm of a branch."""

    index: int

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0][self.index]

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        node = machine.add(plain.Pass(inputs[0].node), str(self.index))
        return Made(node, inputs[0].changed)


@dataclass(frozen=True)
class Merged(Step):
    """Several streams as one."""

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].merge(*inputs[1:])

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        node = machine.add(plain.Pass(*(each.node for each in inputs)))
        return Made(node, any(each.changed for each in inputs))


@dataclass(frozen=True)
class Repartitioned(Step):
    """Through a topic, whatever the key."""

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].repartition(name=self.name)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        return Made(machine.through(inputs[0].node))


@dataclass(frozen=True)
class Processed(Step):
    """A processor with a store."""

    processor: str
    keeps_key: bool

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        make = PROCESSORS[self.processor]
        spec = store(f"{self.name}-store", key=string(), value=json())
        method = inputs[0].process_values if self.keeps_key else inputs[0].process
        return method(lambda: Renamed(make(), spec.name), [spec])

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        node = machine.add(plain.Processing(inputs[0].node, PROCESSORS[self.processor]()))
        return Made(node, changed=not self.keeps_key or inputs[0].changed)


class Renamed:
    """A processor whose store has another name in this topology."""

    def __init__(self, processor: Any, store: str) -> None:
        self.processor, self.its = processor, store

    def init(self, context: Any) -> None:
        self.context = context
        self.processor.init(self)

    def process(self, record: Any) -> None:
        self.processor.process(record)

    def report(self, time: int) -> None:
        self.processor.report(time)

    def store(self, name: str) -> Any:
        return self.context.store(self.its)

    def forward(self, record: Any) -> None:
        self.context.forward(record)

    def schedule(self, interval: int, clock: str, function: Any) -> Any:
        return self.context.schedule(interval, clock, self.report)


@dataclass(frozen=True)
class LookedInto(Step):
    """A processor that looks into a table."""

    keeps_key: bool

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        stream, table = inputs
        method = stream.process_values if self.keeps_key else stream.process
        return method(lambda: Looking(table._node.name), [table])

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        stream, table = keyed(machine, inputs[0]), inputs[1].table
        node = machine.add(plain.LookingInto(stream, table, Looking("the table")))
        return Made(node, changed=not self.keeps_key)


@dataclass(frozen=True)
class Rekeyed(Step):
    """Keys of windows as texts."""

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].select_key(lambda k, v: text_of(k), with_key=True)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        node = machine.add(plain.Each(inputs[0].node, lambda k, v: [(text_of(k), v)]))
        return Made(node, changed=True)


def text_of(key: Any) -> str:
    return f"{key.key}@{key.start % 3}"


# Tables


@dataclass(frozen=True)
class AsTable(Step):
    """The latest value of each key of a stream."""

    named: bool = True
    history: int | None = None
    retention: int | None = None

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        name = self.name if self.named else None
        return inputs[0].to_table(name=name, history=self.history, retention=self.retention)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        return Made(latest(machine, keyed(machine, inputs[0]), self))


@dataclass(frozen=True)
class OfRows(Step):
    """A filter or a map of a table."""

    word: str
    function: str
    as_expression: bool
    named: bool
    on_error: Policy | None = None  # of a filter that fails on some rows

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        options = {"name": self.name} if self.named else {}
        if self.on_error is not None:
            test = fragile(TESTS[self.function].function)
            return getattr(inputs[0], self.word)(test, on_error=self.on_error, **options)
        if self.word == "map" and self.as_expression:
            return inputs[0].select(**given(MAPS[self.function], True), **options)
        forms = MAPS if self.word == "map" else TESTS
        function = given(forms[self.function], self.as_expression)
        return getattr(inputs[0], self.word)(function, **options)

    def one(self, key: Any, value: Any) -> Any:
        if self.word == "map":
            return MAPS[self.function].function(value)
        test = TESTS[self.function]
        if self.on_error is not None:
            fragile(test.function)(value)
        return value if passed(self.word, test, value, self.as_expression) else None

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        (above,) = inputs
        filters = self.word != "map"
        rows = plain.Rows(above.table, self.one, filters=filters, named=self.named)
        maps = None if filters or above.maps is None else (*above.maps, self.one)
        return replace(above, node=machine.add(rows), maps=maps)


@dataclass(frozen=True)
class Updates(Step):
    """Updates of a table as a stream."""

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].to_stream()

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        return Made(machine.add(plain.Pass(inputs[0].node)))


@dataclass(frozen=True)
class Final(Step):
    """The last row of each window."""

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].final()

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        (above,) = inputs
        if above.maps is None or above.window is None:
            return Made(machine.add(plain.Holding(above.table, FinalRows(above.lag))))
        node = machine.add(plain.Pass(above.window), "final")
        for function in above.maps:
            node = machine.add(plain.Each(node, rows_of(function)))
        return Made(node)


def rows_of(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], list[tuple[Any, Any]]]:
    def one(key: Any, value: Any) -> list[tuple[Any, Any]]:
        made = function(key, value)
        return [] if made is None else [(key, made)]

    return one


@dataclass(frozen=True)
class Late(Step):
    """The records that came too late."""

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].late()

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        return Made(machine.add(plain.Pass(inputs[0].window), "late"))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Suppressed(Step):
    """A table with fewer updates."""

    limit: int
    most: int | None

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        return inputs[0].suppress(self.limit, self.most)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        node = machine.add(plain.Holding(inputs[0].table, Suppress(self.limit, self.most)))
        return replace(inputs[0], node=node, maps=None)
