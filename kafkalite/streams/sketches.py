"""Aggregates that estimate in little space: distinct values and quantiles, by sketches.      [P]

    approx_distinct("user")               about how many different users
    quantiles("delay", (0.5, 0.99))       about the median and the 99th percentile

A partial is a sketch of the library `datasketches`: HyperLogLog of 2^lg_k registers, KLL of width
k. Two sketches merge into the sketch of both sets of records, so sessions, hopping windows and
cogroups take them. A changelog keeps a sketch as bytes. Few values are kept exactly: some hundred
different ones, or some hundred records.

Equal values count once: 1, 1.0 and True are equal, a text and its bytes are not. Values that are
no number, text or bytes are told apart by their msgpack.

Fails  with TopologyError where the library is missing; a value that msgpack cannot write, or that
       is no number for quantiles, fails as a user function does.
Source Apache DataSketches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import msgpack

from kafkalite.core.generics import V
from kafkalite.errors import TopologyError
from kafkalite.streams.aggregates import MISSING, Aggregate, Partials
from kafkalite.streams.functions import OfValue, function_of

RANKS: Final = (0.5, 0.9, 0.99)
LG_K: Final = (7, 21)  # the least and the most that the library takes
K: Final = (8, 65_535)
INT64: Final = 1 << 63


def datasketches(word: str) -> Any:
    """The library. TopologyError with the command that installs it where it is missing."""
    try:
        return import_module("datasketches")
    except ImportError as error:
        raise TopologyError(
            f"{word} needs the package datasketches, which is not installed: "
            "pip install 'kafkalite[sketches]'"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproxDistinct(Aggregate):
    """About how many different ones."""

    lg_k: int = 12
    word = "approx_distinct"
    is_plain = False
    may_be_none = False

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Takes each into its key's sketch."""
        library = datasketches(self.word)
        get = partials.get
        for key, x in zip(keys, arguments, strict=True):
            if x is None:
                continue
            value = _canonical(x)
            if (sketch := get(key)) is None:
                sketch = partials[key] = library.hll_sketch(self.lg_k, library.HLL_8)
            sketch.update(value)

    def merge(self, older: Any, newer: Any) -> Any:
        """The sketch of both."""
        library = datasketches(self.word)
        union = library.hll_union(self.lg_k)
        union.update(older)
        union.update(newer)
        return union.get_result(library.HLL_8)

    def result(self, partial: Any) -> Any:
        """The estimate; zero of nothing."""
        return 0 if partial is MISSING else round(partial.get_estimate())

    def copied(self, partial: Any) -> Any:
        """Another sketch of the same values."""
        return self.load(self.dump(partial))

    def load(self, stored: Any) -> Any:
        """The sketch that was written."""
        return datasketches(self.word).hll_sketch.deserialize(stored)

    def dump(self, partial: Any) -> Any:
        """The library's bytes."""
        return partial.serialize_compact()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles(Aggregate):
    """About the values at some ranks; None of nothing."""

    ranks: tuple[float, ...] = RANKS
    k: int = 200
    word = "quantiles"
    is_plain = False

    def add(self, partials: Partials, keys: Iterable[Any], arguments: Iterator[Any]) -> None:
        """Takes each into its key's sketch."""
        library = datasketches(self.word)
        get = partials.get
        for key, x in zip(keys, arguments, strict=True):
            if x is None:
                continue
            value = float(x)
            if (sketch := get(key)) is None:
                sketch = partials[key] = library.kll_doubles_sketch(self.k)
            sketch.update(value)

    def merge(self, older: Any, newer: Any) -> Any:
        """The sketch of both."""
        older.merge(newer)
        return older

    def result(self, partial: Any) -> Any:
        """One value for each rank."""
        if partial is MISSING or partial.is_empty():
            return None
        return list(partial.get_quantiles(self.ranks, inclusive=True))

    def copied(self, partial: Any) -> Any:
        """Another sketch of the same values."""
        return self.load(self.dump(partial))

    def load(self, stored: Any) -> Any:
        """The sketch that was written."""
        return datasketches(self.word).kll_doubles_sketch.deserialize(stored)

    def dump(self, partial: Any) -> Any:
        """The library's bytes."""
        return partial.serialize()


def approx_distinct(of: OfValue[V, object] | None = None, *, lg_k: int = 12) -> Aggregate[V, int]:
    """Estimates the number of distinct values, with sketches of about 2^lg_k bytes.

    The standard error is 0.83 / sqrt(2^lg_k), 1.3 % with 12; after merges 1.04 / sqrt(2^lg_k).
    """
    datasketches("approx_distinct")
    _check("approx_distinct: lg_k", lg_k, *LG_K)
    argument = None if of is None else function_of(of, "approx_distinct")
    return ApproxDistinct(argument=argument, lg_k=lg_k)


def quantiles(
    of: OfValue[V, float | None] | None = None,
    ranks: Sequence[float] = RANKS,
    *,
    k: int = 200,
) -> Aggregate[V, list[float]]:
    """About the values below which these parts of all lie: 0.5 is the median. A list, as `ranks`.

    The rank of a result is off by about 2.3 / k^0.9, 1.3 % with 200, at a confidence of 99 %.
    """
    datasketches("quantiles")
    _check("quantiles: k", k, *K)
    listed = tuple(ranks) if isinstance(ranks, Sequence) else ()
    if not listed or not all(_is_rank(rank) for rank in listed):
        raise TopologyError(f"quantiles: ranks: expected numbers from 0 to 1, got {ranks!r}")
    argument = None if of is None else function_of(of, "quantiles")
    return Quantiles(argument=argument, ranks=tuple(map(float, listed)), k=k)


def _check(what: str, given: object, least: int, most: int) -> None:
    if type(given) is not int or not least <= given <= most:
        raise TopologyError(f"{what}: expected a number from {least} to {most}, got {given!r}")


def _is_rank(rank: object) -> bool:
    return isinstance(rank, int | float) and 0 <= rank <= 1


def _canonical(value: Any) -> int | float | str:
    """A value's form in a sketch: equal values have the same form, and no form is ignored."""
    if isinstance(value, int | float):
        if value == value // 1 and -INT64 <= value < INT64:
            return int(value)
        return value if isinstance(value, float) else f"\x00int {value}"
    if isinstance(value, str):
        return value if value and value[0] != "\x00" else f"\x00text {value}"
    kind = "bytes" if isinstance(value, bytes) else "msgpack"
    data = value if isinstance(value, bytes) else msgpack.packb(value)
    return f"\x00{kind} {data.hex()}"
