"""Apache Kafka's command-line tools against a cluster of three brokers, some of which die."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.sync import Admin
from kafkalite.core.protocol.checksum import crc32c
from kafkalite.embedded_cluster import EmbeddedCluster

TOOLS = "org.apache.kafka.tools"
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
CONFIGS = "kafka.admin.ConfigCommand"
PARTITION = re.compile(r"Partition: (\d+)\tLeader: (\S+)\tReplicas: (\S+)\tIsr: (\S*)")
PATIENCE_SECONDS = 60
EARLIEST = "-2"  # as a time
LOG_OVERHEAD, CRC_AT = 12, 17  # of a batch: offset and length; then its leader epoch and magic
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


def create(cluster: EmbeddedCluster, topic: str, *replicas: list[int], **configs: str) -> None:
    """A topic with a partition on each list of brokers."""
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, replica_assignment=list(replicas), configs=settings)])


def state(cluster: EmbeddedCluster, topic: str) -> tuple[int, tuple[int, ...], set[int]]:
    """The leader, the replicas and the in-sync set of partition 0."""
    with Admin(cluster.bootstrap_servers) as admin:
        found = admin.describe_topics([topic])[0].partitions[0]
    return found.leader_id, tuple(found.replicas), set(found.in_sync_replicas)


def produce(cluster: EmbeddedCluster, topic: str, values: list[bytes], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def test_throttles_hold_a_move_back_until_it_is_cancelled(
    tool: Tool, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """3 MB at 1 KB a second: the move would take most of an hour."""
    create(cluster, "slow", [1])
    produce(cluster, "slow", [b"v" * 100_000] * 30, **{"batch.size": 150_000})
    on_topic = ["--entity-type", "topics", "--entity-name", "slow"]
    brokers = ["--entity-type", "brokers", "--entity-default"]
    replicas = [f"{who}.replication.throttled.replicas" for who in ("leader", "follower")]
    rates = [f"{who}.replication.throttled.rate" for who in ("leader", "follower")]
    tool(CONFIGS, "--alter", *on_topic, "--add-config", f"{replicas[0]}=0:1,{replicas[1]}=0:3")
    tool(CONFIGS, "--alter", *brokers, "--add-config", ",".join(f"{rate}=1000" for rate in rates))
    told = tool(CONFIGS, "--describe", *on_topic)
    assert f"{replicas[0]}=0:1 sensitive=false" in told
    assert f"{replicas[1]}=0:3 sensitive=false" in told
    told = tool(CONFIGS, "--describe", *brokers)
    assert all(f"{rate}=1000 sensitive=false" in told for rate in rates)

    plan = tmp_path / "plan.json"
    moved = [{"topic": "slow", "partition": 0, "replicas": [3]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moved}))
    on_plan = ["--reassignment-json-file", str(plan)]
    tool(REASSIGN, *on_plan, "--execute")
    told = tool(REASSIGN, "--list")
    assert "slow-0: replicas: 3,1. adding: 3. removing: 1." in told
    assert sizes(tool, "slow").keys() == {1, 3}
    assert sizes(tool, "slow")[3] < 3_000_000
    assert state(cluster, "slow") == (1, (3, 1), {1})
    told = tool(REASSIGN, *on_plan, "--cancel", "--preserve-throttles")
    assert "Successfully cancelled partition reassignment for: slow-0" in told
    assert "No partition reassignments found" in tool(REASSIGN, "--list")
    assert state(cluster, "slow") == (1, (1,), {1})

    tool(CONFIGS, "--alter", *on_topic, "--delete-config", ",".join(replicas))
    tool(CONFIGS, "--alter", *brokers, "--delete-config", ",".join(rates))
    assert "throttled" not in tool(CONFIGS, "--describe", *on_topic)
    assert "throttled" not in tool(CONFIGS, "--describe", *brokers)
    tool(REASSIGN, *on_plan, "--execute")
    wait_for(lambda: state(cluster, "slow") == (3, (3,), {3}), "it does not move without them")
    assert sizes(tool, "slow")[3] > 3_000_000


def sizes(tool: Tool, topic: str) -> dict[int, int]:
    """How many bytes each broker has of partition 0."""
    told = json.loads(tool("LogDirsCommand", "--describe", "--topic-list", topic).splitlines()[-1])
    return {
        broker["broker"]: partition["size"]
        for broker in told["brokers"]
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
    }


def test_an_unclean_election_by_hand(tool: Tool, jvm: Any, cluster: EmbeddedCluster) -> None:
    """The last broker in sync is gone; another replica leads only if a person says so."""
    create(cluster, "unclean", [1, 2], min_insync_replicas="1")
    produce(cluster, "unclean", [b"on both"])
    cluster.kill(2)
    produce(cluster, "unclean", [b"on broker 1 alone"])
    wait_for(lambda: state(cluster, "unclean")[2] == {1}, "broker 2 is dead and in sync")
    cluster.kill(1)
    cluster.start(2)
    wait_for(lambda: state(cluster, "unclean")[0] == -1, "nobody should lead")
    election = ["--topic", "unclean", "--partition", "0"]
    servers = ["--bootstrap-server", cluster.address(3)]
    election_tool = f"{TOOLS}.LeaderElectionCommand"
    jvm.run(election_tool, *servers, "--election-type", "preferred", *election, code=1)
    told = jvm.run(election_tool, *servers, "--election-type", "unclean", *election)
    assert "Successfully completed leader election (UNCLEAN) for partitions unclean-0" in told
    assert state(cluster, "unclean")[0] == 2
    cluster.start(1)
    wait_for(lambda: state(cluster, "unclean")[2] == {1, 2}, "broker 1 does not follow")
    reading = ["--topic", "unclean", "--from-beginning", "--max-messages", "1"]
    assert tool(CONSUMER, *reading, "--timeout-ms", "20000").splitlines() == ["on both"]
    assert tool("GetOffsetShell", "--topic-partitions", "unclean:0").split() == ["unclean:0:1"]


def test_what_each_broker_tells(tool: Tool, jvm: Any, cluster: EmbeddedCluster) -> None:
    told = tool("BrokerApiVersionsCommand")
    for node_id in cluster.node_ids:
        assert f"{cluster.address(node_id)} (id: {node_id} rack: null" in told
    quorum = ["--bootstrap-server", cluster.bootstrap_servers, "describe", "--status"]
    done = subprocess.run(
        jvm.command(f"{TOOLS}.MetadataQuorumCommand", *quorum),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "DESCRIBE_QUORUM" in done.stdout + done.stderr


def test_replica_verification_compares_the_bytes_of_all_replicas(
    old_jvm: Any, cluster: EmbeddedCluster
) -> None:
    create(cluster, "compared", [1, 2, 3])
    for values in (range(500), range(500, 1_000)):
        produce(cluster, "compared", [b"%d" % value for value in values], acks="all")
    reports = verification(old_jvm, cluster, "compared", 1_000)
    assert all("max lag is" in line for line in reports), reports

    cluster.stop(3)
    change_a_byte(cluster.data_dir / "broker-3" / "compared-0" / f"{0:020}.log")
    cluster.start(3)
    wait_for(lambda: state(cluster, "compared")[2] == {1, 2, 3}, "broker 3 is back, not in sync")
    reports = verification(old_jvm, cluster, "compared", 1_000)
    (told,) = (line for line in reports if "max lag is" not in line)
    found = re.search(r"compared-0 has unmatched checksum at offset \d+; (.*)", told)
    assert found is not None, reports
    checksums = dict(re.findall(r"replica (\d)'s checksum (\d+)", found[1]))
    assert "3" in checksums
    assert len(set(checksums.values())) == 2


def verification(old_jvm: Any, cluster: EmbeddedCluster, topic: str, end: int) -> list[str]:
    """The reports of the tool of Apache Kafka 3.9 until it has compared partition 0 up to its end.

    It fetches from leader and followers as no replica, number -2, and compares batch by batch; by
    itself it begins at the end. Its threads put the answers of all brokers into one HashMap without
    a lock: the first puts may each make its table, and an answer in a table that another one
    replaces is not compared. So each round fetches one batch, and the first batch is not the one
    that differs.
    """
    options = ["--broker-list", cluster.bootstrap_servers, "--topics-include", topic]
    options += ["--report-interval-ms", "500", "--time", EARLIEST, "--fetch-size", "1"]
    done = f"max lag is 0 for partition {topic}-0 at offset {end} among 1 partitions"
    with old_jvm.running(f"{TOOLS}.ReplicaVerificationTool", *options) as verifying:
        assert "verification process is started" in next(verifying.stdout)
        reports = list(islice(verifying.stdout, 2))
        while done not in reports[-1]:
            assert len(reports) < 2 * PATIENCE_SECONDS, reports[-3:]
            reports.append(next(verifying.stdout))
    return reports


def change_a_byte(segment: Path) -> None:
    """Changes the value of the last batch's last record: the batch is sound, and another one."""
    data = bytearray(segment.read_bytes())
    starts = [0]
    while (end := starts[-1] + LOG_OVERHEAD + size_at(data, starts[-1] + 8)) < len(data):
        starts.append(end)
    assert len(starts) > 1, "the tool may miss a difference in the first batch"
    crc_at = starts[-1] + CRC_AT
    data[end - 2] ^= 1  # before the number of headers, 0
    data[crc_at : crc_at + 4] = crc32c(data[crc_at + 4 : end]).to_bytes(4)
    segment.write_bytes(data)


def size_at(data: bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 4])


def test_a_console_consumer_reads_what_is_committed_while_its_coordinator_dies(
    jvm: Any, cluster: EmbeddedCluster
) -> None:
    create(cluster, "settled", [1, 2, 3], [2, 3, 1], [3, 1, 2])
    servers = ["--bootstrap-server", cluster.bootstrap_servers]
    reading = ["--topic", "settled", "--group", "readers", "--from-beginning"]
    options = ["--isolation-level", "read_committed", "--max-messages", "600"]
    with jvm.running(CONSUMER, *servers, *reading, *options) as consumer:
        expected = transactions(cluster, range(10))
        told = [next(consumer.stdout) for _ in range(300)]
        victim = coordinator(cluster, "readers")
        cluster.kill(victim)
        expected += transactions(cluster, range(10, 20))
        told += consumer.stdout
    cluster.start(victim)
    assert sorted(line.strip() for line in told) == sorted(expected)


def transactions(cluster: EmbeddedCluster, numbers: range) -> list[str]:
    """Writes transactions of 30 records, each followed by one that is aborted; what they commit."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "writer"}
    producer, committed = Producer(settings), list[str]()
    producer.init_transactions(PATIENCE_SECONDS)
    for number in numbers:
        for end, word in ((producer.abort_transaction, "no"), (producer.commit_transaction, "yes")):
            producer.begin_transaction()
            values = [f"{word} {number} {count}" for count in range(30)]
            for count, value in enumerate(values):
                producer.produce("settled", value.encode(), partition=count % 3)
            end(PATIENCE_SECONDS)
        committed += values
    return committed


def coordinator(cluster: EmbeddedCluster, group: str) -> int:
    """The broker that a group belongs to."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    found = admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    return int(found.coordinator.id)
