"""Which cluster a broker belongs to: one of its own, or one that it shares.                 [IO]

    alone    the journal in the data directory holds the cluster; the controller is in the process
    shared   the coordination holds it, for all brokers; the broker joins as a member

Owns   the founding of a cluster, the names in `meta.properties`.
Fails  with ConfigError for another broker's data directory or a cluster of another id,
       StorageError for partitions whose cluster nobody knows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from kafkalite.core.broker.alone import Alone
from kafkalite.core.broker.broker import Broker
from kafkalite.core.broker.membership import Home, Membership
from kafkalite.core.broker.reaching import OtherBrokers
from kafkalite.core.broker.steering import PEER_CLIENT
from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.coordination import Coordination
from kafkalite.core.cluster.image import NO_LEADER, ClusterImage
from kafkalite.core.cluster.local import JOURNAL
from kafkalite.core.cluster.registering import free_node_id
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.core.config.listeners import Address
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.log import checkpoints
from kafkalite.core.log.port import Storage
from kafkalite.core.log.store import LogStore
from kafkalite.core.peers.channel import Peers
from kafkalite.errors import ConfigError, NodeExists, StorageError, VersionMismatch
from kafkalite.ports import Ports

DEFAULT_NODE_ID: Final = 1
CLUSTER_ID: Final = "cluster.id"  # in meta.properties
PATH_OF_KAFKA: Final = "/brokers/ids"


@dataclass(slots=True)
class Belonging:
    """A broker's cluster. `image` is the cluster as it was found."""

    coordination: Coordination
    ports: Ports
    store: ClusterStore
    image: ClusterImage

    @classmethod
    async def find(cls, storage: Storage, logs: LogStore, ports: Ports) -> Belonging:
        """Reads the cluster, or founds it where there is none."""
        coordination = ports.coordination(storage)
        belonging = cls(coordination, ports, ClusterStore(coordination), ClusterImage())
        try:
            if ports.shares_cluster:
                await _refuse_of_kafka(coordination)
            await belonging._read()
            if not belonging.image.cluster_id:
                await belonging._found(storage, logs)
        except BaseException:
            await coordination.close()
            raise
        return belonging

    async def _read(self) -> None:
        self.image = images.replay(ClusterImage(), await self.store.load())

    async def _found(self, storage: Storage, logs: LogStore) -> None:
        """Names a new cluster. A directory of another one is not taken for that of a new one,
        whether there are partitions in it or not."""
        if logs.unopened() or CLUSTER_ID in checkpoints.read_meta_properties(storage):
            lost = "state in the coordination" if self.ports.shares_cluster else JOURNAL
            words = f"it belongs to a cluster, but no {lost} tells of that"
            raise StorageError(f"{storage.location}: {words}")
        record = images.cluster_record(_new_cluster_id(self.ports.random_bytes))
        try:
            await self.store.append((record,))
        except (NodeExists, VersionMismatch):  # another broker founds it at the same time
            await self._read()
        else:
            self.image = images.replay(self.image, (record,))

    async def claim(self, storage: Storage, config: BrokerConfig) -> int:
        """Writes whose data directory this is, and returns the broker's id; ConfigError if it is
        another broker's."""
        known = checkpoints.read_meta_properties(storage)
        wanted = config.node_id
        if wanted < 0:
            wanted = int(known["node.id"]) if "node.id" in known else await self._new_id(config)
        mine = {CLUSTER_ID: self.image.cluster_id, "node.id": str(wanted)}
        for name, value in mine.items():
            if known.get(name, value) != value:
                where = f"{storage.location}/{checkpoints.META_PROPERTIES}"
                raise ConfigError(f"{where}: {name} is {known[name]}, this broker's is {value}")
        if not mine.keys() <= known.keys():
            checkpoints.write_meta_properties(storage, known | mine)
        return wanted

    async def _new_id(self, config: BrokerConfig) -> int:
        """The id of a broker to which nobody gave one."""
        if not self.ports.shares_cluster:
            return DEFAULT_NODE_ID
        if not config["broker.id.generation.enable"]:
            words = "broker.id is not set, and broker.id.generation.enable=false forbids a free one"
            raise ConfigError(words, setting="broker.id.generation.enable")
        return await free_node_id(self.coordination, config["reserved.broker.max.id"])

    def first_image(self, node_id: int) -> ClusterImage:
        """The image that the broker starts with. A member leads nothing before it has joined."""
        if not self.ports.shares_cluster:
            return self.image
        topics = {
            name: replace(
                topic,
                partitions=tuple(
                    replace(each, leader=NO_LEADER) if each.leader == node_id else each
                    for each in topic.partitions
                ),
            )
            for name, topic in self.image.topics.items()
        }
        return replace(self.image, topics=topics)

    def steer(self, broker: Broker, home: Home) -> Alone | Membership:
        """How the broker reaches the controller."""
        if not self.ports.shares_cluster:
            return Alone(broker, self.store)
        random = Random(self.ports.random_bytes(32))
        connect = self.ports.network().connect
        peers = Peers(connect, random, f"{PEER_CLIENT}{broker.node_id}")
        return Membership(broker, self.coordination, peers, home)

    async def enter(self, broker: Broker, home: Home) -> None:
        """The broker is in the cluster when this returns, and leads what it is to lead."""
        steering = broker.steering
        if isinstance(steering, Membership):
            broker.reach(OtherBrokers(broker, steering.peers, home.inter_broker))
            await steering.join()
            return
        assert isinstance(steering, Alone), steering
        record = images.broker_record(broker.node_id, home.endpoints, home.rack)
        await self.store.append((record,), ephemeral=True)
        await steering.apply((record,))


async def _refuse_of_kafka(coordination: Coordination) -> None:
    """ConfigError where Apache Kafka keeps a cluster: neither could read what the other writes."""
    (found,) = await coordination.get_many([PATH_OF_KAFKA])
    if found is not None:
        words = f"ZooKeeper has {PATH_OF_KAFKA} there, of a cluster of Apache Kafka"
        name = "zookeeper.connect"
        raise ConfigError(f"{name}: {words}: give another chroot", setting=name)


def home_of(
    endpoints: Mapping[str, Address], inter_broker: str, config: BrokerConfig, logs: LogStore
) -> Home:
    """Where a broker is, as others are told."""
    return Home(endpoints, inter_broker, config["broker.rack"], logs.was_clean_shutdown)


def _new_cluster_id(random_bytes: Callable[[int], bytes]) -> str:
    """A random id in the form of Kafka's: 16 bytes, base64 for URLs."""
    return base64.urlsafe_b64encode(random_bytes(16)).decode().rstrip("=")
