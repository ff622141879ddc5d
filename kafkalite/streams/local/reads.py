"""Reads of stores beside the tasks that write them.                                       [IO]

    task thread   work ............... rest          rows are half changed in between, but for
                       serve   serve                 the moments in which it serves
    any thread    put:  the task thread does it, in its next `serve`
                  read: done here and now, while the task thread rests

It serves between two calls, two slices of records, two pieces of a commit: every store is then as
some record left it. While somebody asks, slices of records are short, so that no read waits for
long.

Owns   the reads that wait; their bound is the number of those who ask, each with one or a few.
Never  lets a read look while a task is at work: a row is in several dicts, and cold ones move.
Fails  never: a read carries its error to whoever asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Final, Protocol

Read = Callable[[], None]  # raises nothing

ASKED_SLICE_MS: Final = 0.5  # of records, while somebody asks
ASKED_SECONDS: Final = 1.0  # so long after the last read others are expected


class Lobby(Protocol):
    """Where others wait to be served by the task thread itself."""

    @property
    def is_open(self) -> bool:
        """Whether there is somebody."""

    def serve(self) -> bool:
        """Serves all questions; whether there was one."""

    def sleep(self) -> None:
        """Until somebody asks, or `wake`, or for a while."""

    def wake(self) -> None:
        """Ends `sleep`; from any thread."""


class Reads:
    """The reads of one worker. `wake` ends the rest of the task thread, from any thread."""

    def __init__(self, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._waiting: deque[Read] = deque()
        self._asked_at = float("-inf")
        self._rests = False
        self._is_closed = False
        self._stores = Lock()  # held by whoever looks into stores, or writes them
        self._served_at = 0.0
        self.lobby: Lobby | None = None

    def put(self, read: Read) -> None:
        """Has the task thread do this soon."""
        self._waiting.append(read)
        self._asked_at = self._clock()
        if self._rests:
            self._rests = False
            self._wake()
        if self._is_closed:
            self._serve_waiting()

    def read(self, read: Read) -> None:
        """Does this short read at once if the task thread rests; else that does it soon."""
        if self._stores.acquire(blocking=False):
            try:
                self._asked_at = self._clock()
                read()
            finally:
                self._stores.release()
        else:
            self.put(read)

    @property
    def is_asked(self) -> bool:
        """Whether somebody has asked lately."""
        return self._clock() - self._asked_at < ASKED_SECONDS

    def open(self, lobby: Lobby) -> None:
        """Somebody waits there, whom the task thread serves from now on."""
        self.lobby = lobby
        if self._rests:
            self._wake()

    @property
    def served_ago(self) -> float:
        """For how many seconds the task thread has been at work without serving."""
        return 0.0 if self._rests else self._clock() - self._served_at

    # In the task thread

    def work(self) -> None:
        """Stores are written from now on."""
        self._rests = False
        self._stores.acquire()

    def serve(self) -> None:
        """Does the reads that wait; those that come meanwhile have their turn later."""
        self._serve_waiting()
        self._served_at = self._clock()
        if self.lobby is not None and self.lobby.serve():
            self._asked_at = self._served_at

    def rest(self) -> bool:
        """Stores are written no more; whether the thread may wait: a read wakes it from now on."""
        self._stores.release()
        self._rests = True
        return not self._waiting

    def close(self) -> None:
        """The thread ends: nothing changes any more, and whoever asks is told so at once."""
        self._is_closed = True
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        waiting = self._waiting
        for _ in range(len(waiting)):
            try:
                read = waiting.popleft()
            except IndexError:  # the thread has ended, and several who ask serve themselves
                return
            read()
