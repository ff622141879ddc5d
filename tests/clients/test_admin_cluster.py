"""The admin client's later calls: offsets, synonyms, directories, elections, reassignments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.clients.admin.client import (
    EVERY_BROKER,
    HIGH_WATERMARK,
    MAX_TIMESTAMP,
    Admin,
    ConfigResource,
    ConfigSource,
    ConfigType,
    NewTopic,
    ResourceType,
)
from kafkalite.clients.cluster import Client
from kafkalite.clients.consumer.consumer import Consumer, OffsetAndMetadata
from kafkalite.clients.consumer.positions import EARLIEST, LATEST
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.errors import ApiError, ErrorCode

Run = Callable[[Any], None]
Name = Callable[[], str]


async def until(condition: Callable[[], Any]) -> None:
    """Waits for what brokers come to know a little later."""
    for _ in range(200):
        if await condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to pass")


async def fill(client: Client, admin: Admin, topic: str, timestamps: list[int]) -> None:
    await admin.create_topics([NewTopic(topic, 2)])
    async with Producer(client) as producer:
        count = len(timestamps)
        await producer.send_columns(topic, Columns([None] * count, [b"v"] * count, timestamps), 0)


def test_offsets_are_found_by_place_and_by_time(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            topic = name()
            tp, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
            await fill(client, admin, topic, [1_000, 3_000, 2_000])
            assert await admin.beginning_offsets([tp, empty]) == {tp: 0, empty: 0}
            assert await admin.end_offsets([tp, empty]) == {tp: 3, empty: 0}
            committed = await admin.end_offsets([tp], isolation_level="read_committed")
            assert committed == {tp: 3}
            by_time = await admin.list_offsets({tp: 1_500, empty: 1})
            assert (by_time[tp].offset, by_time[tp].timestamp, by_time[empty]) == (1, 3_000, None)
            assert (await admin.list_offsets({tp: 3_001}))[tp] is None
            greatest = (await admin.list_offsets({tp: MAX_TIMESTAMP}))[tp]
            assert (greatest.offset, greatest.timestamp) == (1, 3_000)
            missing = TopicPartition(topic, 2)
            with pytest.raises(ApiError, match=f"{missing}: UNKNOWN_TOPIC_OR_PARTITION"):
                await admin.list_offsets({tp: EARLIEST, missing: LATEST})

    run(scenario)


def test_all_records_are_deleted(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            tp = TopicPartition(name(), 0)
            await fill(client, admin, tp.topic, [1, 2, 3])
            assert await admin.delete_records({tp: HIGH_WATERMARK}) == {tp: 3}
            with pytest.raises(ApiError, match=f"{tp}: OFFSET_OUT_OF_RANGE"):
                await admin.delete_records({tp: 4})

    run(scenario)


def test_settings_tell_types_synonyms_and_documentation(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            topic = NewTopic(name(), configs={"max.message.bytes": "1234"})
            await admin.create_topics([topic])
            there = ConfigResource(ResourceType.TOPIC, topic.name)
            described = await admin.describe_configs(
                [there], ["max.message.bytes", "cleanup.policy"], synonyms=True, documentation=True
            )
            assert {*described[there]} == {"max.message.bytes", "cleanup.policy"}
            largest = described[there]["max.message.bytes"]
            assert largest.config_type is ConfigType.INT
            assert largest.synonyms[0].value == "1234"
            assert largest.synonyms[0].source is ConfigSource.TOPIC
            assert largest.synonyms[-1].source is ConfigSource.DEFAULT
            assert largest.documentation

    run(scenario)


def test_lists_grow_and_shrink_and_validation_changes_nothing(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            topic = NewTopic(name())
            await admin.create_topics([topic])
            there = ConfigResource(ResourceType.TOPIC, topic.name)

            async def policy_is(value: str) -> None:
                async def told() -> bool:
                    settings = (await admin.describe_configs([there]))[there]
                    return settings["cleanup.policy"].value == value

                await until(told)

            await admin.alter_configs(there, append={"cleanup.policy": "compact"})
            await policy_is("delete,compact")
            await admin.alter_configs(there, subtract={"cleanup.policy": "delete"})
            await policy_is("compact")
            await admin.alter_configs(there, {"cleanup.policy": None}, validate_only=True)
            await policy_is("compact")
            with pytest.raises(ApiError, match=f"topic {topic.name}: .*: INVALID_CONFIG"):
                await admin.alter_configs(there, {"cleanup.policy": "often"})

    run(scenario)


def test_settings_of_one_broker_and_of_all(run: Run) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            (node,) = (await admin.describe_cluster()).nodes
            one = ConfigResource(ResourceType.BROKER, str(node.node_id))
            every = ConfigResource(ResourceType.BROKER, EVERY_BROKER)

            async def value_is(value: str, source: ConfigSource) -> None:
                async def told() -> bool:
                    entry = (await admin.describe_configs([one]))[one]["log.cleaner.threads"]
                    return (entry.value, entry.source) == (value, source)

                await until(told)

            await admin.alter_configs(every, {"log.cleaner.threads": "2"})
            await value_is("2", ConfigSource.DYNAMIC_DEFAULT_BROKER)
            await admin.alter_configs(one, {"log.cleaner.threads": "1"})
            await value_is("1", ConfigSource.DYNAMIC_BROKER)
            for resource in (one, every):
                await admin.alter_configs(resource, {"log.cleaner.threads": None})
            await value_is("1", ConfigSource.DEFAULT)
            with pytest.raises(ValueError, match="broker 'x' is not a broker id"):
                await admin.describe_configs([ConfigResource(ResourceType.BROKER, "x")])

    run(scenario)


def test_partitions_are_counted_before_they_are_made(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            topic = name()
            await admin.create_topics([NewTopic(topic, 2)])
            await admin.create_partitions({topic: 4}, validate_only=True)
            (described,) = await admin.describe_topics([topic])
            assert described.partition_count == 2
            with pytest.raises(ApiError, match=f"topic {topic}: .*: INVALID_PARTITIONS"):
                await admin.create_partitions({topic: 1}, validate_only=True)

    run(scenario)


def test_the_apis_of_a_broker_are_told(run: Run) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            versions = await admin.api_versions()
            assert 18 in versions
            assert all(0 <= low <= high for low, high in versions.values())

    run(scenario)


def test_log_directories_tell_what_partitions_take(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            topic = name()
            await fill(client, admin, topic, [1, 2, 3])
            (node,) = (await admin.describe_cluster()).nodes
            (directory,) = (await admin.describe_log_dirs())[node.node_id]
            assert directory.path
            assert directory.error_code is ErrorCode.NONE
            assert directory.total_bytes >= directory.usable_bytes > 0
            replica = directory.replicas[TopicPartition(topic, 0)]
            assert replica.size_bytes > 61
            assert (replica.offset_lag, replica.is_future) == (0, False)
            assert directory.replicas[TopicPartition(topic, 1)].size_bytes == 0

    run(scenario)


def test_an_election_is_not_needed_where_the_leader_is_right(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            tp = TopicPartition(name(), 0)
            await admin.create_topics([NewTopic(tp.topic)])
            told = await admin.elect_leaders([tp, tp._replace(partition=7)])
            assert told[tp][0] is ErrorCode.ELECTION_NOT_NEEDED
            unknown = told[tp._replace(partition=7)][0]
            assert unknown is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert all(code is ErrorCode.NONE for code, _ in (await admin.elect_leaders()).values())

    run(scenario)


def test_a_partition_stays_where_no_other_broker_is(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            tp = TopicPartition(name(), 0)
            await admin.create_topics([NewTopic(tp.topic)])
            (node,) = (await admin.describe_cluster()).nodes
            await admin.alter_partition_reassignments({tp: [node.node_id]})
            assert await admin.list_partition_reassignments() == {}
            assert await admin.list_partition_reassignments([tp]) == {}
            nobody = node.node_id + 1
            with pytest.raises(ApiError, match=f"{tp}.*: INVALID_REPLICA_ASSIGNMENT"):
                await admin.alter_partition_reassignments({tp: [nobody]})
            with pytest.raises(ApiError, match=f"{tp}.*: NO_REASSIGNMENT_IN_PROGRESS"):
                await admin.alter_partition_reassignments({tp: None})

    run(scenario)


def test_a_group_s_offsets_are_deleted_one_by_one(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Client(bootstrap) as client, Admin(client) as admin:
            topic, group = name(), name()
            read, unread = TopicPartition(topic, 0), TopicPartition(topic + "-x", 0)
            await admin.create_topics([NewTopic(topic), NewTopic(unread.topic)])
            offsets = {read: OffsetAndMetadata(0), unread: OffsetAndMetadata(0)}
            await admin.alter_group_offsets(group, offsets)
            async with Consumer(client, group_id=group, enable_auto_commit=False) as consumer:
                consumer.subscribe([topic])
                while not consumer.assignment:
                    await consumer.poll(10)
                with pytest.raises(ApiError, match=f"offset of {read}: GROUP_SUBSCRIBED_TO_TOPIC"):
                    await admin.delete_group_offsets(group, [read])
                await admin.delete_group_offsets(group, [unread])
                assert [*await admin.list_group_offsets(group)] == [read]
            with pytest.raises(ApiError, match="GROUP_ID_NOT_FOUND"):
                await admin.delete_group_offsets(name(), [read])

    run(scenario)


def test_groups_are_listed_by_their_state(run: Run, name: Name) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            topic, group = name(), name()
            await admin.create_topics([NewTopic(topic)])
            offset = {TopicPartition(topic, 0): OffsetAndMetadata(0)}
            await admin.alter_group_offsets(group, offset)
            assert group in [g.group_id for g in await admin.list_groups(["Empty"])]
            assert group not in [g.group_id for g in await admin.list_groups(["Stable"])]

    run(scenario)
