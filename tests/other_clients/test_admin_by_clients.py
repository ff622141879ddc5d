"""Partitions, records, settings, leaders and disks changed and told by the clients' own admins."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import confluent_kafka.admin as confluent
import kafka
import kafka.admin as kafka_python
import pytest
from aiokafka import admin as aio

SECONDS_MAX = 30.0


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(SECONDS_MAX) == 0


def first_offset(bootstrap: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
    with closing(consumer):
        low, _ = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), 30)
        return int(low)


def result(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(SECONDS_MAX)


# ---- confluent-kafka -----------------------------------------------------------------------------


def test_confluent_kafka_changes_topics(bootstrap: str, make_topic: Any) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": bootstrap})
    name = make_topic(1)
    result(admin.create_partitions([confluent.NewPartitions(name, 4)]))
    assert len(admin.list_topics(name, SECONDS_MAX).topics[name].partitions) == 4
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        result(admin.create_partitions([confluent.NewPartitions(name, 2)]))
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_PARTITIONS

    produce(bootstrap, name, 10)
    place = confluent_kafka.TopicPartition(name, 0, 6)
    assert result(admin.delete_records([place])).low_watermark == 6
    assert first_offset(bootstrap, name) == 6
    place = confluent_kafka.TopicPartition(name, 0, confluent_kafka.OFFSET_END)
    assert result(admin.delete_records([place])).low_watermark == 10
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        result(admin.delete_records([confluent_kafka.TopicPartition(name, 0, 99)]))
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_confluent_kafka_changes_settings(bootstrap: str, make_topic: Any) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": bootstrap})
    name = make_topic(1)
    change = confluent.AlterConfigOpType

    def altered(**entries: tuple[Any, str | None]) -> None:
        edits = [
            confluent.ConfigEntry(key.replace("_", "."), value, incremental_operation=operation)
            for key, (operation, value) in entries.items()
        ]
        resource = confluent.ConfigResource(
            confluent.ResourceType.TOPIC, name, incremental_configs=edits
        )
        result(admin.incremental_alter_configs([resource]))

    def told(key: str) -> tuple[str, str]:
        resource = confluent.ConfigResource(confluent.ResourceType.TOPIC, name)
        entry = result(admin.describe_configs([resource]))[key]
        return entry.value, confluent.ConfigSource(entry.source).name

    altered(retention_ms=(change.SET, "5000"), cleanup_policy=(change.APPEND, "compact"))
    assert told("retention.ms") == ("5000", "DYNAMIC_TOPIC_CONFIG")
    assert told("cleanup.policy") == ("delete,compact", "DYNAMIC_TOPIC_CONFIG")
    altered(retention_ms=(change.DELETE, None), cleanup_policy=(change.SUBTRACT, "delete"))
    assert told("retention.ms") == ("604800000", "DEFAULT_CONFIG")
    assert told("cleanup.policy") == ("compact", "DYNAMIC_TOPIC_CONFIG")
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        altered(retention_ms=(change.SET, "soon"))
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG
    assert "Invalid value soon for configuration retention.ms" in str(refused.value)
    whole = confluent.ConfigResource(
        confluent.ResourceType.TOPIC, name, set_config={"segment.ms": "77000"}
    )
    result(admin.alter_configs([whole]))  # the older way, which replaces all settings
    assert told("cleanup.policy") == ("delete", "DEFAULT_CONFIG")
    assert told("segment.ms") == ("77000", "DYNAMIC_TOPIC_CONFIG")


def test_confluent_kafka_asks_for_leaders_and_the_cluster(bootstrap: str, make_topic: Any) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": bootstrap})
    place = confluent_kafka.TopicPartition(make_topic(1), 0)
    election = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [place])
    error = election.result(SECONDS_MAX)[place]
    assert error.code() == confluent_kafka.KafkaError.ELECTION_NOT_NEEDED
    described = admin.describe_cluster(include_authorized_operations=True).result(SECONDS_MAX)
    assert described.cluster_id
    assert described.controller.id in {node.id for node in described.nodes}
    assert described.authorized_operations


# ---- kafka-python --------------------------------------------------------------------------------


def test_kafka_python_administers(bootstrap: str, make_topic: Any) -> None:
    name = make_topic(1)
    admin = kafka_python.KafkaAdminClient(bootstrap_servers=bootstrap)
    place = kafka.TopicPartition(name, 0)
    with closing(admin):
        admin.create_partitions({name: kafka_python.NewPartitions(3)})
        (described,) = admin.describe_topics([name])
        assert len(described["partitions"]) == 3
        produce(bootstrap, name, 10)
        assert admin.delete_records({place: 4})[place]["low_watermark"] == 4
        assert first_offset(bootstrap, name) == 4

        kind = kafka_python.ConfigResourceType.TOPIC
        change = kafka_python.ConfigResource(kind, name, {"retention.ms": "777"})
        assert admin.alter_configs([change]) == {"topic": {name: "OK"}}
        asked = kafka_python.ConfigResource(kind, name, ["retention.ms"])
        told = admin.describe_configs([asked])["topic"][name]["retention.ms"]
        assert (told["value"], told["config_source"]) == ("777", "DYNAMIC_TOPIC_CONFIG")
        assert admin.reset_configs([asked]) == {"topic": {name: "OK"}}
        told = admin.describe_configs([asked], config_filter="all")["topic"][name]["retention.ms"]
        assert (told["value"], told["config_source"]) == ("604800000", "DEFAULT_CONFIG")

        (directory,) = admin.describe_log_dirs()[0]["log_dirs"]
        (told,) = [each for each in directory["topics"] if each["name"] == name]
        sizes = {each["partition_index"]: each["partition_size"] for each in told["partitions"]}
        assert sizes[0] > 0 == sizes[1]
        assert directory["usable_bytes"] < directory["total_bytes"]
        assert admin.alter_partition_reassignments({place: [1]}) == {place: None}
        assert admin.list_partition_reassignments() == {}


# ---- aiokafka ------------------------------------------------------------------------------------


def test_aiokafka_administers(bootstrap: str, make_topic: Any) -> None:
    name = make_topic(1)

    async def story() -> None:
        admin = aio.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_partitions({name: aio.NewPartitions(3)})
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == 3
            await asyncio.to_thread(produce, bootstrap, name, 10)
            place = aiokafka.TopicPartition(name, 0)
            wanted = {place: aio.RecordsToDelete(before_offset=4)}
            assert await admin.delete_records(wanted) == {place: 4}
            kind = aio.config_resource.ConfigResourceType.TOPIC
            resource = aio.config_resource.ConfigResource
            await admin.alter_configs([resource(kind, name, {"retention.ms": "777"})])
            (answer,) = await admin.describe_configs([resource(kind, name, {"retention.ms": None})])
            (told,) = answer.resources[0][4]
            assert told[:2] == ("retention.ms", "777")
        finally:
            await admin.close()

    asyncio.run(story())
    assert first_offset(bootstrap, name) == 4


# ---- a broker that is killed ---------------------------------------------------------------------


def test_what_was_changed_is_there_after_a_kill(serve: Any, tmp_path: Path) -> None:
    process = serve(tmp_path)
    admin = confluent.AdminClient({"bootstrap.servers": process.address})
    result(admin.create_topics([confluent.NewTopic("t", 1, 1)]))
    produce(process.address, "t", 10)
    result(admin.create_partitions([confluent.NewPartitions("t", 4)]))
    assert result(admin.delete_records([confluent_kafka.TopicPartition("t", 0, 6)])).low_watermark
    kinds, change = confluent.ResourceType, confluent.AlterConfigOpType.SET
    changes = [
        (kinds.TOPIC, "t", "retention.ms", "5000000"),
        (kinds.BROKER, "1", "message.max.bytes", "77777"),
        (kinds.BROKER, "1", "log.segment.delete.delay.ms", "1234"),
    ]
    for kind, name, key, value in changes:
        edit = confluent.ConfigEntry(key, value, incremental_operation=change)
        resource = confluent.ConfigResource(kind, name, incremental_configs=[edit])
        result(admin.incremental_alter_configs([resource]))

    process.kill()
    process = serve(tmp_path)
    admin = confluent.AdminClient({"bootstrap.servers": process.address})
    assert len(admin.list_topics("t", SECONDS_MAX).topics["t"].partitions) == 4
    assert first_offset(process.address, "t") == 6
    for kind, name, key, value in changes:
        told = result(admin.describe_configs([confluent.ConfigResource(kind, name)]))
        assert told[key].value == value
    told = result(admin.describe_configs([confluent.ConfigResource(kinds.TOPIC, "t")]))
    assert told["max.message.bytes"].value == "77777"
    assert told["file.delete.delay.ms"].value == "1234"
