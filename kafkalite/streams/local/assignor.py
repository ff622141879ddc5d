"""The group protocol of a topology's workers: what they say of themselves, who gets what. [P]

A task is one sub-topology over one partition number; its partitions are that number of every
topic the sub-topology reads, so joined topics stay together. Placement decides by whole tasks.

    subscription    the worker's transactional id, and its address for queries; by task with state,
                    how large its changelogs are, and how far behind the worker is if it has any of
                    the state. The leader aborts the transactions of workers that are gone.
    assignment      partitions; and the tasks that the worker follows: standbys, warm-ups, and those
                    that it gets next, once their owners have given them up

Rebalancing is cooperative: a task that is to move is first taken from its owner, who goes on with
the others meanwhile, and given to the new one in the rebalance that follows.

Owns   nothing: an assignment is a function of the members and the topics.
Source KIP-54 (stickiness), KIP-429, KIP-441.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgpack

from kafkalite.clients.consumer.assignors import Assignment, RebalanceProtocol, Subscription
from kafkalite.clients.consumer.sticky import current_owners
from kafkalite.core.types import TopicPartition
from kafkalite.errors import TopologyError
from kafkalite.streams.local.placement import DEFAULT_RULES, Candidate, Rules, TaskId, place

__all__ = [
    "Following",
    "Knowledge",
    "TaskAssignor",
    "TaskId",
    "read_address",
    "read_user_data",
    "tasks_of",
]

USER_DATA_VERSION: Final = 4  # of a subscription
FOLLOWING_VERSION: Final = 1  # of an assignment


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


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a worker knows of state: how far it is behind with what it has of it, and how many
    records the changelogs of each task hold. Tasks without state are in neither."""

    lags: Mapping[TaskId, int]
    sizes: Mapping[TaskId, int]


@dataclass(frozen=True, slots=True)
class Following:
    """The tasks that a worker is to follow. It goes on with those that are `pending`, if it
    follows them already: it is about to run them."""

    standbys: frozenset[TaskId] = frozenset()
    warmups: frozenset[TaskId] = frozenset()
    pending: frozenset[TaskId] = frozenset()


def know_nothing() -> Knowledge:
    """The knowledge of a worker whose topology has no state."""
    return Knowledge({}, {})


class TaskAssignor:
    """The group protocol of a topology's workers, for `Consumer(assignors=...)`.

    `sources` maps each sub-topology to the topics it reads; without those `required` there is
    nothing to assign. After it has assigned, as the leader, `living` holds the transactional ids
    of all members. `following` is what the last assignment said.
    """

    name: Final = "kafkalite-streams"
    rebalance_protocol: Final = RebalanceProtocol.COOPERATIVE

    def __init__(
        self,
        sources: Mapping[int, Sequence[str]],
        required: Collection[str] = (),
        transactional_id: str | None = None,
        knowledge: Callable[[], Knowledge] = know_nothing,
        rules: Rules = DEFAULT_RULES,
        address: str | None = None,
    ) -> None:
        self.address = address
        self.sources = sources
        self.required = required
        self.transactional_id = transactional_id
        self.living: frozenset[str] | None = None
        self.following = Following()
        self._knowledge = knowledge
        self._rules = rules

    def subscription_user_data(
        self, topics: Sequence[str], owned: Sequence[TopicPartition]
    ) -> bytes:
        """This member's transactional id and address, and what it knows of state."""
        known = self._knowledge()
        rows = [[*task, size, known.lags.get(task)] for task, size in sorted(known.sizes.items())]
        return bytes(msgpack.packb([USER_DATA_VERSION, self.transactional_id, rows, self.address]))

    def refuse_gone(self, topics: Iterable[str]) -> None:
        """TopologyError when a required topic is not among those that there are."""
        if gone := sorted(set(self.required).difference(topics)):
            raise TopologyError(f"topic {gone[0]!r} is gone; the topology reads it")

    def assign(
        self, partitions_of: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> Mapping[str, Assignment]:
        """The leader's decision for every member. TopologyError when a required topic is gone."""
        self.refuse_gone(topic for topic, count in partitions_of.items() if count)
        tasks = tasks_of(self.sources, partitions_of)
        told = {member: read_user_data(s.user_data) for member, s in subscriptions.items()}
        self.living = frozenset(name for name, _ in told.values() if name is not None)
        holders = current_owners(partitions_of, subscriptions)
        owned = _owned(tasks, holders)
        members = {
            member: Candidate(frozenset(owned.get(member, ())), known.lags)
            for member, (_, known) in told.items()
        }
        placement = place(tasks, members, _sizes(tasks, told.values()), self._rules)

        def is_free(task: TaskId, member: str) -> bool:
            """Whether nobody else still works on it."""
            return all(holders.get(tp, member) == member for tp in tasks[task])

        assignments = {}
        for member, mine in placement.active.items():
            now = [task for task in mine if is_free(task, member)]
            following = Following(
                frozenset(placement.standbys[member]),
                frozenset(placement.warmups[member]),
                frozenset(mine) - frozenset(now),
            )
            partitions = tuple(tp for task in now for tp in tasks[task])
            assignments[member] = Assignment(partitions, write_following(following))
        return assignments

    def on_assignment(self, assignment: Assignment) -> None:
        """Notes which tasks are to be followed; tasks to run follow from their partitions."""
        self.following = read_following(assignment.user_data)


def _owned(
    tasks: Mapping[TaskId, tuple[TopicPartition, ...]], holders: Mapping[TopicPartition, str]
) -> dict[str, list[TaskId]]:
    """The tasks of each member: it holds partitions of them, and nobody else does."""
    owned: dict[str, list[TaskId]] = {}
    for task, partitions in tasks.items():
        found = {holders[tp] for tp in partitions if tp in holders}
        if len(found) == 1:
            owned.setdefault(found.pop(), []).append(task)
    return owned


def _sizes(
    tasks: Collection[TaskId], told: Iterable[tuple[str | None, Knowledge]]
) -> dict[TaskId, int]:
    """The changelogs' sizes. Members have looked at different times: the largest is the newest."""
    sizes: dict[TaskId, int] = {}
    for _, known in told:
        for task, size in known.sizes.items():
            if task in tasks:
                sizes[task] = max(size, sizes.get(task, 0))
    return sizes


def read_user_data(user_data: bytes | None) -> tuple[str | None, Knowledge]:
    """A member's transactional id and knowledge; nothing in another version."""
    if not user_data:
        return None, know_nothing()
    try:
        version, *rest = msgpack.unpackb(user_data)
        if version != USER_DATA_VERSION:
            return None, know_nothing()
        transactional_id, rows, _ = rest
        sizes, lags = {}, {}
        for sub_topology, partition, size, lag in rows:
            task = TaskId(sub_topology, partition)
            sizes[task] = size
            if lag is not None:
                lags[task] = lag
        return transactional_id, Knowledge(lags, sizes)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None, know_nothing()


def read_address(user_data: bytes | None) -> str | None:
    """Where a member answers queries over HTTP; None where it does not, or says so otherwise."""
    try:
        version, _, _, address = msgpack.unpackb(user_data or b"")
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    return address if version == USER_DATA_VERSION and isinstance(address, str) else None


def write_following(following: Following) -> bytes:
    """The user data of an assignment; nothing where there is nothing to follow."""
    parts = [sorted(p) for p in (following.standbys, following.warmups, following.pending)]
    return bytes(msgpack.packb([FOLLOWING_VERSION, *parts])) if any(parts) else b""


def read_following(user_data: bytes | None) -> Following:
    """What `write_following` wrote; nothing in another version."""
    if not user_data:
        return Following()
    try:
        version, *parts = msgpack.unpackb(user_data)
        if version != FOLLOWING_VERSION:
            return Following()
        standbys, warmups, pending = (_task_ids(part) for part in parts)
        return Following(standbys, warmups, pending)
    except (ValueError, TypeError, msgpack.UnpackException):
        return Following()


def _task_ids(found: Iterable[Sequence[int]]) -> frozenset[TaskId]:
    return frozenset(TaskId(*each) for each in found)
