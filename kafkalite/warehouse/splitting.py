"""How a load divides its offset ranges: a range becomes one data file.                     [P]

Owns   nothing. The pieces of a range follow each other without a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Final

from kafkalite.columnar.ranges import OffsetRange, ranges_between
from kafkalite.core.types import TopicPartition

FILE_BYTES: Final = 128 << 20  # of the log; Parquet usually needs half of that
RECORD_BYTES: Final = 128.0  # where the broker does not say how large a log is


def gaps(
    committed: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """The records that were deleted from logs, which begin at `first`, before a load saw them."""
    return ranges_between(committed, {tp: at for tp, at in first.items() if tp in committed})


def new_ranges(
    committed: Mapping[TopicPartition, int],
    first: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> list[OffsetRange]:
    """The records that a table lacks, and the logs still have."""
    start = {tp: max(committed.get(tp, 0), first.get(tp, 0)) for tp in end}
    return ranges_between(start, end)


def pieces(
    ranges: Sequence[OffsetRange],
    record_bytes: Mapping[TopicPartition, float],
    *,
    file_bytes: int = FILE_BYTES,
    min_partitions: int = 1,
) -> list[OffsetRange]:
    """Ranges of at most `file_bytes` bytes of the log each, at least `min_partitions` of them."""
    total = sum(r.end - r.start for r in ranges)
    found: list[OffsetRange] = []
    for wanted in ranges:
        records = wanted.end - wanted.start
        by_size = records * record_bytes.get(wanted.topic_partition, RECORD_BYTES) / file_bytes
        by_share = min_partitions * records / total
        found += _split(wanted, min(records, max(1, ceil(by_size), ceil(by_share))))
    return found


def _split(wanted: OffsetRange, count: int) -> Iterator[OffsetRange]:
    records = wanted.end - wanted.start
    cuts = [wanted.start + records * number // count for number in range(count + 1)]
    for start, end in pairwise(cuts):
        yield replace(wanted, start=start, end=end)
