"""A balanced assignment in which members keep as many partitions as possible.              [P]

    1  a member keeps its partitions of the topics that it still subscribes to
    2  partitions without an owner, the fewest subscribers first, go to the member with the least
    3  while a member has two more than another subscriber of one of them, one moves

Each step of 3 makes the sum of the squares of the loads smaller, so it ends. It takes from the
richest giver and gives to the poorest taker: among members with equal subscriptions no more
partitions move than the balance needs. Partitions that were handed out in this round move first.

Owns   nothing.
Never  moves a partition for its own sake: a balanced assignment is returned as it was.
Source KIP-54, KIP-429; apache/kafka `AbstractStickyAssignor` for the rules on stale owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kafkalite.core.protocol.subscriptions import NO_GENERATION, Subscription
from kafkalite.core.types import TopicPartition

GENERATION_BYTES: Final = 4

Takers = Mapping[str, tuple[str, ...]]  # topic -> members who subscribed to it


def balanced(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> dict[str, list[TopicPartition]]:
    """Each member's partitions, sorted; every partition with a subscriber has an owner."""
    takers = _takers(partitions_of, subscriptions)
    owners = current_owners(partitions_of, subscriptions)
    hands = {member_id: _Hand() for member_id in sorted(subscriptions)}
    for partition, member_id in owners.items():
        hands[member_id].give(partition, fresh=False)
    for topic in sorted(takers, key=lambda t: (len(takers[t]), t)):
        for number in range(partitions_of[topic]):
            partition = TopicPartition(topic, number)
            if partition not in owners:
                poorest = min(takers[topic], key=lambda m: (hands[m].load, m))
                hands[poorest].give(partition, fresh=True)
    while _move_one(hands, takers):
        pass
    return {member_id: hand.sorted() for member_id, hand in hands.items()}


@dataclass(slots=True)
class _Hand:
    """One member's partitions. It did not own the `fresh` partitions before."""

    load: int = 0
    partitions: dict[str, set[int]] = field(default_factory=dict)
    fresh: set[TopicPartition] = field(default_factory=set)

    def give(self, partition: TopicPartition, *, fresh: bool) -> None:
        self.partitions.setdefault(partition.topic, set()).add(partition.partition)
        self.load += 1
        if fresh:
            self.fresh.add(partition)

    def take(self, partition: TopicPartition) -> None:
        of_topic = self.partitions[partition.topic]
        of_topic.remove(partition.partition)
        if not of_topic:
            del self.partitions[partition.topic]
        self.load -= 1
        self.fresh.discard(partition)

    def sorted(self) -> list[TopicPartition]:
        return sorted(TopicPartition(t, p) for t, ps in self.partitions.items() for p in ps)


def _takers(partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]) -> Takers:
    """The members that subscribe to each existing topic.

    Topics with the same takers share one tuple, so that identity distinguishes them.
    """
    found: dict[str, list[str]] = {}
    for member_id in sorted(subscriptions):
        for topic in set(subscriptions[member_id].topics):
            if partitions_of.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member_id)
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    return {t: shared.setdefault(tuple(m), tuple(m)) for t, m in sorted(found.items())}


def current_owners(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> dict[TopicPartition, str]:
    """The owner of each partition, by the newest generation that claims it.

    A claim of an older generation comes from a member that missed a rebalance. Two claims of one
    generation cannot both be right, so neither counts.
    """
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, subscription in subscriptions.items():
        generation_id = _generation_of(subscription)
        topics = set(subscription.topics)
        for partition in set(subscription.owned_partitions):
            exists = 0 <= partition.partition < partitions_of.get(partition.topic, 0)
            if partition.topic not in topics or not exists:
                continue
            newest, _ = claims.get(partition, (generation_id - 1, None))
            if generation_id > newest:
                claims[partition] = (generation_id, member_id)
            elif generation_id == newest:
                claims[partition] = (generation_id, None)
    return {
        partition: member_id
        for partition, (_, member_id) in claims.items()
        if member_id is not None
    }


def _generation_of(subscription: Subscription) -> int:
    """The generation in which the member got its partitions; before KIP-792 from the user data."""
    user_data = subscription.user_data
    if subscription.generation_id == NO_GENERATION and len(user_data) == GENERATION_BYTES:
        return int.from_bytes(user_data, "big", signed=True)
    return subscription.generation_id


def _move_one(hands: Mapping[str, _Hand], takers: Takers) -> bool:
    """Moves one partition from the richest giver to the poorest taker."""
    for rich in sorted(hands, key=lambda m: (-hands[m].load, m)):
        giver = hands[rich]
        if giver.load < 2:
            return False
        reach = {id(takers[topic]): takers[topic] for topic in giver.partitions}.values()
        poor = min((m for members in reach for m in members), key=lambda m: (hands[m].load, m))
        if giver.load - hands[poor].load >= 2:
            moved = _movable(giver, poor, takers)
            giver.take(moved)
            hands[poor].give(moved, fresh=True)
            return True
    return False


def _movable(giver: _Hand, poor: str, takers: Takers) -> TopicPartition:
    """A partition that `poor` can take, if possible one that the giver got in this round."""
    fresh = [partition for partition in giver.fresh if poor in takers[partition.topic]]
    if fresh:
        return max(fresh)
    topic = max(topic for topic in giver.partitions if poor in takers[topic])
    return TopicPartition(topic, max(giver.partitions[topic]))
