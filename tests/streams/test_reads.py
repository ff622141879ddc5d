"""Reads of stores beside the task thread: in the middle of its work, and at once while it rests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from kafkalite.streams.local.alignment import SLICE_RECORDS_FIRST, Pace
from kafkalite.streams.local.reads import ASKED_SECONDS, Reads
from kafkalite.streams.local.task_thread import TaskThread

pytestmark = pytest.mark.timeout(60)


class Clock:
    """Time stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Lobby:
    """Somebody waits in it until he is served."""

    def __init__(self) -> None:
        self.is_open = True
        self.asked = threading.Event()
        self.served = 0
        self.slept = 0

    def serve(self) -> bool:
        if not self.asked.is_set():
            return False
        self.asked.clear()
        self.served += 1
        return True

    def sleep(self) -> None:
        self.slept += 1
        self.asked.wait(30)

    def wake(self) -> None:
        self.asked.set()


def spawn(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()


def test_a_read_waits_for_the_moment_in_which_stores_are_whole() -> None:
    reads, seen = Reads(Clock(), lambda: None), list[str]()
    reads.work()
    reads.put(lambda: seen.append("put"))
    reads.read(lambda: seen.append("read"))
    assert seen == []
    reads.serve()
    assert seen == ["put", "read"]


def test_a_short_read_of_a_thread_at_rest_is_done_by_whoever_asks() -> None:
    reads, seen = Reads(Clock(), lambda: None), list[int]()
    reads.work()
    assert reads.rest()
    reads.read(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]


def test_a_read_wakes_a_thread_at_rest_and_keeps_one_from_resting() -> None:
    woken, seen = list[str](), list[str]()
    reads = Reads(Clock(), lambda: woken.append("woken"))
    reads.work()
    reads.put(lambda: seen.append("before"))
    assert not reads.rest()
    reads.work()
    reads.serve()
    assert reads.rest()
    reads.put(lambda: seen.append("after"))
    reads.put(lambda: seen.append("after"))
    assert (seen, woken) == (["before"], ["woken"])


def test_reads_that_come_while_others_are_served_have_their_turn_later() -> None:
    reads, seen = Reads(Clock(), lambda: None), list[int]()

    def again() -> None:
        seen.append(len(seen))
        reads.put(again)

    reads.work()
    reads.put(again)
    reads.serve()
    assert seen == [0]


def test_nobody_waits_for_a_thread_that_has_ended() -> None:
    reads, seen = Reads(Clock(), lambda: None), list[str]()
    reads.work()
    reads.put(lambda: seen.append("before"))
    reads.rest()
    reads.close()
    reads.put(lambda: seen.append("after"))
    assert seen == ["before", "after"]


def test_somebody_who_asked_lately_is_expected_to_ask_again() -> None:
    clock = Clock()
    reads = Reads(clock, lambda: None)
    assert not reads.is_asked
    reads.put(lambda: None)
    assert reads.is_asked
    clock.now += ASKED_SECONDS
    assert not reads.is_asked


def test_a_slice_is_a_small_piece_while_somebody_asks() -> None:
    pace = Pace()
    assert pace.piece(1.5) == SLICE_RECORDS_FIRST
    for _ in range(20):
        pace.ran(1_000, 10)
    assert pace.piece(1.5) == 150
    pace.ran(1, 0.001)  # the end of a batch that was decoded before: the next will be
    assert pace.piece(1.5) == 150


def test_a_call_answers_reads_where_it_serves_them() -> None:
    """The read comes while the call runs, and is over before it ends."""

    async def scenario() -> None:
        thread = TaskThread(spawn, Clock())
        thread.start()
        begun, put = threading.Event(), threading.Event()
        seen: list[str] = []

        def work() -> None:
            begun.set()
            assert put.wait(30)
            thread.reads.serve()
            seen.append("end of the call")

        call = thread.submit(work)
        await asyncio.to_thread(begun.wait, 30)
        answer = thread.read(lambda: seen.append("read"))
        put.set()
        await asyncio.gather(call, answer)
        await thread.close()
        assert seen == ["read", "end of the call"]

    asyncio.run(scenario())


def test_a_failed_read_is_told_to_whoever_asked() -> None:
    async def scenario() -> None:
        thread = TaskThread(spawn, Clock())
        thread.start()
        with pytest.raises(ValueError, match="invalid literal"):
            await thread.read(lambda: int("x"))
        assert await thread.submit(lambda: 1) == 1
        await thread.close()

    asyncio.run(scenario())


def test_the_thread_sleeps_in_the_lobby_and_hears_of_calls_there() -> None:
    async def scenario() -> None:
        thread, lobby = TaskThread(spawn, Clock()), Lobby()
        thread.start()
        thread.reads.open(lobby)
        while not lobby.slept:
            await asyncio.sleep(0.001)
        lobby.asked.set()
        while not lobby.served:
            await asyncio.sleep(0.001)
        for number in range(100):
            assert await thread.submit(lambda n=number: n) == number  # type: ignore[misc]
        await thread.close()

    asyncio.run(scenario())
