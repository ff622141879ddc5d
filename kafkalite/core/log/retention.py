"""Retention: how many of a log's oldest segments may go, by age, size and number of records. [D]

    [ 0 ][ 1200 ][ 2750 ]|[ 4000 ][ 5100 ]      a run of whole segments goes, the oldest
      count = 3 ---------^

A segment goes when it is wholly below the high watermark and one of these is true of it:

    retention.ms        its latest record is older
    retention.bytes     without it the log still has as many bytes
    retention.records   without it the log still has as many offsets: with `compact` those count
                        too whose records are gone, and a transaction's marker counts as one
    log start offset    it is wholly below (DeleteRecords), and not the active one

Source apache/kafka UnifiedLog.deleteOldSegments; retention.records is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.segment import Segment
from kafkalite.core.types import TopicPartition


def deletable(
    segments: Sequence[Segment],
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
) -> list[str]:
    """Why the oldest segments may go, each; all of them, if the active one may too."""
    why: list[str] = []
    excess_bytes = first_kept = -1
    if config.is_deleted and config.retention_bytes >= 0:
        excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    if config.is_deleted and config.retention_records >= 0:
        first_kept = log_end_offset - config.retention_records
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        end_offset = log_end_offset if is_last else segments[number + 1].base_offset
        if end_offset > high_watermark or (is_last and not segment.size_bytes):
            return why
        excess_bytes -= segment.size_bytes
        too_old = (
            config.is_deleted
            and config.retention_ms >= 0
            and now_ms - segment.retention_timestamp() > config.retention_ms
        )
        given_up = not is_last and end_offset <= log_start_offset
        if too_old:
            why.append(f"older than retention.ms {config.retention_ms}")
        elif excess_bytes >= 0:
            why.append(f"the log is larger than retention.bytes {config.retention_bytes}")
        elif end_offset <= first_kept:
            why.append(f"the log has more than retention.records {config.retention_records}")
        elif given_up:
            why.append(f"below log start offset {log_start_offset}")
        else:
            break
    return why


def farewell(where: TopicPartition, segments: Sequence[Segment], why: Sequence[str]) -> list[str]:
    """A line for each reason for which the oldest segments go: their offsets and bytes."""
    lines = []
    for reason, run in groupby(range(len(why)), key=why.__getitem__):
        numbers = list(run)
        size_bytes = sum(segments[number].size_bytes for number in numbers)
        first, end = segments[numbers[0]].base_offset, segments[numbers[-1] + 1].base_offset
        lines.append(f"{where}: deletes records [{first}, {end}), {size_bytes} bytes: {reason}")
    return lines
