"""The cluster as one immutable value: brokers, topics, partitions, configs.                 [P]

The image is a fold of the cluster's records, each a path of the coordination tree with its value
(JSON) or None when the path is gone:

    /cluster              {"cluster_id": str}
    /producer_ids         {"next_block_start": int}
    /settled_broker_epochs  {node id: broker epoch}
    /brokers              the parent of
    /brokers/<id>         {"endpoints": {listener: [host, port]}, "rack": str | null, "epoch": int,
                           "stopped_cleanly": bool}  ephemeral, the broker's own
    /broker_configs       the parent of
    /broker_configs/<id>  {key: text}: settings of the running broker; "default": for all brokers
    /topics               the parent of
    /topics/<name>        {"topic_id": hex, "partitions": [[node ids], …], "configs": {key: text}}
    /topics/<name>/<n>    {"leader": int, "leader_epoch": int, "in_sync_replicas": [node ids],
                           "epoch": int, "replicas": [node ids], "adding_replicas": [node ids],
                           "removing_replicas": [node ids], "leader_recovery_state": 0 | 1,
                           "failed_replicas": [node ids],
                           "eligible_leader_replicas": [node ids]}

A partition has a path of its own only once it differs from how its topic was created: led by its
first replica, in leader epoch 0, all replicas in sync. So a topic is one small write. Fields that a
record lacks have their defaults, so the records of earlier versions read; without "replicas" those
of the topic's record count.

`/settled_broker_epochs` holds, for each broker, the last start that the partitions' states account
for. A controller that finds a broker registered with another epoch settles its partitions first.

Owns   the records' layout. Everything else that knows topics asks an image.
Fails  with CoordinationError on a record that does not read, naming its path.
Source KIP-500 (metadata as a log), KIP-516 (topic ids); the paths resemble Kafka's in ZooKeeper.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson

from kafkalite.core.cluster.coordination import VALUE_BYTES_MAX
from kafkalite.core.cluster.internal_topics import INTERNAL_TOPICS
from kafkalite.core.types import NO_EPOCH, Node, TopicPartition
from kafkalite.errors import ApiError, CoordinationError, ErrorCode

CLUSTER_PATH: Final = "/cluster"
PRODUCER_IDS_PATH: Final = "/producer_ids"
SETTLED_PATH: Final = "/settled_broker_epochs"
VALUES: Final = (CLUSTER_PATH, PRODUCER_IDS_PATH, SETTLED_PATH)  # paths without children
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


class LeaderRecoveryState(IntEnum):
    """Whether a leader was elected although its log may lack committed records (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition: its replicas, its leader, the replicas in sync.

    During a reassignment `replicas` holds the new replicas and then those that will go.
    """

    replicas: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    in_sync_replicas: tuple[int, ...] = ()
    epoch: int = 0  # the partition epoch: writes of the partition's own path; 0 while it has none
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    failed_replicas: tuple[int, ...] = ()  # whose logs cannot be written
    # Below min.insync.replicas: those that left the in-sync set and have all that is committed, as
    # nothing is committed until they are none (KIP-966).
    eligible_leader_replicas: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding_replicas or self.removing_replicas)


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
    """One live broker: its address for clients, by the name of their listener."""

    endpoints: Mapping[str, Node]
    rack: str | None = None
    epoch: int = NO_EPOCH  # the broker epoch: another with each registration (KIP-380)
    stopped_cleanly: bool = False  # before this start: its logs are whole
    in_controlled_shutdown: bool = False  # it leads nothing new and joins no in-sync set


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The whole cluster at one moment."""

    cluster_id: str = ""
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    names: Mapping[UUID, str] = field(default_factory=dict)  # topic id -> name
    next_producer_id_block: int = 0
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # "": of all
    settled_epochs: Mapping[int, int] = field(default_factory=dict)  # node id -> broker epoch

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


def is_registration(path: str) -> bool:
    """Whether the record at `path` is a broker's registration, which that broker alone writes."""
    return path.startswith(f"{BROKERS_PATH}/")


def new_partitions(placed: Iterable[tuple[int, ...]]) -> tuple[PartitionImage, ...]:
    """Partitions as they are made, with these replicas each. Those with the same replicas are one
    object: of thousands few differ."""
    placed = tuple(placed)
    made = {nodes: _as_made(nodes) for nodes in set(placed)}
    return tuple([made[nodes] for nodes in placed])


def _as_made(replicas: tuple[int, ...]) -> PartitionImage:
    return PartitionImage(replicas, replicas[0], 0, replicas)


def partition_record(topic: str, index: int, partition: PartitionImage) -> ClusterRecord:
    """The record of a partition that has changed since its topic was made."""
    value: dict[str, Any] = {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "in_sync_replicas": list(partition.in_sync_replicas),
        "epoch": partition.epoch,
        "replicas": list(partition.replicas),
        "adding_replicas": list(partition.adding_replicas),
        "removing_replicas": list(partition.removing_replicas),
        "leader_recovery_state": int(partition.leader_recovery_state),
    }
    if partition.failed_replicas:
        value["failed_replicas"] = list(partition.failed_replicas)
    if partition.eligible_leader_replicas:
        value["eligible_leader_replicas"] = list(partition.eligible_leader_replicas)
    return ClusterRecord(partition_path(topic, index), _encode(value))


def creation_records(topic: TopicImage, since: int = 0) -> tuple[ClusterRecord, ...]:
    """The records that make `topic`, or its partitions from `since` on; its own is the first."""
    own_paths = tuple(
        partition_record(topic.name, index, partition)
        for index, partition in enumerate(topic.partitions[since:], since)
        if partition.epoch
    )
    return (topic_record(topic), *own_paths)


def deletion_records(topic: TopicImage) -> tuple[ClusterRecord, ...]:
    """The records that unmake `topic`, children first."""
    children = tuple(
        ClusterRecord(partition_path(topic.name, index), None)
        for index, partition in enumerate(topic.partitions)
        if partition.epoch
    )
    return (*children, ClusterRecord(topic_path(topic.name), None))


def broker_record(
    node_id: int,
    endpoints: Mapping[str, tuple[str, int]],
    rack: str | None = None,
    *,
    epoch: int = NO_EPOCH,
    stopped_cleanly: bool = False,
    in_controlled_shutdown: bool = False,
) -> ClusterRecord:
    """The record by which a broker says where it is, under each listener's name.

    A controlled shutdown is the controller's knowledge: that field is never in the tree.
    """
    value: dict[str, Any] = {
        "endpoints": {name: list(at) for name, at in endpoints.items()},
        "rack": rack,
        "epoch": epoch,
        "stopped_cleanly": stopped_cleanly,
    }
    if in_controlled_shutdown:
        value["in_controlled_shutdown"] = True
    return ClusterRecord(broker_path(node_id), _encode(value))


def broker_path(node_id: int) -> str:
    """The path of a broker's registration."""
    return f"{BROKERS_PATH}/{node_id}"


def registration_record(node_id: int, broker: BrokerImage) -> ClusterRecord:
    """The record of a broker as the image has it."""
    return broker_record(
        node_id,
        {name: (node.host, node.port) for name, node in broker.endpoints.items()},
        broker.rack,
        epoch=broker.epoch,
        stopped_cleanly=broker.stopped_cleanly,
        in_controlled_shutdown=broker.in_controlled_shutdown,
    )


def registration(record: ClusterRecord) -> tuple[int, BrokerImage]:
    """The broker that a registration's record describes."""
    try:
        node_id = int(record.path.removeprefix(f"{BROKERS_PATH}/"))
        value = _decode(record)
        endpoints = {
            str(name): Node(node_id, str(host), int(port))
            for name, (host, port) in value["endpoints"].items()
        }
        return node_id, BrokerImage(
            endpoints,
            value["rack"],
            int(value.get("epoch", NO_EPOCH)),
            bool(value.get("stopped_cleanly", False)),
            bool(value.get("in_controlled_shutdown", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CoordinationError(f"{record.path} does not read: {error!r}") from error


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


def settled_record(settled_epochs: Mapping[int, int]) -> ClusterRecord:
    """The record of the brokers' starts that the partitions' states account for."""
    return ClusterRecord(SETTLED_PATH, _encode({str(n): e for n, e in settled_epochs.items()}))


def snapshot_records(image: ClusterImage) -> Iterator[ClusterRecord]:
    """Records whose fold is `image`, parents before children."""
    yield cluster_record(image.cluster_id)
    yield producer_ids_record(image.next_producer_id_block)
    yield settled_record(image.settled_epochs)
    for node_id, broker in image.brokers.items():
        yield registration_record(node_id, broker)
    for name, configs in image.broker_configs.items():
        yield broker_configs_record(name, configs)
    for topic in image.topics.values():
        yield topic_record(topic)
        for index, partition in enumerate(topic.partitions):
            if partition.epoch or partition != _as_made(partition.replicas):
                yield partition_record(topic.name, index, partition)


def replay(image: ClusterImage, records: Iterable[ClusterRecord]) -> ClusterImage:
    """`image` after `records`. Copies each mapping once, and each topic's partitions once, however
    many records there are."""
    fold = _Fold(image)
    for record in records:
        match record.path.split("/")[1:]:
            case ["topics", name]:
                fold.topic(name, record)
            case ["topics", name, index]:
                fold.partition(name, index, record)
            case ["brokers", node_id]:
                fold.broker(node_id, record)
            case ["broker_configs", name]:
                key = "" if name == EVERY_BROKER else name
                settings = {str(k): str(v) for k, v in _decode(record).items()}
                fold.broker_configs[key] = settings
            case ["cluster"]:
                fold.cluster_id = str(_decode(record)["cluster_id"])
            case ["producer_ids"]:
                fold.next_block = int(_decode(record)["next_block_start"])
            case ["settled_broker_epochs"]:
                fold.settled = {int(node): int(e) for node, e in _decode(record).items()}
            case ["topics"] | ["brokers"] | ["broker_configs"]:
                pass  # only parents
            case _:
                raise CoordinationError(f"{record.path} is not a path of the cluster's state")
    return fold.result()


class _Fold:
    """An image while records change it."""

    def __init__(self, image: ClusterImage) -> None:
        self.cluster_id = image.cluster_id
        self.next_block = image.next_producer_id_block
        self.brokers = dict(image.brokers)
        self.topics, self.names = dict(image.topics), dict(image.names)
        self.broker_configs = dict(image.broker_configs)
        self.settled = image.settled_epochs
        self._partitions = dict[str, list[PartitionImage]]()  # of topics that are being changed

    def result(self) -> ClusterImage:
        for name in tuple(self._partitions):
            self._close(name)
        return ClusterImage(
            self.cluster_id,
            self.brokers,
            self.topics,
            self.names,
            self.next_block,
            self.broker_configs,
            self.settled,
        )

    def _close(self, name: str) -> None:
        """Gives a topic the partitions that records have changed."""
        if (partitions := self._partitions.pop(name, None)) is not None:
            self.topics[name] = replace(self.topics[name], partitions=tuple(partitions))

    def topic(self, name: str, record: ClusterRecord) -> None:
        self._close(name)
        known = self.topics.pop(name, None)
        if known is not None:
            self.names.pop(known.topic_id, None)
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
        self.topics[name] = TopicImage(name, topic_id, partitions, configs)
        self.names[topic_id] = name

    def partition(self, name: str, index: str, record: ClusterRecord) -> None:
        topic = self.topics.get(name)
        if topic is None or record.value is None:
            return  # its topic goes with it
        partitions = self._partitions.get(name)
        if partitions is None:
            partitions = self._partitions[name] = list(topic.partitions)
        value = _decode(record)
        try:
            number = int(index)
            partitions[number] = _partition(value, partitions[number].replicas)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CoordinationError(f"{record.path} does not read: {error!r}") from error

    def broker(self, name: str, record: ClusterRecord) -> None:
        if record.value is None:
            self.brokers.pop(int(name), None)
        else:
            node_id, self.brokers[node_id] = registration(record)


def _assignment(partitions: Iterable[Iterable[int]]) -> list[tuple[int, ...]]:
    """The replicas of each partition as numbers, each distinct list checked once."""
    listed = list(map(tuple, partitions))
    checked = {nodes: tuple(int(node) for node in nodes) for nodes in set(listed)}
    return [checked[nodes] for nodes in listed]


def _partition(value: Mapping[str, Any], replicas: tuple[int, ...]) -> PartitionImage:
    """The partition of a record. `replicas`: those of the topic's record."""
    return PartitionImage(
        _nodes(value.get("replicas", replicas)),
        int(value["leader"]),
        int(value["leader_epoch"]),
        _nodes(value["in_sync_replicas"]),
        int(value["epoch"]),
        _nodes(value.get("adding_replicas", ())),
        _nodes(value.get("removing_replicas", ())),
        LeaderRecoveryState(value.get("leader_recovery_state", LeaderRecoveryState.RECOVERED)),
        _nodes(value.get("failed_replicas", ())),
        _nodes(value.get("eligible_leader_replicas", ())),
    )


def _nodes(listed: Iterable[int]) -> tuple[int, ...]:
    return tuple([int(node) for node in listed])


# ASCII with sorted names: equal values are equal bytes. orjson, which reads them, writes UTF-8.
_to_json: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def _encode(value: Mapping[str, Any]) -> bytes:
    return _to_json(value).encode()


def _decode(record: ClusterRecord) -> dict[str, Any]:
    try:
        value = orjson.loads(record.value or b"")
    except ValueError as error:
        raise CoordinationError(f"{record.path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CoordinationError(f"{record.path} is not a JSON object")
    return value
