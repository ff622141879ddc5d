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
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from kafkalite.compaction.runner import LogCleaner
from kafkalite.core.broker.broker import Broker
from kafkalite.core.broker.clock import Clock
from kafkalite.core.cluster import image as images
from kafkalite.core.cluster.image import ClusterImage
from kafkalite.core.cluster.local import JOURNAL, LocalCoordination
from kafkalite.core.cluster.store import ClusterStore
from kafkalite.core.config.listeners import PLAINTEXT, Address, client_listener, parse_address
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.handlers.service import BrokerService
from kafkalite.core.log import checkpoints
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.log.store import LogStore
from kafkalite.core.server.server import Server, ServerLimits
from kafkalite.core.types import Node as NodeAddress
from kafkalite.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from kafkalite.serde.registry_server import RegistryServer

log: Final = logging.getLogger(__name__)

DEFAULT_LISTEN: Final = "127.0.0.1:9092"
DEFAULT_NODE_ID: Final = 1
LONGEST_REQUESTS: Final = 10  # may be under way where queued.max.request.bytes sets no limit
A_FAR_ADDRESS: Final = ("192.0.2.1", 9)  # of a net for documentation; nothing is sent to it


@dataclass(slots=True)
class Node:
    """A running broker. `address` is what clients are told."""

    address: Address
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
            self.broker.logs.close(self.broker.now_ms())
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

    `listen` is HOST:PORT, where port 0 takes a free one; without it the setting `listeners` counts,
    and without that 127.0.0.1:9092. `overrides` are Kafka's settings as text. With `registry`, also
    HOST:PORT, a schema registry and the broker's metrics are served there over HTTP.
    """
    settings = dict(overrides or {})
    if listen is not None:
        settings["listeners"] = listen
    config = BrokerConfig.parse(settings)
    for name in config.ignored:
        log.info("%s is accepted and has no effect", name)
    wanted = _wanted_address(config)
    storage = _open_storage(Path(data_dir))
    server = Server(_limits(config))
    door = None
    try:
        address = _advertised(config, wanted, await _bind(server, wanted))
        if registry is not None:
            door = _registry_at(registry)
        node = await _start(config, address, server, storage)
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
    config: BrokerConfig, address: Address, server: Server, storage: FileStorage
) -> Node:
    coordination = LocalCoordination(storage)
    store = ClusterStore(coordination)
    image = images.replay(ClusterImage(), await store.load())
    logs, now_ms = LogStore(storage), Clock()
    try:
        if not image.cluster_id:
            image = await _found_cluster(store, image, logs, storage)
        node_id = _claim(storage, image.cluster_id, config)
        config = _as_it_is(config, node_id, address, storage)
        broker = Broker(
            node_id=node_id,
            config=config,
            image=image,
            cluster_store=store,
            logs=logs,
            random=Random(os.urandom(32)),
            now_ms=now_ms,
        )
        record = images.broker_record(NodeAddress(node_id, *address), config["broker.rack"])
        await store.append((record,), ephemeral=True)
        await broker.replay((record,))

        def limit(config: BrokerConfig) -> None:
            server.limits = _limits(config)

        broker.watch_config(limit)
        await broker.start()
        cleaner = LogCleaner(broker)
        cleaner.start()
        await server.start(BrokerService(broker))
    except BaseException:
        logs.close(now_ms())  # so that the next start need not take this one for a crash
        raise
    return Node(address, storage.root, broker, server, storage, coordination, cleaner)


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


def _wanted_address(config: BrokerConfig) -> Address:
    """Where to listen."""
    if "listeners" in config.static:
        return _client_listener(config, "listeners")
    return parse_address(DEFAULT_LISTEN)


def _client_listener(config: BrokerConfig, name: str) -> Address:
    protocols = config["listener.security.protocol.map"]
    return client_listener(config[name], protocols, config["controller.listener.names"] or ())


async def _bind(server: Server, wanted: Address) -> Address:
    """Takes the address; ConfigError in one line when it cannot be had."""
    host = wanted.host or "0.0.0.0"
    try:
        return Address(*await server.bind(host, wanted.port))
    except socket.gaierror as error:
        raise ConfigError(f"cannot listen on {wanted}: {error.strerror}") from error
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        why = "the address is in use" if in_use else error.strerror or str(error)
        raise ConfigError(f"cannot listen on {wanted}: {why}") from error


def _advertised(config: BrokerConfig, wanted: Address, bound: Address) -> Address:
    """What clients are told: a numeric address, as a name may resolve to one we do not serve."""
    if config["advertised.listeners"] is not None:
        told = _client_listener(config, "advertised.listeners")
        if told.is_everywhere:
            raise ConfigError(f"advertised.listeners: {told} is no address to connect to")
        return told if told.port else Address(told.host, bound.port)
    if not wanted.is_everywhere:
        return bound
    own = Address(_own_host(), bound.port)
    log.info("listening on %s, clients are told %s (advertised.listeners decides)", bound, own)
    return own


def _own_host() -> str:
    """This machine's address on the way to others; loopback where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(A_FAR_ADDRESS)  # sends nothing
            host: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return host


def _as_it_is(
    config: BrokerConfig, node_id: int, address: Address, storage: FileStorage
) -> BrokerConfig:
    """The settings with what was decided elsewhere, for whoever asks what this broker's are."""
    listener = f"{PLAINTEXT}://{address}"
    decided = {
        "node.id": str(node_id),
        "log.dirs": storage.location,
        "advertised.listeners": listener,
    }
    return BrokerConfig.parse({"listeners": listener, **config.static, **decided})


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
