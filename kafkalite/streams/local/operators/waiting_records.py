"""Records that wait in stream time before they are joined with a versioned table.          [P]

    key of a row    timestamp uint64 · 1, or 0 without a key · key · number uint64

A record waits until stream time is its grace later, and leaves by timestamp and key. One that comes
later than that is joined at once. The stream time is that of the stream alone; records that are
dropped move it, too.

Owns   the records that wait, in a store.
Source Kafka Streams' KStreamKTableJoinProcessor, RocksDBTimeOrderedKeyValueBuffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Any, Final

from kafkalite.core.types import Headers
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import MADE, Batch, Made, Origin, Push
from kafkalite.streams.local.operators.keys import without_nulls
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.state import OrderedStore
from kafkalite.streams.local.watermarks import NEVER

HEAD: Final = struct.Struct(">QB")  # the timestamp, and whether there is a key
NUMBER: Final = struct.Struct(">Q")

Record = tuple[bytes | None, Any, int, Headers]  # key, value, timestamp


class WaitingRecords:
    """Holds records back for `join`."""

    def __init__(self, node: p.StreamTableJoin, runtime: Runtime, join: Push) -> None:
        assert node.grace_ms is not None
        owned = runtime.store_of(node)
        assert owned is not None, f"{node.name!r} owns no store"
        self.node = node
        self.runtime = runtime
        self.grace_ms = node.grace_ms
        self.join = join
        self.store = OrderedStore(
            owned.name,
            owned.changelog_topic,
            runtime.codec(owned.value, is_key=False),
            runtime.place.backend(owned.name),
        )
        runtime.stores[owned.name] = self.store
        self.time = NEVER
        self._key_codec = runtime.codec(owned.key, is_key=True)
        self._stamps: list[int] = []  # a heap, of the records that wait
        self._number = 0  # of the next record

    def process(self, batch: Batch) -> None:
        """Takes records in, and joins those that have waited for long enough after each."""
        leaving: list[Record] = []
        for index, record in enumerate(self._records(batch)):
            key, value, stamp, _ = record
            if not self.runtime.is_timed:
                self.time = max(self.time, stamp)
            if value is None or (key is None and self.node.how == "inner"):
                continue  # it moves time, and lets nobody go
            if stamp < self.time - self.grace_ms:
                leaving.append(record)
            else:
                self._keep(record)
            leaving += self._due()
            if leaving and self.runtime.ordering.meets:  # each at the moment of its record
                self._join(leaving, Made(batch.origin, index))
                leaving = []
        self._join(leaving, Made(batch.origin, len(batch) - 1))
        without_nulls(  # counts those that were left out
            batch, self.node, self.runtime, keys=self.node.how == "inner", values=True
        )

    def _records(self, batch: Batch) -> Iterator[Record]:
        assert batch.raw_keys is not None
        assert batch.values is not None
        headers = batch.headers or repeat(())
        return zip(batch.raw_keys, batch.values, batch.timestamps, headers, strict=False)

    def _keep(self, record: Record) -> None:
        key, value, stamp, headers = record
        head = HEAD.pack(stamp, key is not None)
        place = head + (key or b"") + NUMBER.pack(self._number)
        self._number += 1
        self.store.put(place, value, stamp, headers)
        heappush(self._stamps, stamp)

    def _due(self) -> Iterable[Record]:
        """Removes the records that have waited for long enough."""
        until = self.time - self.grace_ms
        if not self._stamps or self._stamps[0] > until:
            return []
        while self._stamps and self._stamps[0] <= until:
            heappop(self._stamps)
        due: list[Record] = []
        for place, row in self.store.range(b"", HEAD.pack(until + 1, 0)):
            self.store.delete(place, row.stamp)
            _, has_key = HEAD.unpack_from(place)
            key = place[HEAD.size : -NUMBER.size] if has_key else None
            due.append((key, row.value, row.stamp, row.headers))
        return due

    def _join(self, records: Sequence[Record], origin: Origin) -> None:
        if not records:
            return
        raw_keys, values, stamps, headers = zip(*records, strict=True)
        keys = self._key_codec.deserialize(self.store.changelog_topic, list(raw_keys))
        has_headers = any(headers)
        self.join(Batch(list(stamps), origin, keys, list(raw_keys), list(values),
                        headers=list(headers) if has_headers else None))  # fmt: skip

    def flush(self) -> None:
        """What waits does not wait for the commit."""

    def tick(self, now_ms: int) -> None:
        """Nothing waits for the wall clock."""

    def advance(self, stream_time: int) -> None:
        """All tasks that write the stream have come so far."""
        self.time = max(self.time, stream_time)
        self._join(list(self._due()), MADE)

    def stream_time(self) -> int:
        """The newest timestamp of the stream."""
        return self.time

    def resume(self, stream_time: int) -> None:
        """Goes on with the records that wait in the store."""
        self.time = max(self.time, stream_time)
        places = [place for place, _ in self.store.range()]
        self._stamps = [HEAD.unpack_from(place)[0] for place in places]
        heapify(self._stamps)
        numbers = (NUMBER.unpack(place[-NUMBER.size :])[0] for place in places)
        self._number = max(numbers, default=-1) + 1
