"""What consumers tell each other through the coordinator, in their own and in others' bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.protocol.subscriptions import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from kafkalite.core.types import TopicPartition
from kafkalite.errors import WireError

NAMES = st.text("abc", min_size=1, max_size=5)
PARTITIONS = st.sets(st.builds(TopicPartition, NAMES, st.integers(0, 9))).map(sorted).map(tuple)
SUBSCRIPTIONS = st.builds(
    Subscription,
    topics=st.lists(NAMES).map(tuple),
    owned_partitions=PARTITIONS,
    generation_id=st.integers(-1, 9),
    user_data=st.binary(max_size=9),
    group_instance_id=st.none() | NAMES,
    rack_id=st.none() | NAMES,
)


@given(subscription=SUBSCRIPTIONS)
def test_a_subscription_comes_back_with_the_instance_id_that_the_coordinator_adds(
    subscription: Subscription,
) -> None:
    data = encode_subscription(subscription)
    assert decode_subscription(data, subscription.group_instance_id) == subscription


@given(assignment=st.builds(Assignment, PARTITIONS, st.binary(max_size=9)))
def test_an_assignment_comes_back(assignment: Assignment) -> None:
    assert decode_assignment(encode_assignment(assignment)) == assignment


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_other_clients_are_understood_in_all_their_versions(version: int) -> None:
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    theirs = ConsumerProtocolSubscription(
        ["o"],
        b"x",
        owned_partitions=[ConsumerProtocolSubscription.TopicPartition("o", [1])],
        generation_id=4,
        rack_id="r",
        version=version,
    ).encode(header=True, framed=False)
    ours = decode_subscription(theirs)
    assert ours.topics == ("o",)
    assert ours.user_data == b"x"
    assert ours.owned_partitions == ((("o", 1),) if version >= 1 else ())
    assert ours.generation_id == (4 if version >= 2 else -1)
    assert ours.rack_id == ("r" if version >= 3 else None)


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1, 3])
def test_other_leaders_are_understood(version: int) -> None:
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

    o1 = ConsumerProtocolAssignment.TopicPartition("o", [1])
    theirs = ConsumerProtocolAssignment([o1], b"x", version=version)
    data = theirs.encode(header=True, framed=False)
    assert decode_assignment(data) == Assignment((TopicPartition("o", 1),), b"x")


def test_members_from_the_future_are_understood_as_far_as_we_know_their_version() -> None:
    subscription = Subscription(("o",), rack_id="r")
    later = b"\0\7" + encode_subscription(subscription)[2:] + b"what we do not know"
    assert decode_subscription(later) == subscription
    assignment = Assignment((TopicPartition("o", 1),))
    later = b"\0\7" + encode_assignment(assignment)[2:] + b"what we do not know"
    assert decode_assignment(later) == assignment


def test_a_leader_that_forgets_a_member_assigns_nothing_to_it() -> None:
    assert decode_assignment(b"") == Assignment()


@pytest.mark.parametrize("data", [b"\0", b"\xff\xff\0\0\0\0", b"\0\0\0\0\0\5", b"\0\7\0\0\0\5"])
def test_bytes_that_are_no_subscription_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_subscription(data)


def test_an_assignment_of_a_negative_version_is_refused() -> None:
    with pytest.raises(WireError, match="not -1"):
        decode_assignment(struct.pack(">hi", -1, 0))


def test_topics_are_known_if_every_member_speaks_clearly() -> None:
    one, two = (encode_subscription(Subscription((topic,))) for topic in "op")
    assert subscribed_topics([one, two]) == frozenset("op")
    assert subscribed_topics([one, b"?"]) is None
    assert subscribed_topics([]) == frozenset()
