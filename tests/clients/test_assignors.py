"""Assignors: who gets which partition, and what must hold of any answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.protocol.consumer.group import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from kafkalite.clients.consumer.assignors import (
    ASSIGNORS,
    COOPERATIVE_STICKY,
    RANGE,
    ROUND_ROBIN,
    Assignment,
    Assignor,
    RebalanceProtocol,
    Subscription,
)
from kafkalite.clients.consumer.sticky import balanced
from kafkalite.core.types import TopicPartition

TOPICS = ["o", "p", "q", "r"]
PARTITION_COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), max_size=4)
MEMBERS = st.lists(st.integers(0, 20).map(lambda n: f"m{n}"), min_size=1, max_size=6, unique=True)


@st.composite
def groups(draw: st.DrawFn, *, same_topics: bool = False) -> Mapping[str, Subscription]:
    topics = st.sets(st.sampled_from([*TOPICS, "missing"]), min_size=1).map(sorted).map(tuple)
    common = draw(topics)
    return {m: Subscription(common if same_topics else draw(topics)) for m in draw(MEMBERS)}


@st.composite
def owning_groups(draw: st.DrawFn, *, same_topics: bool = False) -> Mapping[str, Subscription]:
    """Members that claim partitions: of topics they left, that are gone, that others claim too."""
    partitions = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 11))
    return {
        member_id: replace(
            subscription,
            owned_partitions=tuple(draw(st.lists(partitions, max_size=8))),
            generation_id=draw(st.integers(3, 5)),
        )
        for member_id, subscription in draw(groups(same_topics=same_topics)).items()
    }


def assigned(text: str) -> Assignment:
    """`o0 p1` -> partition 0 of topic o, 1 of p."""
    return Assignment(tuple(TopicPartition(word[0], int(word[1:])) for word in text.split()))


def partitions_to_assign(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> Counter[TopicPartition]:
    wanted = {topic for s in subscriptions.values() for topic in s.topics}
    return Counter(TopicPartition(t, p) for t in wanted for p in range(partitions_of.get(t, 0)))


def given_out(assignments: Mapping[str, Assignment]) -> Counter[TopicPartition]:
    return Counter(p for assignment in assignments.values() for p in assignment.partitions)


def settle(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> tuple[Mapping[str, Subscription], int]:
    """Rebalances as cooperative members do, until nothing moves any more; and how often."""
    for generation_id in range(10, 20):
        assignments = COOPERATIVE_STICKY.assign(partitions_of, subscriptions)
        after = {
            m: replace(s, owned_partitions=assignments[m].partitions, generation_id=generation_id)
            for m, s in subscriptions.items()
        }
        if all(after[m].owned_partitions == s.owned_partitions for m, s in subscriptions.items()):
            return after, generation_id - 10
        subscriptions = after
    raise AssertionError("the group does not come to rest")


def test_range_gives_runs_and_the_first_members_one_more() -> None:
    subscriptions = {"b": Subscription(("o", "p")), "a": Subscription(("o", "p"))}
    assert RANGE.assign({"o": 3, "p": 2}, subscriptions) == {
        "a": assigned("o0 o1 p0"),
        "b": assigned("o2 p1"),
    }


def test_round_robin_passes_over_who_does_not_read_the_topic() -> None:
    subscriptions = {
        "a": Subscription(("o",)),
        "b": Subscription(("o", "p")),
        "c": Subscription(("o", "p", "q")),
    }
    assert ROUND_ROBIN.assign({"o": 1, "p": 2, "q": 3}, subscriptions) == {
        "a": assigned("o0"),
        "b": assigned("p0"),
        "c": assigned("p1 q0 q1 q2"),
    }


def test_static_members_sort_by_their_instance_id_before_the_others() -> None:
    subscriptions = {
        "a": Subscription(("o",)),
        "b": Subscription(("o",), group_instance_id="z"),
        "c": Subscription(("o",), group_instance_id="y"),
    }
    order = {m: a.partitions[0].partition for m, a in RANGE.assign({"o": 3}, subscriptions).items()}
    assert order == {"c": 0, "b": 1, "a": 2}


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@given(partitions_of=PARTITION_COUNTS, subscriptions=groups())
def test_each_partition_goes_to_one_member_who_reads_it(
    assignor: Assignor, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> None:
    assignments = assignor.assign(partitions_of, subscriptions)
    assert assignments.keys() == subscriptions.keys()
    assert given_out(assignments) == partitions_to_assign(partitions_of, subscriptions)
    for member_id, assignment in assignments.items():
        assert {p.topic for p in assignment.partitions} <= set(subscriptions[member_id].topics)


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
def test_without_members_or_topics_there_is_nothing_to_assign(assignor: Assignor) -> None:
    assert assignor.assign({"o": 3}, {}) == {}
    assert assignor.assign({}, {"a": Subscription(("o",))}) == {"a": Assignment()}
    assert assignor.subscription_user_data(("o",), ()) == b""
    cooperative = assignor.rebalance_protocol is RebalanceProtocol.COOPERATIVE
    assert cooperative == (assignor is COOPERATIVE_STICKY)


class Topics:
    """What kafka-python's assignors ask of a cluster."""

    def __init__(self, partitions_of: Mapping[str, int]) -> None:
        self.partitions_of = partitions_of

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.partitions_of[topic])) if topic in self.partitions_of else None


def by_kafka_python(
    assignor: Any, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> dict[str, set[TopicPartition]]:
    members = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id, s.group_instance_id, ConsumerProtocolSubscription(0, list(s.topics), b"")
        )
        for member_id, s in subscriptions.items()
    ]
    return {
        member_id: {TopicPartition(topic, p) for topic, ps in a.assigned_partitions for p in ps}
        for member_id, a in assignor.assign(Topics(partitions_of), members).items()
    }


@given(partitions_of=PARTITION_COUNTS, subscriptions=groups(), static=st.booleans())
def test_range_agrees_with_kafka_python(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription], static: bool
) -> None:
    if static:
        subscriptions = {m: replace(s, group_instance_id=m[::-1]) for m, s in subscriptions.items()}
    ours = RANGE.assign(partitions_of, subscriptions)
    theirs = by_kafka_python(RangePartitionAssignor, partitions_of, subscriptions)
    assert {m: set(a.partitions) for m, a in ours.items()} == theirs


@given(partitions_of=PARTITION_COUNTS, subscriptions=groups(same_topics=True))
def test_round_robin_agrees_with_kafka_python(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> None:
    ours = ROUND_ROBIN.assign(partitions_of, subscriptions)
    theirs = by_kafka_python(RoundRobinPartitionAssignor, partitions_of, subscriptions)
    assert {m: set(a.partitions) for m, a in ours.items()} == theirs


@given(partitions_of=PARTITION_COUNTS, subscriptions=owning_groups())
def test_a_balanced_assignment_is_complete_and_no_single_move_betters_it(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> None:
    target = balanced(partitions_of, subscriptions)
    all_given = Counter(p for partitions in target.values() for p in partitions)
    assert all_given == partitions_to_assign(partitions_of, subscriptions)
    for member_id, partitions in target.items():
        for partition in partitions:
            for other, subscription in subscriptions.items():
                if partition.topic in subscription.topics:
                    assert len(target[member_id]) - len(target[other]) < 2
        assert {p.topic for p in partitions} <= set(subscriptions[member_id].topics)


@given(partitions_of=PARTITION_COUNTS, subscriptions=owning_groups(same_topics=True))
def test_equal_members_keep_as_much_as_balance_allows(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> None:
    target = balanced(partitions_of, subscriptions)
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member_id, s in subscriptions.items():
        for partition in set(s.owned_partitions):
            if partition.topic in s.topics and partition.partition < partitions_of.get(
                partition.topic, 0
            ):
                claims.setdefault(partition, []).append((s.generation_id, member_id))
    owned: Counter[str] = Counter()
    for claim in claims.values():
        newest = [member_id for generation, member_id in claim if generation == max(claim)[0]]
        if len(newest) == 1:
            owned[newest[0]] += 1
    kept = {
        m: len({p for p in target[m] if any(o == m for _, o in claims.get(p, ()))})
        for m in subscriptions
    }
    share, extra = divmod(sum(map(len, target.values())), len(subscriptions))
    quota = dict.fromkeys(subscriptions, share)
    for member_id in sorted(subscriptions, key=lambda m: -owned[m])[:extra]:
        quota[member_id] += 1
    best = sum(min(owned[m], quota[m]) for m in subscriptions)
    assert sum(kept.values()) >= best


@given(partitions_of=PARTITION_COUNTS, subscriptions=owning_groups())
def test_a_cooperative_member_gets_nothing_that_another_still_owns(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> None:
    assignments = COOPERATIVE_STICKY.assign(partitions_of, subscriptions)
    assert all(count == 1 for count in given_out(assignments).values())
    for member_id, assignment in assignments.items():
        mine = subscriptions[member_id].owned_partitions
        for partition in set(assignment.partitions) - set(mine):
            assert all(partition not in s.owned_partitions for s in subscriptions.values())


@given(partitions_of=PARTITION_COUNTS, subscriptions=owning_groups())
def test_a_cooperative_group_comes_to_rest_balanced_after_three_generations_at_most(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> None:
    rested, generations = settle(partitions_of, subscriptions)
    assert generations <= 3  # two, unless the subscriptions differ and somebody owned a stranger's
    owned = Counter(p for s in rested.values() for p in s.owned_partitions)
    assert owned == partitions_to_assign(partitions_of, subscriptions)


@settings(max_examples=50)
@given(partitions_of=PARTITION_COUNTS, subscriptions=groups(same_topics=True))
def test_a_member_that_comes_takes_its_share_and_no_more(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> None:
    before, _ = settle(partitions_of, subscriptions)
    topics = next(iter(subscriptions.values())).topics
    after, _ = settle(partitions_of, {**before, "new": Subscription(topics)})
    for member_id, subscription in before.items():
        assert set(after[member_id].owned_partitions) <= set(subscription.owned_partitions)


def test_a_claim_of_an_older_generation_does_not_count() -> None:
    o0 = TopicPartition("o", 0)
    stale = Subscription(("o",), (o0,), generation_id=4)
    newer = Subscription(("o",), (o0,), generation_id=5)
    assert balanced({"o": 1}, {"a": stale, "b": newer}) == {"a": [], "b": [o0]}
    old_client = Subscription(("o",), (o0,), user_data=(6).to_bytes(4, "big"))
    assert balanced({"o": 1}, {"a": old_client, "b": newer}) == {"a": [o0], "b": []}
