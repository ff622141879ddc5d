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

from kafkalite.core.config.settings import LogConfig
from kafkalite.core.log.segment import Segment


def deletable(
    segments: Sequence[Segment],
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
) -> int:
    """How many of the oldest segments may go; all of them, if the active one may too."""
    excess_bytes = first_kept = -1
    if config.is_deleted and config.retention_bytes >= 0:
        excess_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    if config.is_deleted and config.retention_records >= 0:
        first_kept = log_end_offset - config.retention_records
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        end_offset = log_end_offset if is_last else segments[number + 1].base_offset
        if end_offset > high_watermark or (is_last and not segment.size_bytes):
            return number
        excess_bytes -= segment.size_bytes
        too_old = (
            config.is_deleted
            and config.retention_ms >= 0
            and now_ms - segment.retention_timestamp() > config.retention_ms
        )
        given_up = not is_last and end_offset <= log_start_offset
        if not (excess_bytes >= 0 or too_old or given_up or end_offset <= first_kept):
            return number
    return len(segments)
