"""Several listeners: a client is told the addresses of the one by which it came in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.protocol.cluster import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
)
from kafkalite.core.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkalite.core.protocol.groups import FindCoordinatorRequest
from kafkalite.core.protocol.metadata import MetadataRequest, MetadataRequestTopic
from kafkalite.core.types import TopicPartition
from kafkalite.errors import ErrorCode
from kafkalite.node import Node, start_node

TWO = {
    "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://[::1]:0",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT,HIDDEN:PLAINTEXT",
    "offsets.topic.num.partitions": "2",
}


@asynccontextmanager
async def running(tmp_path: Path, **settings: str) -> AsyncIterator[Node]:
    named = {name.replace("_", "."): text for name, text in settings.items()}
    node = await start_node(tmp_path, overrides=TWO | named)
    try:
        yield node
    finally:
        await node.close()


def bound(node: Node) -> Mapping[str, tuple[str, int]]:
    """Where each listener really is."""
    found = {}
    for acceptor in node._server._accepting:
        host, port = acceptor.address
        found[host] = (host, port)
    return found


async def addresses(peer: Any) -> set[tuple[str, int]]:
    """Every address that a client hears of."""
    told: set[tuple[str, int]] = set()
    for version in (0, 5, 12):
        metadata = await peer.ask(MetadataRequest(()), version)
        told |= {(each.host, each.port) for each in metadata.brokers}
    cluster = await peer.ask(DescribeClusterRequest(False))
    told |= {(each.host, each.port) for each in cluster.brokers}
    for version in (0, 3):
        while True:
            found = await peer.ask(FindCoordinatorRequest("g", 0), version)
            if found.error_code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                break
        told.add((found.host, found.port))
    several = await peer.ask(FindCoordinatorRequest("", 0, ("g", "h")), 4)
    told |= {(each.host, each.port) for each in several.coordinators}
    return told


def test_every_answer_has_the_address_of_the_client_s_listener(
    tmp_path: Path, connect: Any
) -> None:
    async def story() -> None:
        advertised = "INTERNAL://kafka:0,EXTERNAL://far.example:29092"
        async with running(tmp_path, advertised_listeners=advertised) as node:
            inside, outside = bound(node)["127.0.0.1"], bound(node)["::1"]
            assert node.addresses == {
                "INTERNAL": ("kafka", inside[1]),
                "EXTERNAL": ("far.example", 29092),
            }
            assert node.address == ("kafka", inside[1])
            assert await addresses(await connect(f"127.0.0.1:{inside[1]}")) == {
                ("kafka", inside[1])
            }
            assert await addresses(await connect(f"::1:{outside[1]}")) == {("far.example", 29092)}

    asyncio.run(story())


def test_without_advertised_addresses_they_are_those_listened_on(
    tmp_path: Path, connect: Any
) -> None:
    async def story() -> None:
        async with running(tmp_path, inter_broker_listener_name="EXTERNAL") as node:
            for host in ("127.0.0.1", "::1"):
                here = bound(node)[host]
                assert await addresses(await connect(f"{host}:{here[1]}")) == {here}
            assert node.address == bound(node)["::1"]

    asyncio.run(story())


def test_a_leader_that_moved_is_told_by_the_same_listener(tmp_path: Path, connect: Any) -> None:
    async def story() -> None:
        advertised = "INTERNAL://kafka:9,EXTERNAL://far.example:29092"
        async with running(tmp_path, advertised_listeners=advertised) as node:
            peer = await connect(f"::1:{bound(node)['::1'][1]}")
            await peer.create("t")
            partition = FetchPartition(0, fetch_offset=0, current_leader_epoch=-1)
            topic = node.broker.image.topics["t"]
            held = node.broker.partitions._held["t"]
            lost = held.pop(0)  # as while it moves elsewhere
            wanted = (FetchTopic(topic_id=topic.topic_id, partitions=(partition,)),)
            answer = await peer.ask(FetchRequest(topics=wanted), 16)
            held[0] = lost
            (data,) = answer.responses[0].partitions
            assert data.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            (endpoint,) = answer.node_endpoints
            assert (endpoint.host, endpoint.port) == ("far.example", 29092)

    asyncio.run(story())


def test_a_listener_that_is_not_advertised_leads_to_no_broker(
    tmp_path: Path, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with running(tmp_path, advertised_listeners="INTERNAL://kafka:9") as node:
            assert "advertised.listeners leaves EXTERNAL out" in caplog.text
            peer = await connect(f"::1:{bound(node)['::1'][1]}")
            await peer.create("t")
            asked = MetadataRequest((MetadataRequestTopic(name="t"),))
            for version, code in (
                (5, ErrorCode.LEADER_NOT_AVAILABLE),
                (6, ErrorCode.LISTENER_NOT_FOUND),
                (12, ErrorCode.LISTENER_NOT_FOUND),
            ):
                answer = await peer.ask(asked, version)
                (partition,) = answer.topics[0].partitions
                assert (answer.brokers, partition.error_code) == ((), code)
                assert partition.leader_id == -1
                if version > 5:
                    assert partition.offline_replicas == partition.replica_nodes
            page = await peer.ask(
                DescribeTopicPartitionsRequest((DescribeTopicPartitionsTopic("t"),), 10)
            )
            told = page.topics[0].partitions[0]
            assert (told.error_code, told.leader_id) == (ErrorCode.NONE, -1)
            found = await peer.ask(FindCoordinatorRequest("g", 0), 3)
            assert found.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            node.broker.partitions.get(*TopicPartition("t", 0))

    asyncio.run(story())


def test_an_empty_host_takes_both_families_and_tells_this_machine_s_address(
    tmp_path: Path, connect: Any
) -> None:
    async def story() -> None:
        async with running(tmp_path, listeners="PLAINTEXT://:0") as node:
            assert node.address.host not in ("", "0.0.0.0", "::")
            for host in ("127.0.0.1", "::1"):
                peer = await connect(f"{host}:{node.address.port}")
                assert await addresses(peer) == {tuple(node.address)}

    asyncio.run(story())


def test_one_of_several_that_is_taken_gives_back_the_others(tmp_path: Path, connect: Any) -> None:
    async def story() -> None:
        async with running(tmp_path / "a") as node:
            taken = bound(node)["::1"][1]
            busy = f"INTERNAL://127.0.0.1:0,EXTERNAL://[::1]:{taken}"
            with pytest.raises(Exception, match=rf"cannot listen on \[::1\]:{taken}.*in use"):
                async with running(tmp_path / "b", listeners=busy):
                    pass
        async with running(tmp_path / "b"):
            pass  # its directory was given back as well

    asyncio.run(story())
