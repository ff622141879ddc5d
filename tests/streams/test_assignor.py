"""What workers say of themselves, and what the leader makes of it."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.clients.consumer.assignors import Assignment, Subscription
from kafkalite.core.types import TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.streams.local.assignor import (
    Following,
    Knowledge,
    TaskAssignor,
    TaskId,
    know_nothing,
    read_following,
    read_user_data,
    tasks_of,
    write_following,
)
from kafkalite.streams.local.placement import Rules

task_ids = st.builds(TaskId, st.integers(0, 3), st.integers(0, 9))


def test_a_task_reads_one_partition_number_of_each_of_its_topics() -> None:
    found = tasks_of(
        {0: ["orders", "items"], 1: ["repartitioned"]},
        {"orders": 2, "items": 1, "repartitioned": 1},
    )
    assert {str(task): [str(tp) for tp in tps] for task, tps in found.items()} == {
        "0_0": ["orders-0", "items-0"],
        "0_1": ["orders-1"],
        "1_0": ["repartitioned-0"],
    }


def test_a_topic_that_is_gone_ends_a_topology_that_names_it() -> None:
    assignor = TaskAssignor({0: ["orders", "matched"]}, required=["orders"])
    with pytest.raises(TopologyError, match="topic 'orders' is gone"):
        assignor.assign({"matched": 1}, {})
    member = {"m": Subscription(("orders", "matched"))}
    assert assignor.assign({"orders": 1}, member)["m"].partitions == (TopicPartition("orders", 0),)


def test_user_data_carries_the_lags_and_garbage_carries_none() -> None:
    known = Knowledge({TaskId(0, 1): 12}, {TaskId(0, 1): 500})
    assignor = TaskAssignor({0: ["orders"]}, transactional_id="app-1", knowledge=lambda: known)
    told = read_user_data(assignor.subscription_user_data(["orders"], []))
    assert told == ("app-1", known)
    for garbage in (None, b"", b"\xc1", b"\x93\x01\x02\x03", b"hello"):
        assert read_user_data(garbage) == (None, know_nothing())


@given(st.builds(Following, *[st.frozensets(task_ids)] * 3))
def test_what_is_to_be_followed_comes_with_the_assignment(following: Following) -> None:
    assignor = TaskAssignor({})
    assignor.on_assignment(Assignment((), write_following(following)))
    assert assignor.following == following


def test_an_assignment_of_another_version_lets_nothing_be_followed() -> None:
    for garbage in (None, b"", b"\xc1", b"\x94\x09\x90\x90\x90", b"\x92\x01\x02", b"hello"):
        assert read_following(garbage) == Following()


class TestAssign:
    """The leader's decision for members that own partitions and know of state."""

    size = 1_000_000
    sources: ClassVar = {0: ["in"]}

    def assign(
        self,
        owned: dict[str, list[int]],
        lags: dict[str, dict[int, int]],
        counts: dict[str, int] | None = None,
        **rules: int,
    ) -> dict[str, tuple[list[int], Following]]:
        """By member: the partitions that it gets, and what it is to follow."""
        sizes = {TaskId(0, number): self.size for number in range(4)}
        assignor = TaskAssignor(self.sources, rules=Rules(**rules))
        subscriptions = {}
        for member, mine in owned.items():
            behind = {TaskId(0, number): lag for number, lag in lags.get(member, {}).items()}
            told = TaskAssignor(
                self.sources, knowledge=lambda behind=behind: Knowledge(behind, sizes)
            )
            partitions = tuple(TopicPartition("in", number) for number in mine)
            data = told.subscription_user_data(["in"], partitions)
            subscriptions[member] = Subscription(("in",), partitions, 1, data)
        found = assignor.assign(counts or {"in": 4}, subscriptions)
        return {
            member: ([tp.partition for tp in a.partitions], read_following(a.user_data))
            for member, a in found.items()
        }

    def test_a_task_that_moves_is_pending_until_its_owner_has_let_go(self) -> None:
        warm = {2: 10, 3: 10}
        first = self.assign({"a": [0, 1, 2, 3], "b": []}, {"b": warm})
        moving = frozenset({TaskId(0, 2), TaskId(0, 3)})
        assert first == {
            "a": ([0, 1], Following()),
            "b": ([], Following(pending=moving)),
        }
        then = self.assign({"a": [0, 1], "b": []}, {"a": {2: 0, 3: 0}, "b": warm})
        assert then == {"a": ([0, 1], Following()), "b": ([2, 3], Following())}

    def test_the_owner_goes_on_while_another_warms_up(self) -> None:
        found = self.assign({"a": [0, 1, 2, 3], "b": []}, {})
        assert found["a"] == ([0, 1, 2, 3], Following())
        assert len(found["b"][1].warmups) == 2

    def test_standbys_are_on_the_other_worker(self) -> None:
        found = self.assign({"a": [0, 1], "b": [2, 3]}, {}, standbys=1)
        assert found["a"][1].standbys == {TaskId(0, 2), TaskId(0, 3)}
        assert found["b"][1].standbys == {TaskId(0, 0), TaskId(0, 1)}

    def test_two_who_claim_one_partition_own_nothing(self) -> None:
        found = self.assign({"a": [0], "b": [0]}, {})
        assert sorted(len(partitions) for partitions, _ in found.values()) == [2, 2]
