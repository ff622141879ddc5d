"""An application that runs beside other work: in a task of a loop, or in a thread of its own. [IO]

    async with app.running() as running:      a loop that is there: a web service, a notebook
        await running.ready()
        await running.wait()

    app.start()                               no loop: a script, a thread
    app.stop()

Owns   the task and all that it stands on (perhaps a broker), or the thread. Signals are not
       touched: they belong to whoever owns the process.
Fails  with what ended the worker, once: from `wait`, or else from the end of the block or `stop`;
       at the moment it happens, a line in the log says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from kafkalite.clients.lifetime import Lifetime
from kafkalite.clients.sync.loop_thread import LoopThread
from kafkalite.errors import TopologyError
from kafkalite.streams.local.worker import Progress, Worker

log: Final = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.02  # between two looks at whether all tasks run

Prepare = Callable[[], AbstractContextManager[Worker]]  # blocks: it may start a broker


class Running(Lifetime):
    """A worker in a task of this loop, from the beginning of a block to its end."""

    def __init__(self, application_id: str, prepare: Prepare, *, until_caught_up: bool) -> None:
        self._application_id = application_id
        self._prepare = prepare
        self._until_caught_up = until_caught_up
        self._context: AbstractContextManager[Worker] | None = None
        self._worker: Worker | None = None
        self._task: asyncio.Task[Progress] | None = None
        self._is_told = False  # whether somebody was given what the task ended with

    @property
    def progress(self) -> Progress:
        """The progress so far."""
        assert self._worker is not None, "it is started by `async with`"
        return self._worker.progress

    async def start(self) -> None:
        """Begins to run. To start a broker takes a moment, in which the loop is free."""
        loop = asyncio.get_running_loop()
        self._context = self._prepare()
        self._worker = await loop.run_in_executor(None, self._context.__enter__)
        self._task = loop.create_task(self._worker.run(until_caught_up=self._until_caught_up))
        self._task.add_done_callback(self._note_end)

    async def ready(self) -> None:
        """Returns once every task that the group gave it runs: its stores can be asked then.

        Returns as well when it has ended. Raises what ended it.
        """
        assert self._worker is not None, "it is started by `async with`"
        assert self._task is not None, "it is started by `async with`"
        while (seen := self._worker.overview()) is None or not seen.is_settled:
            ended, _ = await asyncio.wait([self._task], timeout=LOOK_SECONDS)
            if ended:
                await self.wait()
                return

    def stop(self) -> None:
        """Asks it to commit and end; `wait` returns then."""
        assert self._worker is not None, "it is started by `async with`"
        self._worker.stop()

    async def wait(self) -> Progress:
        """Returns once it has ended: stopped, or caught up. Raises what ended it."""
        assert self._task is not None, "it is started by `async with`"
        await asyncio.wait([self._task])
        self._is_told = True
        return self._task.result()

    async def close(self) -> None:
        """Stops it, waits for its last commit, and lets go of what it stood on.

        Cancelled meanwhile, it does not wait for the commit, which may wait for a broker.
        """
        if self._context is None:
            return
        try:
            if self._task is not None:
                self.stop()
                await asyncio.wait([self._task])
        finally:
            context, self._context = self._context, None
            if self._task is not None and not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, context.__exit__, None, None, None)
        if self._task is not None and not self._is_told:
            self._is_told = True
            self._task.result()

    def _note_end(self, task: asyncio.Task[Progress]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: has ended: %s", self._application_id, error)


class Background:
    """A worker in a thread of its own, from `start` to `stop`."""

    def __init__(self, application_id: str, running: Running) -> None:
        self._application_id = application_id
        self._running = running
        self._thread = LoopThread(f"kafkalite-{application_id}")

    def start(self) -> Progress:
        """Returns once it runs; its progress goes on."""
        try:
            self._thread.run(self._begin)
        except BaseException:
            self._thread.close()
            raise
        return self._running.progress

    async def _begin(self) -> None:
        await self._running.start()
        self._thread.keep(self._running)  # stopped when the interpreter exits, if nobody does

    def stop(self) -> Progress:
        """Stops it and waits for its last commit. Raises what ended it before."""
        try:
            self._thread.run(self._end)
        finally:
            self._thread.close()
        return self._running.progress

    async def _end(self) -> None:
        self._thread.let_go(self._running)
        await self._running.close()


def refuse_running_loop(application_id: str) -> None:
    """TopologyError where `run` would begin a second loop inside one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise TopologyError(
        f"{application_id}: an event loop runs here, as in a notebook or a web service: use "
        "`await app.run_async(…)`, `async with app.running(…)`, or app.start() and app.stop()"
    )
