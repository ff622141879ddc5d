"""Standard input and output within an event loop.                                         [IO]

Owns   reading of stdin and files (never ahead of the caller's requests) and writing of stdout, in
       a thread of its own, so that a slow reader does not delay heartbeats.
Never  waits for the thread at the end: an interrupted command ends at once.
Fails  with ConfigError naming a file that cannot be read; BrokenPipeError if stdout is closed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from kafkalite.errors import ConfigError

READ_BYTES: Final = 1 << 20
STDOUT: Final = 1


class Stop:
    """Set by the first signal; the second signal cancels the task."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.signal: int | None = None

    @contextmanager
    def on_signals(self) -> Iterator[Stop]:
        """Listens to SIGINT and SIGTERM."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def on_signal(number: int) -> None:
            if self.signal is not None:
                task.cancel()
            self.signal = number
            self.event.set()

        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, on_signal, number)
        try:
            yield self
        except asyncio.CancelledError:
            if self.signal is None:
                raise
            raise KeyboardInterrupt from None
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def first_of(*events: asyncio.Event | asyncio.Future[Any]) -> None:
    """Returns when one of these is set or done; none is cancelled but the waiting for events."""
    waits = [
        asyncio.ensure_future(event.wait()) if isinstance(event, asyncio.Event) else event
        for event in events
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait, event in zip(waits, events, strict=True):
            if wait is not event:
                wait.cancel()


class Source:
    """A file or stdin, read piece by piece. `size_bytes` is None if it is not a regular file."""

    def __init__(self, path: Path | None) -> None:
        """`path` None or `-` is stdin."""
        self.is_stdin = path is None or str(path) == "-"
        self.name = "stdin" if self.is_stdin else str(path)
        try:
            self._fd = _stdin() if self.is_stdin else os.open(self.name, os.O_RDONLY)
            mode = os.fstat(self._fd)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{self.name}: {reason}") from None
        if stat.S_ISDIR(mode.st_mode):
            raise ConfigError(f"{self.name}: is a directory")
        self.size_bytes = mode.st_size if stat.S_ISREG(mode.st_mode) else None

    def close(self) -> None:
        """Closes a file that this opened."""
        if not self.is_stdin:
            os.close(self._fd)

    async def pieces(self, stop: Stop) -> AsyncIterator[bytes]:
        """The pieces of the file, until its end or `stop`."""
        while not stop.event.is_set():
            if self.size_bytes is None and not await self._readable(stop):
                return
            try:
                data = os.read(self._fd, READ_BYTES)
            except OSError as error:
                raise ConfigError(f"{self.name}: {error.strerror}") from None
            if not data:
                return
            yield data
            await asyncio.sleep(0)

    async def _readable(self, stop: Stop) -> bool:
        """Waits for bytes or the end of them; False once `stop` is set."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._fd, ready.set)
        except PermissionError:  # such as /dev/null: it never makes anyone wait
            return True
        try:
            await first_of(ready, stop.event)
        finally:
            loop.remove_reader(self._fd)
        return not stop.event.is_set()


def _stdin() -> int:
    if sys.stdin is None:
        raise OSError(errno.EBADF, "stdin is closed")
    return sys.stdin.fileno()


class Stdout:
    """Writes to stdout from a thread. `gone` is set when the reader has closed the pipe."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._todo: SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = SimpleQueue()
        sys.stdout.flush()
        threading.Thread(target=self._work, name="stdout", daemon=True).start()
        if stat.S_ISFIFO(os.fstat(STDOUT).st_mode):
            with suppress(OSError):
                self._loop.add_reader(STDOUT, self._hung_up)  # a pipe's writer hears of its end

    def close(self) -> None:
        """Stops listening. The thread ends by itself, after a write that it is still in."""
        self._loop.remove_reader(STDOUT)
        self._todo.put(None)

    async def write(self, data: bytes) -> None:
        """Returns once all of `data` is written; BrokenPipeError if the pipe is closed."""
        if data:
            done: asyncio.Future[None] = self._loop.create_future()
            self._todo.put((data, done))
            await done

    def _hung_up(self) -> None:
        self._loop.remove_reader(STDOUT)
        self.gone.set()

    def _work(self) -> None:
        while (todo := self._todo.get()) is not None:
            data, done = todo
            error: OSError | None = None
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(STDOUT, view) :]
            except OSError as failed:
                error = failed
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(_settle, done, error)


def _settle(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
