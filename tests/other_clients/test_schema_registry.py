"""Confluent's own client of the schema registry, its serializers, and the broker beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from kafkalite.embedded import EmbeddedBroker
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.registry_log import LogRegistry
from kafkalite.serde.registry_server import RegistryServer

FLIGHT = """{"type":"record","name":"Flight","namespace":"air","fields":[
    {"name":"carrier","type":"string"},{"name":"number","type":"int"}]}"""
FLIGHT_2 = """{"type":"record","name":"Flight","namespace":"air","fields":[
    {"name":"carrier","type":"string"},{"name":"number","type":"int"},
    {"name":"delay","type":["null","int"],"default":null}]}"""
PLAN = '{"type":"record","name":"Plan","namespace":"air","fields":[{"name":"legs",'
PLAN += '"type":{"type":"array","items":"Flight"}}]}'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("data"), registry=True) as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": broker.registry_url})


@pytest.fixture
def subject() -> str:
    return f"s-{uuid4().hex[:8]}-value"


def test_schemas_are_registered_found_checked_and_deleted(
    client: SchemaRegistryClient, subject: str
) -> None:
    first = client.register_schema(subject, Schema(FLIGHT))
    assert client.register_schema(subject, Schema(FLIGHT)) == first
    assert client.test_compatibility(subject, Schema(FLIGHT_2))
    second = client.register_schema(subject, Schema(FLIGHT_2))
    assert client.get_versions(subject) == [1, 2]
    assert subject in client.get_subjects()
    latest = client.get_latest_version(subject)
    assert (latest.schema_id, latest.version, latest.schema.schema_type) == (second, 2, "AVRO")
    assert client.lookup_schema(subject, Schema(FLIGHT)).version == 1
    assert json.loads(client.get_version(subject, 1).schema.schema_str) == json.loads(FLIGHT)
    assert json.loads(client.get_schema(first).schema_str) == json.loads(FLIGHT)
    with pytest.raises(SchemaRegistryError, match="incompatible with an earlier schema") as caught:
        client.register_schema(subject, Schema('"string"'))
    assert caught.value.http_status_code == 409
    assert client.delete_version(subject, 2) == 2
    assert client.delete_subject(subject) == [1]
    assert client.delete_subject(subject, permanent=True) == [1, 2]
    with pytest.raises(SchemaRegistryError, match="not found") as caught:
        client.get_versions(subject)
    assert (caught.value.http_status_code, caught.value.error_code) == (404, 40401)


def test_the_latest_version_with_some_properties_is_found(
    broker: EmbeddedBroker, client: SchemaRegistryClient, subject: str
) -> None:
    for text, patch in ((FLIGHT, "0"), (FLIGHT_2, "1")):
        # Not by the client, which keeps what it registers by its hash: its metadata has none.
        body = {"schema": text, "metadata": {"properties": {"major": "1", "patch": patch}}}
        address = f"{broker.registry_url}/subjects/{subject}/versions"
        headers = {"Content-Type": "application/json"}
        urlopen(Request(address, json.dumps(body).encode(), headers)).close()
    for patch, version in (("0", 1), ("1", 2)):
        wanted = {"major": "1", "patch": patch}
        assert client.get_latest_with_metadata(subject, wanted).version == version
    assert client.get_latest_with_metadata(subject, {"major": "1"}).version == 2
    with pytest.raises(SchemaRegistryError, match="Schema not found"):
        client.get_latest_with_metadata(subject, {"major": "2", "patch": "1"})


def test_levels_and_modes(client: SchemaRegistryClient, subject: str) -> None:
    assert client.get_compatibility() == "BACKWARD"
    assert client.set_compatibility(subject, "FULL_TRANSITIVE")["compatibility"]
    assert client.get_compatibility(subject) == "FULL_TRANSITIVE"
    assert client.get_config(subject).compatibility_level == "FULL_TRANSITIVE"
    assert client.update_mode(subject, "READONLY") == "READONLY"
    assert client.get_mode(subject) == "READONLY"
    with pytest.raises(SchemaRegistryError) as caught:
        client.register_schema(subject, Schema(FLIGHT))
    assert caught.value.error_code == 42205
    assert client.delete_mode(subject) == "READONLY"
    client.delete_config(subject)
    assert client.get_global_mode() == "READWRITE"
    assert client.get_contexts() == ["."]


def test_records_go_through_the_broker_with_their_schema(
    broker: EmbeddedBroker, client: SchemaRegistryClient
) -> None:
    topic = f"flights-{uuid4().hex[:8]}"
    context = SerializationContext(topic, MessageField.VALUE)
    old, new = AvroSerializer(client, FLIGHT), AvroSerializer(client, FLIGHT_2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, old({"carrier": "UA", "number": 1545}, context))
    producer.produce(topic, new({"carrier": "AA", "number": 1, "delay": 11}, context))
    producer.flush(20)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    read = AvroDeserializer(client, FLIGHT_2)
    found: list[Any] = []
    while len(found) < 2:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        found.append(read(message.value(), context))
    consumer.close()
    assert found == [
        {"carrier": "UA", "number": 1545, "delay": None},
        {"carrier": "AA", "number": 1, "delay": 11},
    ]


def test_a_serializer_with_references_and_our_own_serde_read_each_other(
    broker: EmbeddedBroker, client: SchemaRegistryClient, subject: str
) -> None:
    topic = subject.removesuffix("-value")
    client.register_schema(f"{subject}-leg", Schema(FLIGHT))
    plan = Schema(PLAN, references=[SchemaReference("air.Flight", f"{subject}-leg", 1)])
    context = SerializationContext(topic, MessageField.VALUE)
    value = {"legs": [{"carrier": "UA", "number": 7}]}
    data = AvroSerializer(client, plan)(value, context)
    assert AvroDeserializer(client)(data, context) == value
    with LogRegistry(broker.bootstrap_servers) as registry:
        codec = avro().open(SerdeContext(registry))
        assert codec.deserialize(topic, [data]) == [value]
        ours = codec.serialize(topic, [{"legs": [{"carrier": "B6", "number": 8}]}])
    assert AvroDeserializer(client)(ours[0], context) == {"legs": [{"carrier": "B6", "number": 8}]}


def test_two_servers_on_one_log_and_many_who_register_at_once(broker: EmbeddedBroker) -> None:
    with closing(RegistryServer("127.0.0.1:0")) as other:
        other.start(broker.bootstrap_servers)
        urls = (broker.registry_url, other.url)
        clients = [SchemaRegistryClient({"url": urls[n % 2]}) for n in range(8)]
        run = uuid4().hex[:8]
        schemas = [f'{{"type":"enum","name":"E{run}{n}","symbols":["A"]}}' for n in range(8)]

        def work(number: int) -> dict[int, int]:
            """Registers all of them, each worker beginning with another one."""
            turned = [(number + n) % 8 for n in range(8)]
            return {
                n: clients[number].register_schema(f"{run}-{n}", Schema(schemas[n])) for n in turned
            }

        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(work, range(8)))
        assert all(own == ids[0] for own in ids)
        assert len(set(ids[0].values())) == len(schemas)
        clients[0].register_schema(f"{run}-last", Schema('"int"'))
        assert f"{run}-last" in clients[1].get_subjects()
        assert clients[0].get_subjects() == clients[1].get_subjects()


@pytest.mark.slow
def test_what_was_registered_is_there_after_kill_9_and_after_a_restart(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, registry=True)
    client = SchemaRegistryClient({"url": broker.registry_url})
    first = client.register_schema("s", Schema(FLIGHT))
    client.set_compatibility("s", "NONE")
    second = client.register_schema("s", Schema('"string"'))
    client.delete_version("s", 1)
    os.kill(broker.pid, signal.SIGKILL)
    broker.close()
    for _ in range(2):
        with EmbeddedBroker(tmp_path, registry=True) as again:
            client = SchemaRegistryClient({"url": again.registry_url})
            assert client.get_versions("s") == [2]
            assert client.get_versions("s", deleted=True) == [1, 2]
            assert client.get_latest_version("s").schema_id == second
            assert client.get_schema(first).schema_str
            assert client.get_compatibility("s") == "NONE"


@pytest.mark.slow
def test_the_command_serves_any_kafka_and_outlives_its_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        address = broker.bootstrap_servers
        command = [sys.executable, "-m", "kafkalite.cli", "registry", "start"]
        command += ["--bootstrap-servers", address, "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("kafkalite registry is ready at http://"), process.stderr
            client = SchemaRegistryClient({"url": line.split()[5]})
            first = client.register_schema("s", Schema(FLIGHT))
            os.kill(broker.pid, signal.SIGKILL)
            broker.close()
            with EmbeddedBroker(tmp_path, listen=address):
                assert client.register_schema("s", Schema(FLIGHT_2)) == first + 1
                assert client.get_versions("s") == [1, 2]
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
        finally:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_what_was_confirmed_before_kill_9_has_its_id_afterwards(tmp_path: Path) -> None:
    confirmed: dict[tuple[str, str], int] = {}
    for run in range(3):
        broker = EmbeddedBroker(tmp_path, registry=True)
        is_dead = threading.Event()

        def work(
            number: int,
            url: str | None = broker.registry_url,
            run: int = run,
            dead: threading.Event = is_dead,
        ) -> None:
            client = SchemaRegistryClient({"url": url, "timeout": 5, "max.retries": 0})
            for count in range(1_000):
                subject = f"s{count % 7}-{number % 2}"
                text = f'{{"type":"enum","name":"E{run}_{number}_{count}","symbols":["A"]}}'
                try:
                    if not count:
                        client.set_compatibility(subject, "NONE")
                    confirmed[subject, text] = client.register_schema(subject, Schema(text))
                except Exception:
                    if dead.is_set():
                        return

        with ThreadPoolExecutor(4) as pool:
            SchemaRegistryClient({"url": broker.registry_url}).set_compatibility(level="NONE")
            working = [pool.submit(work, number) for number in range(4)]
            before = len(confirmed)
            while len(confirmed) < before + 40:
                time.sleep(0.01)
            is_dead.set()
            os.kill(broker.pid, signal.SIGKILL)
            for each in working:
                each.result()
        broker.close()
    assert len(set(confirmed.values())) == len(confirmed) >= 120
    with EmbeddedBroker(tmp_path, registry=True) as broker:
        client = SchemaRegistryClient({"url": broker.registry_url})
        for (subject, text), schema_id in confirmed.items():
            found = client.lookup_schema(subject, Schema(text))
            assert (found.schema_id, client.get_schema(schema_id).schema_str) == (schema_id, text)
