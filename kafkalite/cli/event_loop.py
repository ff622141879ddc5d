"""The event loop of a broker's process, and how late it runs what is due.                     [IO]

uvloop's loop takes half of asyncio's time for a request and its answer, which pass through nothing
else but sockets. There is none for Windows and PyPy, where asyncio's own serves.

    the loop   ...|.........|....xxxxxxxxxxxxxx|....     x: one callback that does not return
    due           |         |         |<─ lag ─>|        each LOOK_SECONDS; then nobody is answered

Owns   nothing.
Fails  never: without uvloop one line says so.
Source uvloop's timers count milliseconds, so a lag below 1 ms may be none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kafkalite.cli.watchdog import pulse

if TYPE_CHECKING:
    from kafkalite.core.broker.metrics import BrokerMetrics

LOOK_SECONDS: Final = 0.1


def new_event_loop(say: Callable[[str], object]) -> asyncio.AbstractEventLoop:
    """uvloop's loop, or asyncio's and a line for `say` where it is not installed."""
    try:
        import uvloop
    except ImportError:
        say("uvloop is not installed: asyncio's own event loop serves, slower")
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def measured_lag(metrics: BrokerMetrics) -> Iterator[None]:
    """Within it, `metrics.loop_lag` counts each LOOK_SECONDS how late the running loop is."""
    from kafkalite.core.broker.metrics import Histogram

    lag = metrics.loop_lag = Histogram()
    due_s = time.perf_counter()

    def look() -> bool:
        nonlocal due_s
        now_s = time.perf_counter()
        lag.observe(max(0.0, now_s - due_s))
        due_s = now_s + LOOK_SECONDS
        return True

    with pulse(LOOK_SECONDS, look):
        yield
