"""Filters that Spark pushes into a batch query: what they save reading, and sending.        [P]

    topic, partition     other partitions are not read                  exact
    offset               each range is cut                              exact
    timestamp >= t       ranges begin at the first record of that time  Spark filters again
    key, value fields    rows are left out before they go to the JVM    Spark filters again

Filters are conjunctive. A filter that this module does not know is Spark's alone. An upper bound of
the timestamp cuts nothing: times may be out of order in a log, and the broker finds the first
record at or after a time, not the last one before it.

Owns   nothing.
Fails  never: a filter that does not fit its column is Spark's alone.
Source Spark's Python data source API (4.1), `DataSourceReader.pushFilters`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from kafkalite.core.types import TopicPartition
from kafkalite.spark.source.planning import Offsets

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
KERNELS: Final[Mapping[type[Filter], str]] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
# Values whose order and equality are the same in Spark and in Arrow.
COMPARABLE: Final = (int, str, bytes, bytearray, date)
OF_PLACE: Final = {"topic": str, "partition": int, "offset": int}


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is left to read under some filters."""

    places: tuple[Filter, ...] = ()
    from_ms: int | None = None
    rows: tuple[Filter, ...] = ()

    def keeps(self, tp: TopicPartition) -> bool:
        """Whether records of a partition can pass."""
        at = {"topic": tp.topic, "partition": tp.partition}
        named = [each for each in self.places if _column(each) in at]
        return all(_holds(each, at[_column(each)]) for each in named)

    def cut(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """The offsets between which records can pass."""
        low, high = _offsets(self.places)
        kept = [tp for tp in end if self.keeps(tp)]
        first = {tp: max(start[tp], low) for tp in kept}
        last = {tp: end[tp] if high is None else min(end[tp], high) for tp in kept}
        return first, {tp: max(first[tp], at) for tp, at in last.items()}

    def passing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that may pass; Spark decides."""
        for each in self.rows:
            mask = _mask(each, batch)
            if mask is not None:
                batch = batch.filter(mask)
        return batch


def pushed(filters: Sequence[Filter]) -> tuple[Pruning, list[Filter]]:
    """What filters save, and those that Spark must still apply."""
    places = tuple(each for each in filters if _is_of_place(each))
    rest = [each for each in filters if each not in places]
    moments = [at for each in rest if (at := _first_ms(each)) is not None]
    rows = tuple(each for each in rest if _column(each) in ("key", "value", "timestamp"))
    return Pruning(places, max(moments, default=None), rows), rest


def _column(filter_: Filter) -> str:
    return _path(filter_)[0]


def _path(filter_: Filter) -> tuple[str, ...]:
    inner = filter_.child if isinstance(filter_, Not) else filter_
    return tuple(getattr(inner, "attribute", ("",)))


# ---- places --------------------------------------------------------------------------------


def _is_of_place(filter_: Filter) -> bool:
    """Whether the topic, partition or offset of a record decides, in a way that is known here."""
    kind = OF_PLACE.get(_column(filter_))
    if kind is None or len(_path(filter_)) != 1:
        return False
    if isinstance(filter_, IsNotNull):
        return True
    if isinstance(filter_, In):
        # A list of offsets has gaps, which a range does not.
        return kind is not int or _column(filter_) == "partition"
    is_known = type(filter_) in COMPARISONS or (kind is str and type(filter_) is StringStartsWith)
    return is_known and isinstance(getattr(filter_, "value", None), kind)


def _holds(filter_: Filter, value: Any) -> bool:
    if isinstance(filter_, IsNotNull):
        return True
    if isinstance(filter_, In):
        return value in filter_.value
    if isinstance(filter_, StringStartsWith):
        return bool(value.startswith(filter_.value))
    return COMPARISONS[type(filter_)](value, filter_.value)  # type: ignore[attr-defined]


def _offsets(places: Sequence[Filter]) -> tuple[int, int | None]:
    """The first offset that passes, and the one after the last; None without an upper bound."""
    low, high = 0, list[int]()
    for each in places:
        if _column(each) != "offset":
            continue
        match each:
            case EqualTo(value=value):
                low, high = max(low, value), [*high, value + 1]
            case GreaterThan(value=value):
                low = max(low, value + 1)
            case GreaterThanOrEqual(value=value):
                low = max(low, value)
            case LessThan(value=value):
                high.append(value)
            case LessThanOrEqual(value=value):
                high.append(value + 1)
    return low, min(high, default=None)


def _first_ms(filter_: Filter) -> int | None:
    """The first moment (epoch ms) that passes a filter of the timestamp."""
    if _path(filter_) != ("timestamp",):
        return None
    match filter_:
        case EqualTo(value=datetime() as at) | GreaterThanOrEqual(value=datetime() as at):
            return -(-_micros(at) // 1000)
        case GreaterThan(value=datetime() as at):
            return _micros(at) // 1000 + 1
    return None


def _micros(at: datetime) -> int:
    passed = (at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


# ---- rows ----------------------------------------------------------------------------------


def _mask(filter_: Filter, batch: pa.RecordBatch) -> pa.Array | None:
    """Which rows may pass; None where the filter is Spark's alone."""
    import pyarrow.compute as pc  # a sixth of what a query's own process imports of ours

    column: Any = batch.column(_column(filter_))
    for name in _path(filter_)[1:]:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            return None
        column = pc.struct_field(column, name)
    if pa.types.is_floating(column.type):
        return None  # Spark has NaN above all numbers and equal to itself
    if isinstance(filter_, IsNotNull):
        return pc.is_valid(column)
    try:
        if isinstance(filter_, In) and all(isinstance(v, COMPARABLE) for v in filter_.value):
            return pc.is_in(column, pa.array(filter_.value, column.type))
        kernel, value = KERNELS.get(type(filter_)), getattr(filter_, "value", None)
        if kernel is None or not isinstance(value, COMPARABLE):
            return None
        return pc.call_function(kernel, [column, pa.scalar(value, column.type)])
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
