"""Updates of a table that wait for the commit: of each key the last one goes on.           [P]

Owns   the updates, at most WAITING_MAX; beyond it all go on at once.
Source Kafka Streams' CachingKeyValueStore.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from kafkalite.streams.local.batch import MADE, Batch, Push

WAITING_MAX: Final = 200_000  # keys

Update = tuple[int, Any, Any, Any, Any]  # timestamp, key, value, old row, headers


class Waiting:
    """Holds updates back for `forward`; they have `raw_keys`, and `values`."""

    def __init__(self, forward: Push) -> None:
        self._forward = forward
        self._updates: dict[bytes | None, Update] = {}
        self._has_keys = self._has_olds = self._has_headers = False

    def push(self, batch: Batch) -> None:
        """Takes updates in; the row that the first one of a key replaces is the old row."""
        assert batch.raw_keys is not None
        assert batch.values is not None
        updates = self._updates
        self._has_keys = batch.keys is not None
        self._has_olds = batch.olds is not None
        self._has_headers = self._has_headers or batch.headers is not None
        records = zip(
            batch.raw_keys,
            batch.timestamps,
            _or_nothing(batch.keys),
            batch.values,
            _or_nothing(batch.olds),
            _or_nothing(batch.headers),
            strict=False,
        )
        for raw_key, timestamp, key, value, old, headers in records:
            before = updates.pop(raw_key, None)  # the last one stands last
            first = old if before is None else before[3]
            updates[raw_key] = (timestamp, key, value, first, headers or ())
        if len(updates) > WAITING_MAX:
            self.flush()

    def flush(self) -> None:
        """Sends on what waits, older timestamps first."""
        updates, self._updates = self._updates, {}
        if not updates:
            return
        pairs = sorted(updates.items(), key=lambda pair: pair[1][0])
        has_headers, self._has_headers = self._has_headers, False
        stamps, keys, values, olds, headers = zip(*map(itemgetter(1), pairs), strict=True)
        self._forward(
            Batch(
                list(stamps),
                MADE,
                list(keys) if self._has_keys else None,
                [raw_key for raw_key, _ in pairs],
                list(values),
                None,
                list(olds) if self._has_olds else None,
                list(headers) if has_headers else None,
            )
        )


def _or_nothing(column: Sequence[Any] | None) -> Any:
    return repeat(None) if column is None else column
