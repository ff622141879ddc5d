"""Real brokers and a real ZooKeeper: killed, restarted and paused while librdkafka produces."""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalite import EmbeddedCluster
from kafkalite.embedded import EmbeddedBroker
from kafkalite.embedded_cluster import replication_defaults
from kafkalite.embedded_zookeeper import Ensemble

SECONDS_MAX = 60.0
PARTITIONS = 6
RATE = 500  # records a second
PATIENT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}
# A session outlives every wait of these tests but that for a paused broker, so a leader that moves
# was moved because its process was seen to be gone.
LONG_SESSION_MS = 120_000
SHORT_SESSION_MS = 4_000


class Load:
    """An idempotent producer under acks=all that never pauses, and what it was told."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        config = {"enable.idempotence": True, "acks": "all", "linger.ms": 0, **PATIENT}
        config["message.timeout.ms"] = 120_000
        self._producer = Producer({"bootstrap.servers": bootstrap, **config})
        # By partition and number. librdkafka knows no offset of a record whose answer was lost, and
        # which a later answer shows to be there.
        self.acknowledged: dict[int, dict[int, int | None]] = defaultdict(dict)
        self.errors: list[str] = []
        self._sent: dict[int, int] = defaultdict(int)
        self._is_on = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        count, began = 0, monotonic()
        while self._is_on:
            partition = count % PARTITIONS
            number = self._sent[partition]
            self._producer.produce(
                self._topic, b"%d" % number, partition=partition, on_delivery=self._told
            )
            self._sent[partition] += 1
            self._producer.poll(0)
            count += 1
            sleep(max(0.0, began + count / RATE - monotonic()))

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        partition, value, offset = message.partition(), message.value(), message.offset()
        assert partition is not None
        assert value is not None
        self.acknowledged[partition][int(value)] = offset

    def goes_on(self, *partitions: int) -> None:
        """Waits until each partition takes records that are sent from now on."""
        marks = {each: self._sent[each] for each in partitions or range(PARTITIONS)}
        until(lambda: all(max(self.acknowledged[p], default=-1) > n for p, n in marks.items()))

    def stop(self) -> None:
        self._is_on = False
        self._thread.join()
        assert self._producer.flush(SECONDS_MAX) == 0

    def check(self) -> None:
        """Every record is in the log once, at the offset that was told, in the order sent."""
        self.stop()
        assert self.errors == []
        config = {"group.id": "check", "isolation.level": "read_committed", **PATIENT}
        consumer = Consumer({"bootstrap.servers": self._bootstrap, **config})
        try:
            for partition in range(PARTITIONS):
                self._check_partition(consumer, partition)
        finally:
            consumer.close()

    def _check_partition(self, consumer: Consumer, partition: int) -> None:
        sent, acknowledged = self._sent[partition], self.acknowledged[partition]
        assert len(acknowledged) == sent
        consumer.assign([TopicPartition(self._topic, partition, 0)])
        found: dict[int, int] = {}

        def poll() -> bool:
            for message in consumer.consume(5_000, 0.2):
                value, offset = message.value(), message.offset()
                if message.error() is None and value is not None and offset is not None:
                    found[offset] = int(value)
            return len(found) >= sent

        until(poll)
        told = {number: at for number, at in acknowledged.items() if at is not None}
        assert told == {number: at for at, number in found.items() if number in told}
        numbers = [found[offset] for offset in sorted(found)]
        assert numbers == list(range(sent)), "none is lost, repeated or out of order"


class Place:
    """A cluster, and its topics as a client sees them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        # librdkafka asks the broker that it used last, and a silent one until this time is up.
        config = {"bootstrap.servers": bootstrap, "socket.timeout.ms": 5_000, **PATIENT}
        self.admin = AdminClient(config)

    def create(self, topic: str) -> None:
        new = NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        # ZooKeeper may just have started. Without the first of the two librdkafka gives up early.
        limits = {"operation_timeout": SECONDS_MAX, "request_timeout": SECONDS_MAX}
        creating = self.admin.create_topics([new], **limits)
        creating[topic].result(SECONDS_MAX)
        until(lambda: self.is_whole(topic))

    def leaders(self, topic: str) -> dict[int, int]:
        partitions = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return {number: each.leader for number, each in partitions.items()}

    def is_whole(self, topic: str) -> bool:
        """Whether all replicas are in sync, and the partitions have leaders."""
        try:
            partitions = self.admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        except KafkaException:  # the broker that was asked does not answer
            return False
        return len(partitions) == PARTITIONS and all(
            each.leader > 0 and len(each.isrs) == 3 for each in partitions
        )

    def is_led_without(self, node_id: int, topic: str) -> bool:
        """Whether the broker leads no partition any more."""
        try:
            return node_id not in self.leaders(topic).values()
        except KafkaException:  # the broker that was asked does not answer
            return False

    def controller(self) -> int:
        found = self.admin.describe_cluster(request_timeout=10).result(SECONDS_MAX).controller
        assert found is not None
        return int(found.id)


def until(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + SECONDS_MAX
    while not is_so():
        assert monotonic() < deadline, "not so in time"
        sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    settings = {"zookeeper.session.timeout.ms": str(LONG_SESSION_MS)}
    settings["group.initial.rebalance.delay.ms"] = "0"
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), overrides=settings) as running:
        yield running


@pytest.fixture
def place(cluster: EmbeddedCluster) -> Place:
    for node_id in cluster.node_ids:
        if not cluster.is_running(node_id):
            cluster.start(node_id)
    return Place(cluster.bootstrap_servers)


def test_leaders_are_killed_one_after_the_other_the_controller_too(
    cluster: EmbeddedCluster, place: Place
) -> None:
    place.create("killed")
    load = Load(place.bootstrap, "killed")
    for victim in (place.controller() % 3 + 1, place.controller()):
        load.goes_on()
        cluster.kill(victim)
        until(lambda: place.is_led_without(victim, "killed"))  # noqa: B023
        load.goes_on()
        cluster.start(victim)  # its session in ZooKeeper has not ended, its registration has
        until(lambda: place.is_whole("killed"))
    load.check()


def test_a_rolling_restart_shows_no_client_an_error(cluster: EmbeddedCluster, place: Place) -> None:
    place.create("rolling")
    load = Load(place.bootstrap, "rolling")
    for node_id in cluster.node_ids:
        load.goes_on()
        cluster.restart(node_id)
        until(lambda: place.is_whole("rolling"))
    load.check()


def test_zookeeper_is_killed_and_records_go_on(cluster: EmbeddedCluster, place: Place) -> None:
    place.create("alone")
    load = Load(place.bootstrap, "alone")
    load.goes_on()
    assert cluster.zookeeper is not None
    cluster.zookeeper.kill()
    load.goes_on()
    cluster.start_zookeeper()
    place.create("decided")  # again
    load.goes_on()
    load.check()
    assert place.leaders("alone").keys() == set(range(PARTITIONS))


def test_a_broker_that_hangs_is_killed_and_its_partitions_go_on(tmp_path: Path) -> None:
    """librdkafka waits a minute for its answer where nobody kills it: nothing ends the pause."""
    settings = {"zookeeper.session.timeout.ms": str(SHORT_SESSION_MS)}
    with EmbeddedCluster(tmp_path, overrides=settings, watchdog=True) as cluster:
        place = Place(cluster.bootstrap_servers)
        place.create("hung")
        load = Load(place.bootstrap, "hung")
        load.goes_on()
        victim = next(iter(place.leaders("hung").values()))
        cluster.pause(victim)
        until(lambda: not cluster.is_running(victim))
        assert cluster.exit_code(victim) == -signal.SIGKILL
        load.goes_on()
        cluster.stop(victim)  # what is left of it
        cluster.start(victim)
        until(lambda: place.is_whole("hung"))
        load.check()


def test_an_ensemble_loses_a_server_and_a_broker_is_paused(tmp_path: Path) -> None:
    """The paused broker keeps its connections, so its session has to end before leaders move."""
    brokers: list[EmbeddedBroker] = []
    with Ensemble(tmp_path / "zookeeper", 3) as ensemble:
        try:
            for number in (1, 2, 3):
                settings = replication_defaults(3) | {
                    "zookeeper.connect": ensemble.address, "broker.id": str(number),
                    "zookeeper.session.timeout.ms": str(SHORT_SESSION_MS),
                }  # fmt: skip
                folder = tmp_path / f"broker-{number}"
                brokers.append(EmbeddedBroker(folder, overrides=settings, is_waited_for=False))
            for broker in brokers:
                broker.wait_until_ready()
            place = Place(",".join(broker.bootstrap_servers for broker in brokers))
            place.create("paused")
            load = Load(place.bootstrap, "paused")
            load.goes_on()
            ensemble.leader().kill()
            load.goes_on()
            place.create("decided")  # by the two servers that are left
            victim = place.controller() % 3 + 1
            led = place.leaders("paused")
            brokers[victim - 1].pause()
            load.goes_on(*(p for p, leader in led.items() if leader != victim))
            until(lambda: place.is_led_without(victim, "paused"))
            brokers[victim - 1].go_on()
            until(lambda: place.is_whole("paused"))
            load.goes_on()
            load.check()
        finally:
            for broker in brokers:
                broker.close()
