"""What group members of protocol type `consumer` tell each other: subscriptions, assignments.  [P]

A member's JoinGroup carries its subscription as bytes, the leader's SyncGroup everyone's
assignment as bytes; the coordinator passes both on. It looks into a subscription only to learn
which topics a group reads.

    subscription   version (Int16)  topics  user_data  owned_partitions  generation_id  rack_id
                                                       from v1           from v2        from v3
    assignment     version (Int16)  partitions  user_data                        all versions alike

Owns   the values `Subscription` and `Assignment` and their bytes.
Fails  with WireError.
Source KIP-429, KIP-792 (generation_id), KIP-881 (rack_id);
       `ConsumerProtocolSubscription.json`, `ConsumerProtocolAssignment.json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kafkalite.core.protocol.codec import decode_with_version, encode_with_version
from kafkalite.core.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from kafkalite.core.types import TopicPartition, by_topic
from kafkalite.errors import WireError

PROTOCOL_TYPE: Final = "consumer"
NO_GENERATION: Final = -1
VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's topics and partitions.

    `generation_id` is the generation of its `owned_partitions`; −1 before the first.
    `group_instance_id` is not part of the bytes: the coordinator adds it.
    """

    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    user_data: bytes = b""
    group_instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions that a member reads."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes = b""


def encode_subscription(subscription: Subscription) -> bytes:
    """The metadata of a JoinGroup's protocol."""
    message = ConsumerProtocolSubscription(
        topics=subscription.topics,
        user_data=subscription.user_data,
        owned_partitions=_topics(subscription.owned_partitions),
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )
    return encode_with_version(message, VERSION)


def decode_subscription(data: bytes, group_instance_id: str | None = None) -> Subscription:
    """A member's subscription, as the leader reads it in the JoinGroup's response."""
    message = decode_with_version(ConsumerProtocolSubscription, data, accept_newer=True)
    return Subscription(
        topics=message.topics,
        owned_partitions=_partitions(message.owned_partitions),
        generation_id=message.generation_id,
        user_data=message.user_data or b"",
        group_instance_id=group_instance_id,
        rack_id=message.rack_id,
    )


def encode_assignment(assignment: Assignment) -> bytes:
    """One member's assignment in the leader's SyncGroup."""
    message = ConsumerProtocolAssignment(_topics(assignment.partitions), assignment.user_data)
    return encode_with_version(message, VERSION)


def decode_assignment(data: bytes) -> Assignment:
    """A member's assignment. No bytes at all are the empty assignment of a forgetful leader."""
    if not data:
        return Assignment()
    message = decode_with_version(ConsumerProtocolAssignment, data, accept_newer=True)
    return Assignment(_partitions(message.assigned_partitions), message.user_data or b"")


def subscribed_topics(members_metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that these members read; None if one of them speaks what we cannot read."""
    topics: set[str] = set()
    for metadata in members_metadata:
        try:
            topics.update(decode_subscription(metadata).topics)
        except WireError:
            return None
    return frozenset(topics)


def _topics(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    topics = by_topic(partitions).items()
    return tuple(TopicPartitions(topic, tuple(numbers)) for topic, numbers in topics)


def _partitions(topics: Iterable[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(t.topic, number) for t in topics for number in t.partitions)
