"""`/metrics` and `/health` of a broker, asked over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kafkalite.clients.admin.client import Admin, NewTopic
from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.clients.producer.producer import Producer
from kafkalite.core.broker.survey import PARTITIONS_PER_SLICE
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ConfigError
from kafkalite.monitoring import monitor as monitoring
from kafkalite.monitoring.monitor import Monitor, State
from kafkalite.node import HttpDoor, Node, start_node

SETTINGS = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}


def fetched(url: str, path: str, method: str = "GET") -> tuple[int, str]:
    host = url.removeprefix("http://")
    with closing(http.client.HTTPConnection(host, timeout=20)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


async def ask(url: str, path: str, method: str = "GET") -> tuple[int, str]:
    return await asyncio.to_thread(fetched, url, path, method)


async def health(url: str) -> tuple[int, dict[str, Any]]:
    status, text = await ask(url, "/health")
    return status, json.loads(text)


@asynccontextmanager
async def running(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[Node, str]]:
    node = await start_node(tmp_path, "127.0.0.1:0", SETTINGS, http="127.0.0.1:0", **more)
    try:
        assert node.http is not None
        yield node, node.http.url
    finally:
        await node.close()


def values(page: str) -> dict[tuple[str, ...], float]:
    """By name and the labels' values in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def produced(address: str, topic: str, count: int) -> None:
    async with Producer(address) as producer:
        for number in range(count):
            await producer.send(topic, str(number).encode())


async def read(address: str, topic: str, group: str, upto: int) -> None:
    """Reads the whole topic as a group that commits offset `upto`."""
    where, count = TopicPartition(topic, 0), 0
    settings: Any = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with Consumer(address, group_id=group, **settings) as consumer:
        consumer.assign([where])
        while count < upto:
            count += sum(map(len, (await consumer.poll(1_000)).values()))
        await consumer.commit({where: upto})


def test_traffic_sizes_and_lags_of_topics_and_groups(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as (node, url):
            address = str(node.address)
            await produced(address, "t", 10)
            await read(address, "t", "g", 4)
            status, page = await ask(url, "/metrics")
            found = values(page)
            assert status == 200
            assert found["kafkalite_topic_records_in_total", "t"] == 10
            size = node.broker.partitions.get("t", 0).log.size_bytes
            assert found["kafkalite_topic_bytes_in_total", "t"] == size
            assert found["kafkalite_topic_bytes_out_total", "t"] >= size
            assert found["kafkalite_topic_log_bytes", "t"] == size
            assert found["kafkalite_group_lag_records", "g", "0", "t"] == 6
            assert found["kafkalite_partitions",] == len(node.broker.partitions)
            assert found["kafkalite_leader_partitions",] == len(node.broker.partitions)
            assert found["kafkalite_under_replicated_partitions",] == 0
            assert found["kafkalite_is_controller",] == 1
            assert found["kafkalite_cleaner_running",] == 0
            async with Admin(address) as admin:
                await admin.delete_topics(["t"])
            found = values((await ask(url, "/metrics"))[1])
            assert not [labels for labels in found if "t" in labels[1:]]

    asyncio.run(story())


def test_those_who_ask_at_once_share_one_look(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as (node, _):
            async with Admin(str(node.address)) as admin:
                await admin.create_topics([NewTopic("t", PARTITIONS_PER_SLICE + 1)])
            first, second = node.broker.survey(), node.broker.survey()
            assert await first is await second
            assert await node.broker.survey() is not await first

    asyncio.run(story())


def test_a_look_that_fails_is_told_and_the_next_one_goes_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with running(tmp_path) as (node, url):
            with monkeypatch.context() as patched:
                patched.delattr(node.broker.groups.__class__, "machines")
                assert (await ask(url, "/metrics"))[0] == 500
            assert (await ask(url, "/metrics"))[0] == 200

    asyncio.run(story())


def test_health_is_told_from_the_start_to_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        monitor = Monitor(asyncio.get_running_loop())
        door = HttpDoor("127.0.0.1:0", monitor)
        starting = await health(door.url)
        assert starting[0] == 503
        assert (starting[1]["status"], starting[1]["reasons"]) == (
            "starting",
            ["the broker is starting"],
        )
        assert await ask(door.url, "/metrics") == (503, "the broker is starting\n")
        async with running(tmp_path) as (node, url):
            assert await health(url) == (
                200,
                {"status": "ready", "reasons": [], "partitions": 0, "offline_partitions": 0},
            )
            monitor.ready(node.broker, node.gauges)
            assert (await health(door.url))[0] == 200
        monitor.stopping()
        stopping = await health(door.url)
        assert (stopping[0], stopping[1]["status"]) == (503, "stopping")
        await asyncio.to_thread(door.close)
        with pytest.raises(OSError, match="refused"):
            await ask(door.url, "/health")

    asyncio.run(story())


def test_a_broker_that_can_write_no_partition_is_not_ready(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as (node, url):
            async with Admin(str(node.address)) as admin:
                await admin.create_topics([NewTopic("t", 2)])
            logs = [node.broker.partitions.get("t", index).log for index in range(2)]
            logs[0].health.failure = "t-0: the disk is gone"
            assert (await health(url))[0] == 200
            logs[1].health.failure = "t-1: the disk is gone"
            status, told = await health(url)
            assert (status, told["status"]) == (503, "failing")
            assert told["reasons"] == ["none of 2 partitions can be written"]
            for each in logs:
                each.health.failure = None

    asyncio.run(story())


def test_a_loop_that_hangs_or_has_ended_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "LOOP_SECONDS_MAX", 0.01)
    loop = asyncio.new_event_loop()  # nobody runs it
    monitor = Monitor(loop)
    broker: Any = object()
    monitor.ready(broker, dict)
    told = asyncio.run(monitor.health())
    assert (told.state, told.is_ready) == (State.FAILING, False)
    assert told.reasons == ("the broker's loop gave no answer in 0.01 s",)
    loop.run_until_complete(asyncio.sleep(0))  # the question, which was withdrawn
    loop.close()
    assert asyncio.run(monitor.health()).reasons == ("the broker has stopped",)


def test_other_paths_and_methods_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as (_, url):
            assert (await ask(url, "/subjects"))[0] == 404
            assert (await ask(url, "/metrics", "POST"))[0] == 405
            assert await ask(url, "/health", "HEAD") == (200, "")

    asyncio.run(story())


def test_an_address_in_use_is_told_in_one_line_and_all_is_given_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "a") as (_, url):
            busy = url.removeprefix("http://")
            with pytest.raises(ConfigError, match=f"{busy} for HTTP: the address is in use"):
                await start_node(tmp_path / "b", "127.0.0.1:0", SETTINGS, http=busy)
            async with running(tmp_path / "b"):
                pass

    asyncio.run(story())


def test_with_a_registry_both_are_at_its_address_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, registry="127.0.0.1:0") as (node, url):
            assert node.registry is not None
            for door in (url, node.registry.url):
                assert (await health(door))[0] == 200
                assert values((await ask(door, "/metrics"))[1])["kafkalite_partitions",] >= 0
            assert (await ask(node.registry.url, "/subjects"))[0] == 200

    asyncio.run(story())
