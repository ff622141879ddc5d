"""A task's outputs on their way into a repartition topic, with its watermarks between them.   [P]

Every piece for a partition begins with a marker and fits a record batch, so that readers know whose
records they have, however the batches of several tasks come to lie in the log. A marker also stands
before a record that is late by what other partitions have been sent: its own readers would not know
of that. Where one task alone writes the topic, markers only tell whether it is idle.

Owns   what each partition's readers have been told by the task.
Never  reads a wall clock: the worker says when a task is idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kafkalite.clients.producer.batching import chunks
from kafkalite.core.columns import furthest_behind, greatest, greatest_so_far, has_nulls
from kafkalite.core.protocol.partitioner import partition_column, split
from kafkalite.core.types import Columns, concat
from kafkalite.streams.local.assignor import TaskId
from kafkalite.streams.local.watermarks import MARKER_KEY, NEVER, Flow, Marker

RETELL_MS: Final = 30_000
PIECE_BYTES: Final = 131_072  # behind one marker: less than half of a record batch


class Piece(NamedTuple):
    """Records for a partition, None: for those of their keys; `markers` of them are watermarks."""

    partition: int | None
    columns: Columns
    markers: int = 0


@dataclass(slots=True)
class Stamper:
    """Puts the markers of `task` between its records for one repartition topic."""

    task: TaskId
    flow: Flow
    partition_count: int
    newest: int = NEVER  # of all timestamps that the task has written to the topic
    is_idle: bool = False
    _rested_ms: int = 0  # the wall clock when it last said that it is idle
    told: list[int] = field(init=False)  # by partition: the time that its readers know of

    def __post_init__(self) -> None:
        self.told = [NEVER] * self.partition_count

    def stamp(self, columns: Columns, partitions: Sequence[int] | None) -> list[Piece]:
        """The records in pieces; each goes to its entry in `partitions`, or by its key."""
        pieces: list[Piece] = []
        if self.is_idle:
            self.is_idle = False
            pieces += self._everywhere(range(self.partition_count))
        if not self.flow.is_shared:
            self.newest = max(self.newest, greatest(columns.timestamps))
            if partitions is None:
                return [*pieces, Piece(None, columns)]
            return pieces + [
                Piece(partition, mine)
                for partition, mine in enumerate(split(columns, partitions, self.partition_count))
                if len(mine)
            ]
        if partitions is None:
            partitions = partition_column(columns.keys, self.partition_count)
            if has_nulls(columns.keys):  # of a left join: any partition will do
                own = self.task.partition % self.partition_count
                partitions = [own if partition < 0 else partition for partition in partitions]
        before = self.newest
        columns, partitions, has_late = self._with_times(columns, partitions)
        self.newest = max(before, greatest(columns.timestamps))
        head = self._marker(before)
        for partition, mine in enumerate(split(columns, partitions, self.partition_count)):
            for piece, _ in chunks(mine, PIECE_BYTES):
                markers = 1 + (piece.keys.count(MARKER_KEY) if has_late else 0)
                pieces.append(Piece(partition, concat((head, piece)), markers))
            if len(mine):
                self.told[partition] = max(self.told[partition], before, greatest(mine.timestamps))
        return pieces

    def catch_up(self) -> list[Piece]:
        """Tells the time to the partitions that do not know it yet."""
        if not self.flow.is_shared:
            return []
        return self._everywhere([p for p, told in enumerate(self.told) if told < self.newest])

    def rest(self, now_ms: int) -> list[Piece]:
        """Tells every partition that the task has nothing to write for now.

        At times again: a reader without state forgets it when it is started anew.
        """
        if self.is_idle and now_ms - self._rested_ms < RETELL_MS:
            return []
        self.is_idle, self._rested_ms = True, now_ms
        return self._everywhere(range(self.partition_count))

    def _everywhere(self, partitions: Iterable[int]) -> list[Piece]:
        marker = self._marker(self.newest)
        pieces: list[Piece] = []
        for partition in partitions:
            self.told[partition] = max(self.told[partition], self.newest)
            pieces.append(Piece(partition, marker, 1))
        return pieces

    def _marker(self, time: int) -> Columns:
        value = Marker(self.task, time, self.is_idle).encode()
        return Columns([MARKER_KEY], [value], [max(0, time)])

    def _with_times(
        self, columns: Columns, partitions: Sequence[int]
    ) -> tuple[Columns, Sequence[int], bool]:
        """The columns with a marker before each record that is late by what others were sent, and
        whether there are such."""
        grace_ms, before = self.flow.grace_ms, self.newest
        timestamps = columns.timestamps
        if grace_ms is None or furthest_behind(timestamps, before) <= grace_ms:
            return columns, partitions, False
        reached = greatest_so_far(timestamps, before)
        told = [max(time, before) for time in self.told]  # once the head of the piece is read
        late: list[int] = []
        for at, timestamp in enumerate(timestamps):
            partition, time = partitions[at], reached[at]
            if timestamp + grace_ms < time and told[partition] < time:
                late.append(at)
                told[partition] = time
            elif timestamp > told[partition]:
                told[partition] = timestamp
        if not late:
            return columns, partitions, False
        markers = {at: self._marker(reached[at]) for at in late}
        return _between(columns, markers), _repeated(partitions, markers), True


def _between(columns: Columns, markers: dict[int, Columns]) -> Columns:
    """The columns with each marker before the record at its index."""
    parts: list[Columns] = []
    first = 0
    for at, marker in markers.items():
        parts += (columns.slice(first, at), marker)
        first = at
    return concat([*parts, columns.slice(first, len(columns))])


def _repeated(partitions: Sequence[int], at: Iterable[int]) -> list[int]:
    """The partitions with those at some indexes twice: a marker goes where its record goes."""
    twice = set(at)
    return [p for i, p in enumerate(partitions) for _ in range(1 + (i in twice))]
