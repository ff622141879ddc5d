"""The controller: what it makes, what it refuses, and that the image is a fold of its records."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.controller import Controller
from kafkalite.core.cluster.image import ClusterImage, PartitionImage
from kafkalite.core.cluster.local import LocalCoordination
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.protocol.peers import AllocateProducerIdsRequest
from kafkalite.core.protocol.primitives import ZERO_UUID
from kafkalite.core.protocol.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kafkalite.core.types import DEFAULT_LISTENER, RequestContext
from kafkalite.errors import CoordinationError, ErrorCode, VersionMismatch

CONTEXT = RequestContext(7)


def controller(brokers: int = 1, **settings: str) -> Controller:
    config = BrokerConfig.parse({name.replace("_", "."): v for name, v in settings.items()})
    made = Controller(config, Random(7), lambda topic: ())
    made.replay(
        [images.broker_record(n, {DEFAULT_LISTENER: ("h", 9092)}) for n in range(1, brokers + 1)]
    )
    return made


def run(machine: Controller, request: Any) -> Any:
    outcome = machine.handle(request, CONTEXT)
    machine.replay(outcome.records)
    return outcome.replies[0].response


def topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> CreatableTopic:
    pairs = (CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items())
    return CreatableTopic(name, partitions, replicas, (), tuple(pairs))


def assigned(name: str, *replicas: tuple[int, ...]) -> CreatableTopic:
    assignments = (CreatableReplicaAssignment(i, nodes) for i, nodes in enumerate(replicas))
    return CreatableTopic(name, -1, -1, tuple(assignments), ())


def create(machine: Controller, *topics: CreatableTopic, **more: Any) -> list[CreatableTopicResult]:
    return list(run(machine, CreateTopicsRequest(topics, **more)).topics)


def test_a_topic_comes_and_goes() -> None:
    machine = controller()
    (made,) = create(machine, topic("orders", 3, retention_ms="1000"))
    assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 3, 1)
    image = machine.image.topics["orders"]
    assert image.topic_id == made.topic_id != ZERO_UUID
    assert image.configs == {"retention.ms": "1000"}
    assert image.partitions == (PartitionImage((1,), 1, 0, (1,)),) * 3
    assert machine.image.topic_by_id(made.topic_id) is image

    (gone,) = run(machine, DeleteTopicsRequest(topic_names=("orders",))).responses
    assert (gone.name, gone.error_code) == ("orders", ErrorCode.NONE)
    assert machine.image.topics == {}
    assert machine.image.names == {}


def test_defaults_are_the_brokers() -> None:
    machine = controller(3, num_partitions="5", default_replication_factor="2")
    (made,) = create(machine, topic("orders", -1, -1))
    assert (made.num_partitions, made.replication_factor) == (5, 2)


def test_only_validating_makes_nothing() -> None:
    machine = controller()
    (result,) = create(machine, topic("orders"), validate_only=True)
    assert (result.error_code, result.topic_id) == (ErrorCode.NONE, ZERO_UUID)
    assert machine.image.topics == {}
    (again,) = create(machine, topic("bad name"), validate_only=True)
    assert again.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
        (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION, "not allowed"),
        (topic("ä"), ErrorCode.INVALID_TOPIC_EXCEPTION, "ASCII"),
        (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "'a/b'"),
        (topic("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION, "other than"),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "max allowed length 249"),
        (topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        (topic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides"),
        (topic("t", 0), ErrorCode.INVALID_PARTITIONS, "non-positive"),
        (topic("t", 10_001), ErrorCode.INVALID_PARTITIONS, "10001"),
        (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (topic("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR, "2 broker"),
        (topic("t", nonsense="1"), ErrorCode.INVALID_CONFIG, "nonsense"),
        (topic("t", retention_ms="x"), ErrorCode.INVALID_CONFIG, "retention.ms"),
        (topic("t", min_insync_replicas="0"), ErrorCode.INVALID_CONFIG, "min.insync.replicas"),
        (
            topic("t", min_compaction_lag_ms="5", max_compaction_lag_ms="4"),
            ErrorCode.INVALID_CONFIG,
            "compaction.lag",
        ),
        (assigned("t", ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        (assigned("t", (1, 1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 1 more than"),
        (assigned("t", (1, 9)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "includes broker 9, but"),
        (
            assigned("t", (1, 2), (1,)),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "a partition with 1 rep",
        ),
        (
            CreatableTopic("t", -1, -1, (CreatableReplicaAssignment(1, (1,)),), ()),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "consecutive 0-based",
        ),
        (
            CreatableTopic("t", 1, 1, (CreatableReplicaAssignment(0, (1,)),), ()),
            ErrorCode.INVALID_REQUEST,
            "replication factor was not set to -1",
        ),
        (
            CreatableTopic("t", 1, 1, (), (CreatableTopicConfig("retention.ms", None),)),
            ErrorCode.INVALID_CONFIG,
            "Null value not supported for topic configs: retention.ms",
        ),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_with_a_reason(
    wanted: CreatableTopic, code: ErrorCode, words: str
) -> None:
    machine = controller(2)
    create(machine, topic("there"), topic("a.b"))
    before = machine.image
    refused, made = create(machine, wanted, topic("good"))
    assert refused.error_code is code
    assert words in (refused.error_message or "")
    assert made.error_code is ErrorCode.NONE
    assert set(machine.image.topics) == {*before.topics, "good"}


def test_a_name_given_twice_is_told_once() -> None:
    machine = controller()
    results = create(machine, topic("a"), topic("b"), topic("a", 2))
    assert [(r.name, r.error_code) for r in results] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.NONE),
    ]


def test_names_that_collide_within_one_request() -> None:
    first, second = create(controller(), topic("a.b"), topic("a_b"))
    assert first.error_code is ErrorCode.NONE
    assert second.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_collision_ends_with_its_topic() -> None:
    machine = controller()
    create(machine, topic("a.b"))
    run(machine, DeleteTopicsRequest(topic_names=("a.b",)))
    assert create(machine, topic("a_b"))[0].error_code is ErrorCode.NONE


def test_deleting_by_id_and_what_is_not_there() -> None:
    machine = controller()
    (made,) = create(machine, topic("orders"))
    states = (
        DeleteTopicState(None, made.topic_id),
        DeleteTopicState("orders"),
        DeleteTopicState("nothing"),
        DeleteTopicState(None, ZERO_UUID),
        DeleteTopicState(None, UUID(int=1)),
        DeleteTopicState("orders", made.topic_id),
    )
    results = run(machine, DeleteTopicsRequest(topics=states)).responses
    assert [(r.name, r.error_code) for r in results] == [
        ("orders", ErrorCode.NONE),
        ("orders", ErrorCode.INVALID_REQUEST),
        ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.INVALID_REQUEST),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ("orders", ErrorCode.INVALID_REQUEST),
    ]
    assert machine.image.topics == {}


def test_deletion_can_be_disabled() -> None:
    machine = controller(delete_topic_enable="false")
    create(machine, topic("orders"))
    (result,) = run(machine, DeleteTopicsRequest(topic_names=("orders",))).responses
    assert result.error_code is ErrorCode.TOPIC_DELETION_DISABLED
    assert "orders" in machine.image.topics


@given(st.integers(1, 7), st.integers(1, 30), st.integers(0, 99))
def test_replicas_are_spread_evenly(brokers: int, partitions: int, seed: int) -> None:
    machine = controller(brokers)
    machine.random = Random(seed)
    replicas = 1 + seed % brokers
    create(machine, topic("t", partitions, replicas))
    placed = [p.replicas for p in machine.image.topics["t"].partitions]
    assert all(len(set(nodes)) == replicas for nodes in placed)
    led = [sum(nodes[0] == broker for nodes in placed) for broker in range(1, brokers + 1)]
    assert max(led) - min(led) <= 1


def test_partitions_with_the_same_replicas_are_one_object() -> None:
    """Thousands of partitions are not made one by one: an image, its record, and what it grows."""
    machine = controller(2)
    create(machine, topic("t", 9_999), assigned("u", *[(2, 1)] * 9_999))
    changed = PartitionImage((1,), -1, 3, (), 1)
    machine.replay([images.partition_record("t", 0, changed)])
    run(machine, CreatePartitionsRequest((CreatePartitionsTopic("t", 10_000, None),), 0, False))
    kinds = {name: set(map(id, t.partitions)) for name, t in machine.image.topics.items()}
    assert (len(kinds["t"]), len(kinds["u"])) == (2 + 1 + 1, 1), "those made, the new, the changed"
    assert machine.image.topics["t"].partitions[0].leader_epoch == 3
    assert [p.replicas for p in machine.image.topics["u"].partitions] == [(2, 1)] * 9_999


def test_producer_ids_are_given_out_once() -> None:
    machine = controller()
    blocks = [run(machine, AllocateProducerIdsRequest(1)) for _ in range(3)]
    starts = [(block.producer_id_start, block.producer_id_len) for block in blocks]
    ids = [n for start, length in starts for n in range(start, start + length)]
    assert ids == list(range(3_000))


def test_the_image_comes_back_from_the_store(tmp_path: Path) -> None:
    async def story() -> None:
        storage = FileStorage(tmp_path)
        machine = controller(0)
        store = ClusterStore(LocalCoordination(storage))
        assert await store.load() == ()
        await store.append([images.cluster_record("one")])
        machine.replay([images.cluster_record("one")])
        await store.append([images.broker_record(1, {DEFAULT_LISTENER: ("h", 1)})], ephemeral=True)
        machine.replay([images.broker_record(1, {DEFAULT_LISTENER: ("h", 1)})])
        for request in (
            CreateTopicsRequest((topic("a", 2), topic("b", 1, retention_ms="5"))),
            AllocateProducerIdsRequest(1),
            DeleteTopicsRequest(topic_names=("a",)),
            CreateTopicsRequest((topic("a", 1),)),
        ):
            outcome = machine.handle(request, CONTEXT)
            await store.append(outcome.records)
            machine.replay(outcome.records)
        changed = PartitionImage((1,), -1, 3, (), 1)
        record = images.partition_record("b", 0, changed)
        await store.append([record])
        machine.replay([record])

        records = await ClusterStore(LocalCoordination(storage)).load()
        again = images.replay(ClusterImage(), records)
        assert again.topics == machine.image.topics
        assert again.topics["b"].partitions == (changed,)
        assert again.names == machine.image.names
        assert again.cluster_id == "one"
        assert again.brokers == {}  # ephemeral
        assert again.next_producer_id_block == machine.image.next_producer_id_block

        gone = images.deletion_records(machine.image.topics["b"])
        assert [r.path for r in gone] == ["/topics/b/0", "/topics/b"]
        await store.append(gone)
        machine.replay(gone)
        assert set(machine.image.topics) == {"a"}

    asyncio.run(story())


def test_a_controller_that_lost_its_place_cannot_write(tmp_path: Path) -> None:
    async def story() -> None:
        coordination = LocalCoordination(FileStorage(tmp_path))
        old, new = ClusterStore(coordination), ClusterStore(coordination)
        await old.load()
        await old.append([images.producer_ids_record(1_000)])
        await new.load()
        await new.append([images.producer_ids_record(2_000)])
        with pytest.raises(VersionMismatch):
            await old.append([images.producer_ids_record(2_000)])

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/topics/t", b"not json"),
        ("/topics/t", b"[]"),
        ("/topics/t", b'{"topic_id": "x", "partitions": [], "configs": {}}'),
        ("/topics/t", b'{"partitions": [[1]], "configs": {}}'),
        (
            "/topics/there/9",
            b'{"leader": 1, "leader_epoch": 1, "in_sync_replicas": [], "epoch": 1}',
        ),
        ("/brokers/1", b'{"host": "h"}'),
        ("/elsewhere", b"{}"),
    ],
)
def test_a_record_that_does_not_read_is_named(path: str, value: bytes) -> None:
    machine = controller()
    create(machine, topic("there"))
    with pytest.raises(CoordinationError, match=path):
        images.replay(machine.image, [images.ClusterRecord(path, value)])


names = st.sampled_from(["a", "b.c", "b_c", "d"])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), names), max_size=20))
def test_any_story_folds_to_one_image(script: list[tuple[bool, str]]) -> None:
    machine = controller()
    records: list[images.ClusterRecord] = [images.broker_record(1, {DEFAULT_LISTENER: ("h", 9092)})]
    for creates, name in script:
        request: Any = (
            CreateTopicsRequest((topic(name),)) if creates else DeleteTopicsRequest((), (name,))
        )
        outcome = machine.handle(request, CONTEXT)
        records.extend(outcome.records)
        machine.replay(outcome.records)
        assert not {"b.c", "b_c"} <= set(machine.image.topics)
    assert images.replay(ClusterImage(), records) == machine.image


def test_names_collide_with_those_from_before_a_restart() -> None:
    machine = controller()
    create(machine, topic("a.b"))
    again = Controller(BrokerConfig.parse(), Random(7), lambda topic: (), machine.image)
    (refused,) = create(again, topic("a_b"))
    assert refused.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refused.error_message == "Topic 'a_b' collides with existing topic: a.b"


def test_a_topic_too_large_to_be_written_down_is_refused_alone() -> None:
    machine = controller()
    everywhere = ",".join(f"{n}:1" for n in range(150_000))
    name = "leader.replication.throttled.replicas"
    large = CreatableTopic("large", 1, 1, (), (CreatableTopicConfig(name, everywhere),))
    refused, made = create(machine, large, topic("small"))
    assert (refused.error_code, made.error_code) == (ErrorCode.INVALID_REQUEST, ErrorCode.NONE)
    assert "/topics/large would take" in (refused.error_message or "")
