"""The broker's clocks, whatever becomes of the machine's."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafkalite.core.broker.clock import JUMP_MS, LOOK_MS, SETTLE_MS, Clock
from kafkalite.core.broker.purgatory import DelayedFetch
from kafkalite.core.protocol.records import encode
from kafkalite.core.protocol.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kafkalite.core.replicas.replication import ACKS_ALL
from kafkalite.core.types import Columns, Now, TopicPartition
from kafkalite.node import Node, start_node
from kafkalite.ports import MACHINE, Ports
from kafkalite.testing.clock import Machine

MS = 1_000_000
YEARS_MS = 10 * 365 * 24 * 3_600_000
RETENTION_MS = 60_000


def test_each_clock_says_what_the_machines_say() -> None:
    machine = Machine()
    clock = machine.clock()
    for ms in (0, 1, 10_000, 2 * SETTLE_MS):
        machine.passes(ms)
        assert clock.now() == Now(machine.wall_ms, machine.monotonic_ms, machine.wall_ms)
        assert (clock.wall_ms(), clock.monotonic_ms()) == (machine.wall_ms, machine.monotonic_ms)


def test_a_clock_that_is_slewed_is_not_one_that_was_set(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.clock()
    for skew in (JUMP_MS - 1, 1 - JUMP_MS, 500, -500):
        machine.passes(LOOK_MS)
        machine.wall_ms += skew
        assert clock.now().retention_ms == machine.wall_ms
    assert not caplog.records


@pytest.mark.parametrize(("jump_ms", "way"), [(YEARS_MS, "forward"), (-YEARS_MS, "back")])
def test_retention_stands_still_after_the_clock_was_set(
    jump_ms: int, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(wall_ms=2 * YEARS_MS)
    clock = machine.clock()
    machine.passes(5_000)
    before_ms = clock.now().retention_ms
    machine.wall_ms += jump_ms
    machine.passes(LOOK_MS)
    held_ms = clock.now().retention_ms
    assert held_ms == min(before_ms, machine.wall_ms)
    assert clock.wall_ms() == machine.wall_ms, "stamps go by it at once"
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"set {way} by 315360000.000 s" in line
    machine.passes(SETTLE_MS - 1)
    assert clock.now().retention_ms == held_ms
    machine.passes(1)
    assert clock.now().retention_ms == machine.wall_ms


def test_a_clock_that_is_set_right_in_time_deletes_nothing() -> None:
    machine = Machine()
    clock = machine.clock()
    true_ms = before_ms = clock.now().retention_ms
    for jump_ms in (YEARS_MS, -YEARS_MS, -YEARS_MS, YEARS_MS):
        machine.wall_ms += jump_ms
        machine.passes(SETTLE_MS - 1)
        true_ms += SETTLE_MS - 1
        assert clock.now().retention_ms <= before_ms
    machine.passes(SETTLE_MS)
    assert clock.now().retention_ms == true_ms + SETTLE_MS


class Set:
    """The clocks of this machine, as far as `shift_ms` has set and `passed_ms` moved them."""

    def __init__(self, shift_ms: int = 0) -> None:
        self.shift_ms, self.passed_ms = shift_ms, 0

    def ports(self) -> Ports:
        """A broker's world with these clocks."""
        return replace(MACHINE, clock=lambda: Clock(self.time_ns, self.monotonic_ns))

    def time_ns(self) -> int:
        return time.time_ns() + (self.shift_ms + self.passed_ms) * MS

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self.passed_ms * MS


async def looks(node: Node, count: int) -> None:
    """Lets retention run some times."""
    runs: list[Any] = []
    log = node.broker.partition("t", 0).log
    look = type(log).delete_old_segments

    def counted(*arguments: Any) -> int:
        runs.append(arguments)
        return look(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(log), "delete_old_segments", counted)
        for _ in range(20_000):
            if len(runs) >= count:
                return
            await asyncio.sleep(0.001)
    raise AssertionError("retention does not run")


@pytest.mark.parametrize("shift_ms", [YEARS_MS, -YEARS_MS])
def test_records_stay_though_the_clock_was_set(
    tmp_path: Path, shift_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It was wrong by years when the broker started, and is set right while it runs."""

    async def story() -> None:
        machine = Set(shift_ms)
        settings = {"log.retention.check.interval.ms": "5", "log.initial.task.delay.ms": "0"}
        node = await start_node(tmp_path, "127.0.0.1:0", settings, ports=machine.ports())
        configs = (("retention.ms", str(RETENTION_MS)), ("segment.bytes", "200"))
        topic = CreatableTopic("t", 1, 1, (), tuple(CreatableTopicConfig(*c) for c in configs))
        created = asyncio.get_running_loop().create_future()
        node.broker.control(CreateTopicsRequest((topic,))).when_done(created.set_result)
        await created
        machine.shift_ms = 0
        partition = node.broker.partition("t", 0)
        for _ in range(300):
            stamp_ms = time.time_ns() // MS
            batch = bytearray(encode(Columns([None], [b"v"], [stamp_ms])))
            partition.append(batch, ACKS_ALL, node.broker.wall_ms())
        await looks(node, 3)
        machine.passed_ms += 4_000
        await looks(node, 3)
        assert partition.log.log_start_offset == 0
        machine.passed_ms += SETTLE_MS + RETENTION_MS
        await looks(node, 3)
        assert partition.log.log_start_offset == 300, "by then all are too old"
        await node.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert "the machine's clock was set" in caplog.text


@pytest.mark.parametrize("shift_ms", [YEARS_MS, -YEARS_MS])
def test_who_waits_is_answered_in_time_though_the_clock_is_set(
    tmp_path: Path, shift_ms: int
) -> None:
    async def story() -> None:
        machine = Set()
        node = await start_node(tmp_path, "127.0.0.1:0", ports=machine.ports())
        broker, done = node.broker, [asyncio.Event(), asyncio.Event()]
        for wait_ms, event in zip((100, 3_600_000), done, strict=True):
            operation: DelayedFetch[TopicPartition] = DelayedFetch(event.set, 1)
            deadline_ms = broker.monotonic_ms() + wait_ms
            assert broker.waiting.park(operation, (TopicPartition("t", 0),), deadline_ms)
        machine.shift_ms = shift_ms
        await asyncio.wait_for(done[0].wait(), 60)
        assert not done[1].is_set(), "its time is an hour, whatever the clock is set to"
        await node.close()

    asyncio.run(story())
