"""Event-time alignment: the tasks of one sub-topology advance together.                  [P]

A reader of a repartition topic keeps its windows open until every task that writes it has passed
them (watermarks.py). If one of them ran days ahead of another, days of windows would be open. So
the tasks of one worker that feed a repartition topic run in rounds: up to the earliest point to
which each of them has data.

    partition 0   1 2 4 7 9           round until 5:   0: 1 2 4    1: 1 3 5
    partition 1   1 3 5               next round waits until partition 1 has more or is at its end

The same goes for the inputs of one task: none runs ahead of another that has more to come.

A round is short, so that heartbeats, commits and a stop come between two: each partition gives
about as many records as a slice has, and a slice as many as take some 50 ms.

Owns   the records of a partition that wait for their round, and their bound.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from kafkalite.core.columns import first_over, greatest
from kafkalite.core.types import Columns

NO_LIMIT: Final = 1 << 62
BATCHES_MAX: Final = 8  # of an inbox; each has the bytes of a fetch or two
FRONT_FACTOR: Final = 4  # a batch is cut when it has more than so many times the records wanted
SLICE_RECORDS_FIRST: Final = 100
SLICE_MS: Final = 50.0
FADES: Final = 0.8  # how much the slices before count beside the last one
SLICE_RECORDS_MAX: Final = 32_768  # a fetch of small records, whole: each batch has a fixed cost


@dataclass(slots=True)
class Pace:
    """How many records make a slice: as many as the last ones would have run in 50 ms."""

    records: int = SLICE_RECORDS_FIRST
    recent_records: float = 0.0  # of the last slices, the later the more
    recent_ms: float = 0.0

    def piece(self, milliseconds: float) -> int:
        """How many records make a shorter slice."""
        if not self.recent_ms:
            return min(self.records, SLICE_RECORDS_FIRST)
        return max(1, min(self.records, int(self.recent_records / self.recent_ms * milliseconds)))

    def ran(self, records: int, milliseconds: float) -> None:
        """Learns from a slice."""
        self.recent_records = FADES * self.recent_records + records
        self.recent_ms = FADES * self.recent_ms + milliseconds
        if milliseconds > SLICE_MS:
            self.records = max(1, int(records * SLICE_MS / milliseconds))
        elif milliseconds < SLICE_MS / 2 and records >= self.records:
            self.records = min(SLICE_RECORDS_MAX, 2 * self.records)


class Inbox:
    """The records of one partition that have been read and not yet been run, in offset order.

    Full at `records_max`, or earlier at a number of batches, which bounds the bytes.
    """

    def __init__(self, records_max: int) -> None:
        self._batches: deque[tuple[int, Columns]] = deque()  # with the newest timestamp of each
        self._records_max = records_max
        self.records = 0

    def put(self, batch: Columns) -> None:
        """Adds `batch` behind what waits."""
        if len(batch):
            self._batches.append((greatest(batch.timestamps), batch))
            self.records += len(batch)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read for now."""
        return self.records >= self._records_max or len(self._batches) >= BATCHES_MAX

    @property
    def is_low(self) -> bool:
        """Whether it is time to read more."""
        return self.records < self._records_max // 2 and len(self._batches) < BATCHES_MAX // 2

    def front(self, records: int) -> tuple[int, int]:
        """The first batches that make `records` together, or a bit more.

        Their newest timestamp, and how many records they have. Only asked when something waits.
        """
        self._cut_first(records)
        newest = count = 0
        for its_newest, batch in self._batches:
            if count >= records:
                break
            newest, count = max(newest, its_newest), count + len(batch)
        return newest, count

    def _cut_first(self, records: int) -> None:
        """Makes two of a first batch that is far longer than `records`."""
        _, first = self._batches[0]
        if len(first) > FRONT_FACTOR * records:
            self._batches.popleft()
            for part in (first.slice(records, len(first)), first.slice(0, records)):
                self._batches.appendleft((greatest(part.timestamps), part))

    def take(self, until: int, records_max: int) -> list[Columns]:
        """Removes the records before the first one newer than `until`; at most `records_max`."""
        taken: list[Columns] = []
        while self._batches and records_max > 0:
            newest, batch = self._batches.popleft()
            stop = len(batch)
            if newest > until:
                stop = first_over(batch.timestamps, until, 0, stop)
            stop = min(stop, records_max)
            if stop:
                taken.append(batch.slice(0, stop) if stop < len(batch) else batch)
                self.records -= stop
                records_max -= stop
            if stop < len(batch):
                rest = batch.slice(stop, len(batch))
                self._batches.appendleft((greatest(rest.timestamps), rest))
                break
        return taken
