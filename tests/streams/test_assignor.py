"""Tasks to members: every task once, evenly, and with its last owner where that is fair."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.clients.consumer.assignors import Subscription
from kafkalite.core.types import TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.streams.local.assignor import TaskAssignor, TaskId, read_user_data, spread, tasks_of

tasks = st.lists(st.builds(TaskId, st.integers(0, 3), st.integers(0, 9)), unique=True, max_size=30)


@given(tasks, st.integers(1, 5), st.randoms(use_true_random=False))
def test_every_task_has_one_member_and_shares_differ_by_one(all_tasks, members, random) -> None:
    owners = {f"m{i}": [] for i in range(members)}
    for task in all_tasks:
        for member in random.sample(sorted(owners), random.randint(0, min(2, members))):
            owners[member].append(task)  # two members may claim the same task
    given_to = spread(all_tasks, owners)
    assert Counter(t for mine in given_to.values() for t in mine) == Counter(all_tasks)
    counts = [len(mine) for mine in given_to.values()]
    assert max(counts) - min(counts) <= 1


@given(tasks, st.integers(1, 5))
def test_a_fair_assignment_stays_as_it_is(all_tasks, members) -> None:
    first = spread(all_tasks, {f"m{i}": [] for i in range(members)})
    assert spread(all_tasks, first) == first


def test_a_new_member_takes_no_more_than_its_share() -> None:
    owned = [TaskId(0, p) for p in range(4)]
    after = spread(owned, {"a": owned, "b": []})
    assert len(after["a"]) == 2
    assert set(after["a"]) <= set(owned)


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


def test_user_data_carries_the_owned_tasks_and_garbage_carries_none() -> None:
    assignor = TaskAssignor({0: ["orders"]}, transactional_id="app-1")
    assignor.owned = frozenset({TaskId(0, 1)})
    assert read_user_data(assignor.subscription_user_data(["orders"], [])) == (
        [TaskId(0, 1)],
        "app-1",
    )
    for garbage in (None, b"", b"\xc1", b"\x93\x01\x02\x03", b"hello"):
        assert read_user_data(garbage) == ([], None)
