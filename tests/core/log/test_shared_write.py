"""Writes of a small file, shared: what is told is on the disk, and nothing older replaces it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.core.log.shared_write import SharedWrite
from kafkalite.errors import StorageError


class Disk:
    """A state, and a thread that writes it when the test says so."""

    def __init__(self) -> None:
        self.state = 0
        self.written = 0
        self.under_way: list[tuple[Callable[[], None], Future[None]]] = []
        self.shared = SharedWrite(self._make_write, self._in_thread)

    def _make_write(self) -> Callable[[], None] | None:
        state = self.state
        if state == self.written:
            return None

        def write() -> None:
            assert state >= self.written, "an older state replaces a newer one"
            self.written = state

        return write

    def _in_thread(self, write: Callable[[], None]) -> Any:
        future: Future[None] = Future()
        self.under_way.append((write, future))
        return future

    def finish(self, error: Exception | None = None) -> None:
        ((write, future),) = self.under_way  # one at a time
        self.under_way.clear()
        if error is None:
            write()
            future.set_result(None)
        else:
            future.set_exception(error)


@given(st.lists(st.sampled_from(["ask", "change and ask", "written", "refused"]), max_size=30))
def test_whoever_is_told_finds_what_was_so_when_it_asked(steps: list[str]) -> None:
    disk = Disk()
    open_asks: list[int] = []

    def ask() -> None:
        state = disk.state
        open_asks.append(state)

        def told(error: StorageError | None) -> None:
            open_asks.remove(state)
            assert error is not None or disk.written >= state

        disk.shared.ask(told)

    for step in steps:
        if step == "change and ask":
            disk.state += 1
        if step in ("ask", "change and ask"):
            ask()
        elif disk.under_way:
            disk.finish(StorageError("full") if step == "refused" else None)
    while disk.under_way:
        disk.finish()
    assert not open_asks


def test_what_is_on_the_disk_is_not_written_again() -> None:
    disk, told = Disk(), list[StorageError | None]()
    disk.shared.ask(told.append)
    assert (told, disk.under_way) == ([None], [])


def test_an_error_is_told_to_those_who_waited_for_that_write_alone() -> None:
    disk, first, second = Disk(), list[Any](), list[Any]()
    disk.state = 1
    disk.shared.ask(first.append)
    disk.shared.ask(second.append)
    disk.finish(RuntimeError("odd"))
    assert "odd" in str(first[0])
    assert not second
    disk.finish()
    assert second == [None]


def test_a_thread_that_cannot_begin_hinders_no_later_one() -> None:
    disk = Disk()
    disk.state = 1
    refusals = [RuntimeError("can't start new thread")]

    def in_thread(write: Callable[[], None]) -> Any:
        if refusals:
            raise refusals.pop()
        return disk._in_thread(write)

    shared = SharedWrite(disk._make_write, in_thread)
    told: list[StorageError | None] = []
    with pytest.raises(RuntimeError, match="new thread"):
        shared.ask(told.append)
    shared.ask(told.append)
    disk.finish()
    assert (told, disk.written) == ([None], 1)
