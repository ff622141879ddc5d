"""The stores that processors work with, over rows in the order of their keys.             [P]

    store             key of a row
    key-value         the key's bytes
    with retention    segment, the key's bytes, timestamp

A segment is a quarter of the retention, by its first timestamp: a range of rows is a key's values
within one segment, and what has expired goes a segment at a time. So there is at most a quarter
more than is to be seen.

A value is the user's own: dicts, lists and sets are copied on their way in and out, so that a
change in place changes no row, as in Kafka Streams, where every value is read from bytes.

Owns   the form of the rows' keys, and the newest timestamp of a store with retention.
Fails  with TypeError or ValueError for keys and timestamps that a row cannot have, with SerdeError
       for keys that their serde does not write.
Source Kafka Streams' KeyValueStore, InMemoryWindowStore, RocksDBWindowStore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from kafkalite.serde.serde import Codec
from kafkalite.streams.local.sharing import copied
from kafkalite.streams.local.state.forms import START, START_BYTES
from kafkalite.streams.local.state.ordered import RESERVED_KEY, OrderedStore

SEGMENTS: Final = 4  # of the retention
LAST: Final = (1 << 63) - 1  # timestamp


class Keys:
    """A store's keys: objects and bytes."""

    def __init__(self, store: OrderedStore, codec: Codec) -> None:
        self._name, self._topic = store.name, store.changelog_topic
        self._codec = codec

    def encode(self, key: Any) -> bytes:
        """The bytes of a key."""
        (data,) = self._codec.serialize(self._topic, [key])
        if data is None:
            raise TypeError(f"store {self._name!r}: None is no key")
        if data == RESERVED_KEY:
            raise ValueError(f"store {self._name!r}: the key {data!r} is reserved")
        return data

    def decode(self, data: bytes) -> Any:
        """The key of these bytes."""
        return self._codec.deserialize(self._topic, [data])[0]


class KeyValueView:
    """A store without retention, to look into."""

    def __init__(self, rows: OrderedStore, keys: Keys) -> None:
        self._rows = rows
        self._keys = keys

    def get(self, key: Any) -> Any:
        """The value of a key, None when there is none."""
        row = self._rows.get(self._keys.encode(key))
        return None if row is None else copied(row.value)

    def range(
        self, start: Any = None, end: Any = None, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """The pairs with keys from `start` to `end`, both included; None: no bound."""
        low = b"" if start is None else self._keys.encode(start)
        high = None if end is None else self._keys.encode(end) + b"\x00"
        for key, row in self._rows.range(low, high, reverse=reverse):
            yield self._keys.decode(key), copied(row.value)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Every pair."""
        return self.range()

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._rows)


class KeyValues(KeyValueView):
    """The same for a processor. `stamp` gives the time of a change, for the changelog."""

    def __init__(self, rows: OrderedStore, keys: Keys, stamp: Callable[[], int]) -> None:
        super().__init__(rows, keys)
        self._stamp = stamp

    def put(self, key: Any, value: Any) -> None:
        """Puts a value, whatever there was; None deletes."""
        data = self._keys.encode(key)
        if value is None:
            self._rows.delete(data, self._stamp())
        else:
            self._rows.put(data, copied(value), self._stamp())

    def delete(self, key: Any) -> Any:
        """Deletes a value and returns it."""
        data = self._keys.encode(key)
        row = self._rows.get(data)
        if row is not None:
            self._rows.delete(data, self._stamp())
        return None if row is None else row.value


class WindowView:
    """A store with retention, to look into."""

    def __init__(
        self,
        rows: OrderedStore,
        keys: Keys,
        retention_ms: int,
        of: WindowView | None = None,
    ) -> None:
        self._of = of
        self._rows = rows
        self._keys = keys
        self._retention_ms = retention_ms
        self._segment_ms = max(1, retention_ms // SEGMENTS)
        self._newest = -1  # of the timestamps that came in since the start

    @property
    def newest(self) -> int:
        """The newest of all timestamps that came in; -1: none did."""
        return max(self._newest, self._rows.newest) if self._of is None else self._of.newest

    def get(self, key: Any, timestamp: int) -> Any:
        """The value of a key at exactly that time."""
        return next((value for _, value in self.fetch(key, timestamp, timestamp)), None)

    def fetch(self, key: Any, start: int, end: int) -> Iterator[tuple[int, Any]]:
        """The (timestamp, value) pairs of a key from `start` to `end`, both included."""
        data = self._keys.encode(key)
        first, last = max(start, self._oldest), min(end, self.newest)
        length = len(data) + 2 * START_BYTES  # keys that begin with this one stand between
        for segment in range(self._segment(first), last + 1, self._segment_ms):
            prefix = START.pack(segment) + data
            low, high = prefix + START.pack(first), prefix + START.pack(last) + b"\x00"
            for place, row in self._rows.range(low, high):
                if len(place) == length:
                    yield self._time(place), copied(row.value)

    def all(self) -> Iterator[tuple[tuple[Any, int], Any]]:
        """Every ((key, timestamp), value), in the order of keys and times."""
        oldest = self._oldest
        found = [
            (place[START_BYTES:-START_BYTES], time, row.value)
            for place, row in self._rows.range(START.pack(self._segment(oldest)))
            if (time := self._time(place)) >= oldest
        ]
        for key, time, value in sorted(found, key=lambda each: each[:2]):
            yield (self._keys.decode(key), time), copied(value)

    def __len__(self) -> int:
        """How many values there are."""
        return sum(1 for _ in self.all())

    @property
    def _oldest(self) -> int:
        """The oldest timestamp that is still to be seen."""
        return max(0, self.newest - self._retention_ms + 1)

    def _segment(self, timestamp: int) -> int:
        return timestamp - timestamp % self._segment_ms

    @staticmethod
    def _time(place: bytes) -> int:
        time: int = START.unpack_from(place, len(place) - START_BYTES)[0]
        return time


class Windows(WindowView):
    """The same for processors, one object for all. `dropped` hears of values that came too late."""

    def __init__(
        self, rows: OrderedStore, keys: Keys, retention_ms: int, dropped: Callable[[], None]
    ) -> None:
        super().__init__(rows, keys, retention_ms)
        self._dropped = dropped

    def put(self, key: Any, value: Any, timestamp: int) -> None:
        """Puts a value, whatever there was at that time; None deletes."""
        if type(timestamp) is not int or not 0 <= timestamp < LAST:
            raise ValueError(f"timestamp {timestamp!r} is no epoch time in milliseconds")
        data = self._keys.encode(key)
        if timestamp > self.newest:
            self.advance(timestamp)
        elif timestamp < self._oldest:
            self._dropped()
            return
        place = START.pack(self._segment(timestamp)) + data + START.pack(timestamp)
        if value is None:
            self._rows.delete(place, timestamp)
        else:
            self._rows.put(place, copied(value), timestamp)

    def view(self) -> WindowView:
        """The store to look into."""
        return WindowView(self._rows, self._keys, self._retention_ms, self)

    def advance(self, newest: int) -> None:
        """Goes on to a newer timestamp: segments that nobody can see any more are deleted."""
        before = self._segment(self._oldest)
        self._newest = max(self._newest, newest)
        if (segment := self._segment(self._oldest)) > before:
            self._rows.delete_range(b"", START.pack(segment), self.newest)
