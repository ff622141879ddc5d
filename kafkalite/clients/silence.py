"""Leaders that take requests and answer none: given up once others lead in their place.      [IO]

    watch ──no answer for a while──> metadata ──its partitions are led elsewhere──> the connection
              ^                         └──they are not: asked again, after a longer pause    closes
              └──────────────────────────────┘

A leader that is paused, or cut off without a reset, would be waited for until the request's time is
up, half a minute by default, though all others know its successor for long. When the connection
closes, all that is in flight fails as with any that breaks, and is sent to the successor.

A leader that refuses connections is tried for some seconds, as it may be starting. Meanwhile the
metadata tell whether another leads.

Owns   the timers, one a connection.
Never  gives a leader up that is merely slow.
Source KIP-951 is about leaders that answer; for silent ones Kafka's clients have no such look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any, Final

from kafkalite.clients.background import BackgroundTasks
from kafkalite.clients.cluster import Client
from kafkalite.core.peers.connection import BrokerConnection
from kafkalite.core.types import TopicPartition
from kafkalite.errors import KafkaliteError

log: Final = logging.getLogger(__name__)

SILENCE_MS: Final = 1_000  # before the first look
REFUSED_MS: Final = 100  # the same for a leader that is not connected
SILENCE_MAX_MS: Final = 4_000  # between two looks


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request in flight."""

    node_id: int
    answer: asyncio.Future[Any]
    partitions: Callable[[], Iterable[TopicPartition]]  # that it is about


class SilentLeaders:
    """The leaders of one producer's or fetcher's requests. `wait_ms` is how long a leader may keep
    a request that it could answer."""

    def __init__(self, client: Client, background: BackgroundTasks, wait_ms: int = 0) -> None:
        self._client = client
        self._background = background
        self._wait_ms = wait_ms
        self._newest: dict[BrokerConnection, _Asked] = {}
        self._timers: dict[BrokerConnection, asyncio.TimerHandle | None] = {}  # None: looks

    def close(self) -> None:
        """Watches nothing any more."""
        for timer in self._timers.values():
            if timer is not None:
                timer.cancel()
        self._timers.clear()
        self._newest.clear()

    def watch(
        self,
        connection: BrokerConnection,
        node_id: int,
        answer: asyncio.Future[Any],
        partitions: Callable[[], Iterable[TopicPartition]],
    ) -> None:
        """A request was sent to a leader of some partitions."""
        self._newest[connection] = asked = _Asked(node_id, answer, partitions)
        if connection not in self._timers:
            self._wait(connection, asked, SILENCE_MS)

    def connecting(self, attempt: asyncio.Task[Any], topics: Callable[[], Set[str]]) -> None:
        """A leader is being connected to, which is about to get something for these topics."""
        self._background.run(self._look_meanwhile(attempt, topics))

    async def _look_meanwhile(
        self, attempt: asyncio.Task[Any], topics: Callable[[], Set[str]]
    ) -> None:
        pause_ms = REFUSED_MS
        while True:
            await asyncio.wait((attempt,), timeout=pause_ms / 1000)
            if attempt.done():
                return
            try:
                await self._client.refresh(topics())
            except KafkaliteError as error:
                log.debug("a leader is not connected, and nobody else answers: %s", error)
            else:
                self._background.pump()
            pause_ms = min(2 * pause_ms, SILENCE_MS)

    def _wait(self, connection: BrokerConnection, asked: _Asked, pause_ms: int) -> None:
        seconds = (self._wait_ms + pause_ms) / 1000
        loop = asyncio.get_running_loop()
        self._timers[connection] = loop.call_later(seconds, self._ring, connection, asked, pause_ms)

    def _ring(self, connection: BrokerConnection, asked: _Asked, pause_ms: int) -> None:
        if not asked.answer.done():
            self._timers[connection] = None
            self._background.run(self._look(connection, asked, pause_ms))
            return
        newest = self._newest[connection]
        if newest.answer.done() or not connection.is_open:
            del self._timers[connection], self._newest[connection]
        else:
            self._wait(connection, newest, SILENCE_MS)

    async def _look(self, connection: BrokerConnection, asked: _Asked, pause_ms: int) -> None:
        partitions = tuple(asked.partitions())
        try:
            await self._client.refresh({each.topic for each in partitions})
        except KafkaliteError as error:
            log.debug("broker %d is silent, and nobody else answers: %s", asked.node_id, error)
        if connection not in self._timers:
            return  # closed meanwhile
        is_over = any(self._has_moved(each, asked.node_id) for each in partitions)
        if is_over and not asked.answer.done():
            log.warning("broker %d is silent, and others lead in its place", asked.node_id)
            connection.close()
        self._wait(connection, asked, min(2 * pause_ms, SILENCE_MAX_MS))

    def _has_moved(self, where: TopicPartition, node_id: int) -> bool:
        """Whether a partition is led elsewhere and has left a broker behind. One that is in sync is
        alive; consumers may read from it though it does not lead."""
        cluster = self._client.cluster
        known, leader_id = cluster.partition(where), cluster.leader_id(where)
        is_led = leader_id is not None and leader_id != node_id
        return is_led and known is not None and node_id not in known.in_sync_replicas
