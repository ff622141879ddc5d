"""Plans of the source: where a query begins and ends, the next batch, its Spark partitions.   [P]

    a place (latest, offsets, a moment)  ──resolved──>  an offset a partition
    two sets of offsets                  ──planned──>   ranges, one a Spark partition

Owns   nothing: each function gets the log's bounds and gives offsets.
Fails  with ConfigError where an option's partitions are not those that are read, or a moment lies
       after the last record.
Source Spark's KafkaOffsetReader, KafkaOffsetRangeCalculator, KafkaMicroBatchStream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kafkalite.columnar.ranges import OffsetRange, limited, ranges_between
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.spark.options import EARLIEST, LATEST, Place, Times, check_partitions

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The log as it stands: first and next offset of each partition that is read."""

    first: Offsets
    end: Offsets


def times_of(place: Place, partitions: Sequence[TopicPartition], name: str) -> Offsets:
    """The moments to look up, none for a place that is not one of time."""
    if not isinstance(place, Times):
        return {}
    if place.everywhere is not None:
        return dict.fromkeys(partitions, place.everywhere)
    check_partitions(name, place.each, partitions)
    return place.each


def resolved(
    place: Place,
    bounds: Bounds,
    found: Mapping[TopicPartition, int | None],
    name: str,
    *,
    latest_if_none: bool,
) -> dict[TopicPartition, int]:
    """An offset for each partition; `found` are those of the place's moments."""
    if isinstance(place, str):
        return dict(bounds.first if place == "earliest" else bounds.end)
    if isinstance(place, Times):
        if not latest_if_none and (none := sorted(tp for tp, at in found.items() if at is None)):
            raise ConfigError(
                f"{name}: {none[0]} has no record at or after the timestamp; with "
                "startingOffsetsByTimestampStrategy=latest it is read from its end"
            )
        return {tp: bounds.end[tp] if at is None else at for tp, at in found.items()}
    check_partitions(name, place, sorted(bounds.end))
    symbolic = {EARLIEST: bounds.first, LATEST: bounds.end}
    return {tp: symbolic[at][tp] if at in symbolic else at for tp, at in place.items()}


def next_end(
    start: Offsets, end: Offsets, *, records_min: int | None, records_max: int | None, is_due: bool
) -> Offsets | None:
    """Where the next batch ends; None where it waits for more records.

    `is_due`: the last batch is so long ago that a few records are enough.
    """
    end = {tp: max(offset, start.get(tp, 0)) for tp, offset in end.items()}
    lag = sum(offset - start.get(tp, 0) for tp, offset in end.items())
    if records_min is not None and lag < records_min and not is_due:
        return None
    return end if records_max is None else limited(start, end, records_max)


def planned(
    start: Offsets, end: Offsets, *, partitions_min: int | None, records_max: int | None
) -> list[OffsetRange]:
    """The ranges between two sets of offsets: of `records_max` records at most, and about as many
    as `partitions_min`. Larger ranges are divided first.
    """
    ranges = [
        part
        for wanted in ranges_between(start, end)
        for part in divided(wanted, 1 if records_max is None else -(-_size(wanted) // records_max))
    ]
    if partitions_min is None or len(ranges) >= partitions_min:
        return ranges
    total = sum(map(_size, ranges))
    return [
        part
        for wanted in ranges
        for part in divided(wanted, max(1, round(_size(wanted) * partitions_min / total)))
    ]


def divided(wanted: OffsetRange, parts: int) -> list[OffsetRange]:
    """A range in parts of about equal size, none of them empty."""
    size = _size(wanted)
    parts = min(parts, size)
    edges = [wanted.start + size * part // parts for part in range(parts + 1)]
    return [
        OffsetRange(wanted.topic, wanted.partition, start, end) for start, end in pairwise(edges)
    ]


def _size(wanted: OffsetRange) -> int:
    return wanted.end - wanted.start
