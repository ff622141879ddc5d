"""Partition assignors: the group's leader decides which member reads which partition.      [P]

An assignor is a function from partition counts and subscriptions to assignments. It runs in the
member that the coordinator made leader; the coordinator only carries its bytes.

    range               topic by topic, contiguous runs: equal numbers of two topics meet
    roundrobin          all partitions dealt out one by one
    cooperative-sticky  balanced, and everyone keeps what they can; a partition that must move is
                        first taken from its owner, and given to the new one in the next generation

Owns   nothing: an assignor has no state between two calls.
Never  gives a partition to two members, or to a member that did not subscribe to its topic. A topic
       without partitions (it does not exist yet) is left out.
Source KIP-54, KIP-345 (static members sort by instance id), KIP-429; apache/kafka `RangeAssignor`,
       `RoundRobinAssignor`, `CooperativeStickyAssignor`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import cycle
from typing import Final, Protocol

from kafkalite.clients.consumer.sticky import balanced
from kafkalite.core.protocol.subscriptions import Assignment, Subscription
from kafkalite.core.types import TopicPartition

__all__ = [
    "ASSIGNORS",
    "COOPERATIVE_STICKY",
    "RANGE",
    "ROUND_ROBIN",
    "Assignment",
    "Assignor",
    "CooperativeStickyAssignor",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "Subscription",
]


class RebalanceProtocol(Enum):
    """A member's treatment of its partitions when a rebalance begins."""

    EAGER = "gives all of them up before it joins"
    COOPERATIVE = "keeps them, and gives up only what its assignment lacks"


class Assignor(Protocol):
    """The interface of an assignor. The group votes on its `name`."""

    @property
    def name(self) -> str:
        """The protocol's name, the same in every client that can do it."""

    @property
    def rebalance_protocol(self) -> RebalanceProtocol:
        """Whether members keep their partitions while they rebalance."""

    def subscription_user_data(
        self, topics: Sequence[str], owned: Sequence[TopicPartition]
    ) -> bytes:
        """Data in the member's subscription for the assignor of the leader."""

    def assign(
        self, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment]:
        """Each member's assignment. `partitions_of` holds the number of partitions by topic."""

    def on_assignment(self, assignment: Assignment) -> None:
        """Hands the member's new assignment to its assignor."""


class _Stateless:
    """The parts of an assignor that say nothing and remember nothing."""

    rebalance_protocol = RebalanceProtocol.EAGER

    def subscription_user_data(
        self, topics: Sequence[str], owned: Sequence[TopicPartition]
    ) -> bytes:
        """Nothing: the subscription says it all."""
        return b""

    def on_assignment(self, assignment: Assignment) -> None:
        """Nothing to remember."""


class RangeAssignor(_Stateless):
    """Each member gets a run of each topic's partitions; the first members get one more."""

    name = "range"

    def assign(
        self, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment]:
        """Each member's runs, by topic name."""
        runs: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscriptions}
        members = _in_order(subscriptions)
        for topic in _topics(partitions_of, subscriptions):
            readers = [m for m in members if topic in subscriptions[m].topics]
            share, extra = divmod(partitions_of[topic], len(readers))
            start = 0
            for i, member_id in enumerate(readers):
                end = start + share + (i < extra)
                runs[member_id].extend(TopicPartition(topic, p) for p in range(start, end))
                start = end
        return _assignments(runs)


class RoundRobinAssignor(_Stateless):
    """All partitions in order, one to each member in turn that subscribed to the topic."""

    name = "roundrobin"

    def assign(
        self, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment]:
        """Each member's partitions. The turn passes over members that did not subscribe."""
        hands: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscriptions}
        turn = cycle(_in_order(subscriptions))
        for topic in _topics(partitions_of, subscriptions):
            for partition in range(partitions_of[topic]):
                reader = next(m for m in turn if topic in subscriptions[m].topics)
                hands[reader].append(TopicPartition(topic, partition))
        return _assignments(hands)


class CooperativeStickyAssignor(_Stateless):
    """Balanced, sticky, and two-step: nothing is assigned that another member still owns."""

    name = "cooperative-sticky"
    rebalance_protocol = RebalanceProtocol.COOPERATIVE

    def assign(
        self, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment]:
        """The balanced assignment, less the partitions that their owners must give up first."""
        target = balanced(partitions_of, subscriptions)
        owners: defaultdict[TopicPartition, set[str]] = defaultdict(set)
        for member_id, subscription in subscriptions.items():
            for owned in subscription.owned_partitions:
                owners[owned].add(member_id)
        now = {
            member_id: [p for p in partitions if not owners[p] or member_id in owners[p]]
            for member_id, partitions in target.items()
        }
        return _assignments(now)


RANGE: Final = RangeAssignor()
ROUND_ROBIN: Final = RoundRobinAssignor()
COOPERATIVE_STICKY: Final = CooperativeStickyAssignor()

ASSIGNORS: Final[Mapping[str, Assignor]] = {
    RANGE.name: RANGE,
    ROUND_ROBIN.name: ROUND_ROBIN,
    COOPERATIVE_STICKY.name: COOPERATIVE_STICKY,
}


def _in_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Member ids as every client sorts them: static members by instance id, then the others."""

    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = subscriptions[member_id].group_instance_id
        return (instance_id is None, member_id if instance_id is None else instance_id)

    return sorted(subscriptions, key=rank)


def _topics(
    partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> list[str]:
    """The existing topics with a subscriber, sorted."""
    wanted = {topic for subscription in subscriptions.values() for topic in subscription.topics}
    return sorted(topic for topic in wanted if partitions_of.get(topic, 0) > 0)


def _assignments(hands: Mapping[str, Iterable[TopicPartition]]) -> dict[str, Assignment]:
    return {member_id: Assignment(tuple(sorted(hand))) for member_id, hand in hands.items()}
