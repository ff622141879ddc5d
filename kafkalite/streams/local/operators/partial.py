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
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from kafkalite.core.columns import greatest
from kafkalite.core.types import Columns, Headers
from kafkalite.streams import plan as p
from kafkalite.streams.aggregates import Count, Max, Min, Partials
from kafkalite.streams.local.arrows import on_arrow
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.calling import applied, arguments, function_needs
from kafkalite.streams.local.failures import attempt
from kafkalite.streams.local.operators.folding import COUNT, argument, group, kinds_of, may_fold
from kafkalite.streams.local.operators.keys import has_none
from kafkalite.streams.local.partials import Row, RowFormat
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
        partials = self._partials(groups, batch)
        if partials is None:
            return None
        columns = self._columns(groups, partials, batch.headers)
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

    def _partials(self, groups: Groups, batch: Batch) -> list[tuple[Partials, ...]] | None:
        """The partials of each window, the last of them how many records; None if refused."""
        columns = self._arguments(batch)
        if columns is None or not may_fold(self.kinds, columns):
            return None
        assert self.kinds is not None
        aggregates = (*self.node.aggregates, Count())
        made = [tuple(each.partials() for each in aggregates) for _ in groups.starts]
        given = [*map(argument, columns), None]
        return made if groups.fold(self.kinds + bytes([COUNT]), given, made, False) else None

    def _columns(
        self,
        groups: Groups,
        partials: list[tuple[Partials, ...]],
        headers: Sequence[Headers] | None,
    ) -> Columns | None:
        """The rows as records; None where one of them must not be made."""
        rows: list[Row] = []
        stamps: list[dict[bytes, int]] = []
        for at, start in enumerate(groups.starts):
            stamps.append({})
            groups.write(at, partials[at], stamps[at])
            keys = list(stamps[at])
            if self._has_odd(partials[at], keys):
                return None
            *parts, counts = ([found.get(key) for key in keys] for found in partials[at])
            rows += zip(repeat(start), counts, *parts, strict=False)
        last: Sequence[Headers] | None = None
        if headers is not None:
            every = range(len(groups.starts))
            last = [headers[i] for at in every for i in groups.last_records(at)]
        keys = list(chain.from_iterable(stamps))
        timestamps = [stamp for each in stamps for stamp in each.values()]
        return Columns(keys, self.format.encode(rows), timestamps, None, last)

    def _has_odd(self, partials: tuple[Partials, ...], keys: Sequence[bytes]) -> bool:
        """Whether a least or greatest began with a NaN, which lets no later number be seen, or is
        no number: another task's might not compare with it."""
        return any(
            (part := found.get(key)) != part or isinstance(part, str | bytes)
            for aggregate, found in zip(self.node.aggregates, partials, strict=False)
            if isinstance(aggregate, Min | Max)
            for key in keys
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
