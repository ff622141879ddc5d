"""Many deadlines of which most are put off before they fall due.                           [P]

Every heartbeat puts off a deadline, so that must cost next to nothing: only the time is noted, and
the heap keeps its old, earlier entry. When that entry comes up it is put back at the noted time.

    times      key -> its deadline                         the truth
    queued     key -> the time of its one valid heap entry, never after `times[key]`
    heap       (time, number, key)                         valid if `queued` agrees, else left over

Owns   keys and times.
Never  reads a clock. Holds more than twice as many heap entries as keys, and a few.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LEFT_OVER_MIN: Final = 64


class Deadlines(Generic[K]):
    """A set of keys, each with the time at which it is due, in ms."""

    __slots__ = ("_heap", "_number", "_queued", "_times")

    def __init__(self) -> None:
        self._times: dict[K, int] = {}
        self._queued: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._number = 0  # of heap entries ever made: keys of one time come in order

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, key: K) -> bool:
        return key in self._times

    def set(self, key: K, time_ms: int) -> None:
        """Makes `key` due at `time_ms`, whether it had a deadline or not."""
        self._times[key] = time_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or time_ms < queued_ms:
            self._queue(key, time_ms)

    def cancel(self, key: K) -> None:
        """Takes `key` out, if it is there."""
        if self._times.pop(key, None) is not None:
            del self._queued[key]
            self._tidy()

    def time(self, key: K) -> int | None:
        """When `key` is due; None if it is not there."""
        return self._times.get(key)

    def next_ms(self) -> int | None:
        """No key is due before this time, though perhaps none at it; None without keys."""
        self._drop_left_over()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """Takes out the due keys, earliest first. Keys may be set and cancelled meanwhile."""
        while True:
            self._drop_left_over()
            if not self._heap or self._heap[0][0] > now_ms:
                return
            _, _, key = heappop(self._heap)
            time_ms = self._times[key]
            if time_ms > now_ms:
                self._queue(key, time_ms)
                continue
            del self._times[key], self._queued[key]
            yield key

    def _queue(self, key: K, time_ms: int) -> None:
        self._queued[key] = time_ms
        self._number += 1
        heappush(self._heap, (time_ms, self._number, key))
        self._tidy()

    def _drop_left_over(self) -> None:
        heap, queued = self._heap, self._queued
        while heap and queued.get(heap[0][2]) != heap[0][0]:
            heappop(heap)

    def _tidy(self) -> None:
        """Builds the heap anew once most of it is left over."""
        if len(self._heap) > 2 * len(self._times) + LEFT_OVER_MIN:
            queued = self._queued.items()
            self._heap = [(time_ms, i, key) for i, (key, time_ms) in enumerate(queued)]
            self._number = len(self._heap)
            heapify(self._heap)
