"""A batch on its way through a task: columns of objects and of bytes, and where they are from. [P]

A column is there only when something below needs it. Keys and values that no operator has changed
since their topic keep their bytes (`raw_keys`, `raw_values`), so that stores are keyed by bytes
and a sink with the same serde writes them as they came.

An `Origin` leads from a record of a batch back to the record that was read, and knows which of two
records came first. It is followed on demand: for an error, a `Record`, a dead letter, a merge.

Never  changed after it was made; operators make new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple, Protocol

from kafkalite.core.columns import joined as columns_joined
from kafkalite.core.columns import keeps_all, take, where
from kafkalite.core.types import Columns, Headers


class Place(NamedTuple):
    """A record as it was read from a topic."""

    topic: str
    partition: int
    columns: Columns  # of bytes, as fetched
    at: int  # its index in them

    @property
    def offset(self) -> int:
        """Its offset."""
        offsets = self.columns.offsets
        assert offsets is not None, f"{self.topic}: records without offsets"
        return offsets[self.at]

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.partition}, offset {self.offset}"


class Origin(Protocol):
    """Where the records of a batch are from."""

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """The record that each came from; None where it was not read but made."""

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """The order of each among the records of its run, the lower first: order.py."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Straight from a topic."""

    topic: str
    partition: int
    columns: Columns

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """The records themselves."""
        return [Place(self.topic, self.partition, self.columns, i) for i in indexes]

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """Alike before the first fork, where a batch is one."""
        return [0] * len(indexes)


@dataclass(slots=True)
class Kept:
    """Some records of another batch, by a mask."""

    above: Origin
    keep: Sequence[object]
    _indexes: list[int] | None = None  # of those kept, once somebody has asked

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """Of the records that were kept."""
        return self.above.places(self._above(indexes))

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """Of the records that were kept."""
        return self.above.order(self._above(indexes))

    def _above(self, indexes: Sequence[int]) -> Sequence[int]:
        if (kept := self._indexes) is None:
            kept = self._indexes = list(compress(range(len(self.keep)), self.keep))
        return _at(kept, indexes)


@dataclass(frozen=True, slots=True)
class Taken:
    """Records of another batch, by their indexes there."""

    above: Origin
    indexes: Sequence[int]

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """Of the records that were taken."""
        return self.above.places(_at(self.indexes, indexes))

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """Of the records that were taken."""
        return self.above.order(_at(self.indexes, indexes))


@dataclass(frozen=True, slots=True)
class Made:
    """Not read: updates of a table that several records led to.

    They follow the record at `at` of the batch from `above`; outside a run they follow none.
    """

    above: Origin | None = None
    at: int = 0

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """No single records."""
        return [None] * len(indexes)

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """All at the moment of the record that they follow."""
        (moment,) = [0] if self.above is None else self.above.order([self.at])
        return [moment] * len(indexes)


@dataclass(frozen=True, slots=True)
class Led:
    """Not read: rows that were held back, until the records at `indexes` of another batch came."""

    above: Origin
    indexes: Sequence[int]

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """No single records."""
        return [None] * len(indexes)

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """That of the records that let them go."""
        return self.above.order(_at(self.indexes, indexes))


def _at(known: Sequence[int], indexes: Sequence[int]) -> Sequence[int]:
    """The numbers at some indexes."""
    return known if indexes == range(len(known)) else take(known, indexes)


MADE: Origin = Made()


@dataclass(frozen=True, slots=True)
class Delivered:
    """Read in an earlier run: they come back from calls, and begin a run of their own."""

    above: Origin

    def places(self, indexes: Sequence[int]) -> list[Place | None]:
        """As before."""
        return self.above.places(indexes)

    def order(self, indexes: Sequence[int]) -> Sequence[int]:
        """Alike before the first fork, as records that were just read."""
        return [0] * len(indexes)


@dataclass(slots=True, eq=False)
class Batch:
    """Records side by side. Columns that are not needed are None, those that are have one length.

    `olds`: of a table's updates, the rows they replace. `headers` None: no record has any.
    `times`: the stream time by which each record is judged; None: that of whoever judges.
    `latest`: of a versioned table's updates, whether no newer one of their key came before; None:
    all are.
    """

    timestamps: Sequence[int]
    origin: Origin
    keys: Sequence[Any] | None = None
    raw_keys: Sequence[bytes | None] | None = None
    values: Sequence[Any] | None = None
    raw_values: Sequence[bytes | None] | None = None
    olds: Sequence[Any] | None = None
    headers: Sequence[Headers] | None = None
    times: Sequence[int] | None = None
    latest: Sequence[bool] | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    def where(self, mask: Sequence[object]) -> Batch:
        """The records whose entry in the mask is true."""
        if keeps_all(mask):
            return self
        return self._each(lambda column: where(column, mask), Kept(self.origin, mask))

    def take(self, indexes: Sequence[int]) -> Batch:
        """The records at `indexes`, in that order; one may come several times."""
        return self._each(lambda column: take(column, indexes), Taken(self.origin, indexes))

    def slice(self, start: int, stop: int) -> Batch:
        """The records [start, stop)."""
        if start == 0 and stop == len(self):
            return self
        return self._each(lambda column: column[start:stop], Taken(self.origin, range(start, stop)))

    def _each(self, change: Callable[[Sequence[Any]], Sequence[Any]], origin: Origin) -> Batch:
        raw_keys = None if self.raw_keys is None else change(self.raw_keys)
        raw_values = None if self.raw_values is None else change(self.raw_values)
        # Bytes that are their own objects stand in two places and are changed once.
        if self.keys is None or self.keys is self.raw_keys:
            keys = self.keys and raw_keys
        else:
            keys = change(self.keys)
        if self.values is None or self.values is self.raw_values:
            values = self.values and raw_values
        else:
            values = change(self.values)
        olds = None if self.olds is None else change(self.olds)
        headers = None if self.headers is None else change(self.headers)
        timestamps = change(self.timestamps)
        times = None if self.times is None else change(self.times)
        latest = None if self.latest is None else change(self.latest)
        return Batch(timestamps, origin, keys, raw_keys, values, raw_values, olds, headers, times,
                     latest)  # fmt: skip

    def latest_ones(self) -> Batch:
        """The updates that are the latest of their keys."""
        return self if self.latest is None else self.where(self.latest)

    def nulls(self) -> Sequence[Any]:
        """A column that is None where the value is: the objects, or else the bytes."""
        column = self.raw_values if self.values is None else self.values
        assert column is not None
        return column


def joined(batches: Sequence[Batch]) -> Batch:
    """Updates of tables, one after the other. They follow no record."""
    if len(batches) == 1:
        return batches[0]

    def join(columns: list[Sequence[Any] | None]) -> Sequence[Any] | None:
        there = [column for column in columns if column is not None]
        return columns_joined(there) if there else None

    headers = None
    if any(batch.headers is not None for batch in batches):
        headers = join([batch.headers or [()] * len(batch) for batch in batches])
    return Batch(
        columns_joined([batch.timestamps for batch in batches]),
        MADE,
        join([batch.keys for batch in batches]),
        join([batch.raw_keys for batch in batches]),
        join([batch.values for batch in batches]),
        None,
        join([batch.olds for batch in batches]),
        headers,
    )


Push = Callable[[Batch], None]


@dataclass(frozen=True, slots=True)
class Output:
    """Records for a topic, as bytes. `partitions` None: by the hash of the key.

    `sink` is the operator that wrote them; sinks of equal serdes share a name. `order` is filled
    where several sinks write one topic. With `partition` all go there, `markers` of them no
    records but watermarks.
    """

    topic: str
    columns: Columns
    partitions: Sequence[int] | None
    sink: str = ""
    order: Sequence[int] = ()
    partition: int | None = None
    markers: int = 0
