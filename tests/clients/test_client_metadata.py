"""The client's cluster as a fold of metadata answers, and how long it waits between tries."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from kafkalite.clients.metadata import Cluster, merge
from kafkalite.core.backoff import Backoff
from kafkalite.core.protocol.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafkalite.core.types import Node, TopicPartition
from kafkalite.errors import ErrorCode

TP = TopicPartition("t", 0)
ONE, TWO = UUID(int=1), UUID(int=2)


def response(*topics: MetadataResponseTopic) -> MetadataResponse:
    brokers = (MetadataResponseBroker(1, "a", 9092), MetadataResponseBroker(2, "b", 9092))
    return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=1, topics=topics)


def topic(
    leader: int, epoch: int, topic_id: UUID = ONE, code: ErrorCode = ErrorCode.NONE
) -> MetadataResponseTopic:
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    return MetadataResponseTopic(code, "t", topic_id, partitions=(partition,))


def known(*answers: MetadataResponseTopic) -> Cluster:
    cluster = Cluster()
    for answer in answers:
        cluster = merge(cluster, response(answer), all_topics=False)
    return cluster


def test_an_answer_tells_nodes_and_leaders() -> None:
    cluster = known(topic(2, 5))
    assert cluster.nodes[2] == Node(2, "b", 9092)
    assert cluster.leader_id(TP) == 2
    assert cluster.leader_epoch(TP) == 5
    assert cluster.partitions_of(["t", "u"]) == {"t": 1}
    assert (cluster.partition_count("t"), cluster.partition_count("u")) == (1, 0)


@pytest.mark.parametrize(
    ("answers", "leader"),
    [
        ([topic(1, 5), topic(2, 6)], 2),
        ([topic(1, 5), topic(2, 4)], 1),  # from a broker that lags behind
        ([topic(1, 5), topic(2, 5)], 2),
        ([topic(1, 5), topic(2, 0, TWO)], 2),  # made anew
        ([topic(1, 5), topic(2, -1)], 2),  # a broker that knows no epochs
        ([topic(-1, 5)], None),
        ([topic(9, 5)], None),  # a node that nobody mentioned
    ],
)
def test_the_newest_leader_counts(answers: list[MetadataResponseTopic], leader: int | None) -> None:
    assert known(*answers).leader_id(TP) == leader


def test_a_topic_that_is_gone_is_forgotten() -> None:
    gone = MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t")
    cluster = known(topic(1, 5), gone)
    assert cluster.partition(TP) is None
    assert cluster.errors == {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert merge(cluster, response(topic(1, 5)), all_topics=False).errors == {}


def test_a_topic_without_partitions_is_not_known_yet() -> None:
    empty = MetadataResponseTopic(ErrorCode.NONE, "t", ONE)
    cluster = known(empty)
    assert "t" not in cluster.topics
    assert cluster.errors == {"t": ErrorCode.LEADER_NOT_AVAILABLE}
    assert known(topic(1, 5), empty).leader_id(TP) == 1


def test_a_topic_in_trouble_keeps_what_was_known() -> None:
    trouble = MetadataResponseTopic(ErrorCode.LEADER_NOT_AVAILABLE, "t")
    cluster = known(topic(1, 5), trouble)
    assert cluster.leader_id(TP) == 1
    assert cluster.errors == {"t": ErrorCode.LEADER_NOT_AVAILABLE}


def test_an_answer_about_all_topics_forgets_the_others() -> None:
    cluster = merge(known(topic(1, 5)), response(), all_topics=True)
    assert cluster.topics == {}
    assert merge(known(topic(1, 5)), response(), all_topics=False).topics.keys() == {"t"}


def test_partitions_after_a_gap_are_not_believed() -> None:
    partitions = tuple(MetadataResponsePartition(partition_index=i, leader_id=1) for i in (2, 0))
    answer = MetadataResponseTopic(name="t", partitions=partitions)
    assert known(answer).partition_count("t") == 1


def test_pauses_double_up_to_a_bound_and_spread() -> None:
    backoff = Backoff(Random(3), 100, 1_000)
    pauses = [backoff.failed() for _ in range(50)]
    for pause, exact in zip(pauses, [100, 200, 400, 800, *[1_000] * 46], strict=True):
        assert 0.8 * exact <= pause <= 1.2 * exact
    assert len(set(pauses[4:])) > 10
    backoff.succeeded()
    assert backoff.failed() <= 120
