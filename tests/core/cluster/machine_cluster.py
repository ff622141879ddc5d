"""Clusters for tests of the controller: brokers, a topic `t`, steps and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any
from uuid import UUID

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.controller import Controller
from kafkalite.core.cluster.image import ClusterRecord, PartitionImage, TopicImage
from kafkalite.core.cluster.registrations import BrokerGone, BrokerRegistered
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.peers import (
    AlteredPartition,
    AlterPartitionPartition,
    AlterPartitionRequest,
    AlterPartitionTopic,
    BrokerState,
)
from kafkalite.core.protocol.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext

RECOVERING = images.LeaderRecoveryState.RECOVERING


class Cluster:
    """A controller and its brokers. Broker n starts with broker epoch 10 n."""

    def __init__(self, brokers: Iterable[int] = (1, 2, 3), **settings: str) -> None:
        config = BrokerConfig.parse({name.replace("_", "."): v for name, v in settings.items()})
        self.machine = Controller(config, Random(7), lambda topic: ())
        self.written: tuple[ClusterRecord, ...] = ()  # of the last step
        for node_id in brokers:
            self.start(node_id, 10 * node_id)

    def run(self, request: Any) -> Any:
        """Takes one step."""
        outcome = self.machine.handle(request, RequestContext(1))
        self.machine.replay(outcome.records)
        self.written = outcome.records
        (reply,) = outcome.replies
        return reply.response

    def start(
        self, node_id: int, epoch: int, *, cleanly: bool = False, rack: str | None = None
    ) -> int:
        """A broker registers."""
        at = {DEFAULT_LISTENER: (f"h{node_id}", 9092)}
        record = images.broker_record(node_id, at, rack, epoch=epoch, stopped_cleanly=cleanly)
        changed: int = self.run(BrokerRegistered(record))
        return changed

    def stop(self, *node_ids: int) -> None:
        """The sessions of brokers end, one after the other."""
        for node_id in node_ids:
            self.run(BrokerGone(node_id, self.epoch(node_id)))

    def epoch(self, node_id: int) -> int:
        return self.machine.image.brokers[node_id].epoch

    def create(self, *replicas: tuple[int, ...], name: str = "t", **configs: str) -> None:
        """Makes a topic, its partitions on these brokers."""
        if len(set(map(len, replicas))) > 1:  # which only a reassignment makes
            made = TopicImage(name, UUID(int=1), images.new_partitions(replicas), configs)
            self.machine.replay([images.topic_record(made)])
            return
        assigned = tuple(CreatableReplicaAssignment(i, nodes) for i, nodes in enumerate(replicas))
        settings = (CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items())
        topic = CreatableTopic(name, -1, -1, assigned, tuple(settings))
        (result,) = self.run(CreateTopicsRequest((topic,))).topics
        assert not result.error_code, result

    def put(self, *partitions: PartitionImage) -> None:
        """Gives the topic's partitions these states."""
        self.machine.replay([images.partition_record("t", i, p) for i, p in enumerate(partitions)])

    def partition(self, index: int = 0, name: str = "t") -> PartitionImage:
        found = self.machine.image.partition(name, index)
        assert found is not None
        return found

    def state(self, index: int = 0) -> tuple[int, tuple[int, ...]]:
        """The leader and the in-sync set of a partition."""
        partition = self.partition(index)
        return partition.leader, partition.in_sync_replicas

    def alter(self, *members: int, index: int = 0, **changed: Any) -> AlteredPartition:
        """The leader of a partition asks for an in-sync set."""
        known = self.partition(index)
        brokers = self.machine.image.brokers
        fields: dict[str, Any] = {
            "leader_epoch": known.leader_epoch,
            "partition_epoch": known.epoch,
            "new_isr_with_epochs": tuple(
                BrokerState(n, brokers[n].epoch if n in brokers else 0) for n in members
            ),
        }
        node_id = changed.pop("node_id", known.leader)
        topic = AlterPartitionTopic(
            changed.pop("topic_id", self.machine.image.topics["t"].topic_id),
            (AlterPartitionPartition(index, **{**fields, **changed}),),
        )
        response = self.run(AlterPartitionRequest(node_id, self.epoch(node_id), (topic,)))
        assert not response.error_code
        altered: AlteredPartition = response.topics[0].partitions[0]
        return altered
