"""A follower's orders carried out: its log gets the leader's records, or is cut.             [D]

    Follower ──effects──> append, truncate, start anew, high watermark ──> what changed

Owns   nothing: the machine decides, the log has the records.
Never  moves a high watermark or a log's start back, except by a cut.
Fails  by letting the follower rest, with the reason in its `why`: the disk refused, or the leader's
       bytes are damaged. The effects after the one that failed are not run.
Source apache/kafka `ReplicaFetcherThread`, `Partition.appendRecordsToFollowerOrFutureReplica`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafkalite.core.log.partition_log import PartitionLog
from kafkalite.core.log.store import LogStore
from kafkalite.core.replicas.follower import (
    AppendRun,
    Follower,
    LeaderOffsets,
    StartAnew,
    TruncateTo,
)
from kafkalite.core.types import Now
from kafkalite.errors import ApiError, CorruptBatchError, StorageError


class Followed(NamedTuple):
    """What an answer has changed in the follower's log."""

    byte_count: int = 0  # appended
    has_advanced: bool = False  # the high watermark
    was_cut: bool = False


def carry_out(
    follower: Follower, effects: Iterable[object], log: PartitionLog, logs: LogStore, now: Now
) -> Followed:
    """Runs the effects of an answer, in order."""
    before, byte_count, was_cut = log.high_watermark, 0, False
    try:
        for effect in effects:
            match effect:
                case AppendRun(records, leader_epoch):
                    end = log.log_end_offset
                    log.append_as_follower(records, now.wall_ms, leader_epoch)
                    byte_count += len(records) if log.log_end_offset > end else 0
                case TruncateTo(offset):
                    was_cut = True
                    logs.truncate(log, offset)
                case StartAnew(offset):
                    was_cut = True
                    logs.start_anew(log, offset)
                case LeaderOffsets(high_watermark, log_start_offset):
                    log.commit(high_watermark, log_start_offset)
                case _:
                    raise AssertionError(effect)
    except (ApiError, CorruptBatchError, StorageError) as error:
        follower.rest(str(error), now.monotonic_ms)
    return Followed(byte_count, log.high_watermark > before, was_cut)
