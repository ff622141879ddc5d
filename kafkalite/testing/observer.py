"""Looks into a simulated cluster: at its brokers now and then, and at what controllers write. [IO]

    observer = Observer(cluster, [work.history for work in works])
    … time passes …
    history.leaders     whom the controllers made leaders, in the order of their writes
    history.held        high watermarks and log ends of replicas, each time that they changed

Owns   nothing: what it sees goes into the histories of those whose topics it is about.
Never  changes what it looks at, and asks nobody: so it sees what no client is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import NO_LEADER, ClusterImage
from kafkalite.core.cluster.tree import Changes
from kafkalite.core.replicas.partition import Partition
from kafkalite.core.types import TopicPartition
from kafkalite.testing.checkers import Held, History, Leader
from kafkalite.testing.cluster import ReplicatedCluster

LOOK_SECONDS: Final = 0.05


class Observer:
    """Writes into `histories`, by topic."""

    def __init__(self, cluster: ReplicatedCluster, histories: Mapping[str, History]) -> None:
        self._cluster = cluster
        self._histories = histories
        self._last: dict[tuple[int, TopicPartition], Held] = {}
        self._logs: dict[tuple[int, TopicPartition], tuple[object, int]] = {}
        cluster.written.append(self._on_written)
        cluster.host("observer").spawn(self._look_around())

    def _on_written(self, changes: Changes) -> None:
        touched = [images.partition_of(path) for path in changes]
        wanted = [each for each in touched if each is not None and each.topic in self._histories]
        truth = self._cluster.truth() if wanted else ClusterImage()
        for where in wanted:
            image = truth.partition(*where)
            if image is not None and image.leader != NO_LEADER:
                led = Leader(where, image.leader_epoch, image.leader)
                self._histories[where.topic].leaders.append(led)

    async def _look_around(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for broker in self._cluster.brokers.values():
                if broker.node is None:
                    continue
                for topic, history in self._histories.items():
                    for partition in broker.node.broker.partitions.of_topic(topic):
                        self._look(broker.node_id, partition, history)

    def _look(self, node_id: int, partition: Partition, history: History) -> None:
        key = node_id, partition.topic_partition
        log, life = self._logs.get(key, (None, 0))
        if log is not partition.log:
            life += 1
            self._logs[key] = partition.log, life
        replication, ends = partition.replication, partition.log
        seen = Held(
            node_id,
            life,
            partition.topic_partition,
            replication.leader_epoch,
            replication.leader is not None,
            ends.high_watermark,
            ends.log_end_offset,
        )
        if seen != self._last.get(key):
            self._last[key] = seen
            history.held.append(seen)
