"""A small file written in a thread: one write at a time, shared by all callers that wait.    [D]

    ask ──> a write of the present state ────> done: every call before its beginning is answered
    ask ─────── waits ──> the next write ────────────────> done

So an older state never replaces a newer one, and a caller's answer means that the state at the time
of its call is on the disk.

Owns   the callers that wait. The state is read by `make_write`, on the loop, when a write begins.
Fails  with the write's error for the callers that waited for it; the next call tries anew.
Source group commit, as `upkeep` has it for logs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kafkalite.errors import StorageError

MakeWrite = Callable[[], Callable[[], None] | None]  # None: what is so is on the disk already
Told = Callable[[StorageError | None], None]


class SharedWrite:
    """The writes of one file. `in_thread` runs one and returns a future of its end."""

    def __init__(self, make_write: MakeWrite, in_thread: Callable[[Callable[[], None]], Any]):
        self._make_write = make_write
        self._in_thread = in_thread
        self._waiting: list[Told] = []
        self._is_writing = False

    def ask(self, told: Told) -> None:
        """Calls `told` once the current state is on the disk, or with the error."""
        self._waiting.append(told)
        if not self._is_writing:
            self._begin()

    def _begin(self) -> None:
        waited, self._waiting = self._waiting, []
        write = self._make_write()
        if write is None:
            _tell(waited, None)
            return
        future = self._in_thread(write)
        self._is_writing = True
        future.add_done_callback(partial(self._written, waited))

    def _written(self, waited: list[Told], future: Any) -> None:
        self._is_writing = False
        error = future.exception()
        if error is not None and not isinstance(error, StorageError):
            error = StorageError(f"not written: {error!r}")
        if self._waiting:
            self._begin()
        _tell(waited, error)


def _tell(waited: list[Told], error: StorageError | None) -> None:
    for told in waited:
        told(error)
