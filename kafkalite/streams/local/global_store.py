"""A global table's rows in one worker: the latest of each key of a whole topic.            [P]

    take       a batch of one of the topic's partitions, and where its reader is behind it
    rows       the rows of keys, as objects
    view       the table as users look into it

Rows are bytes in a backend, in memory or on disk. Objects are made of those that are looked at,
and of up to OBJECTS_MAX of them kept. There is no changelog: the topic is it. A backend on disk
keeps with its rows up to where it has read each partition, and of which topic.

Every record's key and value are read once when they come, so that an error names its offset.

Owns   the rows, the offsets, and what was dropped.
Fails  with ProcessingError for a record that its serdes do not read, or leaves it out as the error
       policy says. With TopologyError where the rows on disk are those of another topic of this
       name.
Source Kafka Streams' GlobalStateManagerImpl, GlobalStateUpdateTask.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice, repeat
from operator import is_not
from typing import Any, Final

from kafkalite.core.columns import has_nulls, objects
from kafkalite.core.types import Columns
from kafkalite.errors import TopologyError
from kafkalite.serde.registry import SchemaRegistry
from kafkalite.serde.serde import Codec, SerdeContext
from kafkalite.streams import plan as p
from kafkalite.streams.local.batch import Fetched
from kafkalite.streams.local.drops import Drops, Reason
from kafkalite.streams.local.failures import DROPPED, UNKNOWN, Failures, convert
from kafkalite.streams.local.sharing import copied
from kafkalite.streams.local.state.backend import Backend
from kafkalite.streams.local.state.forms import read_rows, write_rows
from kafkalite.streams.local.state.memory import MemoryBackend

FORMAT: Final = b"1"
OBJECTS_MAX: Final = 100_000
PAGE_ROWS: Final = 100  # that are decoded at a time
DELETIONS_STAY_MS: Final = 24 * 3_600_000  # delete.retention.ms, where the topic is compacted


@dataclass(frozen=True, slots=True)
class Extent:
    """What a partition of the topic holds: from the first offset up to, not with, the end."""

    beginning: int
    end: int


class GlobalStore:
    """One global table of one worker, or of the test driver."""

    def __init__(
        self,
        node: p.GlobalSource,
        plan: p.Plan,
        registry: SchemaRegistry | None,
        backend: Backend,
        drops: Drops | None = None,
    ) -> None:
        self.node = node
        (self.topic,) = node.topics
        self.metrics: Counter[str] = Counter()
        self.offsets: dict[int, int] = _read_offsets(backend.metadata("offsets"))
        self._backend = backend
        self._drops = drops or Drops()
        self._keys: Codec = node.key.open(SerdeContext(registry, True))
        self._values: Codec = node.value.open(SerdeContext(registry, False))
        self._objects: dict[bytes | None, Any] = {}
        # Every worker reads every record, at every start: nobody wants so many letters.
        policy: p.OnError = "skip" if plan.on_error == "dlq" else plan.on_error
        self._plan = replace(plan, on_error=policy)

    def copied(self) -> GlobalStore:
        """The same rows in memory, to go on alone."""
        twin = copy(self)
        twin._backend = MemoryBackend()
        twin._backend.put_many(dict(self._backend.range()))
        twin._objects, twin.offsets = {}, dict(self.offsets)
        twin.metrics = Counter(self.metrics)
        return twin

    def __str__(self) -> str:
        return f"global table {self.node.name!r} of topic {self.topic!r}"

    # Where the rows are from

    def begin(self, topic_id: object, extents: Mapping[int, Extent], now_ms: int) -> str | None:
        """Decides from where each partition is read; the reason if the rows on disk are of no use.

        Called before the first `take`, with all partitions that the topic has.
        """
        reason = self._why_useless(str(topic_id), extents, now_ms)
        if reason is not None:
            self._backend.clear()
            self._objects.clear()
            self.offsets = {}
        self._backend.put_many({}, {"identity": str(topic_id).encode(), "format": FORMAT})
        for partition, extent in extents.items():
            self.offsets.setdefault(partition, extent.beginning)
        return reason

    def go_on(self, extents: Mapping[int, Extent]) -> str | None:
        """As `begin`, of a table that is in use: its rows stay; words for what was missed."""
        missed = []
        for partition, extent in extents.items():
            at = self.offsets.setdefault(partition, extent.beginning)
            if not extent.beginning <= at <= extent.end:
                self.offsets[partition] = min(max(at, extent.beginning), extent.end)
                missed.append(f"{self.topic}-{partition} from offset {at}")
        return f"records are gone before they were read: {', '.join(missed)}" if missed else None

    def _why_useless(self, topic_id: str, extents: Mapping[int, Extent], now_ms: int) -> str | None:
        known = self._backend.metadata("identity")
        if known is None:
            return None if self._backend.is_empty else "it was never finished"
        if self._backend.metadata("format") != FORMAT:
            return "another version of kafkalite wrote it"
        if known.decode() != topic_id:
            raise TopologyError(
                f"{self}: the topic was deleted and created again (its topic id is {topic_id}, the "
                f"rows in {self._backend} are of {known.decode()}): the rows that it had are "
                "lost. Remove that directory to go on with what the new topic has"
            )
        is_old = now_ms - int(self._backend.metadata("written") or 0) > DELETIONS_STAY_MS
        for partition, offset in self.offsets.items():
            if (extent := extents.get(partition)) is None or offset > extent.end:
                return f"it is at offset {offset} of partition {partition}, behind its end"
            if offset < extent.beginning:
                return f"it is at offset {offset} of partition {partition}, before its beginning"
            if offset < extent.end and is_old:
                return "it is older than deletions stay in the topic"
        return None

    # Records

    def take(self, partition: int, columns: Columns, position: int, now_ms: int) -> None:
        """Takes over a batch of a partition; `position` is behind it."""
        columns = self._readable(partition, columns)
        keys: list[bytes] = objects(columns.keys)
        found = Columns(keys, objects(columns.values), columns.timestamps)
        rows = dict(zip(keys, write_rows(found), strict=True))
        self.offsets[partition] = position
        offsets = json.dumps(self.offsets).encode()
        self._backend.put_many(rows, {"offsets": offsets, "written": b"%d" % now_ms})
        for key in rows:
            self._objects.pop(key, None)

    def _readable(self, partition: int, columns: Columns) -> Columns:
        """The records with a key that the serdes read."""
        if has_nulls(columns.keys):
            keep = list(map(is_not, columns.keys, repeat(None)))
            dropped = len(keep) - sum(keep)
            self.metrics[DROPPED] += dropped
            self._drops.add(Reason.NULL_KEY, self.node.name, dropped)
            columns = columns.where(keep)
        failed: dict[int, Exception] = {}

        def note(index: int, error: Exception) -> None:
            failed.setdefault(index, error)

        convert(self._keys.deserialize, self.topic, columns.keys, note)
        convert(self._values.deserialize, self.topic, columns.values, note)
        if not failed:
            return columns
        fetched = Fetched(self.topic, partition, columns)
        failures = Failures(
            self._plan, partition, self.metrics, [], self._drops, {}, lambda *_: UNKNOWN
        )
        for index, error in sorted(failed.items()):
            failures.handle(self.node, error, fetched.places([index])[0])
        return columns.where([index not in failed for index in range(len(columns))])

    def forget(self) -> None:
        """Drops all rows; every partition is to be read from its beginning."""
        self._backend.clear()
        self._objects.clear()
        self.offsets = {}

    # Looking

    def key_bytes(self, keys: Sequence[Any]) -> Sequence[bytes | None]:
        """The bytes of keys. SerdeError, with its index, for one that is none of this table's."""
        return self._keys.serialize(self.topic, keys)

    def rows(self, keys: Sequence[bytes | None]) -> list[Any]:
        """The row of each key; None where there is none, as of a key that is None."""
        known = self._objects
        if len(known) > OBJECTS_MAX:
            known.clear()
        missing = [key for key in dict.fromkeys(keys) if key is not None and key not in known]
        if missing:
            known.update(zip(missing, self._read(missing), strict=True))
        return list(map(known.get, keys))

    def _read(self, keys: Sequence[bytes]) -> list[Any]:
        """The rows of keys that are no objects yet."""
        found = self._backend.get_many(keys)
        there = [(key, row) for key, row in zip(keys, found, strict=True) if row is not None]
        values = self._decoded(there)
        return list(map(dict(values).get, keys))

    def _decoded(self, rows: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, Any]]:
        if not rows:
            return []
        keys = [key for key, _ in rows]
        values = read_rows(keys, [row for _, row in rows]).values
        return list(zip(keys, self._values.deserialize(self.topic, values), strict=True))

    def pairs(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs with low <= key's bytes <= high, in the order of those bytes."""
        there = self._backend.range(low, None if high is None else high + b"\0")
        while some := list(islice(there, PAGE_ROWS)):
            rows = self._decoded(some)
            keys = self._keys.deserialize(self.topic, [key for key, _ in rows])
            yield from zip(keys, (value for _, value in rows), strict=True)

    def count(self) -> int:
        """How many rows there are."""
        return sum(1 for _ in self._backend.range())

    def view(self) -> GlobalView:
        """The table as users look into it."""
        return GlobalView(self)


class GlobalView:
    """A global table to look into: decoded keys and rows, in the order of the keys' bytes."""

    def __init__(self, store: GlobalStore) -> None:
        self._store = store

    def get(self, key: Any) -> Any:
        """The row of a key, None when there is none."""
        return copied(self._store.rows([self._bytes(key)])[0])

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Every (key, row)."""
        return self._store.pairs()

    def range(self, start: Any = None, end: Any = None) -> Iterator[tuple[Any, Any]]:
        """The (key, row) pairs with keys from `start` to `end`, both included; None: no bound."""
        low = b"" if start is None else self._bytes(start)
        return self._store.pairs(low, None if end is None else self._bytes(end))

    def fetch(self, key: Any, start: int, end: int) -> Iterator[tuple[Any, Any]]:
        """There are no windows."""
        raise TopologyError(f"{self._store} has no windows to fetch from")

    def __len__(self) -> int:
        """How many rows there are."""
        return self._store.count()

    def _bytes(self, key: Any) -> bytes:
        (data,) = self._store.key_bytes([key])
        if data is None:
            raise TopologyError(f"{self._store}: None is no key")
        return data


def _read_offsets(kept: bytes | None) -> dict[int, int]:
    found = {} if kept is None else json.loads(kept)
    return {int(partition): int(offset) for partition, offset in found.items()}
