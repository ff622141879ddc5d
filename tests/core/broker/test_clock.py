"""The broker's time, whatever becomes of the machine's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kafkalite.core.broker import clock
from kafkalite.core.broker.clock import Clock
from kafkalite.core.broker.purgatory import DelayedFetch
from kafkalite.core.types import TopicPartition
from kafkalite.node import start_node

MS = 1_000_000


class Machine:
    """Its two clocks, in ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ms, self.steady_ms = 1_000_000, 500
        monkeypatch.setattr(clock, "time_ns", lambda: self.wall_ms * MS)
        monkeypatch.setattr(clock, "monotonic_ns", lambda: self.steady_ms * MS)

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.steady_ms += ms


def test_time_is_the_wall_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = Clock()
    for ms in (0, 1, 10_000):
        machine.passes(ms)
        assert clock() == machine.wall_ms
    machine.wall_ms += 3_600_000
    assert clock() == machine.wall_ms
    machine.wall_ms -= 10
    machine.steady_ms += 1_000
    machine.wall_ms += 1_000
    assert clock() == machine.wall_ms, "a small step back is made up for by the pace"


def test_time_never_goes_back_and_goes_on_at_half_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = Clock()
    before = clock()
    machine.wall_ms -= 10_000
    assert clock() == before
    told = []
    for _ in range(30):
        machine.passes(1_000)
        told.append(clock() - before)
    assert told[:18] == [500 * n for n in range(1, 19)]
    assert told[18:] == [1_000 * n for n in range(9, 21)], "it has caught up"


def test_who_waits_is_answered_though_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        node = await start_node(tmp_path, "127.0.0.1:0")
        broker, done = node.broker, asyncio.Event()
        operation: DelayedFetch[TopicPartition] = DelayedFetch(done.set, 1)
        assert broker.waiting.park(operation, (TopicPartition("t", 0),), broker.now_ms() + 100)
        real = clock.time_ns
        monkeypatch.setattr(clock, "time_ns", lambda: real() - 3_600_000 * MS)
        await asyncio.wait_for(done.wait(), 60)
        await node.close()

    asyncio.run(story())
