"""Groups of several streams on their way into one aggregate.                                [P]

Each value is marked with the number of its input. Where there are windows, each input has a stream
time of its own, by which its records are judged; the times are kept in a store, a row an input.

    closed    with final rows below: when the newest record of all inputs has passed a window, as
              a window is final once. Without: later by as much again, at least KEPT_MS, so that an
              input which lags behind finds the rows that others have made.

Facts  A null key does not lift an input's time; a null value is a record, but for sliding windows
       and without windows.
Source Kafka Streams' CogroupedStreamAggregateBuilder, where each input has a processor of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Any, Final

from kafkalite.core.columns import greatest
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Batch, Push
from kafkalite.streams.local.runtime import Runtime
from kafkalite.streams.local.state.ordered import OrderedStore
from kafkalite.streams.windows import TimeWindow

KEPT_MS: Final = 60_000
INPUT: Final = Struct(">q")
NEVER: Final = -1


class Cogroup:
    """Marks values, and keeps the stream time of each input."""

    def __init__(self, node: p.Cogroup, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        self.forward = runtime.forward(node)
        (self.aggregate,) = runtime.children(node)
        self.times = [NEVER] * len(node.parents)
        self.store = self._open()
        self.kept_ms = 0
        if node.window is not None and not runtime.finals(self.aggregate):
            size = node.window
            length_ms = size.size_ms if isinstance(size, TimeWindow) else size.length_ms
            self.kept_ms = max(KEPT_MS, length_ms + size.grace_ms)

    def _open(self) -> OrderedStore | None:
        found = self.runtime.store_of(self.node)
        if found is None:
            return None
        store = OrderedStore(
            found.name,
            found.changelog_topic,
            self.runtime.codec(found.value, is_key=False),
            self.runtime.place.backend(found.name),
        )
        self.runtime.stores[found.name] = store
        return store

    def input(self, number: int) -> Push:
        """Takes the records of one input."""

        def push(batch: Batch) -> None:
            if len(batch):
                self._process(number, batch)

        return push

    def _process(self, number: int, batch: Batch) -> None:
        assert batch.values is not None
        values: list[Any] = [
            None if value is None and not self.node.keeps_nulls else (number, value)
            for value in batch.values
        ]
        times = batch.times
        if self.store is not None and not self.runtime.is_timed:
            times = self._judged(number, batch, values)
        self.forward(
            Batch(
                batch.timestamps,
                batch.origin,
                batch.keys,
                batch.raw_keys,
                values,
                headers=batch.headers,
                times=times,
            )
        )
        if self.store is not None and not self.runtime.is_timed:
            self._lift(number, greatest(times or [NEVER]))

    def _judged(self, number: int, batch: Batch, values: Sequence[Any]) -> list[int]:
        """The time of the input at each record."""
        keys = batch.keys if batch.raw_keys is None else batch.raw_keys
        assert keys is not None
        counted = (
            NEVER if key is None or value is None else timestamp
            for key, value, timestamp in zip(keys, values, batch.timestamps, strict=True)
        )
        return list(accumulate(counted, max, initial=self.times[number]))[1:]

    def _lift(self, number: int, time: int) -> None:
        """Notes the time of an input, and closes windows."""
        if time <= self.times[number]:
            return
        assert self.store is not None
        self.times[number] = time
        self.store.put(INPUT.pack(number), time, time)
        self.runtime.stateful[self.aggregate].advance(max(self.times) - self.kept_ms)

    # Between batches

    def flush(self) -> None:
        """Nothing waits here."""

    def tick(self, now_ms: int) -> None:
        """The wall clock changes nothing."""

    def advance(self, stream_time: int) -> None:
        """Passes the task's stream time to the aggregate."""

    def stream_time(self) -> None:
        """Times are in the store."""

    def resume(self, stream_time: int) -> None:
        """Goes on after a restart."""
        if self.store is not None:
            for key, row in self.store.range():
                (number,) = INPUT.unpack(key)
                if number < len(self.times):
                    self.times[number] = row.value
