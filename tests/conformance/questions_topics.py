"""Topics: created, deleted, widened, described."""

from __future__ import annotations

from uuid import UUID

from asking import Talk

from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    Cursor,
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

NOBODY = UUID(int=9)


def new(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    brokers: tuple[tuple[int, ...], ...] = (),
    first: int = 0,
    **configs: str | None,
) -> CreatableTopic:
    assigned = [CreatableReplicaAssignment(i, ids) for i, ids in enumerate(brokers, first)]
    settings = [CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items()]
    return CreatableTopic(name, partitions, replicas, tuple(assigned), tuple(settings))


def creating(talk: Talk) -> None:
    def ask(
        label: str, *topics: CreatableTopic, version: int = 5, validate_only: bool = False
    ) -> None:
        talk.ask(label, CreateTopicsRequest(topics, 5_000, validate_only), version)

    for version in range(8):
        ask(f"v{version}", new(talk.name(f"v{version}")), version=version)
    exists = new(talk.name("v0"))
    ask("again", exists)
    ask("again, validated", exists, validate_only=True)
    for bad in ("", ".", "..", "a" * 250, "a b", "é", "a/b"):
        ask(f"called {bad[:4]!r}", new(bad))
    b = talk.name("b")
    ask("0 partitions", new(b, 0))
    ask("-2 partitions", new(b, -2))
    ask("0 replicas", new(b, 1, 0))
    ask("2 replicas", new(b, 1, 2))
    ask("defaults in v3", new(b, -1, -1), version=3)
    ask("defaults in v4", new(b, -1, -1), version=4)
    ask("unknown setting", new(talk.name("c"), no_such="1"))
    ask("a word for a number", new(talk.name("c"), retention_ms="x"))
    ask("a number out of range", new(talk.name("c"), segment_bytes="1"))
    ask("a null setting", new(talk.name("c"), retention_ms=None))
    ask("an unknown policy", new(talk.name("c"), cleanup_policy="foo"))
    ask("settings", new(talk.name("d"), cleanup_policy="compact", retention_ms="1000"))
    ask("assigned", new(talk.name("e"), -1, -1, ((1,), (1,))))
    ask("assigned and counted", new(talk.name("f"), 2, 1, ((1,), (1,))))
    ask("assigned to nobody known", new(talk.name("f"), -1, -1, ((7,),)))
    ask("assigned twice to one", new(talk.name("f"), -1, -1, ((1, 1),)))
    ask("assigned to none", new(talk.name("f"), -1, -1, ((),)))
    ask("assigned from 1 on", new(talk.name("f"), -1, -1, ((1,),), first=1))
    ask("validated", new(talk.name("f")), validate_only=True)
    ask("twice in one request", new(talk.name("f")), new(talk.name("f")))
    ask("with a dot", new(talk.name("x.y")))
    ask("with an underscore for the dot", new(talk.name("x_y")))
    ask("nothing")


def deleting(talk: Talk) -> None:
    names = [talk.topic(f"t{i}") for i in range(8)]

    def by_name(label: str, *wanted: str, version: int = 4) -> None:
        talk.ask(label, DeleteTopicsRequest(topic_names=wanted, timeout_ms=5_000), version)

    def by_state(label: str, *wanted: DeleteTopicState) -> None:
        talk.ask(label, DeleteTopicsRequest(topics=wanted, timeout_ms=5_000), 6)

    by_name("unknown", talk.name("nowhere"))
    for version in range(6):
        by_name(f"v{version}", names[version], version=version)
    by_name("twice in one request", names[6], names[6])
    by_name("after twice", names[6])
    by_name("nothing", version=5)
    by_state("an unknown id", DeleteTopicState(None, NOBODY))
    by_state("neither name nor id", DeleteTopicState(None))
    by_state("name and id", DeleteTopicState(names[7], NOBODY))
    by_state("a name", DeleteTopicState(names[7]))
    by_state("nothing in v6")


def widening(talk: Talk) -> None:
    name = talk.topic("t", 2)

    def ask(
        label: str,
        *wanted: tuple[str, int],
        brokers: tuple[tuple[int, ...], ...] | None = None,
        version: int = 2,
        validate_only: bool = False,
    ) -> None:
        assigned = None
        if brokers is not None:
            assigned = tuple(CreatePartitionsAssignment(ids) for ids in brokers)
        topics = tuple(CreatePartitionsTopic(t, count, assigned) for t, count in wanted)
        talk.ask(label, CreatePartitionsRequest(topics, 5_000, validate_only), version)

    for count in (2, 1, 0, -1):
        ask(f"{count} of 2", (name, count))
    ask("unknown", (talk.name("nowhere"), 3))
    ask("validated", (name, 3), validate_only=True)
    for version in range(4):
        ask(f"v{version}", (name, 3 + version), version=version)
    ask("assigned", (name, 7), brokers=((1,),))
    ask("assigned too many", (name, 8), brokers=((1,), (1,)))
    ask("assigned to nobody known", (name, 8), brokers=((9,),))
    ask("assigned to none", (name, 8), brokers=((),))
    ask("no assignment", (name, 8), brokers=())
    ask("assigned twice to one", (name, 8), brokers=((1, 1),))
    ask("twice in one request", (name, 9), (name, 10))
    ask("nothing")
    wanted = MetadataRequest((MetadataRequestTopic(name=name),), False)
    talk.until(lambda: talk.say(wanted, 9), lambda answer: len(answer.topics[0].partitions) == 7)
    talk.ask("in the end", wanted, 9)


def describing(talk: Talk) -> None:
    name, nowhere = talk.topic("t", 3), talk.name("nowhere")

    def ask(label: str, *wanted: MetadataRequestTopic, version: int = 12) -> None:
        talk.ask(label, MetadataRequest(wanted, False, True, True), version)

    for version in range(13):
        ask(f"v{version}", MetadataRequestTopic(name=name), version=version)
    for version in range(4, 13):
        ask(f"unknown, v{version}", MetadataRequestTopic(name=nowhere), version=version)
    ask("nothing, v1", version=1)
    ask("nothing, v9", version=9)
    ask("an unknown id", MetadataRequestTopic(NOBODY, None))
    ask("an id in v10", MetadataRequestTopic(NOBODY, name), version=10)
    ask("an unknown id and a name", MetadataRequestTopic(NOBODY, name))
    for bad in ("a b", "", "é", "a" * 250, "."):
        ask(f"called {bad[:4]!r}", MetadataRequestTopic(name=bad), version=9)
    for version in (0, 1):
        talk.ask(f"cluster, v{version}", DescribeClusterRequest(True), version)

    def page(label: str, *names: str, limit: int = 2_000, cursor: Cursor | None = None) -> None:
        topics = tuple(DescribeTopicPartitionsTopic(each) for each in names)
        talk.ask(label, DescribeTopicPartitionsRequest(topics, limit, cursor), 0)

    page("all partitions", name)
    page("two partitions", name, limit=2)
    page("from partition 1 on", name, cursor=Cursor(name, 1))
    page("partitions of an unknown topic", nowhere)
    page("a bad name", "a b")


def moving(talk: Talk) -> None:
    name, nowhere = talk.topic("t", 2), talk.name("nowhere")
    for version in range(5):
        of_topic = DescribeLogDirsRequest((DescribableLogDirTopic(name, (0, 1)),))
        talk.ask(f"log directories, v{version}", of_topic, version)
    unknown = DescribeLogDirsRequest((DescribableLogDirTopic(nowhere, (0,)),))
    talk.ask("log directories of an unknown topic", unknown, 1)
    talk.ask("log directories of nothing", DescribeLogDirsRequest(()), 1)

    def elect(label: str, topic: str, index: int, kind: int = 0, version: int = 2) -> None:
        request = ElectLeadersRequest(kind, (ElectLeadersTopic(topic, (index,)),), 5_000)
        talk.ask(label, request, version)

    for version in range(3):
        elect(f"elect, v{version}", name, 0, version=version)
    elect("elect uncleanly", name, 0, 1)
    elect("elect in an unknown topic", nowhere, 0)
    elect("elect in an unknown partition", name, 9)

    def reassign(label: str, topic: str, index: int, replicas: tuple[int, ...] | None) -> None:
        partition = ReassignablePartition(index, replicas)
        request = AlterPartitionReassignmentsRequest(
            5_000, (ReassignableTopic(topic, (partition,)),)
        )
        talk.ask(label, request, 0)

    reassign("move to where it is", name, 0, (1,))
    reassign("cancel what is not moving", name, 0, None)
    reassign("move to nobody known", name, 0, (9,))
    reassign("move to none", name, 0, ())
    reassign("move twice to one", name, 0, (1, 1))
    reassign("move to a negative broker", name, 0, (-1,))
    reassign("move an unknown partition", name, 9, (1,))
    reassign("move an unknown topic", nowhere, 0, (1,))
    for label, topic in (("moving", name), ("moving of an unknown topic", nowhere)):
        topics = (ListPartitionReassignmentsTopics(topic, (0,)),)
        talk.ask(label, ListPartitionReassignmentsRequest(5_000, topics), 0)
