"""Any requests of operators, in any order: the image stays the fold of its records, and sound."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.config_changes import (
    BROKER,
    TOPIC,
    ChangeConfigs,
    ConfigChange,
    in_force,
)
from kafkalite.core.cluster.controller import Controller
from kafkalite.core.cluster.image import ClusterImage, ClusterRecord
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.protocol.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersTopic,
    ReassignablePartition,
    ReassignableTopic,
)
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
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "", "no!", "__consumer_offsets"])
BROKERS = st.integers(-1, 4)
REPLICAS = st.lists(BROKERS, max_size=4).map(tuple)
COUNTS = st.integers(-2, 5)
KEYS = st.sampled_from(
    ["cleanup.policy", "retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms", "nothing",
     "log.retention.ms", "log.cleanup.policy", "log.dirs", "", "message.max.bytes",
     "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"]
)  # fmt: skip
VALUES = st.sampled_from(["compact", "delete", "compact,delete", "5", "-1", "0", "", "x", " 7 "])


def lists(element: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(element, max_size=most).map(tuple)


CREATIONS = st.builds(
    CreateTopicsRequest,
    lists(
        st.builds(
            CreatableTopic,
            NAMES,
            COUNTS,
            COUNTS,
            st.one_of(st.just(()), lists(st.builds(CreatableReplicaAssignment, COUNTS, REPLICAS))),
            lists(st.builds(CreatableTopicConfig, KEYS, st.none() | VALUES), 2),
        )
    ),
    st.just(1),
    st.booleans(),
)
DELETIONS = st.builds(DeleteTopicsRequest, lists(st.builds(DeleteTopicState, st.none() | NAMES)))
GROWTHS = st.builds(
    CreatePartitionsRequest,
    lists(
        st.builds(
            CreatePartitionsTopic,
            NAMES,
            COUNTS,
            st.none() | lists(st.builds(CreatePartitionsAssignment, REPLICAS)),
        )
    ),
    st.just(1),
    st.booleans(),
)
EDITS = st.tuples(KEYS, st.integers(0, 3), VALUES).map(
    lambda edit: (edit[0], edit[1], None) if edit[1] == 1 else edit
)
CHANGES = st.builds(
    ChangeConfigs,
    lists(
        st.one_of(
            st.builds(ConfigChange, st.just(TOPIC), NAMES, lists(EDITS), st.booleans()),
            st.builds(
                ConfigChange, st.just(BROKER), st.sampled_from(["", "1"]), lists(EDITS),
                st.booleans(),
            ),
        )
    ),
    st.booleans(),
)  # fmt: skip
ELECTIONS = st.builds(
    ElectLeadersRequest,
    st.integers(0, 2),
    st.none() | lists(st.builds(ElectLeadersTopic, NAMES, lists(COUNTS))),
)
MOVES = st.builds(
    AlterPartitionReassignmentsRequest,
    st.just(1),
    lists(
        st.builds(
            ReassignableTopic,
            NAMES,
            lists(st.builds(ReassignablePartition, COUNTS, st.none() | REPLICAS)),
        )
    ),
)
REQUESTS = st.lists(
    st.one_of(CREATIONS, CREATIONS, DELETIONS, GROWTHS, CHANGES, ELECTIONS, MOVES), max_size=12
)


def check(image: ClusterImage, config: BrokerConfig) -> None:
    """What is so whatever operators ask for."""
    for name, topic in image.topics.items():
        assert image.names[topic.topic_id] == name
        assert topic.partitions, name
        for partition in topic.partitions:
            assert partition.leader in partition.replicas
            assert set(partition.in_sync_replicas) <= set(partition.replicas)
            assert len(set(partition.replicas)) == len(partition.replicas)
        config.topic(topic.configs)  # valid, under the broker's own settings
    assert len(image.names) == len(image.topics)
    assert len({name.replace(".", "_") for name in image.topics}) == len(image.topics)
    for node_id in (1, 2, 3):
        assert in_force(config, image, node_id)[1] is None


@pytest.mark.slow
@settings(max_examples=300)
@given(REQUESTS)
def test_the_image_is_the_fold_of_its_records_and_sound(requests: list[Any]) -> None:
    config = BrokerConfig.parse()
    machine = Controller(config, Random(7), lambda topic: ())
    written = [images.broker_record(n, {DEFAULT_LISTENER: ("h", 9092)}) for n in (1, 2, 3)]
    machine.replay(written)
    for request in requests:
        before = machine.image
        outcome = machine.handle(request, RequestContext(7))
        (reply,) = outcome.replies
        assert reply.response is not None
        if getattr(request, "validate_only", False):
            assert outcome.records == ()
        machine.replay(outcome.records)
        written += outcome.records
        if not outcome.records:
            assert machine.image == before
        check(machine.image, config)
    latest: dict[str, ClusterRecord] = {}
    for record in written:
        latest.pop(record.path, None)
        latest[record.path] = record
    kept = sorted(
        (record for record in latest.values() if record.value is not None),
        key=lambda record: record.path.count("/"),  # as a restart loads them: parents first
    )
    assert images.replay(ClusterImage(), kept) == machine.image
