"""A client's work between the calls of its user: a timer, tasks, fresh metadata.            [IO]

    pump ──> sends what may be sent now ──> the alarm, at the next deadline ──> pump
      ^                                     a task, for what takes a while
      └────── an answer, a connection, new metadata ──────┘

Producer and fetcher are pumps: on every event they look at all work that is due, and do it.

Owns   the alarm and the tasks of one pump, until `close`.
Never  lets a second refresh of metadata begin while one is under way.
Fails  not at all: a refresh that fails is logged in one line, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Set
from typing import Final

from kafkalite.clients.cluster import Client
from kafkalite.errors import KafkaliteError

log: Final = logging.getLogger(__name__)

NAMES_MAX: Final = 3  # of topics, in a line of the log


class BackgroundTasks:
    """Those of one pump. `pump` is called when the alarm rings, and after each refresh."""

    def __init__(self, client: Client, pump: Callable[[], None]) -> None:
        self._client = client
        self._pump = pump
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing = False

    async def close(self) -> None:
        """Nothing rings any more, and all tasks are cancelled."""
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Lets `work` go on as a task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def pump(self) -> None:
        """Pumps now: a task has learnt something."""
        self._pump()

    def wake_at(self, deadline_ms: float | None) -> None:
        """Pumps then, in the loop's time, at the latest. An alarm that is early enough stays."""
        if deadline_ms is None:
            return
        if self._alarm is not None:
            if self._alarm.when() <= deadline_ms / 1000:
                return
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(deadline_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._pump()

    def refresh(self, stale: set[str], wanted: Callable[[], Set[str]]) -> None:
        """Asks for metadata of the topics in `stale` until none that is `wanted` is among them."""
        if stale and not self._refreshing:
            self._refreshing = True
            self.run(self._refresh(stale, wanted))

    async def _refresh(self, stale: set[str], wanted: Callable[[], Set[str]]) -> None:
        backoff = self._client.backoff()
        try:
            while topics := stale & wanted():
                stale.clear()
                try:
                    await self._client.refresh(topics)
                except KafkaliteError as error:
                    names = ", ".join(sorted(topics)[:NAMES_MAX])
                    log.warning("metadata of %d topics (%s): %s", len(topics), names, error)
                    stale |= topics
                self._pump()
                await asyncio.sleep(backoff.failed() / 1000)
            stale.clear()
        finally:
            self._refreshing = False
