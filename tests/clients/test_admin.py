"""The admin client against a real broker: topics, settings, cluster, groups."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.clients.admin.client import (
    Admin,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer, OffsetAndMetadata
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ApiError

Run = Callable[[Any], None]
Name = Callable[[], str]


def test_topics_come_and_go(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            one, two = sorted([name(), name()])
            await admin.create_topics([NewTopic(one, 3), NewTopic(two)])
            described = await admin.describe_topics([two, one])
            assert [(t.name, t.partition_count) for t in described] == [(one, 3), (two, 1)]
            assert all(p.leader_id in p.in_sync_replicas for t in described for p in t.partitions)
            assert {one, two} <= {*await admin.list_topics()}
            await admin.delete_topics([one])
            assert one not in await admin.list_topics()
            with pytest.raises(ApiError, match=f"topic {one}: UNKNOWN_TOPIC_OR_PARTITION"):
                await admin.describe_topics([one])

    run(scenario)


def test_a_refused_topic_is_named_with_the_reason(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            topic = name()
            await admin.create_topics([NewTopic(topic)])
            with pytest.raises(ApiError, match=f"topic {topic}: .*: TOPIC_ALREADY_EXISTS"):
                await admin.create_topics([NewTopic(topic)])
            wrong = NewTopic(name(), configs={"cleanup.policy": "sometimes"})
            with pytest.raises(ApiError, match=f"topic {wrong.name}: .*: INVALID_CONFIG"):
                await admin.create_topics([wrong])
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await admin.delete_topics([name()])
            unmade = NewTopic(name(), 2)
            await admin.create_topics([unmade], validate_only=True)
            assert unmade.name not in await admin.list_topics()

    run(scenario)


def test_missing_topics_are_created_and_existing_ones_stay_as_they_are(
    run: Run, name: Name
) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            old, new = sorted([name(), name()])
            await admin.create_topics([NewTopic(old, 2, configs={"retention.ms": "1234"})])
            wanted = [NewTopic(old, 5), NewTopic(new, 3)]
            assert await admin.create_missing_topics(wanted, validate_only=True) == {new}
            assert new not in await admin.list_topics()
            assert await admin.create_missing_topics(wanted) == {new}
            assert await admin.create_missing_topics(wanted) == set()
            described = await admin.describe_topics([old, new])
            assert [(t.name, t.partition_count) for t in described] == [(old, 2), (new, 3)]
            there = ConfigResource(ResourceType.TOPIC, old)
            settings = (await admin.describe_configs([there]))[there]
            assert settings["retention.ms"].value == "1234"
            with pytest.raises(ApiError, match="topic .*: INVALID_TOPIC_EXCEPTION"):
                await admin.create_missing_topics([NewTopic("a b")])

    run(scenario)


def test_clients_race_for_a_missing_topic(run: Run, name: Name) -> None:
    """Each client sees no topic, so all but one are refused by the controller."""

    async def scenario(bootstrap: str) -> None:
        topics = [NewTopic(name(), count) for count in (1, 2)]
        async with contextlib.AsyncExitStack() as stack:
            admins = [await stack.enter_async_context(Admin(bootstrap)) for _ in range(5)]
            created = await asyncio.gather(*(a.create_missing_topics(topics) for a in admins))
            assert sorted(itertools.chain(*created)) == sorted(topic.name for topic in topics)
            for admin in admins:
                counts = [admin.client.cluster.partition_count(topic.name) for topic in topics]
                assert counts == [1, 2]

    run(scenario)


def test_replicas_may_be_placed_by_hand(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            (broker,) = (await admin.describe_cluster()).nodes
            topic = NewTopic(name(), replica_assignment=[[broker.node_id], [broker.node_id]])
            await admin.create_topics([topic])
            (described,) = await admin.describe_topics([topic.name])
            assert [p.replicas for p in described.partitions] == [(broker.node_id,)] * 2

    run(scenario)


def test_the_cluster_is_described(run: Run) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            cluster = await admin.describe_cluster()
            assert cluster.cluster_id
            assert cluster.controller_id in [node.node_id for node in cluster.nodes]

    run(scenario)


def test_settings_tell_their_source(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            topic = NewTopic(name(), configs={"retention.ms": "1234"})
            await admin.create_topics([topic])
            there = ConfigResource(ResourceType.TOPIC, topic.name)
            settings = (await admin.describe_configs([there]))[there]
            retention, policy = settings["retention.ms"], settings["cleanup.policy"]
            assert (retention.value, retention.source) == ("1234", ConfigSource.TOPIC)
            assert (policy.value, policy.source) == ("delete", ConfigSource.DEFAULT)
            (node,) = (await admin.describe_cluster()).nodes
            broker = ConfigResource(ResourceType.BROKER, str(node.node_id))
            assert "log.retention.ms" in (await admin.describe_configs([broker]))[broker]
            missing = ConfigResource(ResourceType.TOPIC, name())
            with pytest.raises(ApiError, match=f"topic {missing.name}"):
                await admin.describe_configs([missing])

    run(scenario)


def test_settings_change_one_by_one(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            topic = NewTopic(name(), configs={"retention.ms": "1234"})
            await admin.create_topics([topic])
            there = ConfigResource(ResourceType.TOPIC, topic.name)
            await admin.alter_configs(there, {"retention.ms": None, "segment.bytes": "2000000"})
            for _ in range(100):  # brokers hear of it a little later
                settings = (await admin.describe_configs([there]))[there]
                if settings["segment.bytes"].value == "2000000":
                    break
                await asyncio.sleep(0.02)
            assert settings["segment.bytes"].value == "2000000"
            assert settings["retention.ms"].source is not ConfigSource.TOPIC

    run(scenario)


def test_topics_grow(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            topic = name()
            await admin.create_topics([NewTopic(topic)])
            await admin.create_partitions({topic: 3})
            (described,) = await admin.describe_topics([topic])
            assert described.partition_count == 3

    run(scenario)


def test_records_are_deleted_below_an_offset(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            tp = TopicPartition(name(), 0)
            await admin.create_topics([NewTopic(tp.topic)])
            async with Producer(client) as producer:
                for _ in range(5):
                    await producer.send(tp.topic, b"v")
            assert await admin.delete_records({tp: 3}) == {tp: 3}
            async with Consumer(client) as consumer:
                assert await consumer.beginning_offsets([tp]) == {tp: 3}

    run(scenario)


def test_groups_are_listed_described_and_deleted(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            topic, group = name(), name()
            tp = TopicPartition(topic, 0)
            await admin.create_topics([NewTopic(topic)])
            async with Consumer(client, group_id=group) as consumer:
                consumer.subscribe([topic])
                while not consumer.assignment:
                    await consumer.poll(10)
                await consumer.commit({tp: OffsetAndMetadata(7, metadata="note")})
                listed = {g.group_id: g for g in await admin.list_groups()}
                assert (listed[group].protocol_type, listed[group].state) == ("consumer", "Stable")
                (described,) = await admin.describe_groups([group])
                assert (described.state, described.protocol) == ("Stable", "range")
                (member,) = described.members
                assert member.partitions == (tp,)
                assert member.client_id == client.client_id
                with pytest.raises(ApiError, match=f"group {group}: NON_EMPTY_GROUP"):
                    await admin.delete_groups([group])
                with pytest.raises(ApiError, match=f"group {group}, offset of {tp}"):
                    await admin.alter_group_offsets(group, {tp: OffsetAndMetadata(1)})
                consumer.seek(tp, 7)  # closing commits the position
            kept = await admin.list_group_offsets(group)
            assert kept[tp].offset == 7
            await admin.alter_group_offsets(group, {tp: OffsetAndMetadata(3, metadata="back")})
            assert (await admin.list_group_offsets(group))[tp].metadata == "back"
            await admin.delete_groups([group])
            assert group not in [g.group_id for g in await admin.list_groups()]
            with pytest.raises(ApiError, match=f"group {group}: GROUP_ID_NOT_FOUND"):
                await admin.delete_groups([group])

    run(scenario)
