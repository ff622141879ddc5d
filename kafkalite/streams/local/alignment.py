"""Event-time alignment: the tasks of one sub-topology advance together.                  [P]

A reader of a repartition topic takes its stream time from the newest record it sees. If one
upstream task ran days ahead of another, the other's records would all be late. So the tasks that
feed a repartition topic run in rounds: up to the earliest point to which each of them has data,
and what a round makes leaves merged by timestamp.

    partition 0   1 2 4 7 9           round until 5:   0: 1 2 4    1: 1 3 5
    partition 1   1 3 5               next round waits until partition 1 has more or is at its end

Owns   the records of a partition that wait for their round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from kafkalite.core.types import Columns, concat
from kafkalite.streams.local.batch import Output

NO_LIMIT: Final = 1 << 62


class Inbox:
    """The records of one partition that have been read and not yet been run, in offset order."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, Columns]] = deque()  # with the newest timestamp of each
        self.records = 0

    def put(self, batch: Columns) -> None:
        """Adds `batch` behind what waits."""
        if len(batch):
            self._batches.append((max(batch.timestamps), batch))
            self.records += len(batch)

    @property
    def newest(self) -> int:
        """The newest timestamp that waits; only asked when something does."""
        return max(newest for newest, _ in self._batches)

    def take(self, until: int, records_max: int) -> list[Columns]:
        """Removes the records before the first one newer than `until`; at most `records_max`."""
        taken: list[Columns] = []
        while self._batches and records_max > 0:
            newest, batch = self._batches.popleft()
            stop = len(batch) if newest <= until else first_after(batch.timestamps, until)
            stop = min(stop, records_max)
            if stop:
                taken.append(batch.slice(0, stop) if stop < len(batch) else batch)
                self.records -= stop
                records_max -= stop
            if stop < len(batch):
                rest = batch.slice(stop, len(batch))
                self._batches.appendleft((max(rest.timestamps), rest))
                break
        return taken

    def clear(self) -> None:
        """Forgets everything; the records will be read again."""
        self._batches.clear()
        self.records = 0


def first_after(timestamps: Sequence[int], until: int) -> int:
    """The index of the first timestamp later than `until`, or the length."""
    return next((i for i, t in enumerate(timestamps) if t > until), len(timestamps))


def merge_by_time(topic: str, outputs: Sequence[Output]) -> Output:
    """All records of `outputs` by timestamp; equal ones stay in the order they came in."""
    merged = concat(output.columns for output in outputs)
    timestamps = merged.timestamps
    order = sorted(range(len(merged)), key=timestamps.__getitem__)
    headers = merged.headers
    columns = Columns(
        [merged.keys[i] for i in order],
        [merged.values[i] for i in order],
        [timestamps[i] for i in order],
        None,
        None if headers is None else [headers[i] for i in order],
    )
    if outputs[0].partitions is None:
        return Output(topic, columns, None)
    partitions = [partition for output in outputs for partition in output.partitions or ()]
    return Output(topic, columns, [partitions[i] for i in order])
