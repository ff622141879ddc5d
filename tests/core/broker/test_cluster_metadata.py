"""What clients read of a cluster, and what they ask of its controller through any broker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from three_brokers import ThreeBrokers

from kafkalite.clients.admin.client import NewTopic
from kafkalite.core.broker.doubts import LISTED_SECONDS
from kafkalite.core.protocol.apis import ApiKey
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkalite.core.protocol.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigOperation,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.protocol.peers import FollowMetadataRequest
from kafkalite.core.protocol.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kafkalite.errors import ErrorCode

TOPIC, BROKER = 2, 4


@pytest.fixture
def place() -> Iterator[ThreeBrokers]:
    racks = {1: "a", 2: "b", 3: "c"}
    with ThreeBrokers(racks=racks, default_replication_factor="3") as made:
        yield made
        assert not made.defects


def topic(
    name: str, count: int, replication_factor: int, assigned: tuple[Any, ...] = ()
) -> CreatableTopic:
    return CreatableTopic(name, count, replication_factor, assigned, ())


def metadata(place: ThreeBrokers, node_id: int, *names: str, version: int = 12) -> Any:
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    return place.ask(node_id, MetadataRequest(topics or None), {ApiKey.METADATA: version})


def test_every_broker_names_all_with_their_racks_and_the_controller(place: ThreeBrokers) -> None:
    controller = place.controller()
    for node_id in (1, 2, 3):
        described = place.ask(node_id, DescribeClusterRequest(False))
        assert described.controller_id == controller
        told = {(b.broker_id, b.host, b.rack) for b in described.brokers}
        assert told == {(1, "broker-1", "a"), (2, "broker-2", "b"), (3, "broker-3", "c")}
        answer = place.ask(node_id, MetadataRequest(()))
        assert answer.controller_id == controller
        assert {(b.node_id, b.rack) for b in answer.brokers} == {(1, "a"), (2, "b"), (3, "c")}


def test_a_topic_is_known_at_all_brokers_once_one_says_that_it_is_made(place: ThreeBrokers) -> None:
    """No client waits between two requests, whichever brokers they go to."""
    for node_id, asked_next in product((1, 2, 3), (1, 2, 3)):
        name = f"t{node_id}{asked_next}"
        (made,) = place.ask(node_id, CreateTopicsRequest((topic(name, 2, -1),))).topics
        assert (made.error_code, made.replication_factor) == (ErrorCode.NONE, 3)
        (found,) = metadata(place, asked_next, name).topics
        assert (found.error_code, found.topic_id) == (ErrorCode.NONE, made.topic_id)
        assert {p.error_code for p in found.partitions} == {ErrorCode.NONE}
        assert [sorted(p.isr_nodes) for p in found.partitions] == [[1, 2, 3]] * 2
        grow = CreatePartitionsRequest((CreatePartitionsTopic(name, 3, None),), 10_000, False)
        assert place.ask(node_id, grow).results[0].error_code is ErrorCode.NONE
        (found,) = metadata(place, asked_next, name).topics
        assert len(found.partitions) == 3
        place.ask(node_id, DeleteTopicsRequest((DeleteTopicState(name),), timeout_ms=10_000))
        assert all(name not in place.image(each).topics for each in (1, 2, 3))


def test_a_silent_broker_holds_one_answer_back_for_a_second(place: ThreeBrokers) -> None:
    """The one that is asked is the controller, or another; a third one is silent."""

    def seconds_to_make(name: str, node_id: int) -> float:
        before = place.seconds
        place.ask(node_id, CreateTopicsRequest((topic(name, 1, 2),)))
        assert name in place.image(node_id).topics
        return place.seconds - before

    controller = place.controller()
    silent = place.other(controller)
    asked = place.other(controller, silent)
    assert seconds_to_make("before", asked) < 0.5
    place.pause(silent)
    assert 1 <= seconds_to_make("first", asked) < 1.5
    assert seconds_to_make("second", asked) < 0.5
    assert seconds_to_make("third", controller) < 0.5
    place.go_on(silent)
    place.agree()
    assert seconds_to_make("fourth", controller) < 0.5
    assert "fourth" in place.image(silent).topics
    place.pause(silent)
    assert 1 <= seconds_to_make("fifth", controller) < 1.5


def test_asking_makes_a_topic_through_any_broker(place: ThreeBrokers) -> None:
    for node_id in (1, 2, 3):
        (found,) = metadata(place, node_id, f"auto-{node_id}").topics
        assert found.error_code is ErrorCode.NONE
        assert len(found.partitions[0].replica_nodes) == 3


def test_dead_brokers_are_offline_and_their_partitions_without_leader(
    place: ThreeBrokers,
) -> None:
    place.create(NewTopic("three", 3, 3), NewTopic("one", 3, 1))
    before = place.image().topics
    place.kill(3)
    place.agree()
    place.pass_seconds(LISTED_SECONDS)
    asked = place.running()[0]
    answer = metadata(place, asked)
    assert {b.node_id for b in answer.brokers} == {1, 2}
    topics = {topic.name: topic for topic in answer.topics}
    for old, partition in zip(before["three"].partitions, topics["three"].partitions, strict=True):
        assert (partition.error_code, partition.offline_replicas) == (ErrorCode.NONE, (3,))
        assert partition.leader_id in {1, 2}
        assert partition.leader_epoch == old.leader_epoch + (old.leader == 3)
        assert sorted(partition.isr_nodes) == [1, 2]
        assert sorted(partition.replica_nodes) == [1, 2, 3]
    (lost,) = (p for p in topics["one"].partitions if p.replica_nodes == (3,))
    assert lost.error_code is ErrorCode.LEADER_NOT_AVAILABLE
    assert (lost.leader_id, lost.isr_nodes, lost.offline_replicas) == (-1, (3,), (3,))
    (first,) = metadata(place, asked, "three", version=0).topics
    for partition in first.partitions:
        assert partition.error_code is ErrorCode.REPLICA_NOT_AVAILABLE
        assert sorted(partition.replica_nodes) == [1, 2]
    page = place.ask(asked, DescribeTopicPartitionsRequest((DescribeTopicPartitionsTopic("one"),)))
    found = {p.partition_index: p for p in page.topics[0].partitions}
    told = found[lost.partition_index]
    assert (told.error_code, told.leader_id, told.offline_replicas) == (ErrorCode.NONE, -1, (3,))


def test_replicas_are_placed_as_asked_or_refused(place: ThreeBrokers) -> None:
    node_id = place.other(place.controller())
    assigned = (CreatableReplicaAssignment(0, (2, 3)), CreatableReplicaAssignment(1, (3, 1)))
    asked = (
        topic("manual", -1, -1, assigned),
        topic("four", 1, 4),
        topic("nobody", -1, -1, (CreatableReplicaAssignment(0, (9,)),)),
    )
    results = {r.name: r for r in place.ask(node_id, CreateTopicsRequest(asked)).topics}
    assert results["manual"].error_code is ErrorCode.NONE
    assert results["four"].error_code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert results["nobody"].error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    grow = CreatePartitionsTopic("manual", 3, (CreatePartitionsAssignment((1, 2)),))
    answer = place.ask(node_id, CreatePartitionsRequest((grow,), 10_000, False))
    assert answer.results[0].error_code is ErrorCode.NONE
    placed = [p.replicas for p in place.image(node_id).topics["manual"].partitions]
    assert placed == [(2, 3), (3, 1), (1, 2)]


def test_partitions_move_and_leaders_change_through_any_broker(place: ThreeBrokers) -> None:
    place.create(NewTopic("t", replica_assignment=((1, 2),)))
    place.produce("t", b"v")
    node_id = place.other(place.controller())
    move = ReassignableTopic("t", (ReassignablePartition(0, (3, 2)),))
    answer = place.ask(node_id, AlterPartitionReassignmentsRequest(10_000, (move,)))
    assert answer.responses[0].partitions[0].error_code is ErrorCode.NONE
    place.until(lambda: place.state("t").replicas == (3, 2))
    listed = place.ask(node_id, ListPartitionReassignmentsRequest(10_000))
    assert listed.topics == ()
    elect = (ElectLeadersTopic("t", (0,)),)
    place.until(lambda: 3 in place.state("t").in_sync_replicas)
    answer = place.ask(node_id, ElectLeadersRequest(0, elect, 10_000))
    code = answer.replica_election_results[0].partition_result[0].error_code
    assert code in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    assert place.image(node_id).topics["t"].partitions[0].leader == 3


def test_settings_change_through_any_broker(place: ThreeBrokers) -> None:
    place.create(NewTopic("t", 1, 3))
    node_id = place.other(place.controller())
    named = IncrementalAlterableConfig("retention.ms", ConfigOperation.SET, "7000")
    of_topic = IncrementalAlterConfigsResource(TOPIC, "t", (named,))
    threads = IncrementalAlterableConfig("log.retention.ms", ConfigOperation.SET, "8000")
    own = IncrementalAlterConfigsResource(BROKER, str(node_id), (threads,))
    foreign = IncrementalAlterConfigsResource(BROKER, str(place.other(node_id)), (threads,))
    ask = IncrementalAlterConfigsRequest((of_topic, own, foreign), False)
    codes = [each.error_code for each in place.ask(node_id, ask).responses]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert place.image(node_id).topics["t"].configs == {"retention.ms": "7000"}
    assert place.broker(node_id).config["log.retention.ms"] == 8_000
    replaced = AlterConfigsResource(TOPIC, "t", (AlterableConfig("segment.bytes", "9000"),))
    (result,) = place.ask(node_id, AlterConfigsRequest((replaced,), False)).responses
    assert result.error_code is ErrorCode.NONE
    assert place.image(node_id).topics["t"].configs == {"segment.bytes": "9000"}
    of_all = IncrementalAlterConfigsResource(BROKER, "", (threads,))
    (result,) = place.ask(node_id, IncrementalAlterConfigsRequest((of_all,), False)).responses
    assert result.error_code is ErrorCode.NONE
    place.agree()
    assert [place.broker(n).config["log.retention.ms"] for n in (1, 2, 3)] == [8_000] * 3
    foreign_name = str(place.other(node_id))
    asked = DescribeConfigsRequest((DescribeConfigsResource(BROKER, foreign_name, None),))
    (described,) = place.ask(node_id, asked).results
    assert described.error_code is ErrorCode.INVALID_REQUEST


def test_a_request_waits_for_the_next_controller(place: ThreeBrokers) -> None:
    first = place.controller()
    place.kill(first)
    node_id = place.running()[0]
    create = CreateTopicsRequest((topic("t", 1, 2),))
    (made,) = place.ask(node_id, create).topics
    assert made.error_code is ErrorCode.NONE
    assert "t" in place.image(node_id).topics


@pytest.mark.parametrize("key", [55, 64])
def test_apis_of_other_clusters_are_not_there(place: ThreeBrokers, key: int) -> None:
    """DescribeQuorum and UnregisterBroker belong to KRaft."""

    async def versions() -> set[int]:
        async with place.client() as client:
            connection = await client.connect(1)
            return {int(each) for each in connection.versions}

    assert key not in place.result(place.peer, versions())


def test_a_controller_forgets_brokers_that_are_not_registered(place: ThreeBrokers) -> None:
    """Any client can ask for the cluster's records, under any id."""
    controller = place.controller()
    for broker_id in range(10, 20):
        answer = place.ask(controller, FollowMetadataRequest(broker_id, broker_epoch=1))
        assert answer.error_code is ErrorCode.NONE
        assert answer.records
    term = place.broker(controller).steering._term
    assert {*term._answers._known} - {1, 2, 3} == {19}, "the last one alone"
    assert {*term._waiting} <= {1, 2, 3}
