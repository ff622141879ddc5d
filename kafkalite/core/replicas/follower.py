"""The follower's side of one partition: what to fetch next, what to append, what to cut.     [P]

    STOPPED ──follow──> FETCHING ──wanted──> FETCHING (asked) ──answered──> effects, and so on
                           └── error, or an answer that does not fit ──> rests until a time

Where the leader's log parts from ours, its answer names the largest epoch up to our last one that
it knows, and where that ended. We cut at the end of the common history, as far as both logs tell,
and ask again: each time our last epoch is a smaller one, until the histories meet (KIP-101). What
is cut is never chosen by the high watermark: it lags on followers, and records above it may be
committed.

Owns   where the next fetch begins, and when.
Never  touches the log: the rim runs the effects, in order, and then asks again. An effect that
       fails is reported by `failed`.
Fails  by resting: after an error of the leader or of the disk it asks again later. With an epoch
       that is over it rests until the image names another leader.
Source KIP-101, KIP-279, KIP-595; apache/kafka `AbstractFetcherThread`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from kafkalite.core.protocol.primitives import Buffer
from kafkalite.core.types import NO_EPOCH, NO_OFFSET, NOTHING, Outcome, TopicPartition
from kafkalite.errors import ErrorCode

NO_LEADER: Final = -1
REST_MS: Final = 1_000
SOON_MS: Final = 50
BASE_OFFSET_BYTES: Final = 8  # with which a batch begins
# The leader has not heard yet that it leads, or this follower has not heard of another one.
LEADER_TO_COME: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class FollowerPhase(Enum):
    """What the follower does."""

    STOPPED = "there is no leader to follow"
    FETCHING = "asks its leader for records, or rests before it does"
    FENCED = "its leader epoch is over; the image will name another"


class FollowedLog(Protocol):
    """The follower's own log, as far as the machine looks at it."""

    @property
    def log_start_offset(self) -> int:
        """Its first offset."""

    @property
    def log_end_offset(self) -> int:
        """The offset after its last record."""

    @property
    def latest_epoch(self) -> int:
        """The epoch of its last record, -1 without one."""

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch up to `leader_epoch` and where it ends; (-1, -1) when unknown."""


class Position(NamedTuple):
    """What a follower asks its leader for. The answer is given back with it."""

    leader_id: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class LeaderAnswer:
    """A leader's answer about one partition."""

    error_code: ErrorCode = ErrorCode.NONE
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging_epoch: int = NO_EPOCH
    diverging_end_offset: int = NO_OFFSET  # NO_OFFSET: the histories do not part
    records: Buffer = b""


@dataclass(frozen=True, slots=True)
class AppendRun:
    """An effect: `records` are the leader's from the log's end on."""

    records: Buffer
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """An effect: records from `offset` on are not the leader's."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAnew:
    """An effect: the leader has nothing that follows our log, which begins anew at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class LeaderOffsets:
    """An effect: how far the leader's log is committed, and where it begins. Neither moves back."""

    high_watermark: int
    log_start_offset: int


@dataclass(slots=True)
class Follower:
    """One partition as a follower sees it."""

    topic_partition: TopicPartition
    phase: FollowerPhase = FollowerPhase.STOPPED
    leader_id: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    rests_until_ms: int | None = None
    why: str = ""  # it rests, in words, or it is fenced

    def follow(self, leader_id: int, leader_epoch: int) -> None:
        """The image names a leader, or none."""
        if (leader_id, leader_epoch) == (self.leader_id, self.leader_epoch):
            return
        self.leader_id, self.leader_epoch = leader_id, leader_epoch
        is_led = leader_id != NO_LEADER
        self.phase = FollowerPhase.FETCHING if is_led else FollowerPhase.STOPPED
        self.rests_until_ms, self.why = None, ""

    def wanted(self, log: FollowedLog, now_ms: int) -> Position | None:
        """What to ask the leader for now; None: nothing, or not yet."""
        if self.phase is not FollowerPhase.FETCHING:
            return None
        if self.rests_until_ms is not None:
            if now_ms < self.rests_until_ms:
                return None
            self.rests_until_ms = None
        return self._position(log)

    def _position(self, log: FollowedLog) -> Position:
        return Position(
            self.leader_id,
            self.leader_epoch,
            log.log_end_offset,
            log.latest_epoch,
            log.log_start_offset,
        )

    def answered(
        self, asked: Position, answer: LeaderAnswer, log: FollowedLog, now_ms: int
    ) -> Outcome[Any]:
        """The effects of an answer. None of one that comes too late: the leader or the log is
        another by then."""
        is_current = self.phase is FollowerPhase.FETCHING and asked == self._position(log)
        if not is_current:
            return NOTHING
        match answer.error_code:
            case ErrorCode.NONE:
                return self._go_on(asked, answer, log, now_ms)
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                return self._out_of_range(asked, answer, log, now_ms)
            case ErrorCode.FENCED_LEADER_EPOCH:
                self.phase = FollowerPhase.FENCED
                self.why = f"leader epoch {asked.leader_epoch} is over"
            case code:
                rest_ms = SOON_MS if code in LEADER_TO_COME else REST_MS
                self.rest(f"broker {asked.leader_id} answers {code.name}", now_ms, rest_ms)
        return NOTHING

    def merely_appends(self, asked: Position, log: FollowedLog) -> bool:
        """Whether an answer without an error, whose batch begins at the offset `asked`, leads to an
        append and to no other effect, as `answered` would find."""
        return (
            self.phase is FollowerPhase.FETCHING
            and self.rests_until_ms is None
            and not self.why
            and asked.fetch_offset == log.log_end_offset
            and asked.leader_epoch == self.leader_epoch
            and asked.leader_id == self.leader_id
            and asked.last_fetched_epoch == log.latest_epoch
            and asked.log_start_offset == log.log_start_offset
        )

    def rest(self, why: str, now_ms: int, rest_ms: int = REST_MS) -> None:
        """Asks again later: the leader was not reached or answered an error, or an effect failed,
        so that the log is not what the answer was for."""
        self.rests_until_ms, self.why = now_ms + rest_ms, f"{self.topic_partition}: {why}"

    # -- answers

    def _go_on(
        self, asked: Position, answer: LeaderAnswer, log: FollowedLog, now_ms: int
    ) -> Outcome[Any]:
        if answer.diverging_end_offset != NO_OFFSET:
            return self._cut(answer, log, now_ms)
        self.why = ""
        if self._begins_within_ours(asked, answer):
            return Outcome(effects=(StartAnew(asked.fetch_offset),))
        offsets = LeaderOffsets(answer.high_watermark, answer.log_start_offset)
        if not len(answer.records):
            return Outcome(effects=(offsets,))
        return Outcome(effects=(AppendRun(answer.records, asked.leader_epoch), offsets))

    def _begins_within_ours(self, asked: Position, answer: LeaderAnswer) -> bool:
        """Whether the leader's log begins within a batch whose first offsets are others' in ours:
        epochs tell nothing below its start. All that we have is deleted there."""
        if not asked.log_start_offset < asked.fetch_offset <= answer.log_start_offset:
            return False
        base_offset = int.from_bytes(answer.records[:BASE_OFFSET_BYTES])
        return len(answer.records) > 0 and base_offset < asked.fetch_offset

    def _cut(self, answer: LeaderAnswer, log: FollowedLog, now_ms: int) -> Outcome[Any]:
        """Cuts the log at the end of the common history, as far as both logs know it. If ours does
        not know the leader's epoch, any of its later records may be another's."""
        leader_epoch, leader_end = answer.diverging_epoch, answer.diverging_end_offset
        _, own_end = log.end_offset_for_epoch(leader_epoch)
        offset = leader_end if own_end == NO_OFFSET else min(own_end, leader_end)
        if offset >= log.log_end_offset:  # so nothing parts: the answer is not about this log
            words = f"leader epoch {leader_epoch} ends at {leader_end} on broker {self.leader_id}"
            self.rest(f"{words}, and the log, of epoch {log.latest_epoch}, here", now_ms)
            return NOTHING
        if offset <= log.log_start_offset:
            return Outcome(effects=(StartAnew(offset),))
        return Outcome(effects=(TruncateTo(offset),))

    def _out_of_range(
        self, asked: Position, answer: LeaderAnswer, log: FollowedLog, now_ms: int
    ) -> Outcome[Any]:
        """The leader has deleted what would follow our log, or ours is empty and begins beyond it.
        A log with records that the leader's does not reach parts from it, and that is cut first."""
        start = answer.log_start_offset
        is_empty = log.log_start_offset == log.log_end_offset
        if start != NO_OFFSET and (asked.fetch_offset < start or is_empty):
            return Outcome(effects=(StartAnew(start),))
        self.rest(
            f"offset {asked.fetch_offset} is out of the range of broker {asked.leader_id}, "
            f"which begins at {start}",
            now_ms,
        )
        return NOTHING
