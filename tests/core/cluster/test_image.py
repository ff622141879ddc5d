"""The image: the layout of its records, those of earlier versions, and snapshots of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import (
    BrokerImage,
    ClusterImage,
    ClusterRecord,
    LeaderRecoveryState,
    PartitionImage,
)
from kafkalite.core.types import Node
from kafkalite.errors import CoordinationError

EARLIER = [
    ("/cluster", b'{"cluster_id":"one"}'),
    ("/producer_ids", b'{"next_block_start":3000}'),
    ("/brokers", b""),
    ("/brokers/1", b'{"endpoints":{"PLAINTEXT":["h",9092]},"rack":null}'),
    ("/broker_configs", b""),
    ("/broker_configs/default", b'{"log.retention.ms":"5"}'),
    ("/topics", b""),
    (
        "/topics/a",
        b'{"configs":{"retention.ms":"7"},"partitions":[[1],[1,2]],"topic_id":"%032x"}' % 9,
    ),
    ("/topics/a/1", b'{"epoch":3,"in_sync_replicas":[2],"leader":2,"leader_epoch":2}'),
]


def test_the_records_of_version_1_read() -> None:
    image = images.replay(ClusterImage(), [ClusterRecord(*each) for each in EARLIER])
    assert (image.cluster_id, image.next_producer_id_block) == ("one", 3000)
    assert image.brokers == {1: BrokerImage({"PLAINTEXT": Node(1, "h", 9092)}, None, -1)}
    assert image.broker_configs == {"": {"log.retention.ms": "5"}}
    assert image.settled_epochs == {}
    first, second = image.topics["a"].partitions
    assert first == PartitionImage((1,), 1, 0, (1,))
    assert second == PartitionImage((1, 2), 2, 2, (2,), 3, (), (), LeaderRecoveryState.RECOVERED)
    assert images.replay(ClusterImage(), images.snapshot_records(image)) == image


def test_a_partitions_own_record_wins_over_the_replicas_of_its_topics() -> None:
    image = images.replay(ClusterImage(), [ClusterRecord(*each) for each in EARLIER])
    moving = PartitionImage((3, 1), 1, 3, (1,), 4, (3,), (1,), LeaderRecoveryState.RECOVERING)
    records = [images.partition_record("a", 1, moving), images.topic_record(image.topics["a"])]
    for order in (records, records[::-1]):
        topic = images.replay(image, order).topics["a"]
        assert topic.partitions[0] == PartitionImage((1,), 1, 0, (1,))
    assert images.replay(image, records[:1]).partition("a", 1) == moving
    restarted = [images.topic_record(topic), images.partition_record("a", 1, moving)]
    assert images.replay(ClusterImage(), restarted).partition("a", 1) == moving


def test_a_topic_whose_replicas_changed_their_order_before_partitions_had_them_is_kept() -> None:
    """As version 1 wrote it: the order is in the topic's record alone."""
    image = images.replay(ClusterImage(), [ClusterRecord(*each) for each in EARLIER])
    value = EARLIER[7][1].replace(b"[1,2]", b"[2,1]").replace(b"[[1]", b"[[2]")
    image = images.replay(image, [ClusterRecord("/topics/a", value)])
    first, second = image.topics["a"].partitions
    assert (first.replicas, first.leader) == ((2,), 1)
    assert (second.replicas, second.leader) == ((2, 1), 2)
    assert images.replay(ClusterImage(), images.snapshot_records(image)) == image


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/topics/a/1", b'{"leader":1}'),
        ("/topics/a/7", EARLIER[8][1]),
        ("/topics/a/1", EARLIER[8][1].replace(b"}", b',"leader_recovery_state":2}')),
        ("/brokers/x", EARLIER[3][1]),
        ("/brokers/2", b'{"endpoints":3,"rack":null}'),
        ("/elsewhere", b"{}"),
    ],
)
def test_a_record_that_does_not_read_is_named(path: str, value: bytes) -> None:
    image = images.replay(ClusterImage(), [ClusterRecord(*each) for each in EARLIER])
    with pytest.raises(CoordinationError, match=path):
        images.replay(image, [ClusterRecord(path, value)])


NODES = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True).map(tuple)
SOME = st.lists(st.integers(1, 5), max_size=3, unique=True).map(tuple)
PARTITIONS = st.builds(
    PartitionImage, NODES, st.integers(-1, 5), st.integers(0, 9), NODES, st.integers(0, 9), SOME,
    SOME, st.sampled_from(LeaderRecoveryState),
)  # fmt: skip
BROKERS = st.builds(
    lambda epoch, rack, cleanly, leaving: BrokerImage(
        {"PLAINTEXT": Node(0, "h", 9092)}, rack, epoch, cleanly, leaving
    ),
    st.integers(-1, 99), st.none() | st.just("r"), st.booleans(), st.booleans(),
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(PARTITIONS, min_size=1, max_size=4)),
    st.dictionaries(st.integers(1, 5), BROKERS),
    st.dictionaries(st.integers(1, 5), st.integers(0, 99)),
)
def test_a_snapshot_is_a_fold_that_gives_the_same_image(
    topics: dict[str, list[PartitionImage]],
    brokers: dict[int, BrokerImage],
    settled: dict[int, int],
) -> None:
    made = [
        images.TopicImage(name, images.UUID(int=number), tuple(partitions), {"k": name})
        for number, (name, partitions) in enumerate(topics.items())
    ]
    image = ClusterImage(
        "one",
        {
            n: images.replace(b, endpoints={"PLAINTEXT": Node(n, "h", 9092)})
            for n, b in brokers.items()
        },
        {topic.name: topic for topic in made},
        {topic.topic_id: topic.name for topic in made},
        4_000,
        {"": {"a": "1"}, "2": {"b": "2"}},
        settled,
    )
    records = list(images.snapshot_records(image))
    assert images.replay(ClusterImage(), records) == image
    assert images.replay(image, records) == image
