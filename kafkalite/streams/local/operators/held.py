"""Records of an aggregate that wait, so that rows on disk are read many at a time.            [P]

To find a row on disk costs four times as much as to find its neighbour next: rows that stand in
one block are read together. So where rows of a store are on disk alone, and nobody looks at them
between two batches, batches wait until there are many records, or until a commit, or until
somebody looks into the store.

Owns   the batches that wait, and their bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kafkalite.core.columns import joined
from kafkalite.core.types import Headers
from kafkalite.streams.local.batch import Batch
from kafkalite.streams.local.operators.rows import Segment

RECORDS_MAX: Final = 32_768
BATCHES_MAX: Final = 16  # each may keep the bytes of a fetch


class Part(NamedTuple):
    """A batch that waits, and its segment to fold in."""

    batch: Batch
    segment: Segment


class Held:
    """The batches that wait for one store."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._records = 0

    @property
    def is_full(self) -> bool:
        """Whether they must not wait any longer."""
        return self._records >= RECORDS_MAX or len(self._parts) >= BATCHES_MAX

    def __len__(self) -> int:
        return self._records

    def add(self, batch: Batch, segment: Segment) -> None:
        """One more. Its values are let go: an error reads them where they came from."""
        bare = Batch(batch.timestamps, batch.origin, raw_keys=batch.raw_keys, headers=batch.headers)
        self._parts.append(Part(bare, segment))
        self._records += len(batch)

    def take(self) -> list[Part]:
        """All of them, which wait no more."""
        parts, self._parts, self._records = self._parts, [], 0
        return parts


def one_segment(parts: Sequence[Part]) -> Segment:
    """The segments of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0].segment
    segments = [part.segment for part in parts]
    headers: Sequence[Headers] | None = None
    if any(each.headers is not None for each in segments):
        headers = joined([each.headers or [()] * len(each.timestamps) for each in segments])
    return Segment(
        joined([each.keys for each in segments]),
        joined([each.timestamps for each in segments]),
        [_joined(column) for column in zip(*(each.arguments for each in segments), strict=True)],
        headers,
        range(sum(len(each.timestamps) for each in segments)),
    )


def _joined(columns: Sequence[Sequence[Any] | None]) -> Sequence[Any] | None:
    there = [column for column in columns if column is not None]
    return joined(there) if there else None
