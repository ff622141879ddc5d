"""A follower: what it asks its leader for, what it appends, and where it cuts its log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kafkalite.core.replicas.follower import (
    REST_MS,
    SOON_MS,
    AppendRun,
    Follower,
    FollowerPhase,
    LeaderAnswer,
    LeaderOffsets,
    Position,
    StartAnew,
    TruncateTo,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode

ORDERS = TopicPartition("orders", 3)


@dataclass
class Log:
    """A log of nothing but epochs: (epoch, start offset) ascending."""

    log_end_offset: int = 0
    entries: list[tuple[int, int]] = field(default_factory=list)
    log_start_offset: int = 0

    @property
    def latest_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        if leader_epoch > self.latest_epoch:
            return -1, -1
        known = [epoch for epoch, _ in self.entries if epoch <= leader_epoch]
        starts = [start for epoch, start in self.entries if epoch > leader_epoch]
        return (known[-1] if known else leader_epoch), min([*starts, self.log_end_offset])


def following(log: Log) -> tuple[Follower, Position]:
    follower = Follower(ORDERS)
    follower.follow(2, 7)
    position = follower.wanted(log, 0)
    assert position is not None
    return follower, position


def parts(epoch: int, end: int) -> LeaderAnswer:
    return LeaderAnswer(diverging_epoch=epoch, diverging_end_offset=end)


def test_it_asks_from_its_logs_end_on_and_says_who_wrote_last() -> None:
    _, position = following(Log(10, [(1, 0), (4, 6)], 2))
    assert position == Position(2, 7, 10, 4, 2)


def test_without_a_leader_it_asks_nobody() -> None:
    follower = Follower(ORDERS)
    assert follower.wanted(Log(), 0) is None
    follower.follow(2, 7)
    assert follower.wanted(Log(), 0) is not None
    follower.follow(-1, 8)
    assert follower.phase is FollowerPhase.STOPPED
    assert follower.wanted(Log(), 0) is None


def test_records_come_before_the_leaders_offsets() -> None:
    log = Log(10, [(1, 0)])
    follower, position = following(log)
    answer = LeaderAnswer(high_watermark=12, log_start_offset=3, records=b"records")
    effects = follower.answered(position, answer, log, 0).effects
    assert effects == (AppendRun(b"records", 7), LeaderOffsets(12, 3))
    nothing_new = LeaderAnswer(high_watermark=12, log_start_offset=3)
    assert follower.answered(position, nothing_new, log, 0).effects == (LeaderOffsets(12, 3),)


@pytest.mark.parametrize(
    ("epoch", "end", "effect"),
    [
        (4, 8, TruncateTo(8)),  # both wrote in epoch 4; the leader's part is shorter
        (3, 7, TruncateTo(6)),  # the leader has an epoch between ours, which begins elsewhere
        (3, 5, TruncateTo(5)),
        (1, 4, TruncateTo(4)),
        (1, 9, TruncateTo(6)),  # the leader wrote more in epoch 1 than we have of it
        (0, 3, StartAnew(2)),  # of all that we have the leader has nothing
        (1, 1, StartAnew(1)),
    ],
)
def test_it_cuts_where_the_common_history_ends(epoch: int, end: int, effect: Any) -> None:
    log = Log(10, [(1, 2), (4, 6)], 2)
    follower, position = following(log)
    assert follower.answered(position, parts(epoch, end), log, 0).effects == (effect,)


def test_an_answer_by_which_nothing_parts_is_not_acted_upon() -> None:
    log = Log(10, [(1, 0), (4, 6)])
    follower, position = following(log)
    assert follower.answered(position, parts(4, 10), log, 5).effects == ()
    assert "epoch 4 ends at 10 on broker 2" in follower.why
    assert follower.wanted(log, 5) is None
    assert follower.wanted(log, 5 + REST_MS) == position


def test_a_log_that_the_leader_has_deleted_beyond_begins_anew() -> None:
    log = Log(10, [(1, 0)])
    follower, position = following(log)
    answer = LeaderAnswer(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=30)
    assert follower.answered(position, answer, log, 0).effects == (StartAnew(30),)


def test_a_log_with_others_in_the_first_batch_of_the_leader_begins_anew() -> None:
    """Records up to 12 are deleted there; its batch of 11 and 12 is not what we have at 11."""
    log = Log(12, [(1, 0)])
    follower, position = following(log)
    batch = (11).to_bytes(8) + b"the rest"
    answer = LeaderAnswer(high_watermark=13, log_start_offset=12, records=batch)
    assert follower.answered(position, answer, log, 0).effects == (StartAnew(12),)
    begins_here = LeaderAnswer(high_watermark=13, log_start_offset=12, records=(12).to_bytes(8))
    effects = follower.answered(position, begins_here, log, 0).effects
    assert isinstance(effects[0], AppendRun), "what producers are known for stays"


def test_an_empty_log_beyond_the_leaders_begins_where_the_leaders_does() -> None:
    log = Log(10, [], 10)
    follower, position = following(log)
    answer = LeaderAnswer(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=3)
    assert follower.answered(position, answer, log, 0).effects == (StartAnew(3),)


@pytest.mark.parametrize("start", [0, -1])
def test_records_are_not_given_up_for_an_offset_that_is_out_of_range(start: int) -> None:
    log = Log(10, [(1, 0)])
    follower, position = following(log)
    answer = LeaderAnswer(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start)
    assert follower.answered(position, answer, log, 0).effects == ()
    assert follower.wanted(log, 0) is None


def test_an_epoch_that_is_over_ends_it_until_the_image_names_another() -> None:
    log = Log(10, [(1, 0)])
    follower, position = following(log)
    follower.answered(position, LeaderAnswer(ErrorCode.FENCED_LEADER_EPOCH), log, 0)
    assert follower.phase is FollowerPhase.FENCED
    follower.follow(2, 7)
    assert follower.wanted(log, 10 * REST_MS) is None, "the same is no news"
    follower.follow(3, 8)
    assert follower.wanted(log, 0) == Position(3, 8, 10, 1, 0)


@pytest.mark.parametrize(
    ("code", "rest_ms"),
    [
        (ErrorCode.UNKNOWN_LEADER_EPOCH, SOON_MS),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, SOON_MS),
        (ErrorCode.UNKNOWN_TOPIC_ID, SOON_MS),
        (ErrorCode.KAFKA_STORAGE_ERROR, REST_MS),
    ],
)
def test_after_an_error_it_rests(code: ErrorCode, rest_ms: int) -> None:
    log = Log(10, [(1, 0)])
    follower, position = following(log)
    assert follower.answered(position, LeaderAnswer(code), log, 5).effects == ()
    assert code.name in follower.why
    assert follower.wanted(log, 4 + rest_ms) is None
    assert follower.wanted(log, 5 + rest_ms) == position
    follower.rest("once more", 5)
    follower.follow(3, 8)
    assert follower.wanted(log, 6) is not None, "another leader is asked at once"


def test_answers_that_come_too_late_are_dropped() -> None:
    log = Log(10, [(1, 0)])
    follower, position = following(log)
    answer = LeaderAnswer(high_watermark=4, log_start_offset=0, records=b"records")
    log.log_end_offset = 11
    assert follower.answered(position, answer, log, 0).effects == (), "the log is another"
    log.log_end_offset = 10
    follower.follow(2, 8)
    assert follower.answered(position, answer, log, 0).effects == (), "the epoch is another"


def test_an_answer_with_the_next_batch_merely_appends() -> None:
    log = Log(10, [(7, 0)], 2)
    follower, position = following(log)
    assert follower.merely_appends(position, log)
    batch = (10).to_bytes(8) + bytes(60)
    effects = follower.answered(position, LeaderAnswer(high_watermark=4, records=batch), log, 0)
    assert [type(each) for each in effects.effects] == [AppendRun, LeaderOffsets]


@pytest.mark.parametrize("changed", ["leader", "epoch", "end", "wrote", "start", "rests", "fenced"])
def test_no_other_answer_merely_appends(changed: str) -> None:
    log = Log(10, [(7, 0)], 2)
    follower, position = following(log)
    match changed:
        case "leader":
            position = position._replace(leader_id=3)
        case "epoch":
            position = position._replace(leader_epoch=6)
        case "end":
            log.log_end_offset = 9
        case "wrote":
            log.entries = [(6, 0)]
        case "start":
            log.log_start_offset = 3
        case "rests":
            follower.rest("the disk is full", 0)
        case "fenced":
            fenced = LeaderAnswer(ErrorCode.FENCED_LEADER_EPOCH)
            follower.answered(position, fenced, log, 0)
    assert not follower.merely_appends(position, log)
