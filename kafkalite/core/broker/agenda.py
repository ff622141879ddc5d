"""The broker's one timer, and its long work, cut into slices between requests.              [IO]

    wake_at ────> one timer of the loop ────> all watchers, then the duties that are due
    run_slices ─> one slice in each turn of the loop: requests are answered in between

Owns   the timer: it rings at the earliest deadline that was asked for, or before.
Never  waits for a slice that waits for a future: the next one follows when that is done.
Fails  with a line in the broker's log; a watcher that failed is called again RETRY_MS later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from kafkalite.core.duties import Duties, Duty, Slices

log: Final = logging.getLogger(__name__)

NEVER_MS: Final = 1 << 62
RETRY_MS: Final = 1_000

Due = Callable[[int], int | None]  # does what is due by a time, monotonic; when something is next


class Run(NamedTuple):
    """Work that goes on in slices."""

    slices: Slices
    name: str
    then: Callable[[], None] | None


class Agenda:
    """The one timer of a broker, and its work in slices, until `close`."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._now_ms = monotonic_ms
        self._loop = asyncio.get_running_loop()
        self._watched: list[tuple[str, Due]] = []
        self._duties = Duties((), monotonic_ms())
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = NEVER_MS
        self._due: deque[Run] = deque()  # those with a slice to run, in their order
        self._is_closed = False

    def close(self) -> None:
        """Stops the timer; work in slices ends after the current slice."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    # -- time

    def watch(self, name: str, due: Due) -> None:
        """Calls `due` whenever the timer rings."""
        self._watched.append((name, due))

    def wake_at(self, deadline_ms: int | None) -> None:
        """Makes sure that the timer fires then, or before."""
        if deadline_ms is None or deadline_ms >= self._timer_at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        delay_ms = max(1, deadline_ms - self._now_ms())
        self._timer = self._loop.call_later(delay_ms / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at_ms = None, NEVER_MS
        now_ms = self._now_ms()
        for name, due in self._watched:
            try:
                self.wake_at(due(now_ms))
            except Exception:
                log.exception("the clock of %s", name)
                self.wake_at(now_ms + RETRY_MS)
        for duty, slices in self._duties.due(now_ms):
            self.run_slices(slices, duty.name, partial(self._duty_done, duty))
        self.wake_at(self._duties.next_ms())

    # -- work

    def add_duty(self, duty: Duty) -> None:
        """Takes on work that is to be done now and then."""
        self._duties.add(duty, self._now_ms())
        self.wake_at(self._duties.next_ms())

    def _duty_done(self, duty: Duty) -> None:
        self._duties.done(duty, self._now_ms())
        self.wake_at(self._duties.next_ms())

    def run_slices(self, slices: Slices, name: str, then: Callable[[], None] | None = None) -> None:
        """Runs the first of `slices` now, the others in later turns of the loop, then calls `then`.

        After a slice that yields a future, the next one runs when the future is done. A turn runs
        one slice of all such works: the one that has waited longest.
        """
        self._run_slice(Run(slices, name, then))

    def _run_slice(self, run: Run) -> None:
        if self._is_closed:
            return
        try:
            waits_for = next(run.slices)
        except StopIteration:
            pass
        except Exception:
            log.exception("%s failed", run.name)
        else:
            if waits_for is None:
                self._go_on(run)
            else:
                waits_for.add_done_callback(lambda _: self._go_on(run))
            return
        if run.then is not None:
            run.then()

    def _go_on(self, run: Run) -> None:
        """The next slice of `run` gets its turn."""
        self._due.append(run)
        if len(self._due) == 1:
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        run = self._due.popleft()
        if self._due:
            self._loop.call_soon(self._take_turn)
        self._run_slice(run)
