"""Aggregates as data, as the other operators are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kafkalite.streams import count, hopping, session, sliding, sum_, tumbling, unlimited
from reference import plain
from reference.cogroup import TOGETHER, Cogroup, Groups
from reference.machine import Machine
from reference.steps import Made, Step, given, keyed
from reference.values import KEYS, Folding, Value, field, row
from reference.windows import Fold, Sessions, Sliding, TimeWindows, Unlimited


@dataclass(frozen=True)
class Window:
    """A window, as the API and as the reference have it."""

    word: str
    size: int
    advance: int
    grace: int

    def built(self) -> Any:
        if self.word == "time" and self.advance == self.size:
            return tumbling(self.size, grace=self.grace)
        if self.word == "time":
            return hopping(self.size, self.advance, grace=self.grace)
        if self.word == "unlimited":
            return unlimited(self.size)
        return (session if self.word == "session" else sliding)(self.size, grace=self.grace)

    def model(self, fold: Fold) -> Any:
        if self.word == "time":
            return TimeWindows(self.size, self.advance, self.grace, fold)
        if self.word == "unlimited":
            return Unlimited(self.size, fold)
        kind = Sessions if self.word == "session" else Sliding
        return kind(self.size, self.grace, fold)

    def is_like(self, other: Window) -> bool:
        """Whether windows of both may be the same ones."""
        return (self.word, self.size) == (other.word, other.size)

    @property
    def lag(self) -> int:
        """How long after its end a window takes no more."""
        past = {"time": 0, "sliding": 1, "session": self.size + 1, "unlimited": 0}
        return self.grace + past[self.word]


@dataclass(frozen=True)
class Aggregated(Step):
    """A stream by its key, or by another, folded; over windows or not."""

    folding: Folding
    key: str | None
    as_expression: bool
    window: Window | None
    cached: bool = True

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        (above,) = inputs
        if self.folding.word == "reduce":
            above = above.filter(lambda v: v is not None)
        grouped = above.group_by_key()
        if self.key is not None:
            grouped = above.group_by(given(KEYS[self.key], self.as_expression))
        if self.window is not None:
            grouped = grouped.window(self.window.built())
        table = self.folding.of(grouped, name=self.name, cached=self.cached)
        return table.map(self.folding.after) if self.folding.is_bare else table

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        (above,) = inputs
        if self.folding.word == "reduce":
            some = plain.Each(above.node, lambda k, v: [] if v is None else [(k, v)])
            above = replace(above, node=machine.add(some))
        if self.key is not None:
            key = KEYS[self.key].function
            select = plain.Each(above.node, lambda k, v: [(key(v), v)])
            above = Made(machine.add(select), changed=True)
        node = keyed(machine, above)
        if self.window is None:
            fold = self.folding.plain()
            made = Made(machine.add(plain.Folded(node, fold.init, fold.add, fold.row)))
        else:
            model = self.window.model(self.folding.plain())
            windows = machine.add(plain.Windows(node, model=model))
            made = Made(windows, window=windows, lag=self.window.lag)
        return as_rows(machine, made, self.folding.after) if self.folding.is_bare else made


def as_rows(machine: Machine, made: Made, function: Callable[[Any], Any]) -> Made:
    one = lambda k, v: function(v)  # noqa: E731
    rows = machine.add(plain.Rows(made.table, one, filters=False, named=False))
    return replace(made, node=rows, maps=(one,))


@dataclass(frozen=True)
class Regrouped(Step):
    """Rows of a table by another key: counted and summed."""

    key: str

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        grouped = inputs[0].group_by(KEYS[self.key].function)
        table = grouped.aggregate(c=count(), s=sum_("n"), name=self.name)
        return table.map(counted)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        key = KEYS[self.key].function
        changes = machine.add(plain.Regroup(inputs[0].node, lambda k, v: key(v)))

        def change(state: tuple[int, int], value: Any, by: int) -> tuple[int, int]:
            return state[0] + by, state[1] + by * (field(value, "n") or 0)

        folded = plain.Folded(
            machine.through(changes),
            lambda: (0, 0),
            lambda state, value: change(state, value, 1),
            lambda state: {"c": state[0], "s": state[1]},
            lambda state, value: change(state, value, -1),
        )
        return as_rows(machine, Made(machine.add(folded)), counted)


def counted(value: Any) -> Value:
    return row(value["c"] * 10 + value["s"], "g")


@dataclass(frozen=True)
class Cogrouped(Step):
    """Several streams folded into one table."""

    window: Window | None
    in_order: bool = True  # the values are told in the order in which they came

    def build(self, app: Any, inputs: Sequence[Any]) -> Any:
        def add(number: int) -> Any:
            return lambda state, value: [*state, [number, value]]

        first, *others = inputs
        groups = first.group_by_key().cogroup(add(0))
        for number, other in enumerate(others, 1):
            groups = groups.cogroup(other.group_by_key(), add(number))
        if self.window is not None:
            groups = groups.window(self.window.built())
        together = groups.aggregate(list, lambda one, other: one + other, name=self.name)
        return together.map(self.row)

    def plain(self, machine: Machine, inputs: Sequence[Made]) -> Made:
        window, fold = self.window, replace(TOGETHER, row=self.row)
        model = Groups(fold) if window is None else window.model(fold)
        above = [keyed(machine, each) for each in inputs]
        node = machine.add(plain.Together(*above, inputs=Cogroup(model)))
        return Made(node, window=node, lag=0 if window is None else window.lag)

    def row(self, pairs: Any) -> Value:
        numbers = [number * 3 + (field(value, "n") or 0) for number, value in pairs]
        told = numbers if self.in_order else sorted(numbers)
        return {"n": sum(numbers) % 101, "t": "c", "all": told}
