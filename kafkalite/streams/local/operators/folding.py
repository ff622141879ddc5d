"""Which aggregates are folded by columns in native code.                                     [P]

A batch is grouped by window and key in one pass; then the arguments of each aggregate go into the
partials of their groups, in the order of the records, as numbers of the machine. So floats come
out as additions one after the other give them. Texts, bytes and bools are compared as objects. What
does not go that way (ints beyond 64 bits, other arguments, aggregates that are not in KINDS) is
refused before anything is written: the whole batch then goes by segments (rows.py), the twin.

Spans, columns of integers and Arrow arrays of numbers go in without an object for each record.

Owns   the choice, made once at import; how columns are given to the native code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kafkalite.core.columns import Form
from kafkalite.serde.arrow_form import ArrowForm
from kafkalite.serde.vectors import kernels
from kafkalite.streams.aggregates import Aggregate, Count, First, Last, Max, Mean, Min, Sum
from kafkalite.streams.local.state import Bucket
from kafkalite.streams.windows import TimeWindow

INTERFACE: Final = 8  # what the native modules and this one agree on

Argument = list[Any] | tuple[bool, object, object | None] | None

try:
    from kafkalite.streams.local.operators._folding import INTERFACE as BUILT
    from kafkalite.streams.local.operators._folding import Groups
    from kafkalite.streams.local.operators._updates import INTERFACE as UPDATES_BUILT
    from kafkalite.streams.local.operators._updates import Updates

    NATIVE = BUILT == UPDATES_BUILT == INTERFACE
except ImportError:
    NATIVE = False

__all__ = [
    "INTERFACE",
    "NATIVE",
    "Argument",
    "Groups",
    "Updates",
    "argument",
    "follow",
    "group",
    "kinds_of",
    "may_fold",
]

COUNT, COUNT_OF, SUM, MEAN, MIN, MAX, FIRST, LAST = range(8)  # as _folding.pyx has them
KINDS: Final[dict[type[Aggregate], int]] = {
    Sum: SUM,
    Mean: MEAN,
    Min: MIN,
    Max: MAX,
    First: FIRST,
    Last: LAST,
}
NUMBERS: Final = {
    "int8": False,
    "int16": False,
    "int32": False,
    "int64": False,
    "float": True,
    "double": True,
}  # Arrow's types, and whether they are floats
ADDED: Final = frozenset({int, float, bool, type(None)})  # in native code
COMPARED: Final = ADDED | {str, bytes}
TIME_MAX: Final = 1 << 61  # windows that are held open for longer never close


def kinds_of(aggregates: Sequence[Aggregate]) -> bytes | None:
    """What native code calls each aggregate; None where it cannot fold them."""
    if not NATIVE:
        return None
    found: list[int] = []
    for aggregate in aggregates:
        if type(aggregate) is Count:
            found.append(COUNT if aggregate.argument is None else COUNT_OF)
        elif type(aggregate) in KINDS:
            found.append(KINDS[type(aggregate)])
        else:
            return None
    return bytes(found)


def group(
    window: TimeWindow | None,
    keys: Sequence[Any],
    timestamps: Sequence[int],
    times: Sequence[int] | None = None,
    before: int = 0,
) -> Groups | None:
    """The records by window and key; None where native code cannot read them.

    `times` judge the records; None: the newest timestamp so far, from `before` on.
    """
    size = advance = held_open = 0
    if window is not None:
        size, advance = window.size_ms, window.advance_ms
        held_open = min(size + window.grace_ms, TIME_MAX)
        if held_open < size:
            return None
    groups = Groups(keys, timestamps, times, before, size, advance, held_open)
    return groups if groups.is_known else None


def follow(
    groups: Groups,
    kinds: bytes,
    columns: Sequence[Sequence[Any] | None],
    buckets: Sequence[Bucket],
    *,
    deletes: bool,
) -> Updates | None:
    """The rows of the groups' buckets after each record; None where native code cannot fold them.

    Nothing has changed yet; `Groups.write` may follow. `deletes`: rows come and go.
    """
    partials = [bucket.partials for bucket in buckets]
    stamps = [bucket.stamps for bucket in buckets]
    updates = Updates(groups, kinds, list(map(argument, columns)), partials, stamps, deletes)
    return updates if updates.is_known else None


def may_fold(kinds: bytes | None, columns: Sequence[Sequence[Any] | None]) -> bool:
    """Whether native code knows the aggregates, and the first arguments are not of odd types."""
    return kinds is not None and not any(
        SUM <= kind <= MAX
        and type(column) is list
        and type(column[0]) not in (COMPARED if kind >= MIN else ADDED)
        for kind, column in zip(kinds, columns, strict=True)
    )


def argument(column: Sequence[Any] | None) -> Argument:
    """A column of arguments as native code reads it: a list, or numbers beside a bit for each."""
    if column is None or type(column) is list:
        return column
    native = column.column() if isinstance(column, ArrowForm) else None
    if native is not None:
        values = kernels.dense(native)
        return list(column) if values is None or values.is_bools else values.numbers()
    arrow = getattr(column, "arrow", None) if isinstance(column, Form) else None
    if arrow is None:
        return list(column)
    array = arrow()
    is_float = NUMBERS.get(str(array.type))
    if is_float is None:
        return list(column)
    array = array.cast("double" if is_float else "int64")
    if array.offset % 8 and array.null_count:  # the first bit is not the first of a byte
        return list(column)
    validity, data = array.buffers()
    bits = memoryview(validity)[array.offset // 8 :] if array.null_count else None
    return is_float, memoryview(data)[8 * array.offset :], bits
