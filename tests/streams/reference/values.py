"""What flows through random topologies, and the functions over it: for Python and as expressions.

A value is None or `{"n": int | None, "t": str | None}`, sometimes with more fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from math import ceil
from typing import Any, Literal, NamedTuple

from kafkalite.streams import (
    Record,
    approx_distinct,
    coalesce,
    col,
    collect,
    collect_set,
    count,
    first,
    fold,
    last,
    left,
    lit,
    max_,
    mean,
    min_,
    quantiles,
    reduce_,
    right,
    struct,
    sum_,
    top_k,
    when,
)
from reference.windows import Fold

Value = dict[str, Any] | None


def field(value: Value, name: str) -> Any:
    return None if value is None else value[name]


def row(n: Any, t: Any) -> dict[str, Any]:
    return {"n": n, "t": t}


class Form(NamedTuple):
    """A function and the expression that says the same. None: there is none."""

    function: Callable[[Value], Any]
    expression: Callable[[], Any] | None = None


def _step(value: Value) -> Value:
    if value is None:
        return None
    n = value["n"]
    return row(None if n is None else n - 20 if n > 20 else n + 3, value["t"])


def _flip(value: Value) -> Value:
    if value is None:
        return None
    n = value["n"]
    return row(n, "y" if n is not None and n > 4 else "x")


MAPS = {
    "step": Form(
        _step,
        lambda: {
            "n": when(col("n") > 20).then(col("n") - 20).otherwise(col("n") + 3),
            "t": col("t"),
        },
    ),
    "flip": Form(
        _flip, lambda: {"n": col("n"), "t": when(col("n") > 4).then(lit("y")).otherwise(lit("x"))}
    ),
    "hole": Form(lambda v: None if field(v, "n") in (3, 6) else v),
}


def _more(value: Value) -> bool | None:
    n = field(value, "n")
    return None if n is None else n > 2


def _is_x(value: Value) -> bool | None:
    t = field(value, "t")
    return None if t is None else t == "x"


TESTS = {  # whether, or None where that is not known
    "more": Form(_more, lambda: col("n") > 2),
    "is x": Form(_is_x, lambda: col("t") == "x"),
    "there": Form(lambda v: v is not None),
}


def _third(value: Value) -> Any:
    n = field(value, "n")
    return None if n is None else "abc"[n % 3]


class Refused(Exception):
    """What a fragile function raises."""


def fragile(function: Callable[[Value], Any]) -> Callable[[Value], Any]:
    """The same function, which fails on some values."""

    def called(value: Value) -> Any:
        if field(value, "n") in (2, 7):
            raise Refused(value)
        return function(value)

    return called


KEYS = {
    "t": Form(lambda v: field(v, "t"), lambda: col("t")),
    "third": Form(_third),
    "either": Form(
        lambda v: "ab" if field(v, "t") is None else v["t"],  # type: ignore[index]
        lambda: coalesce(col("t"), lit("ab")),
    ),
}


def joined(one: Value, other: Value) -> dict[str, Any]:
    a, b = field(one, "n"), field(other, "n")
    n = None if a is None or b is None else a - b
    return row(n, field(other, "t") if field(one, "t") is None else field(one, "t"))


def joined_expression() -> Any:
    return struct(n=left("n") - right("n"), t=coalesce(left("t"), right("t")))


def several(value: Value) -> list[Value]:
    n = field(value, "n")
    return [value] * (0 if n is None else n % 3)


# Aggregates


class Part(NamedTuple):
    """An aggregate of a field: how it is made, and what it is of the values."""

    make: Callable[[Any], Any]
    plain: Callable[[list[Any]], Any]
    is_commutative: bool = True


OF_NUMBERS = {
    "sum": Part(sum_, sum),
    "there": Part(count, len),
    "min": Part(min_, lambda vs: min(vs, default=None)),
    "max": Part(max_, lambda vs: max(vs, default=None)),
    "first": Part(first, lambda vs: vs[0] if vs else None, False),
    "last": Part(last, lambda vs: vs[-1] if vs else None, False),
}
OF_TEXTS = {name: OF_NUMBERS[name] for name in ("min", "max", "first", "last")}
RANKS = (0, 0.3, 0.5, 1)


def at_ranks(ordered: list[float]) -> list[float] | None:
    """The values up to which such parts of all lie."""
    size = len(ordered)
    return [ordered[max(0, ceil(rank * size) - 1)] for rank in RANKS] if ordered else None


OTHERS = {
    "mean": Part(mean, lambda vs: sum(vs) / len(vs) if vs else None),
    "top": Part(lambda of: top_k(2, of), lambda vs: sorted(vs, reverse=True)[:2]),
    "all": Part(collect, list, False),
    "distinct": Part(approx_distinct, lambda vs: len(set(vs))),  # exact as long as it is few
    "ranks": Part(lambda of: quantiles(of, RANKS, k=4_000), lambda vs: at_ranks(sorted(vs))),
    "set": Part(collect_set, lambda vs: list(dict.fromkeys(vs)), False),
}


def _reduced(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    numbers = [v["n"] for v in (one, other) if v["n"] is not None]
    return row(reduce(lambda a, b: (a * 3 + b) % 101, numbers) if numbers else None, other["t"])


def _reduced_or_not(one: Value, other: Value) -> Value:
    if one is None or other is None:
        return other if one is None else one
    return _reduced(one, other)


def _write(text: str, value: Value) -> str:
    return f"{text}{field(value, 'n')},"[-40:]


@dataclass(frozen=True)
class Folding:
    """What is aggregated: `fields` by name ("n", "t", others), or a word for one bare aggregate.

    Bare results become rows behind the table by `after`.
    """

    word: str
    fields: tuple[tuple[str, str], ...] = ()
    form: Literal["name", "expression", "function"] = "function"  # of the arguments

    def of(self, grouped: Any, **options: Any) -> Any:
        """The table of groups."""
        if self.word == "count":
            return grouped.count(**options)
        if self.word == "reduce":
            return grouped.aggregate(reduce_(_reduced), **options)
        if self.word == "fold":
            return grouped.aggregate(fold("", _write, merge=lambda a, b: (a + b)[-40:]), **options)
        made = {name: part(name, how).make(self._argument(name)) for name, how in self.fields}
        return grouped.aggregate(**made, **options)

    def _argument(self, name: str) -> Any:
        its = field_of(name)
        return {"name": its, "expression": col(its), "function": lambda v: field(v, its)}[self.form]

    def after(self, value: Any) -> Value:
        """A row of the shape that all have."""
        if self.word == "count":
            return row(value, "c")
        if self.word == "fold":
            return row(len(value), value)
        return dict(value)

    @property
    def is_bare(self) -> bool:
        return self.word in ("count", "fold")

    def plain(self) -> Fold:
        """The same, by hand."""
        if self.word == "count":
            return Fold(lambda: 0, lambda n, _: n + 1, lambda a, b: a + b)
        if self.word == "reduce":
            return Fold(lambda: None, _reduced_or_not, _reduced_or_not)
        if self.word == "fold":
            return Fold(str, _write, lambda a, b: (a + b)[-40:])
        return Fold(list, lambda vs, v: [*vs, v], lambda a, b: [*a, *b], self._row)

    def _row(self, values: list[Value]) -> Value:
        found = {}
        for name, how in self.fields:
            some = [v[field_of(name)] for v in values if v is not None]
            found[name] = part(name, how).plain([each for each in some if each is not None])
        return found


def field_of(name: str) -> str:
    return name if name in ("n", "t") else "n"


def part(name: str, how: str) -> Part:
    return {"n": OF_NUMBERS, "t": OF_TEXTS}.get(name, OTHERS)[how]


# Processors, for a task and for a machine


class Counting:
    """Counts the records of each key, and tells all counts now and then."""

    def init(self, context: Any) -> None:
        self.context = context
        self.counts = context.store("counts")
        context.schedule(10, "stream_time", self.report)

    def process(self, record: Any) -> None:
        if record.key is None:
            self.context.forward(record)
            return
        counted = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, counted)
        self.context.forward(record.replace(value=row(counted, field(record.value, "t"))))

    def report(self, time: int) -> None:
        for key, counted in self.counts.all():
            self.context.forward(Record(key, row(counted, "all"), time))


class Changes:
    """Lets records by whose number is another than that of the one before."""

    def init(self, context: Any) -> None:
        self.context = context
        self.latest = context.store("latest")

    def process(self, record: Any) -> None:
        if record.key is None or self.latest.get(record.key) == field(record.value, "n"):
            return
        self.latest.put(record.key, field(record.value, "n"))
        self.context.forward(record)


class Looking:
    """Records with what a table has for their key."""

    def __init__(self, table: str) -> None:
        self.table = table

    def init(self, context: Any) -> None:
        self.context = context
        self.rows = context.store(self.table)

    def process(self, record: Any) -> None:
        found = None if record.key is None else self.rows.get(record.key)
        self.context.forward(record.replace(value=joined(record.value, found)))


PROCESSORS: dict[str, Any] = {"counts": Counting, "latest": Changes}


async def awaited(value: Value) -> Value:
    return _step(value)


def batches_of(items: list[Any], cuts: Iterable[int]) -> list[list[Any]]:
    """The items in pieces."""
    ends = sorted({min(cut, len(items)) for cut in cuts} | {0, len(items)})
    return [items[low:high] for low, high in pairwise(ends)]
