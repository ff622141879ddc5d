"""Markers on their way: to whom they go, what is tried again, and when a transaction is done."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kafkalite.core.transactions import marker_queues
from kafkalite.core.transactions.marker_queues import (
    NO_PARTITION,
    NOBODY,
    Marker,
    MarkerQueues,
    SendMarkers,
    WriteHere,
    always,
)
from kafkalite.core.transactions.markers import SENDERS_MAX, LocalMarkers
from kafkalite.core.transactions.verification import Verifications
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode

NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
UNKNOWN, FENCED = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH


def at(number: int) -> TopicPartition:
    return TopicPartition("t", number)


class Place:
    """The queues of broker 1, and who leads which partition of t."""

    def __init__(self, *leaders: int, partitions_max: int = 1_000) -> None:
        self.leaders = dict(enumerate(leaders))
        self.done: list[tuple[int, dict[int, ErrorCode]]] = []
        self.queues = MarkerQueues(1, lambda p: self.leaders[p.partition], partitions_max)

    def end(self, producer: int, *partitions: int, epoch: int = 0, wanted: Any = always) -> Any:
        def done(errors: Any) -> None:
            self.done.append((producer, {where.partition: e for where, e in errors.items()}))

        where = [at(number) for number in partitions or self.leaders]
        return self.queues.add(Marker(producer, epoch, True, 7), where, done, wanted)

    def answer(self, sent: SendMarkers, error: ErrorCode = NONE, now_ms: int = 0) -> Any:
        answers = {(job.marker.producer_id, where): error for job, where in sent.entries}
        return self.queues.answered(sent, answers, now_ms)


def shown(effects: Any) -> list[tuple[int, list[int]]]:
    """To whom, and which partitions: this broker is 1."""
    found = []
    for each in effects:
        if isinstance(each, WriteHere):
            found.append((1, [where.partition for where in each.partitions]))
        else:
            found.append((each.node_id, [where.partition for _, where in each.entries]))
    return found


def test_each_leader_gets_its_markers_and_all_answers_end_the_transaction() -> None:
    place = Place(1, 2, 3, 2)
    here, second, third = place.end(5)
    assert shown([here, second, third]) == [(1, [0]), (2, [1, 3]), (3, [2])]
    assert place.answer(second) == []
    assert place.queues.written_here(here.job, {at(0): NONE}, 0) == []
    assert not place.done
    place.answer(third, FENCED)
    assert place.done == [(5, {0: NONE, 1: NONE, 2: FENCED, 3: NONE})]
    assert len(place.queues) == 0


def test_one_request_to_a_broker_is_under_way_and_the_next_has_all_that_came_meanwhile() -> None:
    place = Place(2)
    (first,) = place.end(5)
    assert place.end(6) == place.end(7) == []
    (second,) = place.answer(first)
    assert [job.marker.producer_id for job, _ in second.entries] == [6, 7]


def test_a_request_has_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_queues, "PARTITIONS_PER_REQUEST", 2)
    place = Place(2, 2, 2)
    (first,) = place.end(5)
    assert shown([first]) == [(2, [0, 1])]
    assert shown(place.answer(first)) == [(2, [2])]


def test_a_retriable_answer_is_tried_again_after_growing_pauses() -> None:
    place = Place(2)
    (sent,) = place.end(5)
    now_ms, pauses = 0, []
    for _ in range(8):
        assert place.answer(sent, NOT_LEADER, now_ms) == []
        due_ms = place.queues.next_deadline_ms()
        assert due_ms is not None
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
        assert place.queues.tick(now_ms - 1) == []
        (sent,) = place.queues.tick(now_ms)
    assert pauses == [20, 40, 80, 160, 320, 500, 500, 500]
    place.answer(sent)
    assert place.done == [(5, {0: NONE})]


def test_a_broker_that_is_not_reached_keeps_nobody_else_waiting() -> None:
    place = Place(2, 3)
    second, third = place.end(5)
    place.queues.answered(second, ErrorCode.NETWORK_EXCEPTION, 0)
    place.answer(third)
    place.leaders[0] = 3
    assert shown(place.queues.tick(20)) == [(3, [0])]


def test_a_partition_that_moves_is_not_waited_for_at_its_old_leader() -> None:
    place = Place(2, 2, 2)
    (old,) = place.end(5)
    place.leaders |= {0: 3, 1: 1}
    here, third = place.queues.leaders_changed()
    assert shown([here, third]) == [(1, [1]), (3, [0])]
    assert shown([old]) == [(2, [2])]
    place.queues.written_here(here.job, {at(1): NONE}, 0)
    place.answer(third)
    place.answer(old)
    assert place.done == [(5, {0: NONE, 1: NONE, 2: NONE})]


def test_a_late_answer_of_an_old_leader_changes_nothing() -> None:
    place = Place(2)
    (old,) = place.end(5)
    place.leaders[0] = 3
    (new,) = place.queues.leaders_changed()
    late = {(5, at(0)): NONE}
    place.queues.answered(old, late, 0)
    assert not place.done
    place.answer(new)
    assert place.done == [(5, {0: NONE})]


def test_a_partition_without_a_leader_waits_for_one() -> None:
    place = Place(NOBODY, 2)
    (second,) = place.end(5)
    place.answer(second)
    assert place.queues.leaders_changed() == []
    assert place.queues.next_deadline_ms() is None
    place.leaders[0] = 3
    (third,) = place.queues.leaders_changed()
    place.answer(third)
    assert place.done == [(5, {0: NONE, 1: NONE})]


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    place = Place(2, NO_PARTITION)
    (sent,) = place.end(5)
    place.answer(sent, UNKNOWN)  # the broker is slow to learn of the topic
    assert not place.done
    place.leaders[0] = NO_PARTITION
    assert place.queues.tick(20) == []
    assert place.done == [(5, {0: UNKNOWN, 1: UNKNOWN})]


def test_a_coordinator_that_has_resigned_sends_nothing_more() -> None:
    place, wanted = Place(2, NOBODY), [True]
    (first,) = place.end(5, 0)
    place.end(6, 0, 1, wanted=lambda: wanted[0])
    wanted[0] = False
    assert place.answer(first) == []
    assert place.done == [(5, {0: NONE})]
    assert place.queues.leaders_changed() == []
    assert len(place.queues) == 0


def test_a_repeated_end_takes_the_place_of_the_one_before() -> None:
    place = Place(2, 2)
    (first,) = place.end(5, 0)
    assert place.end(5, 0, 1) == []
    (second,) = place.answer(first)
    assert place.done == []
    assert shown([second]) == [(2, [0, 1])]
    place.answer(second)
    assert place.done == [(5, {0: NONE, 1: NONE})]


def test_too_many_partitions_are_refused_for_now() -> None:
    place = Place(2, 2, 2, partitions_max=2)
    assert place.end(5) == []
    assert place.done == [(5, dict.fromkeys(range(3), ErrorCode.COORDINATOR_NOT_AVAILABLE))]
    assert shown(place.end(6, 0, 1)) == [(2, [0, 1])]


def test_nothing_to_write_is_done_at_once() -> None:
    place = Place()
    assert (
        place.queues.add(
            Marker(5, 0, True, 7), (), lambda e: place.done.append((5, dict(e))), always
        )
        == []
    )
    assert place.done == [(5, {})]


def test_each_request_has_a_larger_number_than_the_one_before() -> None:
    place = Place(2, 3)
    second, third = place.end(5)
    place.end(6)
    (after_second,) = place.answer(second)
    (after_third,) = place.answer(third)
    numbers = [each.number for each in (second, third, after_second, after_third)]
    assert numbers == [1, 2, 3, 4]


def test_a_receiver_refuses_numbers_below_the_last_and_knows_a_limited_number_of_senders() -> None:
    receiver = LocalMarkers(cast("Any", None), cast("Any", None), Verifications())
    assert receiver.admits(0, 5, 1)
    assert receiver.admits(0, 5, 2)
    assert not receiver.admits(0, 5, 1)
    assert receiver.admits(0, 6, 1), "the broker has started anew"
    for broker_id in range(1, SENDERS_MAX):
        assert receiver.admits(broker_id, 1, 1)
    assert not receiver.admits(0, 6, 0)
    assert receiver.admits(SENDERS_MAX, 1, 1)
    assert not receiver.admits(0, 6, 0), "another one was silent for longer"
    assert receiver.admits(1, 1, 0), "it is forgotten"
