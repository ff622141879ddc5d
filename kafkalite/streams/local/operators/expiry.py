"""Tables whose rows leave when they have not been updated for long: `retention=`.           [P]

The operator stands above the table and sends it deletions. It knows when each key was updated:

    b"k", key            timestamp of the last update, and of the entry below
    b"t", timestamp, key nothing; the row leaves once stream time is more than the retention later

An entry stays where it is while its row is updated, and moves when its time has come. So there is
one for each row, but for keys whose rows were deleted or went back in time meanwhile.

Facts  Stream time is the newest timestamp of the updates with a key, whatever their key; where
       several tasks write the input it is told. A row leaves before the update that shows that its
       time is over, also if that is of the same key; rows leave by (timestamp, key bytes). The
       deletion has the stream time as its timestamp, and no headers. An update that is itself older
       than the retention is dropped and counted.
Owns   the store of timestamps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import accumulate
from struct import Struct
from typing import Any, Final

from kafkalite.core.columns import objects
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import MADE, Batch, Push
from kafkalite.streams.local.drops import Reason
from kafkalite.streams.local.failures import DROPPED
from kafkalite.streams.local.operators.keys import null_needs
from kafkalite.streams.local.runtime import Needs, Runtime, compile_node, node_needs
from kafkalite.streams.local.state import START, OrderedStore
from kafkalite.streams.local.state.ordered import RESERVED_KEY
from kafkalite.streams.local.watermarks import NEVER

UPDATED: Final = b"k"
DUE: Final = b"t"
TIMES: Final = Struct(">qq")  # of the last update, and of the entry by which its row leaves

Due = list[tuple[int, bytes]]  # a heap of timestamps and keys


@dataclass(slots=True)
class Made:
    """The updates that go on: the records of a batch at `at`, or deletions of keys."""

    at: list[int] = field(default_factory=list)
    gone: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # by place: key, timestamp

    def record(self, index: int) -> None:
        """A record goes on."""
        self.at.append(index)

    def deletion(self, index: int, key: bytes, stamp: int) -> None:
        """The row of a key leaves, before the record at `index`."""
        self.gone[len(self.at)] = key, stamp
        self.at.append(index)


@node_needs.register
def _(node: p.Expire, below: Needs, runtime: Runtime) -> Needs:
    return below | Needs(raw_key=True) | null_needs(node, runtime)


@compile_node.register
def _(node: p.Expire, runtime: Runtime) -> Push:
    runtime.stateful[node] = expiry = Expiry(node, runtime)
    return expiry.run


class Expiry:
    """The operator of one node."""

    def __init__(self, node: p.Expire, runtime: Runtime) -> None:
        owned, key = runtime.store_of(node), runtime.schema(node).key
        assert owned is not None, f"{node.name!r} owns no store"
        assert key is not None, f"{node.name!r}: a table knows its key's serde"
        self.node = node
        self.runtime = runtime
        self.forward = runtime.forward_several(node)
        self.keys = runtime.codec(key, is_key=True) if runtime.needs(node).key else None
        self.time = NEVER
        self.store = OrderedStore(
            owned.name,
            owned.changelog_topic,
            runtime.codec(owned.value, is_key=False),
            runtime.place.backend(owned.name),
            note_key=RESERVED_KEY,
        )
        runtime.stores[owned.name] = self.store

    def run(self, batch: Batch) -> None:
        """Takes updates on their way to the table."""
        if not len(batch):
            return
        assert batch.raw_keys is not None
        raw_keys: list[Any] = objects(batch.raw_keys)
        times = self._times(batch, raw_keys)
        newest, due = self.time, list[tuple[int, bytes]]()
        if not self.runtime.is_timed:  # else rows leave when all writers have come so far
            newest = max(times)
            due = self._due(newest - self.node.retention_ms)
        made = Made()
        records = zip(raw_keys, batch.nulls(), batch.timestamps, times, strict=True)
        for index, (key, value, stamp, time) in enumerate(records):
            limit = time - self.node.retention_ms
            while due and due[0][0] < limit:
                if (gone := self._leave(due, newest)) is not None:
                    made.deletion(index, gone, time)
            if key is None:  # the table drops and counts it
                made.record(index)
            elif stamp >= limit:
                self._note(key, stamp, due, newest, is_deletion=value is None)
                made.record(index)
        self._drop(len(batch) - len(made.at) + len(made.gone))
        if not self.runtime.is_timed:
            self.time = newest
        if made.at:
            self.forward(self._batch(batch, made))

    def _times(self, batch: Batch, raw_keys: Sequence[bytes | None]) -> list[int]:
        """The stream time by which each record is judged."""
        if self.runtime.is_timed:
            return [max(time, self.time) for time in batch.times or [self.time] * len(batch)]
        counted = (
            NEVER if key is None else stamp
            for key, stamp in zip(raw_keys, batch.timestamps, strict=True)
        )
        return list(accumulate(counted, max, initial=self.time))[1:]

    def _due(self, limit: int) -> Due:
        """The entries before `limit`, ascending."""
        if limit <= 0:
            return []
        at = len(DUE) + START.size
        found = self.store.range(DUE, DUE + START.pack(limit))
        return [(START.unpack_from(place, len(DUE))[0], place[at:]) for place, _ in found]

    def _leave(self, due: Due, newest: int) -> bytes | None:
        """Takes the first entry out; the key whose row leaves with it, if one does."""
        stamp, key = heappop(due)
        self.store.delete(DUE + START.pack(stamp) + key, newest)
        row = self.store.get(UPDATED + key)
        if row is None:
            return None
        updated, its = TIMES.unpack(row.value)
        if its != stamp:  # the entry is of a row that was before
            return None
        if updated == stamp:
            self.store.delete(UPDATED + key, newest)
            return key
        self._enter(key, updated, updated, due, newest)
        return None

    def _note(self, key: bytes, stamp: int, due: Due, newest: int, *, is_deletion: bool) -> None:
        """The row of a key was updated, or deleted."""
        row = self.store.get(UPDATED + key)
        if is_deletion:
            self.store.delete(UPDATED + key, newest)
        elif row is None or stamp < (its := TIMES.unpack(row.value)[1]):
            self._enter(key, stamp, stamp, due, newest)
        else:
            self.store.put(UPDATED + key, TIMES.pack(stamp, its), stamp)

    def _enter(self, key: bytes, updated: int, stamp: int, due: Due, newest: int) -> None:
        """Makes an entry, by which the row may leave yet in this batch."""
        self.store.put(UPDATED + key, TIMES.pack(updated, stamp), updated)
        self.store.put(DUE + START.pack(stamp) + key, b"", updated)
        if stamp < newest - self.node.retention_ms:
            heappush(due, (stamp, key))

    def _drop(self, count: int) -> None:
        """So many updates were older than the retention."""
        self.runtime.metrics[DROPPED] += count
        self.runtime.drops.add(Reason.PAST_RETENTION, self.node.name, count)

    def _batch(self, batch: Batch, made: Made) -> Batch:
        """The updates that go on."""
        if not made.gone:
            return batch if len(made.at) == len(batch) else batch.take(made.at)
        taken = batch.take(made.at)
        raw_keys: list[Any] = list(objects(taken.raw_keys or ()))
        stamps = list(taken.timestamps)
        its_keys = None if self.keys is None else taken.keys  # else nobody below looks at them
        columns = [
            None if column is None else list(objects(column))
            for column in (its_keys, taken.values, taken.raw_values, taken.headers)
        ]
        keys, values, raw_values, headers = columns
        for at, (key, stamp) in made.gone.items():
            raw_keys[at], stamps[at] = key, stamp
            for column, nothing in ((values, None), (raw_values, None), (headers, ())):
                if column is not None:
                    column[at] = nothing
        if keys is not None:
            its = self._objects([key for key, _ in made.gone.values()])
            for at, key in zip(made.gone, its or (), strict=True):
                keys[at] = key
        return replace(taken, timestamps=stamps, keys=keys, raw_keys=raw_keys, values=values,
                       raw_values=raw_values, headers=headers)  # fmt: skip

    def _objects(self, raw_keys: Sequence[bytes]) -> Sequence[Any] | None:
        """The keys as users see them, where somebody below looks at them."""
        return None if self.keys is None else self.keys.deserialize(self.node.name, raw_keys)

    # Between batches

    def advance(self, stream_time: int) -> None:
        """Removes the rows whose time is over, at a new stream time."""
        self.time = max(self.time, stream_time)
        due = self._due(self.time - self.node.retention_ms)
        keys: list[bytes] = []
        while due:
            if (key := self._leave(due, self.time)) is not None:
                keys.append(key)
        if keys:
            nothing = [None] * len(keys)
            self.forward(
                Batch([self.time] * len(keys), MADE, self._objects(keys), keys, nothing, nothing)
            )

    def flush(self) -> None:
        """Nothing waits for the commit."""

    def tick(self, now_ms: int) -> None:
        """The wall clock changes nothing."""

    def stream_time(self) -> int:
        """The stream time so far."""
        return self.time

    def resume(self, stream_time: int) -> None:
        """Goes on after a restart: rows that left stay away."""
        self.time = max(self.time, stream_time)
