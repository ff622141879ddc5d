"""Folding before a repartition: what many records of a key in a window come to, as one row.  [P]

Where several tasks write a repartition topic that only one table reads, with tumbling windows or
none, each batch is folded on its way into the topic. Nothing is held between batches: a row stands
in the topic before anything newer, so watermarks say of rows what they say of records.

    late        a record is judged here as its reader would: by the newest timestamp that this task
                has written to the topic before. Late ones follow as records, for the reader to drop
    order       rows by ascending window: none of them is late by another

A batch that is not half as long when folded goes as records, and so does one that native code does
not fold or on which a function fails: then the table meets the error as ever. A table without
windows drops records without a value, so a batch with one of them goes as records, too.

Owns   the newest timestamp that was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.columns import greatest
from kafkalite.core.types import Columns, Headers
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Aggregate, Count, Max, Min
from kafkalite.streams.local.arrows import on_arrow
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.calling import applied, arguments, function_needs
from kafkalite.streams.local.failures import attempt
from kafkalite.streams.local.operators.folding import COUNT, argument, group, kinds_of, may_fold
from kafkalite.streams.local.operators.keys import has_none
from kafkalite.streams.local.partials import RowFormat
from kafkalite.streams.local.runtime import Needs, Runtime
from kafkalite.streams.local.watermarks import NEVER
from kafkalite.streams.windows import SpanWindow

if TYPE_CHECKING:  # the native module may not be there
    from kafkalite.streams.local.operators.folding import Groups

FEWEST: Final = 8  # records; fewer go as they are


@dataclass(frozen=True, slots=True)
class Folded:
    """The rows of a batch as records, and the indexes of late records that no row holds."""

    columns: Columns
    late: Sequence[int]


class Folder:
    """Folds batches for one repartition topic."""

    def __init__(self, node: p.Aggregate) -> None:
        self.node = node
        self.format = RowFormat(node)
        self.kinds = kinds_of(node.aggregates)
        functions = [part.argument for part in node.aggregates]
        self._calls = [
            (each, None if each is None else applied(each), on_arrow(each)) for each in functions
        ]
        self._newest = NEVER  # of all timestamps that the task has written to the topic

    def passed(self, timestamps: Sequence[int]) -> None:
        """Records or rows with these timestamps go into the topic."""
        self._newest = max(self._newest, greatest(timestamps))

    def fold(self, batch: Batch, keys: Sequence[bytes | None]) -> Folded | None:
        """The batch as rows; None where it had better go as records."""
        if self.kinds is None or len(batch) < FEWEST:
            return None
        if self.node.window is None and has_none(batch.nulls()):
            return None
        window = self.node.window
        assert not isinstance(window, SpanWindow), "sessions and sliding windows are not combined"
        groups = group(window, keys, batch.timestamps, None, self._newest)
        if groups is None:
            return None
        count = sum(map(len, groups.stamps))
        if not 0 < 2 * count <= len(batch) - len(groups.late):
            return None
        if not self._is_folded(groups, batch):
            return None
        columns = self._columns(groups, batch.headers)
        return None if columns is None else Folded(columns, groups.late)

    def _arguments(self, batch: Batch) -> list[Sequence[Any] | None] | None:
        """A column for each aggregate; None where a function fails on a record."""
        columns: list[Sequence[Any] | None] = []
        failed: list[int] = []
        for aggregate, (function, call, by_arrow) in zip(
            self.node.aggregates, self._calls, strict=True
        ):
            if function is None or call is None:
                columns.append(None if isinstance(aggregate, Count) else batch.values)
                continue
            column: Sequence[Any] | None = None if by_arrow is None else by_arrow.column(batch)
            if column is None:
                given = arguments(function, batch)
                column = attempt(call, given, lambda at, _: failed.append(at))
            if failed:
                return None
            columns.append(column)
        return columns

    def _is_folded(self, groups: Groups, batch: Batch) -> bool:
        """Whether all could be folded: for each aggregate, and to count records."""
        columns = self._arguments(batch)
        if columns is None or not may_fold(self.kinds, columns):
            return False
        assert self.kinds is not None
        nothing: dict[bytes, Any] = {}
        before = (nothing,) * (len(self.kinds) + 1)
        given = [*map(argument, columns), None]
        kinds = self.kinds + bytes([COUNT])
        return groups.fold(kinds, given, [before] * len(groups.starts), False)

    def _columns(self, groups: Groups, headers: Sequence[Headers] | None) -> Columns | None:
        """The rows as records; None where one of them must not be made."""
        keys, timestamps, starts, columns = groups.rows()
        *partials, counts = columns
        if any(map(_has_odd, self.node.aggregates, partials)):
            return None
        rows = zip(starts, counts, *partials, strict=True)
        last: Sequence[Headers] | None = None
        if headers is not None:
            every = range(len(groups.starts))
            last = [headers[i] for at in every for i in groups.last_records(at)]
        return Columns(keys, self.format.encode(rows), timestamps, None, last)


def _has_odd(aggregate: Aggregate, partials: Sequence[Any]) -> bool:
    """Whether a least or greatest began with a NaN, which lets no later number be seen, or is no
    number: another task's might not compare with it."""
    return isinstance(aggregate, Min | Max) and any(
        part != part or isinstance(part, str | bytes) for part in partials
    )


def folder_of(node: p.Sink, runtime: Runtime) -> Folder | None:
    """What folds the records of a sink; None where they go as they are."""
    topic = node.topic
    is_shared = topic in runtime.shared_topics and not runtime.ordering.is_shared(str(topic))
    if node.folds is None or not runtime.is_cached or not is_shared:
        return None
    return Folder(node.folds)


def folder_needs(node: p.Sink, runtime: Runtime) -> Needs:
    """What folding looks at besides what the sink writes."""
    needs = Needs()
    if node.folds is None or folder_of(node, runtime) is None:
        return needs
    for part in node.folds.aggregates:
        if part.argument is not None:
            needs |= function_needs(part.argument)
        elif not isinstance(part, Count):
            needs |= Needs(value=True)
    return needs
