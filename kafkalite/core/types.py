"""The values that every room speaks of: partitions, nodes, columns of records.            [P]

Owns   nothing; all of it is immutable data.
Source KIP-98 (offsets), KIP-101 (leader epochs); `Columns` is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from kafkalite.core.columns import joined, where
from kafkalite.core.generics import K_co, V_co

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Headers = tuple[tuple[str, bytes | None], ...]

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
DEFAULT_LISTENER: Final = "PLAINTEXT"
ANONYMOUS: Final = "User:ANONYMOUS"  # the principal of a peer that nobody asked who it is


class TopicPartition(NamedTuple):
    """One log: `orders-3` is partition 3 of topic `orders`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, in the order given."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


def sorted_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The same in the order of names and numbers, in a sixth of the time of sorting the pairs."""
    topics = by_topic(partitions)
    return {topic: sorted(topics[topic]) for topic in sorted(topics)}


class Node(NamedTuple):
    """A broker's id and the address that clients of one of its listeners reach it at."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port} (id {self.node_id})"


class Windowed(NamedTuple, Generic[K_co]):
    """The key of a windowed result. `end` is exclusive for tumbling and hopping windows."""

    key: K_co
    start: int  # epoch ms
    end: int  # epoch ms


@dataclass(frozen=True, slots=True)
class Now:
    """One moment, by the clocks of a broker: `core.broker.clock` says what each is for."""

    wall_ms: int  # epoch ms: stamps, and every time that is durable
    monotonic_ms: int  # of no epoch: sessions, deadlines, intervals
    retention_ms: int  # epoch ms, by which things are old enough to be deleted


@dataclass(frozen=True, slots=True)
class Columns(Generic[K_co, V_co]):
    """A batch of records side by side: the i-th entries of all columns are one record.

    Columns are sequences of equal length: lists, ranges, forms (columns.py). `offsets` is None
    where the records have none yet (they were made, not read); `headers` is None where no record
    of the batch has any, which is the common case and costs nothing.
    """

    keys: Sequence[K_co]
    values: Sequence[V_co]
    timestamps: Sequence[int]  # epoch ms
    offsets: Sequence[int] | None = None
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def where(self, keep: Sequence[object]) -> Columns[K_co, V_co]:
        """The records whose entry in `keep` is truthy, in order."""
        return Columns(
            where(self.keys, keep),
            where(self.values, keep),
            where(self.timestamps, keep),
            None if self.offsets is None else where(self.offsets, keep),
            None if self.headers is None else where(self.headers, keep),
        )

    def slice(self, start: int, stop: int) -> Columns[K_co, V_co]:
        """The records [start, stop)."""
        return Columns(
            self.keys[start:stop],
            self.values[start:stop],
            self.timestamps[start:stop],
            None if self.offsets is None else self.offsets[start:stop],
            None if self.headers is None else self.headers[start:stop],
        )

    def to_arrow(self) -> RecordBatch:
        """The records as an Arrow record batch: key, value, timestamp, offset, headers.

        Keys and values must be bytes or None, as a consumer gives them. Needs pyarrow. With
        `Consumer(as_forms=True)` large batches cost one copy of their bytes.
        """
        from kafkalite.core.arrow import record_batch  # pyarrow is no requirement of ours

        return record_batch(self.keys, self.values, self.timestamps, self.offsets, self.headers)


EMPTY_COLUMNS: Final[Columns] = Columns([], [], [])


def concat(batches: Iterable[Columns]) -> Columns:
    """All records of `batches`, one after the other. Offsets survive when every batch has them."""
    parts = [batch for batch in batches if len(batch)]
    if len(parts) <= 1:
        return parts[0] if parts else EMPTY_COLUMNS
    with_offsets = all(part.offsets is not None for part in parts)
    with_headers = any(part.headers is not None for part in parts)
    return Columns(
        joined([part.keys for part in parts]),
        joined([part.values for part in parts]),
        joined([part.timestamps for part in parts]),
        _join_offsets([part.offsets or () for part in parts]) if with_offsets else None,
        joined([part.headers or [()] * len(part) for part in parts]) if with_headers else None,
    )


def _join_offsets(columns: list[Sequence[int]]) -> Sequence[int]:
    """Offsets without a gap stay a range: nothing is made per record."""
    first, last = columns[0], columns[-1]
    end = first[0]
    for column in columns:
        if not isinstance(column, range) or column.step != 1 or column.start != end:
            return joined(columns)
        end = column.stop
    return range(first[0], last[-1] + 1)


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and its receiver: `token` is the rim's token of the request."""

    token: Any
    response: Any


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """A machine's orders to the rim after a step.

    The rim appends `records`, replays each once the high watermark has passed it, then sends
    `replies` and runs `effects`.
    """

    records: tuple[R, ...] = ()
    replies: tuple[Reply, ...] = ()
    effects: tuple[object, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The other end of a connection: its host, the listener that accepted it, its principal."""

    host: str
    listener: str = DEFAULT_LISTENER
    principal: str = ANONYMOUS


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The client and the API version; `token` is the rim's handle for the answer.

    `listener` is the name of the listener by which the client came in: it is told the addresses
    that are advertised under this name. `principal` is the user that the connection belongs to.
    """

    api_version: int
    client_id: str | None = None
    client_host: str = ""
    token: Any = None
    listener: str = DEFAULT_LISTENER
    principal: str = ANONYMOUS


NOTHING: Final[Outcome[Any]] = Outcome()
