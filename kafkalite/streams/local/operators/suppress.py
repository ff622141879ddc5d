"""Rows of a table that are held back: until a time limit, or until their windows close.     [P]

    limit      a key waits from the timestamp of its first update that is held; later updates take
               its place and do not prolong it. Deletions go on as rows do.
    closed     a windowed key waits until its window takes no more records. Deletions are swallowed.

Rows leave in the order of (time at which they are due, key bytes), as their last update left them:
with its timestamp and headers. A full buffer sends its oldest rows on before their time.

    stream time    the highest timestamp of the updates that came to this operator; where several
                   tasks write the input (watermarks.py), the operator is told it

A row's place in the store is its due time and its key, so the store has the rows in the order in
which they leave. Keys and due times are in memory as well; they are read off the store after a
restart. Rows that come and go within one batch never reach the store.

A join that looks a row up finds the one that was sent last.

Facts  A table whose rows are held knows which row an update replaces: a source gets a store.
       The row that an update replaces is, for those below, the one that they heard of last. Kafka
       Streams names the one before the last update, which those below may never have seen.
Source Kafka Streams' KTableSuppressProcessor, InMemoryTimeOrderedKeyValueChangeBuffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import repeat
from struct import Struct
from typing import Any, Final

from kafkalite.core.types import Headers
from kafkalite.serde.serde import Codec, Serde, SerdeContext
from kafkalite.streams import plan as p
from kafkalite.streams.changes import ChangeSerde
from kafkalite.streams.closing import windows_above
from kafkalite.streams.local.batch import MADE, Batch, Led, Origin
from kafkalite.streams.local.operators.getters import Getter, Rows, getter_needs, getter_of
from kafkalite.streams.local.operators.keys import store_keys
from kafkalite.streams.local.runtime import Needs, Runtime
from kafkalite.streams.local.state.ordered import OrderedStore, Row

DUE: Final = Struct(">q")
NEVER: Final = -1  # the stream time before the first update

DueTimes = Callable[[Batch], Sequence[int]]  # when each update is due that finds no row of its key
Leaving = tuple[int, bytes, Row]  # the index of the update that let the row go, its key, the row


@dataclass(frozen=True, slots=True)
class HeldSerde:
    """Pairs (row that was sent on, row that waits); either may be None."""

    inner: Serde

    def open(self, context: SerdeContext) -> Codec:
        """The codec."""
        return HeldCodec(ChangeSerde(self.inner).open(context))


@dataclass(frozen=True, slots=True)
class HeldCodec:
    """Writes a pair of nothings as no bytes: null is a row that has left."""

    pairs: Codec

    def serialize(self, topic: str, column: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of each pair; None of None."""
        written = self.pairs.serialize(topic, [pair or (None, None) for pair in column])
        return [
            None if pair is None else data or b""
            for pair, data in zip(column, written, strict=True)
        ]

    def deserialize(self, topic: str, column: Sequence[bytes | None]) -> Sequence[Any]:
        """The pair in each record."""
        return self.pairs.deserialize(topic, column)


class Buffer:
    """Rows that wait until they are due: a value and the row that it replaces for those below."""

    def __init__(
        self, node: p.Suppress | p.FinalRows, runtime: Runtime, due_times: DueTimes
    ) -> None:
        store = runtime.store_of(node)
        assert store is not None, f"{node.name!r} owns no store"
        self.node = node
        self.store = OrderedStore(
            store.name,
            store.changelog_topic,
            runtime.codec(HeldSerde(store.value), is_key=False),
            runtime.place.backend(store.name),
        )
        runtime.stores[store.name] = self.store
        self.time = NEVER
        self._due_times = due_times
        self._keys = store_keys(node, runtime)
        self._key_codec = runtime.codec(store.key, is_key=True)
        self._needs = runtime.needs(node)
        self._forward = runtime.forward_several(node)
        self._is_timed = runtime.is_timed
        self._due: dict[bytes, int] = {}  # of each key that is held
        self._queue: list[tuple[int, bytes]] = []  # a heap of the same
        self._fresh: dict[bytes, Row] = {}  # rows of this batch, not in the store yet

    def process(self, batch: Batch) -> None:
        """Holds the updates of a batch, one by one, and lets rows go that are due by then."""
        batch = self._keys(batch)
        assert batch.raw_keys is not None
        assert batch.values is not None
        leaving: list[Leaving] = []
        queue, rows_max, lifts_time = self._queue, self.rows_max, self.goes_by_records
        columns = zip(
            batch.raw_keys,
            batch.values,
            repeat(None) if batch.olds is None else batch.olds,
            batch.timestamps,
            repeat(()) if batch.headers is None else batch.headers,
            self._due_times(batch),
            strict=False,
        )
        for index, (key, value, old, stamp, headers, due) in enumerate(columns):
            assert key is not None, f"{self.node.name}: a table has no row of a null key"
            self._hold(key, value, old, stamp, headers, due)
            if lifts_time and stamp > self.time:
                self.time = stamp
            if queue[0][0] <= self.time or (rows_max is not None and len(queue) > rows_max):
                leaving += [(index, key, row) for key, row in self._let_go()]
        for key, row in self._fresh.items():
            self.store.put(self._place(key), *row)
        self._fresh.clear()
        self._send(leaving, batch.origin)

    def _hold(
        self, key: bytes, value: Any, old: Any, stamp: int, headers: Headers, due: int
    ) -> None:
        if key not in self._due:
            self._due[key] = due
            heappush(self._queue, (due, key))
            self._fresh[key] = Row((old, value), stamp, headers)
        elif (row := self._fresh.get(key)) is not None:
            self._fresh[key] = Row((row.value[0], value), stamp, headers)
        else:
            held = self._held(key)
            self.store.put(self._place(key), (held.value[0], value), stamp, headers)

    @property
    def goes_by_records(self) -> bool:
        """Whether updates lift the stream time."""
        return not self._is_timed

    @property
    def rows_max(self) -> int | None:
        """How many rows may be held; None: any number."""
        return None

    def _let_go(self) -> Iterable[tuple[bytes, Row]]:
        """Takes out the rows that are due, and the oldest of those that are too many."""
        queue, rows_max = self._queue, self.rows_max
        while queue and (
            queue[0][0] <= self.time or (rows_max is not None and len(queue) > rows_max)
        ):
            _, key = heappop(queue)
            row = self._fresh.pop(key, None)
            if row is None:
                row = self._held(key)
                self.store.delete(self._place(key), max(0, self.time))
            del self._due[key]
            yield key, row

    def _held(self, key: bytes) -> Row:
        row = self._fresh.get(key) or self.store.get(self._place(key))
        assert row is not None, f"store {self.store.name!r}: a held row of {key!r} is gone"
        return row

    def _place(self, key: bytes) -> bytes:
        return DUE.pack(self._due[key]) + key

    def sent(self, keys: Sequence[Any], rows: Rows) -> Rows:
        """The rows that those below have, given those of the table above."""
        values, stamps = list(rows.values), list(rows.stamps)
        for index, key in enumerate(keys):
            if key in self._due:
                values[index], stamps[index] = self._held(key).value[0], NEVER
        return Rows(values, stamps)

    def passes(self, row: Any) -> bool:
        """Whether a row goes on; one that does not is gone."""
        return True

    def _send(self, leaving: list[Leaving], origin: Origin) -> None:
        leaving = [each for each in leaving if self.passes(each[2].value[1])]
        if not leaving:
            return
        keys = [key for _, key, _ in leaving]
        rows = [row for _, _, row in leaving]
        headers = [row.headers for row in rows]
        key_objects = None
        if self._needs.key:
            key_objects = self._key_codec.deserialize(self.store.changelog_topic, keys)
        olds = None
        if self._needs.old:
            olds = [row.value[0] for row in rows]
        self._forward(
            Batch(
                [row.stamp for row in rows],
                Led(origin, [index for index, _, _ in leaving]),
                key_objects,
                keys,
                [row.value[1] for row in rows],
                None,
                olds,
                headers if any(headers) else None,
            )
        )

    # Between batches

    def flush(self) -> None:
        """The commit changes nothing: rows that are held stay."""

    def tick(self, now_ms: int) -> None:
        """The wall clock changes nothing."""

    def advance(self, stream_time: int) -> None:
        """Lets rows go that are due by `stream_time`."""
        self.time = max(self.time, stream_time)
        self._send([(0, key, row) for key, row in self._let_go()], MADE)

    def stream_time(self) -> int:
        """The stream time so far."""
        return self.time

    def resume(self, stream_time: int) -> None:
        """Goes on after a restart: the rows in the store are those that are held."""
        self.time = max(self.time, stream_time)
        places = self.store.keys()
        self._due = {place[DUE.size :]: DUE.unpack_from(place)[0] for place in places}
        self._queue = [(due, key) for key, due in self._due.items()]
        heapify(self._queue)


class LimitBuffer(Buffer):
    """Holds a key for a time that begins with its first update."""

    def __init__(self, node: p.Suppress, runtime: Runtime) -> None:
        super().__init__(node, runtime, self._by_limit)
        self._limit_ms = node.limit_ms
        self._rows_max = node.max_records

    def _by_limit(self, batch: Batch) -> Sequence[int]:
        return [stamp + self._limit_ms for stamp in batch.timestamps]

    @property
    def goes_by_records(self) -> bool:
        """Without a limit nothing waits for other tasks either."""
        return self._limit_ms == 0 or super().goes_by_records

    @property
    def rows_max(self) -> int | None:
        """As the user said."""
        return self._rows_max


class FinalBuffer(Buffer):
    """Holds the rows of a window until it takes no more records."""

    def __init__(self, node: p.FinalRows, runtime: Runtime) -> None:
        super().__init__(node, runtime, self._by_window)
        self._runtime = runtime
        self._lag_ms = node.lag_ms
        self._idle_ms = node.idle_ms
        self._windows = windows_above(node.parent)
        self._active_ms: int | None = None  # the wall clock at the last update

    def process(self, batch: Batch) -> None:
        """As of any buffer."""
        self._active_ms = self._runtime.now_ms
        super().process(batch)

    def _by_window(self, batch: Batch) -> Sequence[int]:
        assert batch.keys is not None
        return [key.end + self._lag_ms for key in batch.keys]

    def passes(self, row: Any) -> bool:
        """A deleted row is none."""
        return row is not None

    def tick(self, now_ms: int) -> None:
        """Where nothing came for long, windows are closed that are closed above."""
        if self._idle_ms is None or not self._due:
            return
        if self._active_ms is None:  # the rows were restored
            self._active_ms = now_ms
        if now_ms - self._active_ms >= self._idle_ms:
            times = (self._runtime.stateful[each].stream_time() for each in self._windows)
            self.advance(min((time for time in times if time is not None), default=NEVER))


@getter_of.register
def _(node: p.Suppress, runtime: Runtime, *, as_of: bool = False) -> Getter:
    above = getter_of(node.parent, runtime, as_of=as_of)

    def get(batch: Batch) -> Rows:
        buffer = runtime.stateful[node]
        assert isinstance(buffer, Buffer)
        assert batch.raw_keys is not None
        return buffer.sent(batch.raw_keys, above(batch))

    return get


@getter_needs.register
def _(node: p.Suppress, runtime: Runtime) -> Needs:
    return getter_needs(node.parent, runtime)
