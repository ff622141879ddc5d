"""A cluster as child processes: brokers, and a ZooKeeper of their own.                     [IO]

    with EmbeddedCluster("kafkalite-cluster", brokers=3) as cluster:
        Producer(cluster.bootstrap_servers)
        cluster.kill(2)
        cluster.start(2)

    DIR/.lock         the process that holds the directory
    DIR/zookeeper     what the cluster knows: topics, leaders, in-sync sets
    DIR/broker-N      the log of broker N

Every child holds the reading end of a pipe whose writing end is in this process. When this process
ends, however it ends, the pipes close and all children stop.

Owns   the child processes and the lock of the directory; the ports, which brokers keep.
Fails  with DataDirectoryInUse naming the process that holds the directory, BrokerUnavailable or
       CoordinationUnavailable when a child does not come up, ConfigError for a setting that the
       cluster makes itself.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final

from kafkalite.embedded import READY_SECONDS_MAX, EmbeddedBroker
from kafkalite.embedded_zookeeper import ZooKeeper
from kafkalite.errors import BrokerUnavailable, ConfigError, DataDirectoryInUse, StorageError

BROKERS: Final = 3
REPLICAS: Final = 3  # of topics that do not ask for another number, where there are so many brokers
LISTEN: Final = "127.0.0.1:0"
LOCK_NAME: Final = ".lock"
LISTENERS: Final = "listeners"
OUR_SETTINGS: Final = ("zookeeper.connect", "broker.id", "node.id", "broker.rack", LISTENERS)
OnLog = Callable[[str, str], None]


def replication_defaults(brokers: int) -> dict[str, str]:
    """Settings with which the cluster goes on, and loses nothing, while one broker is away; of two
    brokers either keeps a copy, and one alone takes records."""
    replicas = min(REPLICAS, brokers)
    quorum = max(1, replicas - 1)
    return {
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(quorum),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(quorum),
        # The last broker of a cluster that stops has nobody to hand its partitions to.
        "controlled.shutdown.retry.backoff.ms": "500",
    }


class EmbeddedCluster:
    """Brokers 1, 2, … of our own. All are up when the constructor returns.

        from kafkalite import EmbeddedCluster

        with EmbeddedCluster("kafkalite-cluster", racks=["a", "a", "b"]) as cluster:
            print(cluster.bootstrap_servers)    # 127.0.0.1:40223,127.0.0.1:39817,127.0.0.1:44105
            cluster.kill(2)                     # as `kill -9` does
            cluster.start(2)

    The logs are in the folder, and are there again next time. Topics have three replicas, and
    records acknowledged with acks=all are on two brokers at least, unless `overrides` (Kafka's
    settings, for all brokers) say otherwise. `listen` is HOST:PORT of the first broker, the others
    take the ports after it; with port 0 each takes a free one. `each` has settings of broker 1,
    2, … alone, which may be `listeners`, with ports that are not 0. Needs Java and
    `pip install 'kafkalite[cluster]' pyspark`. With `watchdog` a broker is killed once it has been
    silent for its session, `zookeeper.session.timeout.ms`. `on_log` gets each line that a broker
    logs, and the broker's name before it.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        brokers: int = BROKERS,
        listen: str = LISTEN,
        racks: Sequence[str | None] = (),
        overrides: Mapping[str, str] | None = None,
        each: Sequence[Mapping[str, str]] = (),
        watchdog: bool = False,
        ready_seconds_max: float = READY_SECONDS_MAX,
        on_log: OnLog | None = None,
    ) -> None:
        self.data_dir = Path(data_dir)
        self._settings = replication_defaults(brokers) | dict(overrides or {})
        self._racks, self._watchdog = dict(enumerate(racks, 1)), watchdog
        self._settings_of = dict(enumerate(each, 1))
        self._ready_seconds_max, self._on_log = ready_seconds_max, on_log
        self._check(brokers)
        self._listen = _addresses(listen, brokers)
        self._brokers: dict[int, EmbeddedBroker] = {}
        self._lock = _lock(self.data_dir)
        self._turn, self._is_closing = threading.Lock(), False  # for the start of a child
        self.zookeeper: ZooKeeper | None = None
        try:
            self.zookeeper = self._new_zookeeper()
            self._start_all()
        except BaseException:
            self.close()
            raise

    def _check(self, brokers: int) -> None:
        if brokers < 1:
            raise ConfigError(f"a cluster of {brokers} brokers: give 1 or more")
        if len(self._racks) > brokers:
            raise ConfigError(f"{len(self._racks)} racks for {brokers} brokers: one each at most")
        if len(self._settings_of) > brokers:
            words = f"settings of {len(self._settings_of)} brokers, and there are {brokers}"
            raise ConfigError(f"{words}: one each at most")
        given = set().union(*self._settings_of.values()) - {LISTENERS} | self._settings.keys()
        for name in OUR_SETTINGS:
            if name in given:
                words = f"{name} cannot be set here: each broker of the cluster has its own"
                raise ConfigError(words, setting=name)

    @property
    def bootstrap_servers(self) -> str:
        """For any Kafka client: the addresses of all brokers, also of those that are down now."""
        return ",".join(self._listen[number] for number in self.node_ids)

    @property
    def node_ids(self) -> tuple[int, ...]:
        """The ids of the brokers."""
        return tuple(sorted(self._listen))

    def address(self, node_id: int) -> str:
        """A broker's address, which it keeps."""
        return self._listen[self._known(node_id)]

    def pid(self, node_id: int) -> int:
        """A broker's process id."""
        return self._running(node_id).pid

    def is_running(self, node_id: int) -> bool:
        """Whether a broker's process lives."""
        broker = self._brokers.get(self._known(node_id))
        return broker is not None and broker.exit_code is None

    def exit_code(self, node_id: int) -> int | None:
        """The code with which a broker ended by itself; None while it runs, or was stopped."""
        broker = self._brokers.get(self._known(node_id))
        return None if broker is None else broker.exit_code

    def start(self, node_id: int) -> None:
        """Starts a broker that is down, at its address. It is up when this returns."""
        self._wait_for(self._spawn(node_id), node_id)

    def stop(self, node_id: int) -> None:
        """Stops a broker gracefully: others lead its partitions before it ends."""
        broker = self._brokers.pop(self._known(node_id), None)
        if broker is not None:
            broker.close()

    def restart(self, node_id: int) -> None:
        """Stops a broker gracefully and starts it again."""
        self.stop(node_id)
        self.start(node_id)

    def kill(self, node_id: int) -> None:
        """Ends a broker at once, as SIGKILL does."""
        self._running(node_id).kill()
        del self._brokers[node_id]

    def start_zookeeper(self) -> None:
        """Starts ZooKeeper again, at its address, after it died or was killed."""
        assert self.zookeeper is not None
        with self._turn:
            self._check_open()
            self.zookeeper.close()  # what is left of the dead one
            self.zookeeper.start(is_waited_for=False)
        self.zookeeper.wait_until_serving()

    def pause(self, node_id: int) -> None:
        """Stops a broker as SIGSTOP does: its connections stay, and it answers nobody."""
        self._running(node_id).pause()

    def go_on(self, node_id: int) -> None:
        """Ends a pause."""
        self._running(node_id).go_on()

    def close(self) -> None:
        """Stops the brokers one after the other, then ZooKeeper; none starts again."""
        with self._turn:
            self._is_closing = True
        try:
            for node_id in self.node_ids:
                self.stop(node_id)
        finally:
            if self.zookeeper is not None:
                self.zookeeper.close()
            if self._lock >= 0:
                os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> EmbeddedCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start_all(self) -> None:
        spawned = {node_id: self._spawn(node_id) for node_id in self.node_ids}
        threads = ThreadPoolExecutor(len(spawned))
        try:
            for done in [threads.submit(self._wait_for, b, n) for n, b in spawned.items()]:
                done.result()
        finally:
            threads.shutdown(wait=False)  # after an error the brokers are stopped: nobody waits

    def _spawn(self, node_id: int) -> EmbeddedBroker:
        with self._turn:
            self._check_open()
            if self.is_running(node_id):
                raise ConfigError(f"broker {node_id} of {self.data_dir} runs already")
            broker = self._brokers[node_id] = self._new(node_id)
        return broker

    def _new_zookeeper(self) -> ZooKeeper:
        return ZooKeeper(self.data_dir / "zookeeper")

    def _new(self, node_id: int) -> EmbeddedBroker:
        assert self.zookeeper is not None
        settings = dict(self._settings_of.get(node_id, {}))
        listen = settings.pop(LISTENERS, self._listen[node_id])
        settings |= {"zookeeper.connect": self.zookeeper.address, "broker.id": str(node_id)}
        if rack := self._racks.get(node_id):
            settings["broker.rack"] = rack
        on_log, name = self._on_log, f"broker {node_id}"
        return EmbeddedBroker(
            self.data_dir / f"broker-{node_id}",
            listen=listen,
            overrides=self._settings | settings,
            watchdog=self._watchdog,
            is_waited_for=False,
            on_log=None if on_log is None else lambda line: on_log(name, line),
        )

    def _wait_for(self, broker: EmbeddedBroker, node_id: int) -> None:
        try:
            broker.wait_until_ready(self._ready_seconds_max)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"broker {node_id}: {error}") from error
        self._listen[node_id] = broker.bootstrap_servers

    def _check_open(self) -> None:
        if self._is_closing:
            raise ConfigError(f"the cluster in {self.data_dir} stops")

    def _known(self, node_id: int) -> int:
        if node_id not in self._listen:
            raise ConfigError(f"no broker {node_id}: the cluster has {_listed(self.node_ids)}")
        return node_id

    def _running(self, node_id: int) -> EmbeddedBroker:
        if not self.is_running(node_id):
            raise ConfigError(f"broker {node_id} of {self.data_dir} is down")
        return self._brokers[node_id]


def _listed(node_ids: Sequence[int]) -> str:
    return ", ".join(map(str, node_ids))


def _addresses(listen: str, brokers: int) -> dict[int, str]:
    """Where each broker listens at first."""
    host, colon, port = listen.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) + brokers <= 65_536):
        raise ConfigError(f"'{listen}' is not HOST:PORT with {brokers} ports from there on")
    first = int(port)
    return {n: f"{host}:{first + n - 1 if first else 0}" for n in range(1, brokers + 1)}


def _lock(folder: Path) -> int:
    """The descriptor that holds the directory for this process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror or error}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(held, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(held)
        words = f"{folder}: in use by process {pid}, one cluster at a time may use it"
        raise DataDirectoryInUse(words) from None
    os.ftruncate(held, 0)
    os.pwrite(held, b"%d\n" % os.getpid(), 0)
    return held
