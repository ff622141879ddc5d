"""Offsets of a topology's source: how far a micro-batch reads, and what time it is then.    [P]

    {"offsets": {"clicks": {"0": 23}}, "now": 1700000000000,
     "since": {"clicks": {"0": 1699999990000}}, "idle": {"clicks": [0]}, "from": …, "tables": …}

Spark writes the offsets down before a micro-batch and repeats it from them, so the wall clock and
the idle inputs stand in them, too: a repeated micro-batch sees the same. `since` says when each
partition had records last, `from` where a query's first micro-batch begins, `tables` how far
global tables are read.

Owns   the form of these offsets.
Never  reads a clock or asks the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafkalite.core.types import TopicPartition

OFFSETS: Final = "offsets"
NOW: Final = "now"
SINCE: Final = "since"
IDLE: Final = "idle"
FROM: Final = "from"
TABLES: Final = "tables"
START: Final = "start"  # a placeholder: Spark asks for the first offset more than once

By = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a query has read, as of a moment."""

    offsets: Mapping[TopicPartition, int]
    now_ms: int
    since: Mapping[TopicPartition, int] = field(default_factory=dict)
    idle: frozenset[TopicPartition] = frozenset()
    begin: Mapping[TopicPartition, int] | None = None  # of the first micro-batch
    tables: Mapping[TopicPartition, int] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        """As Spark keeps it."""
        idle: dict[str, list[int]] = {}
        for tp in sorted(self.idle):
            idle.setdefault(tp.topic, []).append(tp.partition)
        found: dict[str, Any] = {
            OFFSETS: _nested(self.offsets), NOW: self.now_ms,
            SINCE: _nested(self.since), IDLE: idle,
        }  # fmt: skip
        if self.tables:
            found[TABLES] = _nested(self.tables)
        return found if self.begin is None else {**found, FROM: _nested(self.begin)}

    @staticmethod
    def load(dumped: Mapping[str, Any]) -> Progress:
        """From what `dump` gave."""
        begin = dumped.get(FROM)
        return Progress(
            _flat(dumped[OFFSETS]),
            dumped[NOW],
            _flat(dumped[SINCE]),
            frozenset(TopicPartition(t, n) for t, all_ in dumped[IDLE].items() for n in all_),
            None if begin is None else _flat(begin),
            _flat(dumped.get(TABLES, {})),
        )

    def next(
        self, end: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], now_ms: int,
        idle_ms: int, *, is_last: bool,
    ) -> Progress:  # fmt: skip
        """What follows when a micro-batch reads up to `end`, while the log goes up to `ends`.

        An input is idle that has had nothing for `idle_ms` and has nothing; all that are read to
        their ends are, if this `is_last`: nobody waits for more.
        """
        now_ms = max(now_ms, self.now_ms)
        moved = {tp for tp, offset in end.items() if offset > self.offsets.get(tp, 0)}
        since = {tp: now_ms if tp in moved else self.since.get(tp, now_ms) for tp in end}
        idle = frozenset(
            tp
            for tp, offset in end.items()
            if offset >= ends[tp]
            and (is_last or (tp not in moved and now_ms - since[tp] >= idle_ms))
        )
        return Progress(end, now_ms, since, idle)


def aligned(
    start: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    records_max: int,
    newest_ms: int,
    at_time: Callable[[int], Mapping[TopicPartition, int | None]],
) -> By:
    """An end about `records_max` records after `start`, at one moment for all partitions.

    A task that reads several topics goes by the newest of their records: if a micro-batch read one
    topic further in time than the other, records of the other would be late in the next. `at_time`
    looks up the first offset at or after a moment (None: there is none), `newest_ms` is the time of
    the newest record. At least one record is read, and all of one moment together.
    """
    low, high = -1, newest_ms + 1  # nothing, and everything
    found = dict(ends)
    while high - low > 1:
        middle = (low + high) // 2
        there = at_time(middle)
        end = {}
        for tp, last in ends.items():
            offset = there.get(tp)
            end[tp] = last if offset is None else min(last, max(start.get(tp, 0), offset))
        size = _size(start, end)
        if 0 < size <= records_max:
            found, low = end, middle
            if size > records_max // 2:
                break
        elif size:
            high = middle
            if _size(start, found) > records_max:
                found = end
        else:
            low = middle
    return found


def _size(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    return sum(offset - start.get(tp, 0) for tp, offset in end.items())


def _nested(flat: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for tp, number in sorted(flat.items()):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = number
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> By:
    return {
        TopicPartition(topic, int(partition)): number
        for topic, partitions in nested.items()
        for partition, number in partitions.items()
    }
