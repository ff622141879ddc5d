"""The cluster as one immutable value: brokers, topics, partitions, configs.                 [P]

The image is a fold of the cluster's records, each a path of the coordination tree with its value
(JSON) or None when the path is gone:

    /cluster              {"cluster_id": str}
    /producer_ids         {"next_block_start": int}
    /brokers              the parent of
    /brokers/<id>         {"endpoints": {listener: [host, port]}, "rack": str | null}  ephemeral
    /broker_configs       the parent of
    /broker_configs/<id>  {key: text}: settings of the running broker; "default": for all brokers
    /topics               the parent of
    /topics/<name>        {"topic_id": hex, "partitions": [[node ids], …], "configs": {key: text}}
    /topics/<name>/<n>    {"leader": int, "leader_epoch": int, "in_sync_replicas": [node ids],
                           "epoch": int}

A partition has a path of its own only once it differs from how its topic was created: led by its
first replica, in leader epoch 0, all replicas in sync. So a topic is one small write.

Owns   the records' layout. Everything else that knows topics asks an image.
Fails  with CoordinationError on a record that does not read, naming its path.
Source KIP-500 (metadata as a log), KIP-516 (topic ids); the paths resemble Kafka's in ZooKeeper.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from kafkalite.core.cluster.coordination import VALUE_BYTES_MAX
from kafkalite.core.cluster.internal_topics import INTERNAL_TOPICS
from kafkalite.core.types import Node, TopicPartition
from kafkalite.errors import ApiError, CoordinationError, ErrorCode

CLUSTER_PATH: Final = "/cluster"
PRODUCER_IDS_PATH: Final = "/producer_ids"
BROKERS_PATH: Final = "/brokers"
BROKER_CONFIGS_PATH: Final = "/broker_configs"
TOPICS_PATH: Final = "/topics"
ROOTS: Final = (
    BROKERS_PATH,
    BROKER_CONFIGS_PATH,
    TOPICS_PATH,
)  # paths without a value of their own
NO_LEADER: Final = -1
EVERY_BROKER: Final = "default"  # in a path, where a name cannot be empty


class ClusterRecord(NamedTuple):
    """One durable fact of the cluster: the new value at `path`, None for a deletion."""

    path: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition: its replicas, its leader, the replicas in sync."""

    replicas: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    in_sync_replicas: tuple[int, ...] = ()
    epoch: int = 0  # writes of the partition's own path; 0 while it has none


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: `partitions[i]` is partition i; `configs` holds only what the topic overrides."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        """Whether the broker itself keeps its state there."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One broker: its address for clients, by the name of their listener."""

    endpoints: Mapping[str, Node]
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The whole cluster at one moment."""

    cluster_id: str = ""
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    names: Mapping[UUID, str] = field(default_factory=dict)  # topic id -> name
    next_producer_id_block: int = 0
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # "": of all

    def partition(self, topic: str, partition: int) -> PartitionImage | None:
        """The image of one partition, None if there is no such."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        return known.partitions[partition]

    def node(self, node_id: int, listener: str) -> Node | None:
        """A broker as clients of `listener` reach it; None where they cannot."""
        broker = self.brokers.get(node_id)
        return None if broker is None else broker.endpoints.get(listener)

    def nodes(self, listener: str) -> list[tuple[Node, str | None]]:
        """The brokers that clients of `listener` reach, and their racks."""
        reached = ((each.endpoints.get(listener), each.rack) for each in self.brokers.values())
        return [(node, rack) for node, rack in reached if node is not None]

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        """The topic with that id, None if there is no such."""
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]


def checked(record: ClusterRecord) -> ClusterRecord:
    """The record, if the coordination tree can hold it; else ApiError, before any is written."""
    size = len(record.value or b"")
    if size > VALUE_BYTES_MAX:
        words = f"{record.path} would take {size} bytes, at most {VALUE_BYTES_MAX} fit"
        raise ApiError(ErrorCode.INVALID_REQUEST, words)
    return record


def topic_path(name: str) -> str:
    """The path of a topic's record."""
    return f"{TOPICS_PATH}/{name}"


def topic_of(path: str) -> str | None:
    """The topic whose own record is at `path`; None for any other path."""
    root, _, name = path.rpartition("/")
    return name if root == TOPICS_PATH else None


def partition_path(name: str, partition: int) -> str:
    """The path of a partition's own record."""
    return f"{TOPICS_PATH}/{name}/{partition}"


def partition_of(path: str) -> TopicPartition | None:
    """The partition whose own record is at `path`; None for any other path."""
    match path.split("/")[1:]:
        case ["topics", name, index]:
            return TopicPartition(name, int(index))
    return None


def topic_record(topic: TopicImage) -> ClusterRecord:
    """The record that makes `topic`, its partitions led by their first replicas."""
    value = {
        "topic_id": topic.topic_id.hex,
        "partitions": [list(partition.replicas) for partition in topic.partitions],
        "configs": dict(topic.configs),
    }
    return ClusterRecord(topic_path(topic.name), _encode(value))


def new_partitions(placed: Iterable[tuple[int, ...]]) -> tuple[PartitionImage, ...]:
    """Partitions as they are made, with these replicas each. Those with the same replicas are one
    object: of thousands few differ."""
    placed = tuple(placed)
    made = {nodes: PartitionImage(nodes, nodes[0], 0, nodes) for nodes in set(placed)}
    return tuple([made[nodes] for nodes in placed])


def partition_record(topic: str, index: int, partition: PartitionImage) -> ClusterRecord:
    """The record of a partition that has changed since its topic was made."""
    value = {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "in_sync_replicas": list(partition.in_sync_replicas),
        "epoch": partition.epoch,
    }
    return ClusterRecord(partition_path(topic, index), _encode(value))


def deletion_records(topic: TopicImage) -> tuple[ClusterRecord, ...]:
    """The records that unmake `topic`, children first."""
    children = tuple(
        ClusterRecord(partition_path(topic.name, index), None)
        for index, partition in enumerate(topic.partitions)
        if partition.epoch
    )
    return (*children, ClusterRecord(topic_path(topic.name), None))


def broker_record(
    node_id: int, endpoints: Mapping[str, tuple[str, int]], rack: str | None = None
) -> ClusterRecord:
    """The record by which a broker says where it is, under each listener's name."""
    value = {"endpoints": {name: list(at) for name, at in endpoints.items()}, "rack": rack}
    return ClusterRecord(f"{BROKERS_PATH}/{node_id}", _encode(value))


def broker_configs_record(name: str, configs: Mapping[str, str]) -> ClusterRecord:
    """The record of a broker's dynamic settings; "" stands for every broker."""
    return ClusterRecord(f"{BROKER_CONFIGS_PATH}/{name or EVERY_BROKER}", _encode(configs))


def is_broker_configs(path: str) -> bool:
    """Whether the record at `path` is of settings of brokers."""
    return path.startswith(f"{BROKER_CONFIGS_PATH}/")


def cluster_record(cluster_id: str) -> ClusterRecord:
    """The record that names the cluster, written once."""
    return ClusterRecord(CLUSTER_PATH, _encode({"cluster_id": cluster_id}))


def producer_ids_record(next_block_start: int) -> ClusterRecord:
    """The record that hands out all producer ids below `next_block_start`."""
    return ClusterRecord(PRODUCER_IDS_PATH, _encode({"next_block_start": next_block_start}))


def replay(image: ClusterImage, records: Iterable[ClusterRecord]) -> ClusterImage:
    """`image` after `records`. Copies each mapping once, however many records there are."""
    cluster_id, next_block = image.cluster_id, image.next_producer_id_block
    brokers = dict(image.brokers)
    topics, names = dict(image.topics), dict(image.names)
    broker_configs = dict(image.broker_configs)
    for record in records:
        match record.path.split("/")[1:]:
            case ["topics", name]:
                _replay_topic(topics, names, name, record)
            case ["topics", name, index]:
                _replay_partition(topics, name, index, record)
            case ["brokers", node_id]:
                _replay_broker(brokers, int(node_id), record)
            case ["broker_configs", name]:
                key = "" if name == EVERY_BROKER else name
                broker_configs[key] = {str(k): str(v) for k, v in _decode(record).items()}
            case ["cluster"]:
                cluster_id = str(_decode(record)["cluster_id"])
            case ["producer_ids"]:
                next_block = int(_decode(record)["next_block_start"])
            case ["topics"] | ["brokers"] | ["broker_configs"]:
                pass  # only parents
            case _:
                raise CoordinationError(f"{record.path} is not a path of the cluster's state")
    return replace(
        image,
        cluster_id=cluster_id,
        brokers=brokers,
        topics=topics,
        names=names,
        next_producer_id_block=next_block,
        broker_configs=broker_configs,
    )


def _replay_topic(
    topics: dict[str, TopicImage], names: dict[UUID, str], name: str, record: ClusterRecord
) -> None:
    known = topics.pop(name, None)
    if known is not None:
        names.pop(known.topic_id, None)
    if not record.value:  # empty: what is left of a topic whose deletion takes several writes
        return
    value = _decode(record)
    try:
        topic_id = UUID(hex=value["topic_id"])
        assignment = _assignment(value["partitions"])
        configs = {str(key): str(each) for key, each in value["configs"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CoordinationError(f"{record.path} does not read: {error!r}") from error
    before = known.partitions if known is not None and known.topic_id == topic_id else ()
    known_here = tuple(
        partition if partition.replicas == replicas else replace(partition, replicas=replicas)
        for partition, replicas in zip(before, assignment, strict=False)
    )
    partitions = (*known_here, *new_partitions(assignment[len(known_here) :]))
    topics[name] = TopicImage(name, topic_id, partitions, configs)
    names[topic_id] = name


def _assignment(partitions: Iterable[Iterable[int]]) -> list[tuple[int, ...]]:
    """The replicas of each partition as numbers, each distinct list checked once."""
    listed = list(map(tuple, partitions))
    checked = {nodes: tuple(int(node) for node in nodes) for nodes in set(listed)}
    return [checked[nodes] for nodes in listed]


def _replay_partition(
    topics: dict[str, TopicImage], name: str, index: str, record: ClusterRecord
) -> None:
    topic = topics.get(name)
    if topic is None or record.value is None:
        return  # its topic goes with it
    value = _decode(record)
    try:
        number = int(index)
        changed = PartitionImage(
            topic.partitions[number].replicas,
            int(value["leader"]),
            int(value["leader_epoch"]),
            tuple(int(node) for node in value["in_sync_replicas"]),
            int(value["epoch"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CoordinationError(f"{record.path} does not read: {error!r}") from error
    partitions = (*topic.partitions[:number], changed, *topic.partitions[number + 1 :])
    topics[name] = replace(topic, partitions=partitions)


def _replay_broker(brokers: dict[int, BrokerImage], node_id: int, record: ClusterRecord) -> None:
    if record.value is None:
        brokers.pop(node_id, None)
        return
    value = _decode(record)
    try:
        endpoints = {
            str(name): Node(node_id, str(host), int(port))
            for name, (host, port) in value["endpoints"].items()
        }
        brokers[node_id] = BrokerImage(endpoints, value["rack"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CoordinationError(f"{record.path} does not read: {error!r}") from error


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _decode(record: ClusterRecord) -> dict[str, Any]:
    try:
        value = json.loads(record.value or b"")
    except ValueError as error:
        raise CoordinationError(f"{record.path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CoordinationError(f"{record.path} is not a JSON object")
    return value
