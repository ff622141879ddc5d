"""Aggregates: what is kept per key, and how a column of records changes it.               [P]

An aggregate keeps one *partial* per key in a dict of its own and takes a batch at once: keys and
arguments side by side. Several aggregates of one table are several dicts; a row is put together on
demand.

    keys       a b a          count   {a: 2, b: 1}
    arguments  3 5 4          sum_    {a: 7, b: 5}      row of a: {"n": 2, "total": 7}

Arguments that are None are left out, but for `count()` and `fold`. Partials are values: what goes
out of `results` is never changed afterwards.

Owns   the rules of each aggregate; dicts belong to the store.
Never  catches what a user function raises. `arguments` is an iterator so that whoever catches it
       can tell from its length hint which record it was.
Source Kafka Streams' aggregate, reduce and count; facts about nulls and deletion in grouping.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeGuard, overload

from kafkalite.core.generics import R, R_co, V, V_contra
from kafkalite.errors import TopologyError
from kafkalite.streams.expressions.expression import Expression
from kafkalite.streams.functions import Function, OfValue, check_arguments, function_of

Argument = Callable[[Any], Any] | str | Expression | None
Partials = dict[Any, Any]
MISSING: Final[Any] = object()
UNCHANGEABLE: Final = frozenset({int, float, str, bytes, bool, type(None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(ABC, Generic[V_contra, R_co]):
    """One aggregate of a table. `argument` is the function of the value that it takes.

    `Aggregate[Order, int]` makes an int of orders, for a type checker; the classes below take all.
    """

    argument: Function | None = None

    word: ClassVar[str]  # what users call it
    is_plain: ClassVar[bool] = True  # whether a partial is already the result
    may_be_none: ClassVar[bool] = True  # whether a row may come out as None, which deletes it

    @classmethod
    def over(cls, of: Argument = None) -> Self:
        """The aggregate of a field or function of the value; with None, of the value itself."""
        return cls(argument=_argument(cls.word, of))

    def partials(self) -> Partials:
        """An empty dict to add to."""
        return {}

    @abstractmethod
    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Adds a column of arguments, in order."""

    @abstractmethod
    def merge(self, older: Any, newer: Any) -> Any:
        """The partial of the records of two, those of `older` first; None: there is none.

        Sessions and cogroups join partials by it. Neither is MISSING, and neither is used again:
        one of them may be changed and given back.
        """

    def begin(self) -> Any:
        """The partial that others are merged into: MISSING, or the init of a fold."""
        return MISSING

    def result(self, partial: Any) -> Any:
        """The value of a partial, MISSING where nothing was added."""
        return None if partial is MISSING else partial

    def results(self, partials: Partials, keys: Iterable[Any]) -> list[Any]:
        """The value for each key."""
        if self.is_plain:
            return list(map(partials.get, keys, repeat(self.result(MISSING))))
        return [self.result(partials.get(key, MISSING)) for key in keys]

    def rows(self, partials: Partials, keys: Iterable[Any]) -> list[Any]:
        """The values as they leave the store: nothing that is folded in later changes them."""
        return self.results(partials, keys)

    def copied(self, partial: Any) -> Any:
        """A partial that stays as it is while the one in the store changes."""
        return partial

    def load(self, stored: Any) -> Any:
        """A partial from what `dump` gave and a serde carried."""
        return stored

    def dump(self, partial: Any) -> Any:
        """A partial as plain data for the changelog."""
        return partial

    def __str__(self) -> str:
        """As a user would write it, as far as the plan shows it."""
        if self.argument is None:
            return f"{self.word}()"
        return f"{self.word}({self.argument if self.argument.known else 'f'})"


class Subtractable(Aggregate):
    """An aggregate that old rows of a table can be taken out of."""

    __slots__ = ()

    @abstractmethod
    def subtract(self, partials: Partials, key: Any, argument: Any) -> None:
        """Takes out what was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Subtractable):
    """How many records, or with an argument how many of them have one."""

    word = "count"
    may_be_none = False

    def partials(self) -> Partials:
        """A Counter: it counts a column in C."""
        return Counter()

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """One for each record."""
        if self.argument is not None:
            keys = [key for key, x in zip(keys, arguments, strict=True) if x is not None]
        partials.update(keys)  # a Counter's update counts

    def subtract(self, partials: Partials, key: Any, argument: Any) -> None:
        """One less."""
        if self.argument is None or argument is not None:
            partials[key] = partials.get(key, 0) - 1

    def merge(self, older: Any, newer: Any) -> Any:
        """Both together."""
        return older + newer

    def result(self, partial: Any) -> Any:
        """Zero when nothing was counted."""
        return 0 if partial is MISSING else partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum(Subtractable):
    """The sum; 0 of nothing."""

    word = "sum_"
    may_be_none = False

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Adds up."""
        get = partials.get
        for key, x in zip(keys, arguments, strict=True):
            if x is not None:
                partials[key] = get(key, 0) + x

    def subtract(self, partials: Partials, key: Any, argument: Any) -> None:
        """Takes off."""
        if argument is not None:
            partials[key] = partials.get(key, 0) - argument

    def merge(self, older: Any, newer: Any) -> Any:
        """Both together."""
        return older + newer

    def result(self, partial: Any) -> Any:
        """Zero when nothing was added."""
        return 0 if partial is MISSING else partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(Subtractable):
    """The arithmetic mean, None of nothing. A partial is (sum, count)."""

    word = "mean"
    is_plain = False

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Adds up and counts."""
        get = partials.get
        for key, x in zip(keys, arguments, strict=True):
            if x is not None:
                total, n = get(key, (0, 0))
                partials[key] = (total + x, n + 1)

    def subtract(self, partials: Partials, key: Any, argument: Any) -> None:
        """Takes off and counts down."""
        if argument is not None:
            total, n = partials.get(key, (0, 0))
            partials[key] = (total - argument, n - 1)

    def merge(self, older: Any, newer: Any) -> Any:
        """Sum and count of both."""
        return older[0] + newer[0], older[1] + newer[1]

    def result(self, partial: Any) -> Any:
        """Sum by count."""
        return None if partial is MISSING or not partial[1] else partial[0] / partial[1]

    def load(self, stored: Any) -> Any:
        """A tuple again, whatever the serde made of it."""
        return tuple(stored)

    def dump(self, partial: Any) -> Any:
        """A list, which serdes write in fewer steps than a tuple."""
        return list(partial)


@dataclass(frozen=True, slots=True, kw_only=True)
class Min(Aggregate):
    """The smallest; the first of equal ones."""

    word = "min_"

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Keeps the smaller."""
        get = partials.get
        for key, x in zip(keys, arguments, strict=True):
            if x is not None:
                best = get(key)
                if best is None or x < best:
                    partials[key] = x

    def merge(self, older: Any, newer: Any) -> Any:
        """The smaller."""
        return newer if newer < older else older


@dataclass(frozen=True, slots=True, kw_only=True)
class Max(Aggregate):
    """The largest; the first of equal ones."""

    word = "max_"

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Keeps the larger."""
        get = partials.get
        for key, x in zip(keys, arguments, strict=True):
            if x is not None:
                best = get(key)
                if best is None or x > best:
                    partials[key] = x

    def merge(self, older: Any, newer: Any) -> Any:
        """The larger."""
        return newer if newer > older else older


@dataclass(frozen=True, slots=True, kw_only=True)
class First(Aggregate):
    """The one that came first."""

    word = "first"

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Keeps the partial as it is."""
        for key, x in zip(keys, arguments, strict=True):
            if x is not None and key not in partials:
                partials[key] = x

    def merge(self, older: Any, newer: Any) -> Any:
        """The partial of the older one."""
        return older


@dataclass(frozen=True, slots=True, kw_only=True)
class Last(Aggregate):
    """The one that came last."""

    word = "last"

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Keeps the new."""
        for key, x in zip(keys, arguments, strict=True):
            if x is not None:
                partials[key] = x

    def merge(self, older: Any, newer: Any) -> Any:
        """The partial of the newer one."""
        return newer


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect(Subtractable):
    """All of them, in the order in which they came."""

    word = "collect"
    is_plain = False
    may_be_none = False

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Appends."""
        for key, x in zip(keys, arguments, strict=True):
            if x is not None:
                partials.setdefault(key, []).append(x)

    def subtract(self, partials: Partials, key: Any, argument: Any) -> None:
        """Removes the first that is equal."""
        if argument is not None and argument in partials.get(key, ()):
            partials[key].remove(argument)

    def merge(self, older: Any, newer: Any) -> Any:
        """One behind the other."""
        older += newer
        return older

    def copied(self, partial: Any) -> Any:
        """Another list or dict of the same entries."""
        return copy(partial)

    def result(self, partial: Any) -> Any:
        """A list of its own."""
        return [] if partial is MISSING else list(partial)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSet(Aggregate):
    """The different ones, in the order in which they first came. They must be hashable."""

    word = "collect_set"
    is_plain = False
    may_be_none = False

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Appends the new values."""
        for key, x in zip(keys, arguments, strict=True):
            if x is not None:
                partials.setdefault(key, {}).setdefault(x)

    def merge(self, older: Any, newer: Any) -> Any:
        """The new values behind the older ones."""
        older |= newer
        return older

    def copied(self, partial: Any) -> Any:
        """Another list or dict of the same entries."""
        return copy(partial)

    def result(self, partial: Any) -> Any:
        """A list of its own."""
        return [] if partial is MISSING else list(partial)

    def load(self, stored: Any) -> Any:
        """A dict keeps the order and finds fast."""
        return dict.fromkeys(stored)

    def dump(self, partial: Any) -> Any:
        """A list."""
        return list(partial)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(Aggregate):
    """The `k` largest, largest first, the earlier first of equal ones. A partial ascends."""

    k: int
    word = "top_k"
    is_plain = False
    may_be_none = False

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Sorts the values in that are large enough."""
        k = self.k
        for key, x in zip(keys, arguments, strict=True):
            if x is None:
                continue
            top = partials.setdefault(key, [])
            if len(top) < k or x > top[0]:
                insort_left(top, x)
                del top[:-k]

    def merge(self, older: Any, newer: Any) -> Any:
        """Sorts the newer in, of equal ones that which came first before others."""
        self.add({None: older}, [None] * len(newer), iter(newer[::-1]))
        return older

    def copied(self, partial: Any) -> Any:
        """Another list or dict of the same entries."""
        return copy(partial)

    def result(self, partial: Any) -> Any:
        """Descending."""
        return [] if partial is MISSING else partial[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold(Subtractable):
    """`add(aggregate, value)` over every value, None too, starting from `init()`. None deletes.

    The functions may change the aggregate in place: the rows that leave the store are copies.
    """

    init: Callable[[], Any]
    adder: Callable[[Any, Any], Any]
    merger: Callable[[Any, Any], Any] | None = None
    subtractor: Callable[[Any, Any], Any] | None = None
    word = "fold"

    def rows(self, partials: Partials, keys: Iterable[Any]) -> list[Any]:
        """Copies, where a value can be changed at all."""
        return list(map(_own, self.results(partials, keys)))

    def copied(self, partial: Any) -> Any:
        """The aggregate as it is now."""
        return _own(partial)

    def begin(self) -> Any:
        """The initial value of every row, also of a merged one."""
        return self.init()

    def merge(self, older: Any, newer: Any) -> Any:
        """As the user's function says."""
        assert self.merger is not None
        return self.merger(older, newer)

    def step(self, partial: Any, value: Any) -> Any:
        """The partial after one more value."""
        return self.adder(self.init() if partial is MISSING else partial, value)

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Folds in."""
        get, step = partials.get, self.step
        for key, x in zip(keys, arguments, strict=True):
            partial = step(get(key, MISSING), x)
            if partial is None:
                partials.pop(key, None)
            else:
                partials[key] = partial

    def subtract(self, partials: Partials, key: Any, argument: Any) -> None:
        """Folds out."""
        assert self.subtractor is not None
        partial = self.subtractor(partials[key], argument)
        if partial is None:
            del partials[key]
        else:
            partials[key] = partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Fold):
    """`f(aggregate, value)` over all values but None; the first one is the result as it is."""

    word = "reduce_"

    def begin(self) -> Any:
        """Nothing: the first value is the result as it is."""
        return MISSING

    def step(self, partial: Any, value: Any) -> Any:
        """The partial after one more value."""
        if value is None:
            return None if partial is MISSING else partial
        return _own(value) if partial is MISSING else self.adder(partial, value)


class Measure(Protocol[R_co]):
    """A function that makes an aggregate whose result has a type of its own."""

    def __call__(self, of: OfValue[V, object] | None = None) -> Aggregate[V, R_co]:
        """The aggregate of a field or function of the value; with None, of the value itself."""


class Choice(Protocol):
    """A function that makes an aggregate whose result is as its arguments are."""

    @overload
    def __call__(self) -> Aggregate[V, V]: ...
    @overload
    def __call__(self, of: OfValue[V, R | None]) -> Aggregate[V, R]: ...


class Collection(Protocol):
    """A function that makes an aggregate whose result is a list of its arguments."""

    @overload
    def __call__(self) -> Aggregate[V, list[V]]: ...
    @overload
    def __call__(self, of: OfValue[V, R | None]) -> Aggregate[V, list[R]]: ...


count: Final[Measure[int]] = Count.over
"""The number of records, or of the values that are not None."""
sum_: Final[Choice] = Sum.over
"""The sum of the values."""
mean: Final[Measure[float]] = Mean.over
"""The arithmetic mean of the values."""
min_: Final[Choice] = Min.over
"""The least value."""
max_: Final[Choice] = Max.over
"""The greatest value."""
first: Final[Choice] = First.over
"""The value that arrived first."""
last: Final[Choice] = Last.over
"""The value that arrived last."""
collect: Final[Collection] = Collect.over
"""A list of the values in the order of arrival."""
collect_set: Final[Collection] = CollectSet.over
"""A list of the distinct values in the order of their arrival."""


@overload
def top_k(k: int) -> Aggregate[V, list[V]]: ...
@overload
def top_k(k: int, of: OfValue[V, R | None]) -> Aggregate[V, list[R]]: ...
def top_k(k: int, of: Argument = None) -> Aggregate:
    """A list of the `k` largest, largest first."""
    if not isinstance(k, int) or k < 1:
        raise TopologyError(f"top_k: expected a number of at least 1, got {k!r}")
    return TopK(k=k, argument=_argument("top_k", of))


@overload
def fold(
    init: Callable[[], R],
    add: Callable[[R, V], R | None],
    merge: Callable[[R, R], R] | None = None,
    subtract: Callable[[R, V], R | None] | None = None,
) -> Aggregate[V, R]: ...
@overload
def fold(
    init: R,
    add: Callable[[R, V], R | None],
    merge: Callable[[R, R], R] | None = None,
    subtract: Callable[[R, V], R | None] | None = None,
) -> Aggregate[V, R]: ...
def fold(
    init: Any,
    add: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any] | None = None,
    subtract: Callable[[Any, Any], Any] | None = None,
) -> Aggregate:
    """`add(aggregate, value)` over every value, from `init`: a value, or a function that makes one.

    None deletes the row. `subtract(aggregate, value)` is needed on groups of a table.

    `add` and `subtract` may change the aggregate in place and return it, as `lambda a, v:
    a.append(v) or a` does. Rows that leave the aggregate are deep copies then; functions that make
    a new int, float, str or bytes cost no copy.
    """
    check_arguments(add, 2, "fold: add", "aggregate and value")
    if subtract is not None:
        check_arguments(subtract, 2, "fold: subtract", "aggregate and value")
    if merge is not None:
        check_arguments(merge, 2, "fold: merge", "two aggregates")
    if callable(init):
        check_arguments(init, 0, "fold: init", "nothing")
    return Fold(init=_initializer(init), adder=add, merger=merge, subtractor=subtract)


def reduce_(
    f: Callable[[V, V], V], subtract: Callable[[V, V], V | None] | None = None
) -> Aggregate[V, V]:
    """`f(aggregate, value)` over the values; the first is the aggregate as it is.

    `f` may change the aggregate in place: it never is the value of a record, but a copy.
    """
    check_arguments(f, 2, "reduce_", "aggregate and value")
    if subtract is not None:
        check_arguments(subtract, 2, "reduce_: subtract", "aggregate and value")
    return Reduce(init=_nothing, adder=f, merger=f, subtractor=subtract)


def subtracts(aggregate: Aggregate) -> TypeGuard[Subtractable]:
    """Whether rows of a table can be taken out of `aggregate` again."""
    if isinstance(aggregate, Fold):
        return aggregate.subtractor is not None
    return isinstance(aggregate, Subtractable)


def _argument(word: str, of: Argument) -> Function | None:
    return None if of is None else function_of(of, word)


def _nothing() -> None:
    return None


def _initializer(init: Any) -> Callable[[], Any]:
    """A function that gives each row an init of its own."""
    if callable(init):
        function: Callable[[], Any] = init
        return function
    return (lambda: init) if type(init) in UNCHANGEABLE else lambda: deepcopy(init)


def _own(value: Any) -> Any:
    """`value`, or a copy of one that can be changed in place."""
    return value if type(value) in UNCHANGEABLE else deepcopy(value)
