"""Tasks to members: whole tasks, evenly, each with its last owner where that is fair.     [P]

A task is one sub-topology over one partition number; its partitions are that number of every
topic the sub-topology reads, so joined topics stay together. A member tells which tasks it owns
in its subscription's user data; restoring state is what moving a task costs. It also tells its
transactional id: the leader aborts the transactions of workers that are gone.

Rebalancing is cooperative: a task that is to move is first taken from its owner, who goes on with
the others meanwhile, and given to the new one in the rebalance that follows.

Owns   nothing: an assignment is a function of the members and the topics.
Source KIP-54 (stickiness), KIP-429, Kafka Streams' StickyTaskAssignor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgpack

from kafkalite.clients.consumer.assignors import Assignment, RebalanceProtocol, Subscription
from kafkalite.clients.consumer.sticky import current_owners
from kafkalite.core.types import TopicPartition
from kafkalite.errors import TopologyError

USER_DATA_VERSION: Final = 2


class TaskId(NamedTuple):
    """Sub-topology `sub_topology` over partition `partition`; written `0_3` as Kafka does."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"


def tasks_of(
    sources: Mapping[int, Sequence[str]], partitions_of: Mapping[str, int]
) -> dict[TaskId, tuple[TopicPartition, ...]]:
    """Every task with the partitions it reads, by sub-topology id and its source topics.

    A topic with fewer partitions than its neighbours gives nothing to the tasks beyond them.
    """
    tasks: dict[TaskId, tuple[TopicPartition, ...]] = {}
    for sub_topology, topics in sorted(sources.items()):
        counts = {topic: partitions_of.get(topic, 0) for topic in topics}
        for partition in range(max(counts.values(), default=0)):
            tasks[TaskId(sub_topology, partition)] = tuple(
                TopicPartition(topic, partition) for topic in topics if partition < counts[topic]
            )
    return tasks


def spread(
    tasks: Iterable[TaskId], owners: Mapping[str, Sequence[TaskId]]
) -> dict[str, list[TaskId]]:
    """Tasks by member id: counts differ by one at the most, owned tasks stay where that allows."""
    todo = sorted(tasks)
    members = sorted(owners)
    floor, larger = divmod(len(todo), len(members))
    unclaimed = set(todo)
    given: dict[str, list[TaskId]] = {member: [] for member in members}
    # Members that own the most get the larger shares, so that fewest tasks move.
    by_owned = sorted(members, key=lambda member: (-len(owners[member]), member))
    share = {member: floor + (i < larger) for i, member in enumerate(by_owned)}
    for member in members:
        for task in sorted(set(owners[member]) & unclaimed)[: share[member]]:
            given[member].append(task)
            unclaimed.discard(task)
    # The rest goes round by sub-topology, so that each member gets some of the heavy ones.
    rest = iter(sorted(unclaimed))
    while (open_members := [m for m in members if len(given[m]) < share[m]]) and unclaimed:
        for member in open_members:
            if (another := next(rest, None)) is not None:
                given[member].append(another)
                unclaimed.discard(another)
    return {member: sorted(mine) for member, mine in given.items()}


class TaskAssignor:
    """The group protocol of a topology's workers, for `Consumer(assignors=...)`.

    `sources` maps each sub-topology to the topics it reads; without those `required` there is
    nothing to assign. The worker keeps `owned` up to date. After it has assigned, as the leader,
    `living` holds the transactional ids of all members.
    """

    name: Final = "kafkalite-streams"
    rebalance_protocol: Final = RebalanceProtocol.COOPERATIVE

    def __init__(
        self,
        sources: Mapping[int, Sequence[str]],
        required: Collection[str] = (),
        transactional_id: str | None = None,
    ) -> None:
        self.sources = sources
        self.required = required
        self.transactional_id = transactional_id
        self.owned: frozenset[TaskId] = frozenset()
        self.living: frozenset[str] | None = None

    def subscription_user_data(
        self, topics: Sequence[str], owned: Sequence[TopicPartition]
    ) -> bytes:
        """The tasks whose state this member holds and its transactional id, for the leader."""
        mine = [USER_DATA_VERSION, sorted(self.owned), self.transactional_id]
        return bytes(msgpack.packb(mine))

    def assign(
        self, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment]:
        """The leader's decision for every member. TopologyError when a required topic is gone."""
        if gone := sorted(topic for topic in self.required if not partitions_of.get(topic)):
            raise TopologyError(f"topic {gone[0]!r} is gone; the topology reads it")
        tasks = tasks_of(self.sources, partitions_of)
        told = {member: read_user_data(s.user_data) for member, s in subscriptions.items()}
        owners = {member: owned for member, (owned, _) in told.items()}
        self.living = frozenset(name for _, name in told.values() if name is not None)
        holders = current_owners(partitions_of, subscriptions)

        def is_free(task: TaskId, member: str) -> bool:
            """Whether nobody else still works on it."""
            return all(holders.get(tp, member) == member for tp in tasks[task])

        return {
            member: Assignment(
                tuple(tp for task in mine if is_free(task, member) for tp in tasks[task])
            )
            for member, mine in spread(tasks, owners).items()
        }

    def on_assignment(self, assignment: Assignment) -> None:
        """Nothing to note: a task follows from its partitions."""


def read_user_data(user_data: bytes | None) -> tuple[list[TaskId], str | None]:
    """The tasks a member says it owns, and its transactional id; nothing in another version."""
    if not user_data:
        return [], None
    try:
        version, *rest = msgpack.unpackb(user_data)
        if version != USER_DATA_VERSION:
            return [], None
        owned, transactional_id = rest
        return [TaskId(*task) for task in owned], transactional_id
    except (ValueError, TypeError, msgpack.UnpackException):
        return [], None
