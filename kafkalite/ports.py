"""What one broker takes from the world: its disk, its cluster, its sockets, time and chance.  [IO]

    storage        the data directory
    coordination   the state that brokers share: the journal of one that stands alone, or ZooKeeper
    network        connections to others, and from others
    clock, seconds the time, of a broker and of its parts; precise_seconds of short measurements
    random_bytes   chance
    executor       threads, for whatever waits or computes for long

`MACHINE` is the world as it is. A simulation hands in another: `kafkalite.testing.simulation`.

Owns   the choice; the parts are made by whoever composes a broker.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from kafkalite.core.broker.clock import Clock
from kafkalite.core.cluster.coordination import Coordination
from kafkalite.core.cluster.local import LocalCoordination
from kafkalite.core.cluster.zookeeper_address import parse_address
from kafkalite.core.log.port import Storage
from kafkalite.core.log.storage import FileStorage
from kafkalite.core.network import Network
from kafkalite.core.server.network import SocketNetwork
from kafkalite.errors import ConfigError


class HeldStorage(Storage, Protocol):
    """A storage that one broker has for itself."""

    def lock(self) -> None:
        """Takes it; DataDirectoryInUse where another has it."""
        ...

    def close(self) -> None:
        """Gives it back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The world of a broker. `executor` takes the greatest number of threads and their name."""

    storage: Callable[[Path], HeldStorage]
    coordination: Callable[[Storage], Coordination]
    network: Callable[[], Network]
    clock: Callable[[], Clock]
    seconds: Callable[[], float]
    precise_seconds: Callable[[], float]
    random_bytes: Callable[[int], bytes]
    executor: Callable[[int, str], Executor]
    shares_cluster: bool = False  # whether other brokers have the same coordination


def _journal(storage: Storage) -> Coordination:
    return LocalCoordination(storage, in_thread=asyncio.to_thread, turns=asyncio.Lock())


MACHINE: Final = Ports(
    storage=FileStorage,
    coordination=_journal,
    network=SocketNetwork,
    clock=lambda: Clock(time.time_ns, time.monotonic_ns),
    seconds=time.monotonic,
    precise_seconds=time.perf_counter,
    random_bytes=os.urandom,
    executor=ThreadPoolExecutor,
)


def with_zookeeper(
    address: str,
    session_timeout_ms: int,
    ports: Ports = MACHINE,
    connection_timeout_ms: int | None = None,
) -> Ports:
    """`ports` for a broker of a cluster that keeps its state in ZooKeeper, at the `address`
    `host:port,host:port/chroot`. ConfigError without the extra `cluster`, or for no address."""
    try:
        from kafkalite.core.cluster.zookeeper import ZooKeeperCoordination
    except ModuleNotFoundError as error:
        words = f"zookeeper.connect needs {error.name}: pip install 'kafkalite[cluster]'"
        raise ConfigError(words, setting="zookeeper.connect") from error
    parse_address(address)

    def connected(_: Storage) -> Coordination:
        return ZooKeeperCoordination(
            address,
            in_thread=asyncio.to_thread,
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=connection_timeout_ms,
        )

    return replace(ports, coordination=connected, shares_cluster=True)
