"""Requests are split into parts, and the answers to the parts are joined, without a difference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.handlers.parts import Parts, joined
from kafkalite.core.pending import Pending
from kafkalite.core.protocol.groups import DescribeGroupsRequest
from kafkalite.core.protocol.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kafkalite.errors import ApiError, ErrorCode

SIZE = 3
OFFSETS = Parts("groups.topics.partition_indexes", "groups.topics.partitions", SIZE)
indexes = st.lists(st.integers(0, 9), max_size=8).map(tuple)
topics = st.lists(st.tuples(st.sampled_from("tu"), indexes), max_size=4)
asked = st.lists(topics, max_size=4)


def request(groups: list[list[tuple[str, tuple[int, ...]]]]) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        groups=tuple(
            OffsetFetchRequestGroup(f"g{n}", topics=tuple(OffsetFetchRequestTopics(*t) for t in of))
            for n, of in enumerate(groups)
        )
    )


def answered(asked: OffsetFetchRequest) -> OffsetFetchResponse:
    def of_topic(topic: Any) -> OffsetFetchResponseTopics:
        every = (OffsetFetchResponsePartitions(n, 10 * n) for n in topic.partition_indexes)
        return OffsetFetchResponseTopics(topic.name, tuple(every))

    return OffsetFetchResponse(
        groups=tuple(
            OffsetFetchResponseGroup(group.group_id, tuple(map(of_topic, group.topics or ())))
            for group in asked.groups
        )
    )


def flat(answer: OffsetFetchResponse) -> list[tuple[str, str, int]]:
    return [
        (group.group_id, topic.name, partition.partition_index)
        for group in answer.groups
        for topic in group.topics
        for partition in topic.partitions
    ]


def run(slices: Any) -> tuple[Any, int]:
    """What a generator returns, and how often it yields."""
    count = 0
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return stop.value, count
        count += 1


@given(asked)
def test_the_parts_of_a_request_are_answered_as_the_whole_is(groups: Any) -> None:
    whole = request(groups)
    parts = list(OFFSETS.split(whole))
    sizes = [len(flat(answered(part))) for part in parts]
    assert max(sizes) <= SIZE
    answer, turns = run(OFFSETS.answer(whole, answered))
    assert flat(answer) == flat(answered(whole))
    assert [group.group_id for group in answer.groups] == [g.group_id for g in whole.groups]
    assert turns == len(parts)


def test_an_entry_that_was_split_is_whole_again() -> None:
    whole = request([[("t", tuple(range(8))), ("u", (1,))], [("t", (0,))]])
    assert len(list(OFFSETS.split(whole))) > 2
    answer, _ = run(OFFSETS.answer(whole, answered))
    assert answer == answered(whole)


def test_an_error_of_one_part_is_one_of_the_whole() -> None:
    failed = OffsetFetchResponse(error_code=ErrorCode.NOT_COORDINATOR)
    assert joined([OffsetFetchResponse(), failed], ("groups",)) == failed
    group = OffsetFetchResponseGroup("g", (), ErrorCode.NOT_COORDINATOR)
    parts = [answered(request([[("t", (1,))]])), OffsetFetchResponse(groups=(group,))]
    (one, other) = joined(parts, ("groups", "topics", "partitions")).groups
    assert (one.group_id, other.group_id) == ("g0", "g")


def test_entries_may_be_told_once() -> None:
    parts = Parts("groups", "groups", 2, identity=str)
    split = list(parts.split(DescribeGroupsRequest(("a", "b", "a", "c", "b"))))
    assert [part.groups for part in split] == [("a", "b"), ("c",)]


def test_an_answer_that_comes_later_is_waited_for() -> None:
    later: Pending[Any] = Pending()
    parts = Parts("groups", "groups", 1)
    slices = parts.answer(DescribeGroupsRequest(("a", "b")), lambda _: later)
    waits_for = next(slices)
    gone_on: list[Any] = []
    waits_for.add_done_callback(gone_on.append)
    assert not gone_on
    later.complete(ApiError(ErrorCode.NOT_COORDINATOR, "a"))
    assert gone_on
    with pytest.raises(ApiError):
        next(slices)


def test_the_parts_of_an_empty_request_are_the_request() -> None:
    empty = DescribeGroupsRequest(())
    assert list(Parts("groups", "groups").split(empty)) == [empty]
