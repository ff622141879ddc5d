"""Offset ranges: what a batch reads of each partition.                                   [P]

Owns   nothing. A range is half open: [start, end).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkalite.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Which log it is a part of."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"


def ranges_between(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """What lies between two sets of offsets; a partition that `start` lacks begins at 0."""
    return [
        OffsetRange(tp.topic, tp.partition, start.get(tp, 0), offset)
        for tp, offset in sorted(end.items())
        if offset > start.get(tp, 0)
    ]


def limited(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], records_max: int
) -> dict[TopicPartition, int]:
    """An end not later than `end`, about `records_max` records after `start`, shared by lag.

    Every partition that lags advances by at least one record, so that none starves.
    """
    lags = {tp: max(0, offset - start.get(tp, 0)) for tp, offset in end.items()}
    total = sum(lags.values())
    if total <= records_max:
        return dict(end)
    return {
        tp: start.get(tp, 0) + min(lag, max(1, lag * records_max // total)) if lag else end[tp]
        for tp, lag in lags.items()
    }
