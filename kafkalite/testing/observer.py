"""Looks into a simulated cluster: at its brokers now and then, and at what controllers write. [IO]

    observer = Observer(cluster, [work.history for work in works])
    … time passes …
    history.leaders     whom the controllers made leaders, in the order of their writes
    history.held        high watermarks and log ends of replicas, each time that they changed
    history.forgiven_until and the like: unclean elections of topics that allow them, deletions

In `leaders` and `held` a partition's topic has its id behind its name: after a deletion another
begins.

A leader may hear of its successor a moment after the observer has looked at it. So what follows
within LOOK_SECONDS of such a look is forgiven, too.

Owns   nothing: what it sees goes into the histories of those whose topics it is about.
Never  changes what it looks at, and asks nobody: so it sees what no client is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from uuid import UUID

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import NO_LEADER, LeaderRecoveryState, PartitionImage, TopicImage
from kafkalite.core.cluster.tree import Changes
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.types import TopicPartition
from kafkalite.testing.checkers import Held, History, Leader
from kafkalite.testing.cluster import ReplicatedCluster

LOOK_SECONDS: Final = 0.05
UNCLEAN: Final = "unclean.leader.election.enable"


class Observer:
    """Writes into `histories`, by topic."""

    def __init__(self, cluster: ReplicatedCluster, histories: Mapping[str, History]) -> None:
        self._cluster = cluster
        self._histories = histories
        # As they were when they were last there.
        known = cluster.truth().topics
        self._topics = {name: known[name] for name in histories if name in known}
        self._last: dict[tuple[int, TopicPartition], Held] = {}
        self._logs: dict[tuple[int, TopicPartition], tuple[object, int]] = {}
        cluster.written.append(self._on_written)
        cluster.host("observer").spawn(self._look_around())

    def _on_written(self, changes: Changes) -> None:
        named = [topic for path in changes if (topic := _topic_at(path)) is not None]
        touched = [name for name in dict.fromkeys(named) if name in self._histories]
        if not touched:
            return
        topics = self._cluster.truth().topics
        for name in touched:
            self._note_topic(name, topics.get(name))
        for where in (images.partition_of(path) for path in changes):
            if where is not None and where.topic in touched:
                led = topics.get(where.topic)
                if led is not None:
                    self._note_partition(where, led, led.partitions[where.partition])

    def _note_topic(self, name: str, topic: TopicImage | None) -> None:
        """The topic was made, deleted, or is as it was."""
        known, history = self._topics.get(name), self._histories[name]
        if topic is not None:
            self._topics[name] = topic
        if known is None or (topic is not None and topic.topic_id == known.topic_id):
            return
        for number in range(len(known.partitions)):
            where = TopicPartition(name, number)
            history.forgiven_until[where] = self._cluster.seconds + LOOK_SECONDS
            if topic is None:
                history.deleted_at[where] = self._cluster.seconds

    def _note_partition(
        self, where: TopicPartition, topic: TopicImage, image: PartitionImage
    ) -> None:
        history, known = self._histories[where.topic], _named(where, topic.topic_id)
        if image.leader != NO_LEADER:
            history.leaders.append(Leader(known, image.leader_epoch, image.leader))
        may_lose = topic.configs.get(UNCLEAN) == "true"
        if may_lose and image.leader_recovery_state is LeaderRecoveryState.RECOVERING:
            epochs = history.unclean_epochs.setdefault(known, set())
            if image.leader_epoch not in epochs:
                epochs.add(image.leader_epoch)
                history.unclean_at.setdefault(where, []).append(self._cluster.seconds)
            history.forgiven_until[where] = self._cluster.seconds + LOOK_SECONDS

    async def _look_around(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for broker in self._cluster.brokers.values():
                if broker.node is None:
                    continue
                held = broker.node.broker
                for name, history in self._histories.items():
                    for partition in held.partitions.of_topic(name):
                        topic_id = held.image.topics[name].topic_id
                        self._look(broker.node_id, partition, topic_id, history)

    def _look(self, node_id: int, partition: Partition, topic_id: UUID, history: History) -> None:
        key = node_id, partition.topic_partition
        known = _named(partition.topic_partition, topic_id)
        log, life = self._logs.get(key, (None, 0))
        if log is not partition.log:
            life += 1
            self._logs[key] = partition.log, life
        replication, ends = partition.replication, partition.log
        seen = Held(
            node_id,
            life,
            known,
            replication.leader_epoch,
            replication.leader is not None,
            ends.high_watermark,
            ends.log_end_offset,
        )
        if seen != self._last.get(key):
            self._last[key] = seen
            history.held.append(seen)
        if seen.is_leader and self._is_replaced(partition.topic_partition, topic_id, seen, history):
            history.forgiven_until[partition.topic_partition] = self._cluster.seconds + LOOK_SECONDS

    def _is_replaced(
        self, where: TopicPartition, topic_id: UUID, seen: Held, history: History
    ) -> bool:
        """Whether this leader has not heard that its topic is deleted, or that one leads that lacks
        records: what it acknowledges may be gone."""
        topic = self._topics.get(where.topic)
        if topic is not None and topic.topic_id != topic_id:
            return True
        unclean = history.unclean_epochs.get(seen.partition)
        return unclean is not None and seen.leader_epoch < max(unclean)


@lru_cache(maxsize=256)
def _named(where: TopicPartition, topic_id: UUID) -> TopicPartition:
    return TopicPartition(f"{where.topic} {topic_id.hex[:8]}", where.partition)


def _topic_at(path: str) -> str | None:
    """The topic that a path is about."""
    partition = images.partition_of(path)
    return images.topic_of(path) if partition is None else partition.topic
