"""A simulated cluster: brokers, their disks, the network, and clients, from one seed.        [IO]

    with SimulatedCluster(seed, brokers=3) as cluster:
        cluster.start_all()
        host = cluster.host("client")
        host.spawn(program(cluster.client(1)))
        cluster.kill(1)
        cluster.pass_seconds(3)
        cluster.start(1)

One seed is one history: the same programs leave the same trace, whatever the hash seed of Python. A
test that fails within `with` prints the line that replays it.

Brokers are called "broker-1", "broker-2" …, which is their address too; each keeps its disk through
kills and crashes. Each is a cluster of its own, unless `coordination`, which makes the
`Coordination` of a host, gives them a shared state: `ReplicatedCluster` has a fake of ZooKeeper.

Owns   the brokers' disks, and which brokers should run.
Never  takes chance or time from the machine.
Fails  with the error of a broker that does not start; `defects` has what no program handled.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kafkalite.clients.cluster import Client
from kafkalite.core.broker.clock import Clock
from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.coordination import Coordination
from kafkalite.core.cluster.image import ClusterImage, ClusterRecord
from kafkalite.core.cluster.tree import Changes
from kafkalite.core.log.port import Storage
from kafkalite.core.protocol.records import batches
from kafkalite.core.types import TopicPartition
from kafkalite.errors import StorageError
from kafkalite.node import Node, start_node
from kafkalite.testing.checkers import Replica
from kafkalite.testing.coordination import CoordinationServer
from kafkalite.testing.event_loop import NS
from kafkalite.testing.simulation import Host, World
from kafkalite.testing.storage import MemoryStorage, PowerLoss

R = TypeVar("R")
MakeCoordination = Callable[[Host, Storage], Coordination]

SEEDS: Final = "KAFKALITE_SEEDS"  # FIRST:LAST, which tests are to run
PORT: Final = 9092
START_SECONDS_MAX: Final = 600
READ_BYTES: Final = 1 << 30
SETTINGS: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "log.flush.interval.messages": "1",  # what is acknowledged is on the disk
    "log.segment.bytes": "20000",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}


SESSION_TIMEOUT_MS: Final = 6_000
REPLICATED: Final[Mapping[str, str]] = {
    "log.flush.interval.messages": str((1 << 63) - 1),  # the replicas are what makes it safe
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "10000",
}


@dataclass(slots=True)
class SimulatedBroker:
    """One broker: its disk, and the process that runs on it now, if any."""

    node_id: int
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    host: Host | None = None
    starting: asyncio.Task[Node] | None = None
    stopping: asyncio.Task[None] | None = None
    clock_is_ahead_ns: int = 0  # its machine's wall clock, of the others'

    @property
    def name(self) -> str:
        """Its host's name."""
        return f"broker-{self.node_id}"

    @property
    def address(self) -> str:
        """Where its clients find it."""
        return f"{self.name}:{PORT}"

    @property
    def is_running(self) -> bool:
        """Whether there is a process, paused or not."""
        return self.host is not None

    @property
    def node(self) -> Node | None:
        """The started broker; None before and after."""
        starting = self.starting
        if starting is None or not starting.done() or starting.exception() is not None:
            return None
        return starting.result()


class SimulatedCluster:
    """Brokers and clients in one world, all of whose chance comes from `seed`."""

    def __init__(
        self,
        seed: int,
        brokers: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        coordination: MakeCoordination | None = None,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        self.seed = seed
        self.random = self.chance("faults")
        self.world = World(self.chance("network"))
        self.brokers = {node_id: SimulatedBroker(node_id) for node_id in range(1, brokers + 1)}
        self.defects: list[str] = []
        self.racks = racks or {}  # by broker
        self._settings = {**SETTINGS, **(settings or {})}
        self._coordination = coordination
        self._chances = {name: self.chance(name) for name in ("brokers", "clients", "disks")}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.world.__exit__(kind, error, trace)
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self.say_replay_line()

    def chance(self, purpose: str) -> Random:
        """Chance for one purpose, which others do not use up."""
        return Random(f"{self.seed}/{purpose}")

    def say_replay_line(self) -> None:
        """Tells whoever looks at a failure how to see it again."""
        print(f"\nreplay: {self.replay_line()}", file=sys.stderr)

    def replay_line(self) -> str:
        """A command, or code outside of tests, that runs this history again."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        if test:
            seeds = f"{SEEDS}={self.seed}:{self.seed + 1} " if SEEDS in os.environ else ""
            return f"{seeds}python -m pytest '{test}'"
        return f"SimulatedCluster(seed={self.seed}, brokers={len(self.brokers)})"

    # ---- the world -----------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """A digest of all that happened: equal for equal histories."""
        return self.world.network.trace.digest

    def note(self, what: str) -> None:
        """Writes into the trace what the test does."""
        self.world.network.events.note(what)

    @property
    def seconds(self) -> float:
        """The time since the world began."""
        return self.world.seconds

    def pass_seconds(self, seconds: float) -> None:
        """Lets everybody go on for a while."""
        self.world.pass_seconds(seconds)

    def run(self, until: Callable[[], bool], within_seconds: float) -> None:
        """Lets everybody go on until something is so; Stuck if it does not come in time."""
        self.world.run(until, within_seconds)

    def host(self, name: str) -> Host:
        """A host for clients."""
        host = self.world.host(name)
        host.loop.set_exception_handler(self._unhandled)
        return host

    def result(self, host: Host, program: Coroutine[Any, Any, R], within_seconds: float = 60) -> R:
        """The result of a program of `host`."""
        return self.world.result(host, program, within_seconds)

    def client(self, *node_ids: int, **options: Any) -> Client:
        """A client of some brokers, of all of them by default, for a program of any host."""
        found = [self.brokers[node_id].address for node_id in node_ids or self.brokers]
        return Client(found, ports=self.world.client_ports(self._chances["clients"]), **options)

    # ---- brokers -------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        """Begins to start a broker on its disk."""
        broker = self.brokers[node_id]
        assert not broker.is_running, f"{broker.name} runs already"
        self.note(f"start {broker.name}")
        broker.host = host = self.host(broker.name)
        chance, storage, clocks = self._chances["brokers"], broker.storage, self.world.time
        ports = replace(
            self.world.ports(chance, storage),
            clock=lambda: Clock(
                lambda: clocks.time_ns() + broker.clock_is_ahead_ns, clocks.monotonic_ns
            ),
        )
        if self._coordination is not None:
            make = self._coordination
            ports = replace(ports, coordination=lambda held: make(host, held), shares_cluster=True)
        settings = {"node.id": str(node_id), **self._settings}
        if node_id in self.racks:
            settings["broker.rack"] = self.racks[node_id]
        broker.starting = host.spawn(
            start_node(Path(f"/{broker.name}"), broker.address, settings, ports=ports)
        )

    def wait_for(self, *node_ids: int) -> None:
        """Lets time pass until these brokers, all by default, have started."""
        for node_id in node_ids or self.brokers:
            starting = self.brokers[node_id].starting
            if starting is not None:
                self.run(starting.done, START_SECONDS_MAX)
                starting.result()

    def start_all(self) -> None:
        """Starts the brokers that do not run, and waits for all."""
        for broker in self.brokers.values():
            if not broker.is_running:
                self.start(broker.node_id)
        self.wait_for()

    def stop(self, node_id: int) -> None:
        """A graceful stop, as by SIGTERM."""
        broker = self.brokers[node_id]
        self.note(f"stop {broker.name}")
        node, host = broker.node, self._host(node_id)
        assert node is not None, f"{broker.name} has not started"
        self.result(host, node.close(), START_SECONDS_MAX)
        self._let_go(broker, broker.storage.after_kill())
        host.kill()

    def begin_stop(self, node_id: int) -> None:
        """SIGTERM, to a broker that has started: `end_stop` follows, or `kill`."""
        node, host = self.brokers[node_id].node, self._host(node_id)
        assert node is not None, f"broker-{node_id} has not started"
        self.note(f"stop broker-{node_id}")
        self.brokers[node_id].stopping = host.spawn(node.close())

    def end_stop(self, node_id: int) -> bool:
        """Whether the process has ended, which then does not run any more."""
        broker = self.brokers[node_id]
        assert broker.stopping is not None, f"{broker.name} has no order to stop"
        if not broker.stopping.done():
            return False
        with suppress(StorageError):  # a disk that was full: the next start looks into the logs
            broker.stopping.result()
        self._host(node_id).kill()
        self._let_go(broker, broker.storage.after_kill())
        return True

    def kill(self, node_id: int) -> None:
        """SIGKILL: its connections break, its disk is as it was."""
        broker = self.brokers[node_id]
        self.note(f"kill {broker.name}")
        if broker.host is not None:
            broker.host.kill()
        self._let_go(broker, broker.storage.after_kill())

    def crash(self, node_id: int) -> None:
        """Its machine loses power: nobody hears of it, and the disk keeps what was synced."""
        broker = self.brokers[node_id]
        self.note(f"crash {broker.name}")
        if broker.host is not None:
            broker.host.crash()
        self._let_go(broker, broker.storage.after_crash(self._chances["disks"]))

    def crash_within(self, node_id: int, changes: int) -> None:
        """Its machine loses power in the midst of one of the next `changes` of its disk, which the
        brokers' own work brings about; after a minute without enough of them, then."""
        chance, broker = self._chances["disks"], self.brokers[node_id]
        broker.storage.crash_after(chance.randint(1, changes), share=chance.random())
        until = self.seconds + 60
        self.run(lambda: broker.storage.is_without_power or self.seconds >= until, 62)
        self.crash(node_id)

    def lose_disk(self, node_id: int) -> None:
        """The broker, which does not run, comes back with an empty disk."""
        broker = self.brokers[node_id]
        assert not broker.is_running, f"{broker.name} runs"
        self.note(f"{broker.name} loses its disk")
        broker.storage = MemoryStorage()

    def set_clock(self, node_id: int, seconds: float) -> None:
        """Sets the wall clock of a broker's machine, so far ahead of the others' or behind."""
        self.note(f"broker-{node_id}'s clock is set to {seconds:+.3f} s")
        self.brokers[node_id].clock_is_ahead_ns = round(seconds * NS)

    def pause(self, node_id: int) -> None:
        """SIGSTOP: its machine accepts connections, and nothing answers."""
        self._host(node_id).pause()
        self.note(f"pause broker-{node_id}")

    def go_on(self, node_id: int) -> None:
        """SIGCONT."""
        self._host(node_id).go_on()
        self.note(f"go on broker-{node_id}")

    # ---- the network ---------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All hosts' names."""
        return list(dict.fromkeys(host.name for host in self.world.hosts))

    def isolate(self, node_id: int, *, from_clients: bool = True, loses: bool = False) -> None:
        """Cuts a broker off from the others, and from clients unless told otherwise."""
        brokers = [broker.name for broker in self.brokers.values()]
        others = self.names() if from_clients else brokers
        self.note(f"isolate broker-{node_id}")
        self.world.network.isolate(self.brokers[node_id].name, others, loses=loses)

    def heal(self) -> None:
        """Every cut ends."""
        self.note("heal")
        self.world.network.heal()

    # ---- what brokers hold ---------------------------------------------------------------------

    def replicas(self, topic: str) -> list[Replica]:
        """What the started brokers hold of a topic's partitions: batches by their base offset."""
        found = []
        for broker in self.brokers.values():
            node = broker.node
            for partition in () if node is None else node.broker.partitions.of_topic(topic):
                log, held = partition.log, dict[int, tuple[int, bytes]]()
                place = TopicPartition(topic, partition.topic_partition.partition)
                start = log.log_start_offset
                while records := log.read(start, READ_BYTES, log.log_end_offset):  # of a segment
                    data = bytes(records.read())
                    for position, header in batches(data):
                        end = position + 12 + header.batch_length
                        held[header.base_offset] = header.partition_leader_epoch, data[position:end]
                    start = header.next_offset
                ends = log.log_start_offset, log.high_watermark
                found.append(Replica(broker.node_id, place, *ends, held))
        return found

    # ---- parts ---------------------------------------------------------------------------------

    def _host(self, node_id: int) -> Host:
        host = self.brokers[node_id].host
        assert host is not None, f"broker-{node_id} does not run"
        return host

    def _let_go(self, broker: SimulatedBroker, storage: MemoryStorage) -> None:
        broker.storage, broker.host = storage, None
        broker.starting = broker.stopping = None

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, PowerLoss):
            self.defects.append(f"{context.get('message')}: {error!r}")


class ReplicatedCluster(SimulatedCluster):
    """Brokers of one cluster, and the fake of ZooKeeper that they share."""

    def __init__(
        self,
        seed: int,
        brokers: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(
            seed,
            brokers,
            settings={**REPLICATED, **(settings or {})},
            coordination=lambda host, _: self.server.client(
                host.name, host.loop, session_timeout_ms=session_timeout_ms
            ),
            racks=racks,
        )
        self.written: list[Callable[[Changes], None]] = []  # called for changes of the tree
        self.server = CoordinationServer(
            self.host("zookeeper").loop,
            self.chance("zookeeper"),
            note=self.note,
            written=self._on_written,
        )

    def _on_written(self, changes: Changes) -> None:
        for each in self.written:
            each(changes)

    def truth(self) -> ClusterImage:
        """The cluster as the controllers have written it."""
        entries = self.server.tree.entries
        found: list[str] = [path for path in images.VALUES if path in entries]
        for root in images.ROOTS:
            found += [path for path in entries if path.startswith(f"{root}/")]
        in_order = sorted(found, key=lambda path: path.count("/"))
        records = (ClusterRecord(path, entries[path].value) for path in in_order)
        return images.replay(ClusterImage(), (record for record in records if record.value))

    def image(self, node_id: int) -> ClusterImage:
        """The cluster as a broker sees it."""
        node = self.brokers[node_id].node
        assert node is not None, f"broker {node_id} has not started"
        return node.broker.image

    def epoch(self, node_id: int) -> int:
        """Of the broker, as itself has it; -1 while it is in no image of its own."""
        own = self.image(node_id).brokers.get(node_id)
        return -1 if own is None else own.epoch

    def running(self) -> list[int]:
        """The brokers that have started."""
        return [node_id for node_id, broker in self.brokers.items() if broker.node is not None]

    def controllers(self) -> set[int]:
        """Whom the brokers take for the controller."""
        nodes = (self.brokers[node_id].node for node_id in self.running())
        return {node.broker.controller_id for node in nodes if node is not None}

    def controller(self) -> int:
        """The broker that all take for the controller, once they agree."""
        self.run(lambda: len(self.controllers()) == 1 and -1 not in self.controllers(), 60)
        (found,) = self.controllers()
        return found

    def agree(self, within_seconds: float = 60) -> ClusterImage:
        """Waits until the running brokers have one image, which names exactly them."""

        def is_so() -> bool:
            found = [self.image(node_id) for node_id in self.running()]
            return all(
                image == found[0] and {*image.brokers} == {*self.running()} for image in found
            )

        self.run(is_so, within_seconds)
        return self.image(self.running()[0])
