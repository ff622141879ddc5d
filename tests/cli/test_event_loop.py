"""A broker's event loop: uvloop's where it is installed; how late it is, is measured."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
import uvloop

from kafkalite.cli.event_loop import LOOK_SECONDS, measured_lag, new_event_loop
from kafkalite.core.broker.metrics import BrokerMetrics


def test_uvloop_is_taken_where_it_is_installed_and_nobody_is_told() -> None:
    lines: list[str] = []
    loop = new_event_loop(lines.append)
    loop.close()
    assert isinstance(loop, uvloop.Loop)
    assert lines == []


def test_without_uvloop_asyncio_serves_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    lines: list[str] = []
    loop = new_event_loop(lines.append)
    loop.close()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    assert lines == ["uvloop is not installed: asyncio's own event loop serves, slower"]


def test_a_callback_that_does_not_return_makes_the_loop_late() -> None:
    metrics, hold = BrokerMetrics(), time.sleep

    async def main() -> int:
        with measured_lag(metrics):
            lag = metrics.loop_lag
            assert lag is not None
            assert lag.count == 1
            await asyncio.sleep(LOOK_SECONDS / 2)
            hold(LOOK_SECONDS + 0.3)
            while lag.count == 1:
                await asyncio.sleep(0.01)
            assert lag.sum_s >= 0.3
        return lag.count

    with asyncio.Runner(loop_factory=lambda: new_event_loop(print)) as runner:
        looks = runner.run(main())
        runner.run(asyncio.sleep(3 * LOOK_SECONDS))
    assert metrics.loop_lag is not None
    assert metrics.loop_lag.count == looks, "nobody looks after the block"
