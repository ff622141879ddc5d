"""Polls of the group's consumer, which go on while the task thread works.                 [IO]

    poll        records into inboxes, and the callbacks for the group's decisions
    in_thread   a call in the task thread; polls go on meanwhile, so that the group rebalances
    held        no polls: a commit is under way
    wake        a poll that waits ends: there is something else to do

A short call costs no turn of the loop: the loop waits for it in place. While a longer one runs the
loop polls, unless a poll led to the call.

Owns   the flag that says whether a poll may begin.
Never  polls while another poll or a commit is under way.
Fails  with what the call raised; with Refused where the group refuses this member for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from kafkalite.clients.consumer.consumer import Consumer
from kafkalite.core.types import Columns, TopicPartition
from kafkalite.streams.local.membership import poll
from kafkalite.streams.local.task_thread import TaskThread

R = TypeVar("R")

log: Final = logging.getLogger(__name__)

BUSY_SECONDS: Final = 0.1  # how often the worker polls while a task runs
IN_PLACE_SECONDS: Final = 0.002  # how long the loop waits for a call before it goes on


class Polling:
    """The polls of one worker. `receive` takes their records."""

    def __init__(
        self,
        application_id: str,
        thread: TaskThread,
        receive: Callable[[TopicPartition, Columns], None],
        max_poll_interval_ms: int,
    ) -> None:
        self._application_id = application_id
        self._thread = thread
        self._receive = receive
        self._max_poll_interval_ms = max_poll_interval_ms
        self._may_poll = True
        self._loop: asyncio.AbstractEventLoop | None = None  # once it has polled

    def begin(self, consumer: Consumer) -> None:
        """A new membership."""
        self._consumer = consumer
        self._may_poll = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Calls of the task thread are waited for without polls."""
        may_poll, self._may_poll = self._may_poll, False
        try:
            yield
        finally:
            self._may_poll = may_poll

    async def poll(self, timeout_ms: float) -> None:
        """Records into inboxes, and the group's decisions."""
        self._may_poll = False
        self._loop = asyncio.get_running_loop()
        try:
            polled = await poll(self._consumer, timeout_ms)
        finally:
            self._may_poll = True
        for partition, columns in polled.items():
            self._receive(partition, columns)

    def wake(self) -> None:
        """Ends a poll that waits, or lets the next one not wait; from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._consumer.wakeup)

    async def in_thread(self, call: Callable[[], R]) -> R:
        """Runs `call` in the task thread, and polls meanwhile unless a poll led here.

        A call that takes longer than `max_poll_interval_ms` is reported as stuck, and the worker
        polls no more until it ends: after another such time the member leaves its group.
        """
        running = self._thread.submit(call, wait_seconds=IN_PLACE_SECONDS)
        is_stuck = False
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=BUSY_SECONDS)
                if running.done():
                    break
                is_stuck = is_stuck or self._is_stuck()
                if self._may_poll and not is_stuck:
                    await self.poll(0)
        except BaseException:
            running.add_done_callback(observed)
            raise
        return running.result()

    def _is_stuck(self) -> bool:
        """Whether the call runs for too long; the log names its record then."""
        if self._thread.busy_seconds * 1000 <= self._max_poll_interval_ms:
            return False
        where = self._thread.where()
        seconds = self._max_poll_interval_ms / 1000
        log.error("%s: stuck for %g s in %s", self._application_id, seconds, where)
        return True


def observed(running: asyncio.Future[R]) -> None:
    """Nobody waits for the call any more; its error is no news."""
    if not running.cancelled():
        running.exception()
