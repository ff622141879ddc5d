"""Apache Kafka's command-line tools against a cluster of three brokers, some of which die."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalite.embedded_cluster import EmbeddedCluster

TOOLS = "org.apache.kafka.tools"
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
PARTITION = re.compile(r"Partition: (\d+)\tLeader: (\S+)\tReplicas: (\S+)\tIsr: (\S*)")
PATIENCE_SECONDS = 60
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), brokers=3) as running:
        yield running


@pytest.fixture
def tool(jvm: Any, cluster: EmbeddedCluster) -> Tool:
    """`tool(class, *arguments)`: what a tool prints that is given the cluster."""

    def run(name: str, *arguments: str, **more: Any) -> str:
        program = name if "." in name else f"{TOOLS}.{name}"
        servers = ["--bootstrap-server", cluster.bootstrap_servers]
        told: str = jvm.run(program, *servers, *arguments, **more)
        return told

    return run


def partitions(tool: Tool, topic: str) -> dict[int, tuple[int, list[int], set[int]]]:
    """The leader, the replicas and the in-sync set of each partition."""
    told = tool("TopicCommand", "--describe", "--topic", topic)
    return {
        int(index): (int(leader), numbers(replicas), {*numbers(in_sync)})
        for index, leader, replicas, in_sync in PARTITION.findall(told)
    }


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def wait_for(is_so: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, complaint


def test_a_dead_broker_shows_and_its_leaderships_come_back(
    tool: Tool, cluster: EmbeddedCluster
) -> None:
    created = ["--topic", "shown", "--partitions", "3", "--replication-factor", "3"]
    tool("TopicCommand", "--create", *created)
    before = partitions(tool, "shown")
    assert sorted(leader for leader, _, _ in before.values()) == [1, 2, 3]
    cluster.kill(2)
    wait_for(
        lambda: all(in_sync == {1, 3} for _, _, in_sync in partitions(tool, "shown").values()),
        "broker 2 is dead and in sync",
    )
    assert all(leader in {1, 3} for leader, _, _ in partitions(tool, "shown").values())
    told = tool("TopicCommand", "--describe", "--under-replicated-partitions")
    assert len([line for line in told.splitlines() if "Topic: shown" in line]) == 3
    cluster.start(2)
    wait_for(
        lambda: all(in_sync == {1, 2, 3} for _, _, in_sync in partitions(tool, "shown").values()),
        "broker 2 is back and not in sync",
    )
    tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    assert partitions(tool, "shown") == before


def test_partitions_move(tool: Tool, tmp_path: Path) -> None:
    tool("TopicCommand", "--create", "--topic", "moved", "--replica-assignment", "1:2")
    records = [f"record {number}" for number in range(100)]
    tool(f"{TOOLS}.ConsoleProducer", "--topic", "moved", stdin="\n".join(records))
    plan = tmp_path / "plan.json"
    moved = [{"topic": "moved", "partition": 0, "replicas": [3, 2]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moved}))
    on_plan = ["--reassignment-json-file", str(plan)]
    told = tool(REASSIGN, *on_plan, "--execute", "--throttle", "100000000")
    assert "Successfully started partition reassignment for moved-0" in told
    done = "Reassignment of partition moved-0 is completed"
    wait_for(lambda: done in tool(REASSIGN, *on_plan, "--verify"), "it does not end")
    leader, replicas, in_sync = partitions(tool, "moved")[0]
    assert (replicas, in_sync) == ([3, 2], {2, 3})
    assert leader in in_sync
    options = ["--from-beginning", "--max-messages", "100", "--timeout-ms", "20000"]
    assert tool(CONSUMER, "--topic", "moved", *options).splitlines() == records


def test_a_verifiable_producer_loses_nothing_while_a_broker_dies(
    tool: Tool, jvm: Any, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    created = ["--topic", "verified", "--partitions", "3", "--replication-factor", "3"]
    tool("TopicCommand", "--create", *created)
    settings = tmp_path / "producer.properties"
    settings.write_text("retries=1000\n")  # where the tool has none, what is under way fails
    options = ["--topic", "verified", "--max-messages", "2000", "--throughput", "500"]
    options += ["--command-config", str(settings)]
    servers = ["--bootstrap-server", cluster.bootstrap_servers]
    with jvm.running(f"{TOOLS}.VerifiableProducer", *servers, *options, "--acks", "-1") as producer:
        told = [next(producer.stdout) for _ in range(300)]
        cluster.kill(1)
        told += producer.stdout
    cluster.start(1)
    sent = [event for event in map(json.loads, told) if event["name"] == "producer_send_success"]
    assert len(sent) == 2000
    reading = ["--from-beginning", "--max-messages", "2000", "--timeout-ms", "20000"]
    read = tool(CONSUMER, "--topic", "verified", *reading).splitlines()
    assert sorted(read) == sorted(event["value"] for event in sent)


def test_kafka_streams_counts_exactly_once_while_brokers_die(
    tool: Tool, jvm: Any, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    for topic in ("words", "counts"):
        created = ["--topic", topic, "--partitions", "2", "--replication-factor", "3"]
        tool("TopicCommand", "--create", *created)
    arguments = ["words", "counts", "exactly_once_v2", str(tmp_path / "state")]
    with jvm.running("WordCount", cluster.bootstrap_servers, *arguments) as counting:
        for node_id in cluster.node_ids:
            time.sleep(2)
            cluster.kill(node_id)
            time.sleep(1)
            cluster.start(node_id)
        told = counting.stdout.read()
    assert told.splitlines()[-1] == "done"
