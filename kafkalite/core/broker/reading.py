"""The partitions of one reader, and which of them it must look at again.                    [P]

    asked ──look──> stale: had records, or an error; the next look is at it too
               └──> watched: nothing to read; left alone until the partition says that it changed

Watched partitions have no records and take no room in the answer, so a look without them has the
same result as a look at everything. So an answer costs time for the changed partitions, not for
all. A reading without a session lasts from its request to
its answer; one in a session as long as the session.

Owns   the order of the partitions, and their news that the reader does not have yet.
Never  reads a partition. Never answers: a reading that is parked hands its operation back.
Source KIP-227; apache/kafka `FetchContext`, `DelayedFetch`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from kafkalite.core.broker.purgatory import Operation
from kafkalite.core.protocol.fetch import FetchPartition, PartitionData
from kafkalite.core.types import TopicPartition

LONG_AGO_MS: Final = -(1 << 62)
Key = tuple[str | bytes, int]  # the topic by name or by id, as the reader calls it; the partition
Parked: TypeAlias = Operation[TopicPartition]


class Asked(NamedTuple):
    """One partition that is to be read. `topic` is None while no topic has the id."""

    topic: str | None
    topic_id: UUID  # zero where the reader calls topics by their names
    partition: FetchPartition


class Watched(Protocol):
    """A partition that calls its readers once it has changed."""

    topic_partition: TopicPartition
    watchers: dict[Any, None]
    followers: dict[Any, None]


class Replica(NamedTuple):
    """The broker whose followers read, in one of its lives."""

    node_id: int
    broker_epoch: int


class Reading:
    """The partitions that one reader reads; a poll without a session makes one each time."""

    __slots__ = (
        "_complete",
        "_is_over",
        "_isolation_level",
        "_next_place",
        "_parked",
        "_places",
        "_stale",
        "_watched",
        "answered_ms",
        "asked",
        "confirmed_ms",
        "fetched_ms",
        "found",
        "has_changed",
        "replica",
    )

    def __init__(
        self, asked: dict[Key, Asked], replica: Replica | None = None, now_ms: int = 0
    ) -> None:
        self.asked = asked  # in the order to read them
        self.replica = replica  # None: a consumer reads
        self.fetched_ms = now_ms  # when it was last asked for records
        self.answered_ms = self.confirmed_ms = LONG_AGO_MS  # `confirmed`
        self.found: dict[Key, PartitionData] = {}  # by looks since the last answer
        self._stale: set[Key] | None = None  # to be looked at; None: everything
        self._places: dict[Key, int] | None = None  # the order of `asked`, once it matters
        self._next_place = 0
        self._isolation_level = 0  # of the last look
        self._watched: dict[Watched, Key] = {}
        self._parked: Parked | None = None
        self._complete: Callable[[Parked], None] | None = None
        self._is_over = False
        self.has_changed = False  # while nobody waited, since it was last set to False

    @property
    def replica_id(self) -> int:
        """The broker whose followers read."""
        return -1 if self.replica is None else self.replica.node_id

    def confirmed(self) -> None:
        """The next request of a session has come: the reader has had the last answer, and goes on.

        When that answer left is all that is known of the time at which the request did: it may
        have waited for a broker that was paused.
        """
        self.confirmed_ms = self.answered_ms

    # -- what is asked

    def ask(self, key: Key, asked: Asked) -> None:
        """Asks for a partition, after the others if it is new."""
        if key not in self.asked:
            self._put_last(key)
        self.asked[key] = asked
        if self._stale is not None:
            self._stale.add(key)

    def forget(self, key: Key) -> None:
        """Asks for a partition no more."""
        if self.asked.pop(key, None) is not None:
            self.found.pop(key, None)
            if self._stale is not None:
                self._stale.discard(key)
            if self._places is not None:
                del self._places[key]

    def move_to_end(self, key: Key) -> None:
        """The others come first the next time."""
        self.asked[key] = self.asked.pop(key)
        self._put_last(key)

    def _put_last(self, key: Key) -> None:
        if self._places is not None:
            self._places[key] = self._next_place
            self._next_place += 1

    def look_at_all(self) -> None:
        """The next look is at all partitions."""
        self._stale = None

    # -- what was found

    def stale(self, isolation_level: int) -> Collection[Key]:
        """The partitions to look at now, in order. `looked` must follow with the result."""
        if isolation_level != self._isolation_level:
            self._isolation_level, self._stale = isolation_level, None
        if self._stale is None:
            return self.asked.keys()
        return self.in_order(self._stale)

    def unsettled(self) -> Collection[Key]:
        """The partitions of the next look, in any order, failed ones included."""
        return self.asked.keys() if self._stale is None else self._stale

    def must_look_only_at(self, key: Key) -> bool:
        """Whether the next look is at this partition, and at no other."""
        stale = self._stale
        return stale is not None and len(stale) == 1 and key in stale

    def looked(self, still_stale: set[Key]) -> None:
        """All stale partitions were looked at; the next look must be at `still_stale` of them."""
        self._stale = still_stale

    def begin_look(self, isolation_level: int) -> Sequence[Key]:
        """The same for a look that takes several turns of the loop: `looked_at` follows each time.

        What changes after it was looked at is stale again, and `has_changed` says so.
        """
        keys = tuple(self.stale(isolation_level))
        if self._stale is None:
            self._stale = set(keys)
        self.has_changed = False
        return keys

    def looked_at(self, keys: Sequence[Key], still_stale: set[Key]) -> None:
        """`keys` were looked at just now; the next look must be at `still_stale` of them."""
        if self._stale is not None:
            self._stale.difference_update(keys)
            self._stale |= still_stale

    def watch(self, partition: Watched, key: Key) -> None:
        """`partition` was read: it says once when it has changed."""
        if not self._is_over:
            self._watched[partition] = key
            (partition.watchers if self.replica is None else partition.followers)[self] = None

    def changed(self, partition: Watched, byte_count: int) -> bool:
        """`partition` has changed, and has `byte_count` bytes more to read. True if this reading
        needs the next change too, because it waits for more bytes."""
        key = self._watched[partition]
        if key in self.asked:
            if self._stale is not None:
                self._stale.add(key)
            parked, complete = self._parked, self._complete
            if parked is not None and complete is not None:
                if not parked.advance(partition.topic_partition, 0, byte_count):
                    return True
                self._parked = self._complete = None
                complete(parked)
            else:
                self.has_changed = True
        del self._watched[partition]
        return False

    def still_asks(self, partition: Watched) -> bool:
        """Whether the reader asks for a partition that is watched for it."""
        return self._watched.get(partition) in self.asked

    def in_order(self, keys: Collection[Key]) -> Collection[Key]:
        """These of the reader's partitions, in the order to read them."""
        if len(keys) < 2:
            return tuple(keys)
        if self._places is None:
            self._places = dict(zip(self.asked, range(len(self.asked)), strict=True))
            self._next_place = len(self.asked)
        return sorted(keys, key=self._places.__getitem__)

    # -- who waits

    def park(self, parked: Parked, complete: Callable[[Parked], None]) -> None:
        """Calls `complete` once the bytes that `parked` waits for have come. Records found so far
        are released, as they hold their file; they are read again then."""
        self._parked, self._complete = parked, complete
        for key in self._stale or ():
            self.found.pop(key, None)

    def wake(self) -> None:
        """Completes the operation that waits, if there is one."""
        parked, complete = self._parked, self._complete
        self._parked = self._complete = None
        if parked is not None and complete is not None:
            complete(parked)

    def unpark(self) -> None:
        """Ends the wait of `parked`."""
        self._parked = self._complete = None
        if self._is_over:
            self.end()

    def end(self) -> None:
        """Ends the reading, unless an operation still waits. A last look is at everything."""
        self._is_over = True
        if self._parked is None:
            self._stale = None
            for partition in self._watched:
                partition.watchers.pop(self, None)
                partition.followers.pop(self, None)
            self._watched.clear()
