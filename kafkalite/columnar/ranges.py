"""Offset ranges: the part of each partition that a batch reads.                          [P]

Owns   nothing. A range is half open: [start, end).
Fails  with StorageError if a log has become shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError


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
    """The ranges between two sets of offsets; a partition missing in `start` begins at 0."""
    return [
        OffsetRange(tp.topic, tp.partition, start.get(tp, 0), offset)
        for tp, offset in sorted(end.items())
        if offset > start.get(tp, 0)
    ]


def check_no_loss(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> None:
    """StorageError when a log ends before the place to go on from, or a partition of a topic that
    is still read has gone.
    """
    topics = {tp.topic for tp in end}
    if gone := sorted(tp for tp in start if tp.topic in topics and tp not in end):
        raise StorageError(
            f"{gone[0]} was read up to offset {start[gone[0]]} and is not there any more, perhaps "
            "the topic was made anew; failOnDataLoss=false goes on without it"
        )
    for tp, offset in sorted(end.items()):
        if offset < start.get(tp, 0):
            raise StorageError(
                f"{tp} ends at offset {offset}, before {start[tp]}: records are gone, perhaps the "
                "topic was made anew; failOnDataLoss=false reads none until it is longer"
            )


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
