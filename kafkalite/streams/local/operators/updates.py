"""Every update of a batch, in columns: for aggregates whose updates do not merge.          [P]

A batch goes through native code once (_updates.pyx). It keeps the partials of each window and key,
and notes after each record what the row has become. So updates leave in the order of the records,
each with its own record as origin, and the store gets the last row of each key.

The twin cuts the batch into runs in which no key comes twice, and folds run by run: rows.py.

Fails  not at all: what native code cannot fold is left to the twin, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafkalite.core.columns import FEW, objects, take
from kafkalite.core.types import Windowed
from kafkalite.streams.local.batch import Batch, Origin, Taken
from kafkalite.streams.local.operators.folding import follow
from kafkalite.streams.local.operators.rows import Rows, Segment

if TYPE_CHECKING:  # the native module may not be there
    from kafkalite.streams.local.operators.folding import Groups, Updates


def fold_updates(
    rows: Rows, groups: Groups, segment: Segment, batch: Batch, *, are_told: bool = True
) -> Batch | None:
    """Folds `segment` of `batch` into the store; the updates, None where that cannot be done.

    `are_told`: below hears of them by these updates.
    """
    assert rows.kinds is not None
    buckets = rows.buckets(groups)
    updates = follow(groups, rows.kinds, segment.arguments, buckets, deletes=rows.layout.deletes)
    if updates is None:
        return None
    wants_olds = rows.needs.old or rows.history is not None
    before = _rows_before(rows, groups) if wants_olds else None
    rows.write_groups(groups, segment, are_told=are_told)
    return _batch(rows, updates, segment, batch, before)


def _rows_before(rows: Rows, groups: Groups) -> list[Any]:
    """The row of each key that comes in the batch, window by window; None where there is none."""
    found: list[Any] = []
    for bucket, stamps in zip(rows.buckets(groups), groups.stamps, strict=True):
        keys, has = list(stamps), rows.store.has
        made = rows.layout.rows(bucket, keys)
        found += [row if has(bucket, key) else None for key, row in zip(keys, made, strict=True)]
    return found


def _batch(
    rows: Rows, updates: Updates, segment: Segment, batch: Batch, before: list[Any] | None
) -> Batch:
    """The updates as a batch."""
    origin: Origin = batch.origin
    headers, keys = segment.headers, segment.keys
    if (records := updates.records) is not None:
        origin = Taken(origin, records)
        headers = None if headers is None else take(headers, records)
        keys = take(keys, records)
    made = rows.layout.named([_column(result) for result in updates.results])
    olds = None
    if before is not None:
        olds = updates.olds(made, before)
        if rows.layout.fields is not None:  # no two rows are one object
            olds = [None if row is None else dict(row) for row in olds]
    return Batch(
        _column(updates.stamps),
        origin,
        _key_objects(rows, updates, keys) if rows.needs.key else None,
        keys if rows.store.window is None else _column(updates.windowed_keys()),
        made,
        None,
        olds,
        headers,
    )


def _key_objects(rows: Rows, updates: Updates, keys: Sequence[bytes]) -> Sequence[Any]:
    """The keys as users see them."""
    store = rows.store
    inner = store.inner_keys(keys)
    if store.window is None:
        return inner
    size = store.window.size_ms
    return [Windowed(key, at, at + size) for key, at in zip(inner, updates.starts(), strict=True)]


def _column(column: Sequence[Any]) -> Sequence[Any]:
    """A form, or a list where there are few records."""
    return objects(column) if len(column) < FEW else column
