"""The composition root: one broker process, or a broker within a test.                     [IO]

    storage (lock) ── coordination ── the cluster it belongs to
          └────────── logs ──────────────┬── broker ── server (sockets)
                                         │      │        └── schema registry (HTTP), if wanted
                                         │      └── monitor (HTTP: metrics, health), if wanted
                                         └── log cleaner

Owns   the order of starting and stopping. The socket is bound first, so that an address in use is
       known before a long recovery, and accepts last, when the broker can answer. It refuses peers
       before the broker enters the cluster and lets them wait from then on, because others hear of
       the broker there, and may name it as a leader.
Fails  with DataDirectoryInUse, StorageError, or ConfigError naming setting, address or directory.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from kafkalite.belonging import Belonging, home_of
from kafkalite.compaction.runner import LogCleaner
from kafkalite.core.broker.broker import COMPUTING_THREADS, Broker
from kafkalite.core.cluster.coordination import Coordination
from kafkalite.core.config.keys import INT_MAX
from kafkalite.core.config.listeners import Address, Listeners, parse_address, read_listeners
from kafkalite.core.config.security import check_security
from kafkalite.core.config.settings import BrokerConfig
from kafkalite.core.handlers.service import BrokerService
from kafkalite.core.log.port import WAITING_THREADS_MAX, Storage
from kafkalite.core.log.store import LogStore
from kafkalite.core.server.limits import ServerLimits
from kafkalite.core.server.server import Server
from kafkalite.errors import ConfigError, StorageError
from kafkalite.ports import MACHINE, HeldStorage, Ports, with_zookeeper

if TYPE_CHECKING:
    from kafkalite.monitoring.monitor import Monitor
    from kafkalite.serde.registry_server import RegistryServer

log: Final = logging.getLogger(__name__)

DEFAULT_LISTEN: Final = "127.0.0.1:9092"
DEFAULT_NODE_ID: Final = 1
LONGEST_REQUESTS: Final = 10  # may be under way where queued.max.request.bytes sets no limit
HTTP_BACKLOG: Final = 128
HTTP_STOP_SECONDS: Final = 5.0


@dataclass(slots=True)
class Node:
    """A running broker. `addresses` are the advertised ones, by the listeners' names.

    `address` is that of the listener for brokers, which is the first one unless the settings say
    otherwise; what runs in the broker's process asks there.
    """

    address: Address
    addresses: Mapping[str, Address]
    data_dir: Path
    broker: Broker
    _server: Server
    _storage: HeldStorage
    _coordination: Coordination
    _cleaner: LogCleaner
    _monitor: Monitor | None = None
    registry: RegistryServer | None = None
    http: HttpDoor | None = None

    def gauges(self) -> dict[str, int]:
        """The current values of all gauges in the broker's process."""
        return self.broker.gauges() | self._cleaner.gauges()

    async def close(self) -> None:
        """Stops gracefully: answers what was asked, writes what is not on the disk, and says so.

        StorageError when the disk refuses; the next start looks into the logs then.
        """
        if self._monitor is not None:
            self._monitor.stopping()
        try:
            if self.registry is not None:
                await asyncio.to_thread(self.registry.close)
            await self._close_broker()
        finally:
            if self.http is not None:
                await asyncio.to_thread(self.http.close)

    async def _close_broker(self) -> None:
        await self.broker.steering.leave()
        await self._server.close()
        await self._cleaner.close()
        await self.broker.close()
        try:
            is_settled = self.broker.steering.is_start_settled
            self.broker.logs.close(self.broker.monotonic_ms(), as_clean=is_settled)
        finally:
            await self._coordination.close()
            self._storage.close()


async def start_node(
    data_dir: str | Path,
    listen: str | None = None,
    overrides: Mapping[str, str] | None = None,
    registry: str | None = None,
    http: str | None = None,
    ports: Ports = MACHINE,
) -> Node:
    """Starts a broker on this event loop; clients can connect when it returns.

    `listen` takes the place of the setting `listeners`: HOST:PORT, or NAME://HOST:PORT, several
    with commas between them; port 0 takes a free one. Without both it is 127.0.0.1:9092.
    `overrides` are Kafka's settings as text. With `registry`, also HOST:PORT, a schema registry is
    served there over HTTP, and the broker's /metrics and /health; with `http` these two alone.
    `ports` is the world that the broker lives in.
    """
    settings = dict(overrides or {})
    if listen is not None:
        settings["listeners"] = listen
    config = BrokerConfig.parse(settings)
    if address := config["zookeeper.connect"]:
        session_ms = config["zookeeper.session.timeout.ms"]
        wait_ms = config["zookeeper.connection.timeout.ms"]
        ports = with_zookeeper(address, session_ms, ports, wait_ms)
    listeners = read_listeners(config, DEFAULT_LISTEN)
    check_security(config.static, listeners.wanted)
    for name in config.ignored:
        log.info("%s is accepted and has no effect", name)
    data_dir = Path(data_dir)
    storage = _open_storage(ports, data_dir)
    network = ports.network()
    server = Server(_limits(config), ports.precise_seconds, network)
    beside = _Beside()
    try:
        told = await _bind_all(server, listeners, network.own_host)
        beside.bind(registry, http)
        node = await _start(config, listeners, told, server, storage, ports, data_dir)
    except BaseException:
        server.stop_accepting()
        storage.close()
        beside.close()
        raise
    await beside.open(node)
    return node


class HttpDoor:
    """`/metrics` and `/health` at an address of their own, in a thread.

    Its libraries are loaded only where it is wanted.
    """

    def __init__(self, listen: str, monitor: Monitor) -> None:
        from kafkalite.monitoring.server import MonitorServer

        self._socket = _listening(parse_address(listen))
        self.url = f"http://{Address(*self._socket.getsockname()[:2])}"
        self._server = MonitorServer(monitor)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="kafkalite-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answers what was asked, and takes no more."""
        self._server.stop()
        self._thread.join(HTTP_STOP_SECONDS)
        self._socket.close()


class _Beside:
    """HTTP servers beside a broker: bound before it starts, open once it is ready."""

    def __init__(self) -> None:
        self._monitor: Monitor | None = None
        self._registry: RegistryServer | None = None
        self._http: HttpDoor | None = None

    def bind(self, registry: str | None, http: str | None) -> None:
        """Takes the addresses; health is told from now on. ConfigError where that cannot be."""
        if registry is None and http is None:
            return
        if registry is not None:
            from kafkalite.serde.registry_server import RegistryServer

            self._registry = RegistryServer(registry)
            self._registry.bind()
        try:
            from kafkalite.monitoring.monitor import Monitor

            self._monitor = Monitor(asyncio.get_running_loop())
            if http is not None:
                self._http = HttpDoor(http, self._monitor)
        except ModuleNotFoundError as error:
            words = f"--http needs {error.name}: pip install 'kafkalite[registry]'"
            raise ConfigError(words) from error

    async def open(self, node: Node) -> None:
        """Clients can connect to `node`. The registry asks this very broker: so the loop must go
        on meanwhile."""
        node.http, node._monitor = self._http, self._monitor
        if self._monitor is not None:
            self._monitor.ready(node.broker, node.gauges)
        if self._registry is not None:
            node.registry = self._registry
            start = partial(self._registry.start, str(node.address), beside=self._monitor)
            try:
                await asyncio.to_thread(start)
            except BaseException:
                await node.close()
                raise

    def close(self) -> None:
        """Gives the addresses back: the broker did not start."""
        if self._registry is not None:
            self._registry.close()
        if self._http is not None:
            self._http.close()


def _report(message: str) -> None:
    """Tells the operator what was found damaged in the data directory."""
    log.warning("%s", message)


async def _start(
    config: BrokerConfig,
    listeners: Listeners,
    told: Mapping[str, Address],
    server: Server,
    storage: HeldStorage,
    ports: Ports,
    data_dir: Path,
) -> Node:
    logs, clock = LogStore(storage, report=_report), ports.clock()
    # The next start need not take this one for a crash. But if this one follows a crash, the next
    # one has to say so: no controller has heard of it yet.
    as_clean = logs.was_clean_shutdown or not ports.shares_cluster
    async with AsyncExitStack() as undo:
        undo.callback(lambda: logs.close(clock.monotonic_ms(), as_clean=as_clean))
        cluster = await Belonging.find(storage, logs, ports)
        undo.push_async_callback(cluster.coordination.close)
        node_id = await cluster.claim(storage, config)
        config = _as_it_is(config, node_id, listeners, told, storage)
        home = home_of(told, listeners.inter_broker, config, logs)
        broker = Broker(
            node_id=node_id,
            config=config,
            image=cluster.first_image(node_id),
            steer=lambda broker: cluster.steer(broker, home),
            logs=logs,
            random=Random(ports.random_bytes(32)),
            clock=clock,
            threads=ports.executor(WAITING_THREADS_MAX, "flush"),
            computing=ports.executor(COMPUTING_THREADS, "compute"),
        )
        undo.push_async_callback(broker.close)

        def limit(config: BrokerConfig) -> None:
            server.limits = _limits(config)

        broker.watch_config(limit)
        await broker.start()
        cleaner = LogCleaner(
            broker,
            # A pool makes a thread when all are busy: log.cleaner.threads bounds them.
            threads=ports.executor(INT_MAX, "log-cleaner"),
            checkpointing=ports.executor(1, "cleaner-checkpoint"),
            random_bytes=ports.random_bytes,
            monotonic=ports.seconds,
        )
        cleaner.start()
        undo.push_async_callback(cleaner.close)
        server.open()
        await cluster.enter(broker, home)
        await server.start(BrokerService(broker))
        undo.pop_all()  # it runs: all of that is closed at its stop
    address = told[listeners.inter_broker]
    return Node(address, told, data_dir, broker, server, storage, cluster.coordination, cleaner)


# ---- addresses ---------------------------------------------------------------------------------


async def _bind_all(
    server: Server, listeners: Listeners, own_host: Callable[[], str]
) -> dict[str, Address]:
    """Takes every listener's address; what its clients are told, where that is anything."""
    told: dict[str, Address] = {}
    for name, wanted in listeners.wanted.items():
        bound = await _bind(server, name, wanted)
        advertised = listeners.advertised.get(name)
        if advertised is not None:
            own = Address(advertised.host or own_host(), advertised.port or bound.port)
        elif listeners.advertised:
            log.warning(
                "clients of %s://%s learn of no broker: advertised.listeners leaves %s out",
                name, bound, name,
            )  # fmt: skip
            continue
        else:
            own = Address(own_host(), bound.port) if wanted.is_everywhere else bound
        told[name] = own
        if len(listeners.wanted) > 1 or own != bound:
            words = "listening on %s://%s, advertised to clients as %s (see advertised.listeners)"
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
        why = error.strerror or str(error)
        if in_use:
            why = "the address is in use, port 0 takes a free one"
        raise ConfigError(f"cannot listen on {wanted}: {why}") from error


def _listening(wanted: Address) -> socket.socket:
    """A socket for HTTP; ConfigError in one line when the address cannot be had."""
    host = wanted.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, wanted.port), family=family, backlog=HTTP_BACKLOG)
    except OSError as error:
        why = "the address is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise ConfigError(f"cannot listen on {wanted} for HTTP: {why or error}") from error


def _as_it_is(
    config: BrokerConfig,
    node_id: int,
    listeners: Listeners,
    told: Mapping[str, Address],
    storage: Storage,
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


def _open_storage(ports: Ports, data_dir: Path) -> HeldStorage:
    """The data directory, locked."""
    try:
        storage = ports.storage(data_dir)
        storage.lock()
    except OSError as error:
        raise StorageError(f"{data_dir}: {error.strerror or error}") from error
    return storage


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
