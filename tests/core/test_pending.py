"""Small pure pieces of the broker: pending answers, producer ids, duties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.cluster.producer_ids import ProducerIds
from kafkalite.core.duties import Duties, Duty
from kafkalite.core.pending import Pending, after, when_all
from kafkalite.errors import ApiError, ErrorCode


def test_a_pending_answer_is_told_once_whenever_it_comes() -> None:
    heard: list[int] = []
    early: Pending[int] = Pending()
    early.complete(1)
    early.when_done(heard.append)
    late: Pending[int] = Pending()
    late.when_done(heard.append)
    assert heard == [1]
    late.complete(2)
    assert heard == [1, 2]
    late.abandon()
    with pytest.raises(AssertionError):
        late.complete(3)


def test_an_abandoned_answer_is_dropped_and_its_maker_told() -> None:
    heard: list[str] = []
    pending: Pending[str] = Pending()
    pending.when_done(heard.append)
    pending.when_abandoned(lambda: heard.append("abandoned"))
    pending.abandon()
    pending.abandon()
    pending.complete("answer")
    assert heard == ["abandoned"]


@given(st.lists(st.booleans(), max_size=6), st.randoms())
def test_several_answers_become_one_in_their_order(is_open: list[bool], random: Any) -> None:
    answers: list[Any] = [Pending() if each else number for number, each in enumerate(is_open)]
    whole = when_all(answers, list)
    order = [number for number, each in enumerate(is_open) if each]
    random.shuffle(order)
    for number in order:
        assert isinstance(whole, Pending)
        assert whole.response is None
        answers[number].complete(number)
    done = whole.response if isinstance(whole, Pending) else whole
    assert done == list(range(len(is_open)))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("made_is_open", [False, True])
def test_an_answer_is_made_of_another_when_that_is_there(is_open: bool, made_is_open: bool) -> None:
    first: Pending[int] = Pending()
    second: Pending[str] = Pending()
    made = after(first if is_open else 1, lambda n: second if made_is_open else f"made of {n}")
    if is_open:
        assert isinstance(made, Pending)
        assert made.response is None
        first.complete(1)
    if made_is_open:
        assert isinstance(made, Pending)
        assert made.response is None
        second.complete("made of 1")
    assert (made.response if isinstance(made, Pending) else made) == "made of 1"


def test_an_answer_that_cannot_be_made_fails_alone() -> None:
    """Whoever completes the first goes on: others wait for the same."""
    first: Pending[int] = Pending()

    def broken(_: int) -> str:
        raise ValueError("a fault of ours")

    made = after(first, broken)
    assert isinstance(made, Pending)
    first.complete(1)
    assert isinstance(made.response, ValueError)


def test_ids_come_from_one_block_after_the_other() -> None:
    requests: list[int] = []
    ids = ProducerIds(lambda: requests.append(1))
    waiting = [ids.take() for _ in range(3)]
    assert len(requests) == 1
    ids.add_block(0, 2)
    assert [w.response for w in waiting] == [0, 1, None]
    assert len(requests) == 2
    ids.add_block(1_000, 2)
    assert waiting[2].response == 1_000
    assert ids.take().response == 1_001
    assert len(requests) == 2


def test_a_refused_block_is_told_and_asked_for_again() -> None:
    requests: list[int] = []
    ids = ProducerIds(lambda: requests.append(1))
    first = ids.take()
    error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    ids.refuse(error)
    assert first.response is error
    second = ids.take()
    ids.add_block(0, 1)
    assert (second.response, len(requests)) == (0, 2)


def nothing(_: int) -> Iterator[None]:
    yield


def test_a_duty_is_due_at_its_interval_and_never_overtakes_itself() -> None:
    often, seldom = Duty("often", 10, nothing), Duty("seldom", 100, nothing)
    duties = Duties([often, seldom], now_ms=0)
    assert duties.next_ms() == 10
    assert duties.due(9) == []
    assert [duty for duty, _ in duties.due(10)] == [often]
    assert duties.next_ms() == 100
    assert [duty for duty, _ in duties.due(500)] == [seldom]
    assert duties.next_ms() is None
    duties.done(often, 500)
    assert duties.next_ms() == 510
