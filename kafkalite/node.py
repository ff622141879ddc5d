"""The composition root: one broker process, or a broker within a test.                     [IO]

    storage (lock) ── coordination ── cluster store ── image
          └────────── logs ──────────────┬── broker ── server (socket)
                                         │                └── schema registry (HTTP), if wanted
                                         └── log cleaner

Owns   the order of starting and stopping. The socket is bound first, so that an address in use is
       known before a long recovery, and accepts last, when the broker can answer.
Fails  with DataDirectoryInUse, StorageError, or ConfigError naming setting, address or directory.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import logging
import os
import socket
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from kafkalite.compaction.runner import LogCleaner
from kafkalite.core.broker.broker import COMPUTING_THREADS, Broker
from kafkalite.core.broker.clock import Clock
from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.cluster.local import JOURNAL, LocalCoordination
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.core.config.keys import INT_MAX
from kafkalite.core.config.listeners import Address, Listeners, read_listeners
from kafkalite.core.config.security import check_security
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.handlers.service import BrokerService
from kafkalite.core.log import checkpoints
from kafkalite.core.log.port import WAITING_THREADS_MAX
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.log.store import LogStore
from kafkalite.core.server.server import Server, ServerLimits
from kafkalite.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from kafkalite.serde.registry_server import RegistryServer

log: Final = logging.getLogger(__name__)

DEFAULT_LISTEN: Final = "127.0.0.1:9092"
DEFAULT_NODE_ID: Final = 1
LONGEST_REQUESTS: Final = 10  # may be under way where queued.max.request.bytes sets no limit
FAR_ADDRESSES: Final = (  # of nets for documentation; nothing is sent to them
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)
LOOPBACK: Final = "127.0.0.1"


@dataclass(slots=True)
class Node:
    """A running broker. `addresses` are what clients are told, by the listeners' names.

    `address` is that of the listener for brokers, which is the first one unless the settings say
    otherwise; what runs in the broker's process asks there.
    """

    address: Address
    addresses: Mapping[str, Address]
    data_dir: Path
    broker: Broker
    _server: Server
    _storage: FileStorage
    _coordination: LocalCoordination
    _cleaner: LogCleaner
    registry: RegistryServer | None = None

    def gauges(self) -> dict[str, int]:
        """What goes up and down in the broker and beside it, as it is now."""
        return self.broker.gauges() | self._cleaner.gauges()

    async def close(self) -> None:
        """Stops gracefully: answers what was asked, writes what is not on the disk, and says so.

        StorageError when the disk refuses; the next start looks into the logs then.
        """
        if self.registry is not None:
            await asyncio.to_thread(self.registry.close)
        await self._server.close()
        await self._cleaner.close()
        await self.broker.close()
        try:
            self.broker.logs.close(self.broker.monotonic_ms())
        finally:
            await self._coordination.close()
            self._storage.close()


async def start_node(
    data_dir: str | Path,
    listen: str | None = None,
    overrides: Mapping[str, str] | None = None,
    registry: str | None = None,
) -> Node:
    """Starts a broker on this event loop; clients can connect when it returns.

    `listen` takes the place of the setting `listeners`: HOST:PORT, or NAME://HOST:PORT, several
    with commas between them; port 0 takes a free one. Without both it is 127.0.0.1:9092.
    `overrides` are Kafka's settings as text. With `registry`, also HOST:PORT, a schema registry and
    the broker's metrics are served there over HTTP.
    """
    settings = dict(overrides or {})
    if listen is not None:
        settings["listeners"] = listen
    config = BrokerConfig.parse(settings)
    listeners = read_listeners(config, DEFAULT_LISTEN)
    check_security(config.static, listeners.wanted)
    for name in config.ignored:
        log.info("%s is accepted and has no effect", name)
    storage = _open_storage(Path(data_dir))
    server = Server(_limits(config))
    door = None
    try:
        told = await _bind_all(server, listeners)
        if registry is not None:
            door = _registry_at(registry)
        node = await _start(config, listeners, told, server, storage)
    except BaseException:
        server.stop_accepting()
        storage.close()
        if door is not None:
            door.close()
        raise
    if door is not None:
        await _open_registry(node, door)
    return node


def _registry_at(listen: str) -> RegistryServer:
    """A schema registry that has its address. Its libraries are loaded only where it is wanted."""
    from kafkalite.serde.registry_server import RegistryServer

    door = RegistryServer(listen)
    door.bind()
    return door


async def _open_registry(node: Node, door: RegistryServer) -> None:
    """Serves the registry, which asks this very broker: so the loop must go on meanwhile."""
    node.registry, broker = door, node.broker
    try:
        await asyncio.to_thread(
            door.start, str(node.address), broker=broker.metrics, gauges=node.gauges
        )
    except BaseException:
        await node.close()
        raise


async def _start(
    config: BrokerConfig,
    listeners: Listeners,
    told: Mapping[str, Address],
    server: Server,
    storage: FileStorage,
) -> Node:
    coordination = LocalCoordination(storage, in_thread=asyncio.to_thread)
    store = ClusterStore(coordination)
    image = images.replay(ClusterImage(), await store.load())
    logs, clock = LogStore(storage), Clock(time.time_ns, time.monotonic_ns)
    try:
        if not image.cluster_id:
            image = await _found_cluster(store, image, logs, storage)
        node_id = _claim(storage, image.cluster_id, config)
        config = _as_it_is(config, node_id, listeners, told, storage)
        broker = Broker(
            node_id=node_id,
            config=config,
            image=image,
            cluster_store=store,
            logs=logs,
            random=Random(os.urandom(32)),
            clock=clock,
            threads=ThreadPoolExecutor(WAITING_THREADS_MAX, "flush"),
            computing=ThreadPoolExecutor(COMPUTING_THREADS, "compute"),
        )
        record = images.broker_record(node_id, told, config["broker.rack"])
        await store.append((record,), ephemeral=True)
        await broker.replay((record,))

        def limit(config: BrokerConfig) -> None:
            server.limits = _limits(config)

        broker.watch_config(limit)
        await broker.start()
        cleaner = LogCleaner(
            broker,
            # A pool makes a thread when all are busy: log.cleaner.threads bounds them.
            threads=ThreadPoolExecutor(INT_MAX, "log-cleaner"),
            checkpointing=ThreadPoolExecutor(1, "cleaner-checkpoint"),
            random_bytes=os.urandom,
            monotonic=time.monotonic,
        )
        cleaner.start()
        await server.start(BrokerService(broker))
    except BaseException:
        logs.close(
            clock.monotonic_ms()
        )  # so that the next start need not take this one for a crash
        raise
    address = told[listeners.inter_broker]
    return Node(address, told, storage.root, broker, server, storage, coordination, cleaner)


async def _found_cluster(
    store: ClusterStore, image: ClusterImage, logs: LogStore, storage: FileStorage
) -> ClusterImage:
    """Names a new cluster. Partitions without a journal are not taken for an empty one."""
    if logs.unopened():
        raise StorageError(f"{storage.root}: there are partitions, but no {JOURNAL} to tell whose")
    record = images.cluster_record(_new_cluster_id())
    await store.append((record,))
    return images.replay(image, (record,))


# ---- addresses ---------------------------------------------------------------------------------


async def _bind_all(server: Server, listeners: Listeners) -> dict[str, Address]:
    """Takes every listener's address; what its clients are told, where that is anything."""
    told: dict[str, Address] = {}
    for name, wanted in listeners.wanted.items():
        bound = await _bind(server, name, wanted)
        advertised = listeners.advertised.get(name)
        if advertised is not None:
            own = Address(advertised.host or _own_host(), advertised.port or bound.port)
        elif listeners.advertised:
            log.warning(
                "clients of %s://%s learn of no broker: advertised.listeners leaves %s out",
                name, bound, name,
            )  # fmt: skip
            continue
        else:
            own = Address(_own_host(), bound.port) if wanted.is_everywhere else bound
        told[name] = own
        if len(listeners.wanted) > 1 or own != bound:
            words = "listening on %s://%s, clients are told %s (advertised.listeners decides)"
            log.info(words, name, bound, own)
    return told


async def _bind(server: Server, name: str, wanted: Address) -> Address:
    """Takes the address; ConfigError in one line when it cannot be had."""
    try:
        return Address(*await server.bind(wanted.host, wanted.port, name))
    except socket.gaierror as error:
        raise ConfigError(f"cannot listen on {wanted}: {error.strerror}") from error
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        why = "the address is in use" if in_use else error.strerror or str(error)
        raise ConfigError(f"cannot listen on {wanted}: {why}") from error


def _own_host() -> str:
    """This machine's address on the way to others, a numeric one, as a name may resolve to one
    that is not served; loopback where there is no way."""
    for family, far in FAR_ADDRESSES:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # sends nothing
            return str(probe.getsockname()[0])
    return LOOPBACK


def _as_it_is(
    config: BrokerConfig,
    node_id: int,
    listeners: Listeners,
    told: Mapping[str, Address],
    storage: FileStorage,
) -> BrokerConfig:
    """The settings with what was decided elsewhere, for whoever asks what this broker's are."""
    decided = {
        "node.id": str(node_id),
        "log.dirs": storage.location,
        "advertised.listeners": _entries(told),
    }
    wanted = {"listeners": _entries(listeners.wanted)}
    return BrokerConfig.parse({**wanted, **config.static, **decided})


def _entries(addresses: Mapping[str, Address]) -> str:
    return ",".join(f"{name}://{address}" for name, address in addresses.items())


# ---- the parts ---------------------------------------------------------------------------------


def _open_storage(data_dir: Path) -> FileStorage:
    """The data directory, locked."""
    try:
        storage = FileStorage(data_dir)
        storage.lock()
    except OSError as error:
        raise StorageError(f"{data_dir}: {error.strerror or error}") from error
    return storage


def _claim(storage: FileStorage, cluster_id: str, config: BrokerConfig) -> int:
    """Writes whose data directory this is; ConfigError if it is another broker's."""
    known = checkpoints.read_meta_properties(storage)
    wanted = config.node_id if config.node_id >= 0 else int(known.get("node.id", DEFAULT_NODE_ID))
    mine = {"cluster.id": cluster_id, "node.id": str(wanted)}
    for name, value in mine.items():
        if known.get(name, value) != value:
            where = f"{storage.root}/{checkpoints.META_PROPERTIES}"
            raise ConfigError(f"{where}: {name} is {known[name]}, this broker's is {value}")
    if not mine.keys() <= known.keys():
        checkpoints.write_meta_properties(storage, known | mine)
    return wanted


def _new_cluster_id() -> str:
    """A random id in the form of Kafka's: 16 bytes, base64 for URLs."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _limits(config: BrokerConfig) -> ServerLimits:
    queued_bytes = config["queued.max.request.bytes"]
    if queued_bytes < 0:
        queued_bytes = LONGEST_REQUESTS * config["socket.request.max.bytes"]
    return ServerLimits(
        queued_max_request_bytes=queued_bytes,
        socket_request_max_bytes=config["socket.request.max.bytes"],
        max_connections=config["max.connections"],
        max_connections_per_ip=config["max.connections.per.ip"],
        max_connections_per_ip_overrides=_overrides(config["max.connections.per.ip.overrides"]),
        connections_max_idle_ms=config["connections.max.idle.ms"],
        socket_send_buffer_bytes=config["socket.send.buffer.bytes"],
        socket_receive_buffer_bytes=config["socket.receive.buffer.bytes"],
        backlog=config["socket.listen.backlog.size"],
    )


def _overrides(text: str) -> dict[str, int]:
    """`127.0.0.1:5,::1:7` as a mapping."""
    pairs = (pair.rpartition(":") for pair in text.split(",") if pair)
    return {host.strip().strip("[]"): int(number) for host, _, number in pairs}
