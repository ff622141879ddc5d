"""Clients of all kinds on three brokers that die: kafka-python, aiokafka, librdkafka and kcat."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import monotonic, sleep

import confluent_kafka
import pytest
from drivers import CLIENTS, Client, Member, Options, Place, Writer

from kafkalite import EmbeddedCluster
from kafkalite.clients.admin.client import NewTopic
from kafkalite.clients.sync import Admin

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
SECONDS_MAX = 60.0
BATCH = 5  # records of a transaction
# Each broker leads one.
REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
# It waits for a coordinator that refuses connections, 30 s each time, before it looks for another.
WITHOUT_TRANSACTIONS = {"kafka-python"}


def until(is_so: Callable[[], object], complaint: str) -> None:
    deadline = monotonic() + SECONDS_MAX
    while not is_so():
        assert monotonic() < deadline, complaint
        sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    # A session outlives the tests, so brokers are seen to die by their connections.
    settings = {"zookeeper.session.timeout.ms": "120000"}
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), overrides=settings) as running:
        yield running


def create(cluster: EmbeddedCluster, topic: str) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, replica_assignment=REPLICAS)])
    wait_until_whole(cluster, topic)


def wait_until_whole(cluster: EmbeddedCluster, topic: str) -> None:
    """Waits until all replicas are in sync, and each broker leads its partition again."""

    def is_whole() -> bool:
        partitions = {each.name: each.partitions for each in admin.describe_topics()}.get(topic, ())
        return bool(partitions) and all(len(p.in_sync_replicas) == 3 for p in partitions)

    with Admin(cluster.bootstrap_servers) as admin:
        until(is_whole, f"{topic} does not have all replicas in sync")


class Work:
    """One client at work: transactions, every third aborted, or plain idempotent batches, and a
    member of a group that reads what was committed."""

    def __init__(self, client: Client, cluster: EmbeddedCluster) -> None:
        self._client, self._bootstrap = client, cluster.bootstrap_servers
        self.topic = client.name
        create(cluster, self.topic)
        options = Options(group=self.topic, read_committed=True)
        self.member = Member(
            lambda: client.reader(self._bootstrap, options),
            lambda reader: reader.subscribe([self.topic]),
        )
        self.committed: dict[int, list[bytes]] = {0: [], 1: [], 2: []}  # by partition
        self.batches = 0
        is_plain = client.name in WITHOUT_TRANSACTIONS
        self._transactional_id = None if is_plain else client.name
        self.error: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            writer = self._client.writer(self._bootstrap, self._transactional_id)
            while not self._is_over.is_set():
                values = [b"%d-%d" % (self.batches, number) for number in range(BATCH)]
                try:
                    is_committed = self._write(writer, values)
                except confluent_kafka.KafkaException as error:
                    if not self._is_end_of_nothing(error):
                        raise
                    writer = self._client.writer(self._bootstrap, self._transactional_id)
                    is_committed = False
                if is_committed:
                    for each in self.committed.values():
                        each += values
                self.batches += 1
                sleep(0.01)
            writer.close()
        except Exception as error:
            self.error = error

    def _write(self, writer: Writer, values: list[bytes]) -> bool:
        """Whether they are committed."""
        if self._transactional_id:
            writer.begin()
        for partition in self.committed:
            for value in values:
                writer.send(self.topic, value, partition=partition)
        if self._transactional_id is None:
            writer.flush()
        elif self.is_aborting:
            writer.abort()
            return False
        else:
            writer.commit()
        return True

    def _is_end_of_nothing(self, error: confluent_kafka.KafkaException) -> bool:
        """Whether librdkafka has aborted a transaction to which it could add no partition, because
        the coordinator was away. It asks for the end all the same, of Apache Kafka's brokers as of
        ours, and is told that there is none: to it that is fatal, and applications begin anew."""
        code = error.args[0].code()
        return self.is_aborting and code == confluent_kafka.KafkaError.INVALID_TXN_STATE

    @property
    def is_aborting(self) -> bool:
        """Whether the transaction is one of those that are aborted."""
        return self.batches % 3 == 2

    def goes_on(self) -> None:
        """Waits for two more batches, and for all that was committed before to be read."""
        batches, count = self.batches + 2, sum(map(len, self.committed.values()))
        until(lambda: self.error or self.batches >= batches, f"{self.topic}: it does not go on")
        self.check_error()
        self.member.until(lambda: len(self._read()) >= count)

    def check_error(self) -> None:
        if self.error is not None:
            raise self.error

    def _read(self) -> dict[tuple[Place, int], bytes | None]:
        """What the member has read; a group may give it a record again."""
        return {(record.place, record.offset): record.value for record in self.member.records}

    def stop(self) -> None:
        """It writes and reads nothing more."""
        self._is_over.set()
        self._thread.join(SECONDS_MAX)
        self.member.close()

    def check(self) -> None:
        """All that is committed was read, in the order sent and in one place; nothing else was."""
        self._is_over.set()
        self._thread.join()
        self.check_error()
        count = sum(map(len, self.committed.values()))
        self.member.until(lambda: len(self._read()) >= count)
        self.stop()
        read = self._read()
        for partition, values in self.committed.items():
            found = sorted(at for at in read if at[0].partition == partition)
            assert [read[at] for at in found] == values


def test_clients_lose_and_repeat_nothing_while_brokers_die(cluster: EmbeddedCluster) -> None:
    """Each broker leads partitions; some are coordinators of the groups and transactions."""
    with ExitStack() as stack:
        works = []
        for client in CLIENTS:
            works.append(Work(client, cluster))
            stack.callback(works[-1].stop)  # else its log lines are those of later tests
        for victim in cluster.node_ids:
            for work in works:
                work.goes_on()
            cluster.kill(victim)
            for work in works:
                work.goes_on()
            cluster.start(victim)
            for work in works:
                wait_until_whole(cluster, work.topic)
        for work in works:
            work.check()


@pytest.mark.skipif(KCAT is None, reason="kcat is not in PATH")
def test_kcat_writes_and_reads_while_a_leader_dies(cluster: EmbeddedCluster) -> None:
    create(cluster, "kcat")
    lines = [b"line %d\n" % number for number in range(2_000)]
    bootstrap = [str(KCAT), "-b", cluster.bootstrap_servers, "-t", "kcat", "-p", "0"]
    idempotent = ["-X", "enable.idempotence=true", "-X", "linger.ms=1"]
    with ExitStack() as stack:
        writing = stack.enter_context(
            subprocess.Popen([*bootstrap, "-P", *idempotent], stdin=subprocess.PIPE)
        )
        stack.callback(writing.kill)
        reading = stack.enter_context(
            subprocess.Popen(
                [*bootstrap, "-C", "-q", "-u", "-c", str(len(lines))], stdout=subprocess.PIPE
            )
        )
        stack.callback(reading.kill)
        assert writing.stdin is not None
        assert reading.stdout is not None
        read = []
        for number, line in enumerate(lines):
            writing.stdin.write(line)
            if number == 500:
                writing.stdin.flush()
                read = [reading.stdout.readline() for _ in range(100)]
                cluster.kill(1)
        writing.stdin.close()
        assert writing.wait(SECONDS_MAX) == 0
        assert read + reading.stdout.readlines() == lines
        assert reading.wait(SECONDS_MAX) == 0
    cluster.start(1)
