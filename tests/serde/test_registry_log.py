"""The registry over a real broker, with many who write to it at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kafkalite.clients.admin.client import Admin, ConfigResource, NewTopic, ResourceType
from kafkalite.clients.producer.producer import Producer
from kafkalite.embedded import EmbeddedBroker
from kafkalite.errors import BrokerUnavailable, ConfigError, SchemaError
from kafkalite.serde import SerdeContext, avro
from kafkalite.serde.avro_schema import parse_schema
from kafkalite.serde.compatibility import Compatibility
from kafkalite.serde.registry import Draft, Registry
from kafkalite.serde.registry_log import LogRegistry, registry_at
from kafkalite.serde.registry_records import Reference

pytestmark = pytest.mark.xdist_group("registry_log")  # one worker starts their broker, once


def record(*names: str) -> dict[str, Any]:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return {"type": "record", "name": "R", "fields": fields}


@pytest.fixture(scope="module")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("registry")) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def address(broker_address: str) -> Iterator[str]:
    """A broker without a registry's topic."""
    yield broker_address

    async def forget() -> None:
        async with Admin(broker_address) as admin:
            await admin.delete_topics(["_schemas"])

    asyncio.run(forget())


def test_what_one_registers_another_knows_and_a_later_one_too(address: str) -> None:
    with LogRegistry(address) as one, LogRegistry(address) as two:
        assert two.subjects() == ()
        first = one.register("s", record("a"))
        assert two.schema(first) == one.schema(first)
        assert two.register("s", record("a")) == first
        second = two.register("s", record("a", "b"))
        assert one.latest("s").id == second
        assert one.versions("s") == (1, 2)
        assert one.check("s", "string") != ()
        with pytest.raises(SchemaError, match="not BACKWARD compatible with version 2"):
            one.register("s", "string")
    with LogRegistry(address) as later:
        assert later.versions("s") == (1, 2)
        assert later.version("s", 1).id == first


def test_levels_and_deletions_reach_the_others(address: str) -> None:
    with LogRegistry(address) as one, LogRegistry(address) as two:
        one.register("s", record("a"))
        one.set_compatibility(Compatibility.NONE, "s")
        assert two.compatibility("s") is Compatibility.NONE
        assert two.compatibility() is Compatibility.BACKWARD
        two.register("s", "string")
        two.delete_version("s", 2)
        assert one.latest("s").version == 1
        one.delete_subject("s")
        assert two.versions("s") == ()
        two.delete_subject("s", permanent=True)
        with pytest.raises(SchemaError, match="has no version 1"):
            one.version("s", 1)


def test_many_writers_at_once_all_get_there_and_agree(address: str) -> None:
    writers, subjects = 8, 4
    with ExitStack() as stack:
        registries = [stack.enter_context(LogRegistry(address)) for _ in range(writers)]

        def work(number: int) -> dict[str, int]:
            own = record(f"of_{number}")
            return {f"s{s}": registries[number].register(f"s{s}", own) for s in range(subjects)}

        with ThreadPoolExecutor(writers) as pool:
            ids = list(pool.map(work, range(writers)))
        # One schema has one id in all subjects, no two schemas have the same.
        assert [len(set(own.values())) for own in ids] == [1] * writers
        assert len({own["s0"] for own in ids}) == writers
        views = [
            [
                (v, one.version(f"s{s}", v).id)
                for s in range(subjects)
                for v in one.versions(f"s{s}")
            ]
            for one in registries
        ]
        assert all(view == views[0] for view in views)
        assert len(views[0]) == writers * subjects
        # What was ignored on the way is put right: compaction changes nothing.
        assert all(one._opened().registry.repairs() == () for one in registries)


def test_a_conflict_that_its_writer_left_is_repaired_by_the_next_who_registers(
    address: str,
) -> None:
    with LogRegistry(address) as registry:
        registry.register("s", record("a"))
        (claim,) = Registry().register("s", record("b")).records  # s version 1, once more

        async def append() -> None:
            async with Producer(address) as producer:
                await producer.send("_schemas", claim[1], claim[0])

        asyncio.run(append())
        assert registry.latest("s").schema.json == record("a")
        assert registry._opened().registry.repairs() != ()
        registry.register("t", record("c"))
        registry.subjects()
        assert registry._opened().registry.repairs() == ()


def test_the_topic_is_one_compacted_partition_that_waits_a_day(address: str) -> None:
    with LogRegistry(address) as registry:
        registry.subjects()

    async def settings() -> dict[str, str | None]:
        resource = ConfigResource(ResourceType.TOPIC, "_schemas")
        async with Admin(address) as admin:
            entries = (await admin.describe_configs([resource]))[resource]
        return {name: entry.value for name, entry in entries.items()}

    found = asyncio.run(settings())
    assert found["cleanup.policy"] == "compact"
    assert found["min.compaction.lag.ms"] == "86400000"


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (NewTopic("_schemas", 1), "has cleanup.policy delete, expected compact"),
        (NewTopic("_schemas", 2, configs={"cleanup.policy": "compact"}), "has 2 partitions"),
    ],
    ids=["deleting", "two partitions"],
)
def test_a_topic_that_would_lose_schemas_is_refused(
    address: str, topic: NewTopic, reason: str
) -> None:
    async def create() -> None:
        async with Admin(address) as admin:
            await admin.create_topics([topic])

    asyncio.run(create())
    with LogRegistry(address) as registry, pytest.raises(ConfigError, match=reason):
        registry.subjects()


def test_nothing_is_opened_before_the_first_call() -> None:
    with LogRegistry("127.0.0.1:1") as registry:
        avro().open(SerdeContext(registry))


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_an_error_and_the_next_call_tries_again(
    tmp_path: Path,
) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        address = broker.bootstrap_servers
    with LogRegistry(address, timeout_ms=1_000) as registry:
        with pytest.raises(BrokerUnavailable, match="gave no answer in 1 s"):
            registry.latest("s")
        with EmbeddedBroker(tmp_path / "data", listen=address):
            assert registry.subjects() == ()


def test_a_closed_registry_says_so(address: str) -> None:
    registry = LogRegistry(address)
    registry.subjects()
    registry.close()
    registry.close()
    with pytest.raises(BrokerUnavailable, match="is closed here"):
        registry.subjects()


def test_a_process_has_one_registry_for_the_same_servers(address: str) -> None:
    assert registry_at(address) is registry_at(address)
    registry_at(address).register("s", "int")
    assert registry_at(address).latest("s").text == '"int"'
    registry_at(address).close()


def test_avro_travels_between_programs_by_the_log_alone(address: str) -> None:
    with LogRegistry(address) as one, LogRegistry(address) as two:
        writer, reader = (avro().open(SerdeContext(each)) for each in (one, two))
        column = writer.serialize("t", [{"a": 1}, {"a": 2.5}, {"a": 1.0, "b": "x"}])
        assert reader.deserialize("t", column) == [
            {"a": 1.0, "b": None},
            {"a": 2.5, "b": None},
            {"a": 1.0, "b": "x"},
        ]


def test_a_registry_that_lost_its_log_opens_it_again(address: str) -> None:
    with LogRegistry(address) as registry:
        first = registry.register("s", record("a"))
        opened, loop = registry._opened(), registry._loop
        assert opened.failure is None
        assert opened._following is not None
        assert loop is not None
        loop.call_soon_threadsafe(opened._following.cancel)
        while opened.failure is None:
            time.sleep(0.01)
        assert registry.latest("s").id == first
        assert registry._opened() is not opened
        assert registry.register("s", record("a", "b")) == first + 1


def test_a_version_that_has_references_comes_without_them(address: str) -> None:
    """A serde can do nothing with a text that mentions what it does not define."""
    with LogRegistry(address) as registry:
        registry.register("leg", record("km"))
        plan = Draft('{"type":"array","items":"R"}', references=(Reference("R", "leg", 1),))
        number = registry.register("plan", plan)
        whole = {"type": "array", "items": record("km")}
        assert parse_schema(registry.schema(number)).json == whole
        assert (
            registry.latest("plan").schema.json == registry.version("plan", 1).schema.json == whole
        )


def test_a_registration_that_was_overtaken_by_the_end_of_its_reference_is_refused(
    address: str,
) -> None:
    """It was decided while the version was there, and is written when it is gone."""
    with LogRegistry(address) as one, LogRegistry(address) as two:
        one.register("leg", record("km"))
        plan = Draft('{"type":"array","items":"R"}', references=(Reference("R", "leg", 1),))
        decided: list[int] = []

        def decide(registry: Registry) -> tuple[int, Any]:
            registration = registry.register("plan", plan)
            decided.append(registration.id)
            two.delete_version("leg", 1)
            two.delete_version("leg", 1, permanent=True)
            return registration.id, registration.records

        with pytest.raises(SchemaError, match="subject 'leg' has no version 1"):
            one._ask(one._opened().write(decide), "registering")
        assert decided == [2]
        assert one.subjects() == two.subjects() == ()
        assert one._opened().registry.repairs() == ()


def test_the_end_of_a_version_that_was_overtaken_by_a_reference_is_refused(address: str) -> None:
    with LogRegistry(address) as one, LogRegistry(address) as two:
        one.register("leg", record("km"))
        plan = Draft('{"type":"array","items":"R"}', references=(Reference("R", "leg", 1),))
        held = two._opened()
        late = held.registry.register("plan", plan).records
        one.delete_version("leg", 1)
        ended: list[int] = []

        def decide(registry: Registry) -> tuple[None, Any]:
            records = registry.delete_version("leg", 1, permanent=True)
            ended.append(1)
            two._ask(held._counts(late), "registering as if nothing had happened")
            return None, records

        with pytest.raises(SchemaError, match="referred to by 'plan' version 1"):
            one._ask(one._opened().write(decide), "deleting")
        assert ended == [1]
        assert two.version("leg", 1).deleted
        assert two.latest("plan").schema.json["items"] == record("km")
        assert one._opened().registry.repairs() == ()
