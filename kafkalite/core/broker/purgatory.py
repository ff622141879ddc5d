"""Requests that wait: for bytes, for replicas; each until its deadline.                      [P]

An operation names the keys (partitions) that it waits for, and decides with each event on one of
them whether it is complete. An operation leaves once: complete, expired or cancelled.

Owns   the operations by key, and the heap of deadlines.
Never  reads a clock or answers a request: it hands operations back.
Fails  not at all; `park` refuses when `capacity` operations wait, and the caller answers at once.
Source KAFKA-1430 ("purgatory redesign"); apache/kafka `DelayedOperationPurgatory`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)

CAPACITY: Final = 100_000
# Finished operations that the heap may hold beyond the live ones, with their answers: with more of
# them, each new one is made where the processor's caches have nothing.
STALE_MAX: Final = 32


class Operation(Protocol[K_contra]):
    """Something that waits. Identity matters, so two equal operations are still two."""

    @property
    def token(self) -> Any:
        """The rim's handle for the answer."""

    def advance(self, key: K_contra, high_watermark: int, bytes_added: int) -> bool:
        """Takes note that `key` moved on; True once nothing more is waited for."""

    def lose(self, key: K_contra) -> bool:
        """Takes note that nothing more will come of `key`; True once nothing more is waited for."""


@dataclass(slots=True, eq=False)
class DelayedFetch(Generic[K_contra]):
    """A fetch that found too little: complete once `bytes_missing` more can be read."""

    token: Any
    bytes_missing: int

    def advance(self, key: K_contra, high_watermark: int, bytes_added: int) -> bool:
        """Counts the bytes that became readable."""
        self.bytes_missing -= bytes_added
        return self.bytes_missing <= 0

    def lose(self, key: K_contra) -> bool:
        """What there is, is answered."""
        return True


@dataclass(slots=True, eq=False)
class DelayedProduce(Generic[K]):
    """An acks=all produce: complete once each high watermark has passed its last record, or never
    will. `acknowledges` is asked about each partition at that moment."""

    token: Any
    offsets_wanted: dict[K, int]  # key -> the high watermark that acknowledges it
    acknowledges: Callable[[K], bool] | None = None
    lost: set[K] = field(default_factory=set)  # whose records nobody vouches for

    def advance(self, key: K, high_watermark: int, bytes_added: int) -> bool:
        """Drops the partitions whose records are replicated."""
        wanted = self.offsets_wanted.get(key)
        if wanted is not None and high_watermark >= wanted:
            del self.offsets_wanted[key]
            if self.acknowledges is not None and not self.acknowledges(key):
                self.lost.add(key)
        return not self.offsets_wanted

    def lose(self, key: K) -> bool:
        """Drops a partition that is led elsewhere, gone or broken: the others are waited for."""
        if self.offsets_wanted.pop(key, None) is not None:
            self.lost.add(key)
        return not self.offsets_wanted


@dataclass(slots=True, eq=False)
class DelayedDeletion(Generic[K]):
    """A DeleteRecords: complete once every live replica has given the records up. `low_watermark`
    is the smallest log start of a partition's live replicas."""

    token: Any
    offsets_wanted: dict[K, int]  # key -> the low watermark that is waited for
    low_watermark: Callable[[K], int]
    lost: set[K] = field(default_factory=set)  # led elsewhere by now

    def advance(self, key: K, high_watermark: int, bytes_added: int) -> bool:
        """Drops the partition if its replicas have followed."""
        wanted = self.offsets_wanted.get(key)
        if wanted is not None and self.low_watermark(key) >= wanted:
            del self.offsets_wanted[key]
        return not self.offsets_wanted

    def lose(self, key: K) -> bool:
        """Drops a partition that this broker leads no more."""
        if self.offsets_wanted.pop(key, None) is not None:
            self.lost.add(key)
        return not self.offsets_wanted


@dataclass(slots=True)
class Purgatory(Generic[K]):
    """The waiting room of one broker."""

    capacity: int = CAPACITY
    _keys: dict[Operation[K], tuple[K, ...]] = field(default_factory=dict)
    _waiting: dict[K, dict[Operation[K], None]] = field(default_factory=dict)  # in order of arrival
    _deadlines: list[tuple[int, int, Operation[K]]] = field(default_factory=list)
    _arrivals: int = 0

    def __len__(self) -> int:
        return len(self._keys)

    def waits_on(self, key: K) -> bool:
        """Whether anything waits on `key`: the cheap question before `advance`."""
        return key in self._waiting

    def park(self, operation: Operation[K], keys: Iterable[K], deadline_ms: int) -> bool:
        """Lets `operation` wait for events on `keys`; False, and nothing happens, when full."""
        if len(self._keys) >= self.capacity:
            return False
        self._keys[operation] = watched = tuple(keys)
        for key in watched:
            self._waiting.setdefault(key, {})[operation] = None
        self._arrivals += 1
        heappush(self._deadlines, (deadline_ms, self._arrivals, operation))
        return True

    def advance(self, key: K, high_watermark: int, bytes_added: int = 0) -> list[Operation[K]]:
        """Advances the operations that wait on `key`. Returns the complete ones."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return []
        done = [each for each in waiting if each.advance(key, high_watermark, bytes_added)]
        for operation in done:
            self.cancel(operation)
        return done

    def drop(self, key: K) -> list[Operation[K]]:
        """Ends what waits on `key`, which is going away (leadership lost, deleted, broken). Returns
        the operations that wait for nothing else."""
        done = [each for each in self._waiting.get(key, ()) if each.lose(key)]
        for operation in done:
            self.cancel(operation)
        return done

    def cancel(self, operation: Operation[K]) -> bool:
        """Forgets `operation`, as when its connection is gone; False if it had already left."""
        keys = self._keys.pop(operation, None)
        if keys is None:
            return False
        for key in keys:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.pop(operation, None)
                if not waiting:
                    del self._waiting[key]
        if len(self._deadlines) > 2 * len(self._keys) + STALE_MAX:
            self._forget_stale_deadlines()
        return True

    def expire(self, now_ms: int) -> list[Operation[K]]:
        """The operations whose deadline has passed, earliest deadline first."""
        expired: list[Operation[K]] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            operation = heappop(self._deadlines)[2]
            if self.cancel(operation):
                expired.append(operation)
        return expired

    def next_deadline_ms(self) -> int | None:
        """When `expire` has work to do; None while nothing waits."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2] not in self._keys:
            heappop(deadlines)  # complete long before its deadline, as most are
        return deadlines[0][0] if deadlines else None

    def waiting(self) -> Mapping[Operation[K], tuple[K, ...]]:
        """All that waits, with its keys."""
        return self._keys

    def _forget_stale_deadlines(self) -> None:
        """Keeps the heap in proportion to what waits."""
        self._deadlines = [entry for entry in self._deadlines if entry[2] in self._keys]
        heapify(self._deadlines)
