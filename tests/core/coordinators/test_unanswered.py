"""Requests that wait for replicas: answered once, in time, with an error if need be."""

from __future__ import annotations

from typing import Any

from kafkalite.core.coordinators.unanswered import Unanswered
from kafkalite.core.protocol.groups import LeaveGroupResponse
from kafkalite.core.protocol.transactions import EndTxnResponse
from kafkalite.core.types import Reply
from kafkalite.errors import ErrorCode

GOOD = EndTxnResponse()


def shown(replies: tuple[Reply, ...]) -> list[tuple[Any, ErrorCode]]:
    return [(reply.token, reply.response.error_code) for reply in replies]  # type: ignore[attr-defined]


def test_what_is_committed_in_time_is_answered_as_it_was_meant() -> None:
    unanswered = Unanswered()
    waiting = unanswered.wait((Reply("a", GOOD),), 100)
    assert unanswered.next_deadline_ms() == 100
    assert waiting.take() == (Reply("a", GOOD),)
    assert unanswered.next_deadline_ms() is None
    assert unanswered.overdue(100) == ()


def test_what_is_not_is_answered_with_an_error_and_never_again() -> None:
    unanswered = Unanswered()
    first = unanswered.wait((Reply("a", GOOD), Reply("b", GOOD)), 100)
    second = unanswered.wait((Reply("c", GOOD),), 101)
    assert unanswered.overdue(99) == ()
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert shown(unanswered.overdue(100)) == [("a", code), ("b", code)]
    assert first.take() == ()
    assert unanswered.next_deadline_ms() == 101
    assert shown(second.take()) == [("c", ErrorCode.NONE)]


def test_a_response_without_a_place_for_the_error_waits_on() -> None:
    unanswered = Unanswered()
    leave = Reply("a", LeaveGroupResponse())
    waiting = unanswered.wait((leave,), 100)
    assert unanswered.overdue(100) == ()
    assert unanswered.next_deadline_ms() is None
    assert waiting.take() == (leave,)


def test_steps_that_answer_nobody_keep_nothing() -> None:
    unanswered = Unanswered()
    for number in range(10):
        unanswered.wait((), number)
    for number in range(10, 20):
        unanswered.wait((Reply(number, GOOD),), number).take()
    unanswered.wait((), 20)
    assert len(unanswered._waiting) == 0
