"""Apache Kafka's command-line tools against our broker, and its DumpLogSegments on our files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOOLS = "org.apache.kafka.tools"
GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
CONFIGS = "kafka.admin.ConfigCommand"
Tool = Callable[..., str]


@pytest.fixture
def tool(jvm: Any, bootstrap: str) -> Tool:
    """`tool(class, *arguments)`: what a tool prints that is given our broker."""

    def run(name: str, *arguments: str, **more: Any) -> str:
        program = name if "." in name else f"{TOOLS}.{name}"
        told: str = jvm.run(program, "--bootstrap-server", bootstrap, *arguments, **more)
        return told

    return run


@pytest.mark.parametrize(("action", "code"), [("--describe", 0), ("--frobnicate", 1)])
def test_a_tool_in_a_jvm_of_its_own_says_the_same(
    jvm: Any, bootstrap: str, make_topic: Callable[[int], str], action: str, code: int
) -> None:
    words = ["--bootstrap-server", bootstrap, action, "--topic", make_topic(1)]
    program = f"{TOOLS}.TopicCommand"
    shared = jvm.run(program, *words, code=code)
    assert shared == jvm.run_alone(program, *words, code=code)


def events(told: str) -> dict[str, Any]:
    """The last event of each name that a verifiable client printed."""
    return {event["name"]: event for event in map(json.loads, told.splitlines())}


def test_kafka_topics(tool: Tool, topic: str) -> None:
    config = ["--config", "retention.ms=600000"]
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2", *config)
    told = tool("TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 2\tReplicationFactor: 1" in told
    assert "retention.ms=600000" in told
    tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "3")
    assert "Partition: 2" in tool("TopicCommand", "--describe", "--topic", topic)
    assert topic in tool("TopicCommand", "--list").splitlines()
    tool("TopicCommand", "--delete", "--topic", topic)
    assert topic not in tool("TopicCommand", "--list").splitlines()


def test_console_clients_and_groups(
    tool: Tool, make_topic: Callable[[int], str], group: str
) -> None:
    topic = make_topic(1)
    on_topic, on_group = ["--topic", topic], ["--group", group]
    keys = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    tool("ConsoleProducer", *on_topic, *keys, stdin="k1:v1\nk2:v2\n")
    shown = [f"--formatter-property=print.{what}=true" for what in ("key", "offset")]
    read = ["--from-beginning", "--max-messages", "2", *on_group, *shown]
    assert tool(CONSUMER, *on_topic, *read).splitlines()[:2] == [
        "Offset:0\tk1\tv1",
        "Offset:1\tk2\tv2",
    ]
    (row,) = (line for line in tool(GROUPS, "--describe", *on_group).splitlines() if topic in line)
    assert row.split()[:6] == [group, topic, "0", "2", "2", "0"]
    tool(GROUPS, "--reset-offsets", "--to-earliest", "--execute", *on_topic, *on_group)
    assert "Empty" in tool(GROUPS, "--describe", "--state", *on_group)
    assert tool(CONSUMER, *on_topic, *read).count("Offset:") == 2
    assert "Successful" in tool(GROUPS, "--delete-offsets", *on_topic, *on_group)
    assert "was successful" in tool(GROUPS, "--delete", *on_group)
    assert group not in tool(GROUPS, "--list").splitlines()


def test_kafka_configs(tool: Tool, make_topic: Callable[[int], str]) -> None:
    entity = ["--entity-type", "topics", "--entity-name", make_topic(1)]
    tool(CONFIGS, "--alter", *entity, "--add-config", "max.message.bytes=2000,segment.ms=60000")
    told = tool(CONFIGS, "--describe", *entity)
    assert "max.message.bytes=2000 sensitive=false" in told
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000, DEFAULT_CONFIG:message.max.bytes" in told
    tool(CONFIGS, "--alter", *entity, "--delete-config", "max.message.bytes")
    told = tool(CONFIGS, "--describe", *entity)
    assert "max.message.bytes" not in told
    assert "segment.ms=60000" in told


def test_offsets_records_and_directories(
    tool: Tool, make_topic: Callable[[int], str], tmp_path: Path
) -> None:
    topic = make_topic(1)
    tool("ConsoleProducer", "--topic", topic, stdin="".join(f"{i}\n" for i in range(10)))
    assert tool("GetOffsetShell", "--topic", topic).split() == [f"{topic}:0:10"]
    wanted = tmp_path / "records.json"
    upto = {"topic": topic, "partition": 0, "offset": 4}
    wanted.write_text(json.dumps({"version": 1, "partitions": [upto]}))
    told = tool("DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 4" in told
    earliest = ["--topic", topic, "--time", "earliest"]
    assert tool("GetOffsetShell", *earliest).split() == [f"{topic}:0:4"]
    told = tool("LogDirsCommand", "--describe", "--topic-list", topic).splitlines()[-1]
    ((directory,),) = (broker["logDirs"] for broker in json.loads(told)["brokers"])
    ((name, size),) = ((p["partition"], p["size"]) for p in directory["partitions"])
    assert name == f"{topic}-0"
    assert size > 0


def test_verifiable_clients_and_performance(
    tool: Tool, jvm: Any, bootstrap: str, make_topic: Callable[[int], str], group: str
) -> None:
    topic = make_topic(1)
    on_topic = ["--topic", topic]
    verifiable = ["--bootstrap-server", bootstrap, *on_topic, "--max-messages", "50"]
    sent = events(jvm.run_alone(f"{TOOLS}.VerifiableProducer", *verifiable))["tool_data"]
    assert (sent["sent"], sent["acked"]) == (50, 50)
    options = ["--group-id", group, "--reset-policy", "earliest"]
    got = events(jvm.run_alone(f"{TOOLS}.VerifiableConsumer", *verifiable, *options))
    assert got["records_consumed"]["count"] == 50
    assert got["offsets_committed"]["success"]
    load = ["--num-records", "5000", "--record-size", "100", "--throughput", "-1"]
    perf = [*on_topic, *load, "--producer-props", f"bootstrap.servers={bootstrap}"]
    assert "5000 records sent" in jvm.run(f"{TOOLS}.ProducerPerformance", *perf)
    assert tool("ConsumerPerformance", *on_topic, "--num-records", "5000").count("\n") == 2


def test_what_a_cluster_tells(tool: Tool, jvm: Any, bootstrap: str) -> None:
    assert tool("BrokerApiVersionsCommand").startswith(f"{bootstrap} (id: ")
    told = jvm.run(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", bootstrap)
    assert told.startswith("Cluster ID: ")
    tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    told = tool(f"{TOOLS}.reassign.ReassignPartitionsCommand", "--list")
    assert "No partition reassignments found" in told


@pytest.mark.needs("AddPartitionsToTxn", "ListTransactions", "DescribeProducers", "EndTxn")
def test_kafka_transactions(
    tool: Tool, bootstrap: str, make_topic: Callable[[int], str], topic: str
) -> None:
    """One is left open, found, described and aborted."""
    from confluent_kafka import Producer

    make_topic(1)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"held back", partition=0)
    assert producer.flush(30) == 0
    (row,) = (s for s in tool("TransactionsCommand", "list").splitlines() if topic in s)
    assert row.split()[3] == "Ongoing"
    told = tool("TransactionsCommand", "describe", "--transactional-id", topic)
    assert f"{topic}-0" in told
    place = ["--topic", topic, "--partition", "0"]
    assert tool("TransactionsCommand", "describe-producers", *place).count("\n") == 2
    tool("TransactionsCommand", "abort", *place, "--start-offset", "0")
    committed = ["--isolation-level", "read_committed", "--offset", "0", "--timeout-ms", "500"]
    assert "held back" not in tool(CONSUMER, *place, *committed)


def write(bootstrap: str, topic: str) -> None:
    """Batches of every codec, headers, nulls, transactions of both ends, a commit of offset 7."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        config = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
        plain = Producer(config)
        for i in range(200):
            plain.produce(topic, None if i % 9 == 0 else b"the same again %d" % i, b"%d" % i)
        assert plain.flush(30) == 0
    transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    transactional.init_transactions(30)
    for end in (transactional.commit_transaction, transactional.abort_transaction) * 2:
        transactional.begin_transaction()
        for i in range(50):
            transactional.produce(topic, b"%d" % i, headers=[("h", b"1"), ("null", None)])
        assert transactional.flush(30) == 0
        end(30)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    consumer.close()


@pytest.mark.needs("EndTxn")
def test_dump_log_reads_our_files(jvm: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    """Every file of a partition, and of the topics in which groups and transactions are kept."""
    topic = "dumped"
    small = {"log.segment.bytes": "10000", "log.index.interval.bytes": "100"}
    server = serve(tmp_path / "data", overrides=small)
    write(server.address, topic)
    assert server.stop() == 0
    kinds = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    files = sorted((tmp_path / "data" / f"{topic}-0").iterdir())
    files = [file for file in files if file.suffix in kinds]
    assert {file.suffix for file in files} == kinds
    dump = f"{TOOLS}.DumpLogSegments"
    names = ",".join(map(str, files))
    told = jvm.run(dump, "--files", names, "--print-data-log", "--deep-iteration")
    for trouble in ("mismatch", "Found", "corrupt", "invalid", "isvalid: false", "Could not"):
        assert trouble not in told, [s for s in told.splitlines() if trouble in s][:3]
    assert told.count("| offset: ") == 5 * 200 + 4 * 50 + 4
    assert told.count("endTxnMarker: COMMIT") == told.count("endTxnMarker: ABORT") == 2
    assert "producerId: " in told
    assert "lastStableOffset: " in told
    states = {
        "__transaction_state": ("--transaction-log-decoder", '"transactionStatus":5'),  # aborted
        "__consumer_offsets": ("--offsets-decoder", '"offset":7'),
    }
    for state, (decoder, expected) in states.items():
        logs = [log for log in (tmp_path / "data").glob(f"{state}-*/*.log") if log.stat().st_size]
        told = jvm.run(dump, "--files", ",".join(map(str, logs)), decoder)
        assert expected in told, told[-2_000:]
